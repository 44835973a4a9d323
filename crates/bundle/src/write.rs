//! Writes a bundle, as complete as its size allows.

use crate::Names;
use crate::sidecars::without_names;
use analysis::words::shown_path;
use failure::Failure;
use inputs::{BUNDLE_MANIFEST, Input};
use recording::{COMPRESSED_SUFFIXES, Sidecars, snapshot_stem};
use serde_json::json;
use snapshot::Bytes;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Name of the report in a bundle.
const REPORT: &str = "report.json";

/// Share of the limit that a shortened trace aims at, since compression varies.
const AIM: f64 = 0.8;

/// What a bundle may contain.
#[derive(Clone, Copy, Debug)]
pub struct BundleOptions {
    /// Whether names of files, functions, modules and tensors are replaced by numbers.
    pub anonymize: bool,
    /// Largest size of the file, in bytes.
    pub max_bytes: u64,
    /// Version of oomph that writes it.
    pub version: &'static str,
}

/// A bundle on disk.
#[derive(Debug)]
pub struct Written {
    /// Size of the file.
    pub bytes: Bytes,
    /// Names of the files in it.
    pub files: Vec<String>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// A snapshot, and the name of its file in the bundle.
struct Member {
    path: PathBuf,
    name: String,
    input: Input,
}

/// How much goes in.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Extent {
    heaps: bool,
    /// Events of each device; `None` for all.
    events: Option<usize>,
}

/// Writes the snapshots at these paths with their sidecar files. `report` is called with the paths of the
/// snapshots in the bundle and returns the report to add to it.
pub fn write(
    snapshots: Vec<(PathBuf, Input)>,
    options: BundleOptions,
    output: &Path,
    report: impl Fn(&[PathBuf]) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<Written> {
    let mut names = Names::default();
    let mut members = named(snapshots, options.anonymize);
    if options.anonymize {
        members.iter_mut().for_each(|member| member.input.snapshot.rename(&mut names));
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unwritable = |error: io::Error| {
        let what = format!("`{}` cannot be written", shown_path(output));
        let hint = "choose another path with -o FILE";
        Failure::new(what, Some(error.to_string()), Some(hint)).refused(error.kind())
    };
    let mut extent = Extent { heaps: !options.anonymize, events: None };
    loop {
        let file = tempfile::Builder::new().suffix(".zip").tempfile_in(folder).map_err(unwritable)?;
        let size = || Ok::<u64, Failure>(file.as_file().metadata().map_err(unwritable)?.len());
        let mut written = pack(file.as_file(), &mut members, options, extent, &mut names)?;
        // What is too large already needs no report.
        if size()? <= options.max_bytes {
            let inside: Vec<PathBuf> = members.iter().map(|member| file.path().join(&member.name)).collect();
            add_report(file.as_file(), &report(&inside)?).map_err(unwritable)?;
            written.files.push(REPORT.to_owned());
        }
        written.bytes = Bytes(size()?);
        if written.bytes.0 <= options.max_bytes {
            file.persist(output).map_err(|error| unwritable(error.error))?;
            return Ok(written);
        }
        extent = smaller(extent, &members, written.bytes.0, options)?;
    }
}

/// Gives each snapshot a name in the bundle that no other has.
fn named(snapshots: Vec<(PathBuf, Input)>, anonymize: bool) -> Vec<Member> {
    let mut taken = BTreeSet::new();
    let mut members = Vec::new();
    for (index, (path, input)) in snapshots.into_iter().enumerate() {
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_rank = recording::rank_of_file(&file).is_some();
        let is_kept = is_rank || !anonymize && snapshot_stem(&file).is_some();
        let mut name = if is_kept { file } else { format!("snapshot{index}.pickle") };
        if !taken.insert(name.clone()) {
            name = format!("{index}-{name}");
            taken.insert(name.clone());
        }
        members.push(Member { path, name, input });
    }
    members
}

/// Writes everything but the report.
fn pack(
    file: &File,
    members: &mut [Member],
    options: BundleOptions,
    extent: Extent,
    names: &mut Names,
) -> anyhow::Result<Written> {
    let mut packed = Packed { zip: ZipWriter::new(file), files: Vec::new(), left_out: Vec::new() };
    for member in members {
        let is_rewritten =
            options.anonymize || extent.events.is_some() || snapshot_stem(&member.name).is_none();
        let stem = snapshot_stem(&member.name).unwrap_or(&member.name).to_owned();
        match std::fs::read(&member.path) {
            Ok(bytes) if !is_rewritten => packed.add(&member.name, &bytes)?,
            _ => {
                if let Some(events) = extent.events {
                    member.input.snapshot.keep_last_events(events);
                    packed.left_out.push(format!("events before the last {events} of {}", member.name));
                }
                member.name = format!("{stem}.pickle");
                packed.start(&member.name)?;
                snapshot::write(&member.input.snapshot, &mut packed.zip)?;
            }
        }
        for path in Sidecars::files(&member.path) {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let suffix = name.strip_prefix(original_stem(&member.path)).unwrap_or_default();
            let target = if name == recording::META_FILE { name.clone() } else { format!("{stem}{suffix}") };
            if packed.files.contains(&target) {
                continue;
            }
            if name.ends_with(".heap") && !extent.heaps {
                packed.left_out.push(format!(
                    "{target}: {}",
                    if options.anonymize { "it consists of names" } else { "too large" }
                ));
                continue;
            }
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let bytes = if options.anonymize { without_names(&name, &bytes, names) } else { Some(bytes) };
            match bytes {
                Some(bytes) => packed.add(&target, &bytes)?,
                None => packed.left_out.push(format!("{target}: its names cannot be replaced")),
            }
        }
    }
    let Packed { mut zip, mut files, left_out } = packed;
    let manifest = json!({
        "version": 1,
        "oomph": options.version,
        "platform": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "anonymized": options.anonymize,
        "left_out": left_out,
    });
    zip.start_file(BUNDLE_MANIFEST, packing(""))?;
    zip.write_all(format!("{manifest:#}\n").as_bytes())?;
    zip.finish()?;
    files.push(BUNDLE_MANIFEST.to_owned());
    Ok(Written { bytes: Bytes(0), files, left_out })
}

fn original_stem(path: &Path) -> &str {
    path.file_name().and_then(|name| snapshot_stem(name.to_str()?)).unwrap_or_default()
}

/// The zip while it is written.
struct Packed<'a> {
    zip: ZipWriter<&'a File>,
    files: Vec<String>,
    left_out: Vec<String>,
}

impl Packed<'_> {
    fn start(&mut self, name: &str) -> anyhow::Result<()> {
        self.zip.start_file(name, packing(name))?;
        self.files.push(name.to_owned());
        Ok(())
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        self.start(name)?;
        Ok(self.zip.write_all(bytes)?)
    }
}

/// Files that are compressed already are stored.
fn packing(name: &str) -> SimpleFileOptions {
    let is_packed = Path::new(name)
        .extension()
        .is_some_and(|ending| COMPRESSED_SUFFIXES.iter().any(|suffix| ending.eq_ignore_ascii_case(suffix)));
    let method = if is_packed { CompressionMethod::Stored } else { CompressionMethod::Deflated };
    SimpleFileOptions::default().compression_method(method).large_file(true)
}

fn add_report(file: &File, report: &[u8]) -> io::Result<()> {
    let mut zip = ZipWriter::new_append(file).map_err(io::Error::other)?;
    zip.start_file(REPORT, packing(REPORT)).map_err(io::Error::other)?;
    zip.write_all(report)?;
    zip.finish().map_err(io::Error::other)?;
    Ok(())
}

/// Returns the next smaller extent after one that gave `bytes`.
fn smaller(extent: Extent, members: &[Member], bytes: u64, options: BundleOptions) -> anyhow::Result<Extent> {
    let has_heap = members
        .iter()
        .flat_map(|member| Sidecars::files(&member.path))
        .any(|path| path.extension().is_some_and(|ending| ending == "heap"));
    if extent.heaps && has_heap {
        return Ok(Extent { heaps: false, ..extent });
    }
    let longest =
        members.iter().flat_map(|member| &member.input.snapshot.traces).map(|trace| trace.rows.len());
    let share = options.max_bytes as f64 / bytes as f64 * AIM;
    let events = (longest.max().unwrap_or_default() as f64 * share) as usize;
    if events == 0 || extent.events == Some(events) {
        let what = format!("a bundle of at most {} cannot hold this recording", Bytes(options.max_bytes));
        let hint = "raise --max-size, or bundle one rank";
        return Err(Failure::new(what, None, Some(hint)).into());
    }
    Ok(Extent { heaps: false, events: Some(events) })
}
