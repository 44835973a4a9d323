//! The baseline: a small file, committed to git, with the numbers of an earlier run.
//! `docs/reference/check.md` describes it.

use crate::Budget;
use crate::measure::Measured;
use analysis::words::shown_path;
use analysis::words::{counted, printable, shortened};
use analysis::{Category, SiteName, SiteUsage};
use failure::Failure;
use inputs::Input;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use snapshot::Bytes;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::Path;

/// Version of the file format.
const VERSION: u32 = 1;
/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Lines of code kept for each device; a few hold nearly all memory of a program.
const MAX_SITES: usize = 32;

/// A baseline that was read from a file.
#[derive(Deserialize)]
pub struct Baseline {
    /// Program and machine on which the numbers were measured.
    #[serde(flatten)]
    pub context: RunContext,
    /// Numbers of each device of each rank.
    pub devices: Vec<Entry<BaselineSite>>,
}

/// Program and machine on which numbers were measured. Numbers may differ where these differ.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct RunContext {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    command: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    torch: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    gpu: String,
}

/// Numbers of one device of one rank, in bytes.
#[derive(Serialize, Deserialize)]
pub struct Entry<S> {
    pub rank: usize,
    pub device: u32,
    pub steps: usize,
    pub peak_allocated: u64,
    pub peak_requested: u64,
    /// Replayed from an empty pool; absent if that was impossible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_reserved: Option<u64>,
    /// Absent if there were too few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_per_step: Option<u64>,
    /// Requested bytes at the peak, by category.
    pub categories: BTreeMap<String, u64>,
    /// Requested bytes at the peak, by line; largest first.
    pub sites: Vec<S>,
    #[serde(default)]
    pub other_sites: u64,
}

/// Requested bytes of a line at the peak.
#[derive(Serialize, Deserialize)]
pub struct BaselineSite {
    bytes: u64,
    /// Absent if no stack was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    line: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    function: String,
    #[serde(default, skip_serializing_if = "is_false")]
    in_backward: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(line: &u32) -> bool {
    *line == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_false(flag: &bool) -> bool {
    !flag
}

impl RunContext {
    /// Fills in what one recording of the run says.
    pub fn fill_from(&mut self, input: &Input, command: &[OsString]) {
        let run = input.run.as_ref();
        if self.torch.is_empty() {
            self.torch = run.and_then(|run| run.torch.clone()).unwrap_or_default();
        }
        if self.gpu.is_empty() {
            self.gpu = input.recording.gpus.first().map(|gpu| gpu.name.clone()).unwrap_or_default();
        }
        if self.command.is_empty() {
            // The path of the interpreter differs between machines.
            let words = command.iter().map(|word| word.to_string_lossy()).enumerate();
            let words = words.map(|(index, word)| match word.rsplit_once('/') {
                Some((_, name)) if index == 0 => name.to_owned(),
                _ => word.into_owned(),
            });
            self.command = words.collect::<Vec<_>>().join(" ");
        }
    }

    /// Describes how the program or machine differs from those of the baseline.
    pub fn differences(&self, now: &RunContext) -> Option<String> {
        let pairs = [
            ("torch", &self.torch, &now.torch),
            ("GPU", &self.gpu, &now.gpu),
            ("command", &self.command, &now.command),
        ];
        let differing = pairs.into_iter().filter(|(_, a, b)| a != b && !a.is_empty() && !b.is_empty());
        let differences: Vec<String> = differing
            .map(|(what, a, b)| format!("{what} `{}`, now `{}`", printable(a), printable(b)))
            .collect();
        (!differences.is_empty()).then(|| format!("the baseline was written with {}", differences.join("; ")))
    }
}

impl Entry<BaselineSite> {
    /// Returns the lines in the form that the analysis compares.
    pub fn site_usages(&self) -> Vec<SiteUsage> {
        let usage = |site: &BaselineSite| SiteUsage {
            site: site.file.as_ref().map(|file| SiteName {
                file: file.clone(),
                line: site.line,
                function: site.function.clone(),
            }),
            in_backward: site.in_backward,
            bytes: Bytes(site.bytes),
            requested: Bytes(site.bytes),
            count: 0,
        };
        self.sites.iter().map(usage).collect()
    }
}

impl Entry<Box<RawValue>> {
    /// Returns the entry to write, with one line of text for each line of code, so that diffs are readable.
    fn of(device: &Measured) -> serde_json::Result<Entry<Box<RawValue>>> {
        let (kept, others) = device.sites.split_at(MAX_SITES.min(device.sites.len()));
        let site = |usage: &SiteUsage| {
            to_raw_value(&BaselineSite {
                bytes: usage.bytes.0,
                file: usage.site.as_ref().map(|site| site.file.clone()),
                line: usage.site.as_ref().map_or(0, |site| site.line),
                function: usage.site.as_ref().map(|site| site.function.clone()).unwrap_or_default(),
                in_backward: usage.in_backward,
            })
        };
        let categories = Category::ALL.iter().map(|&of| (of.name().to_owned(), device.categories.get(of).0));
        Ok(Entry {
            rank: device.rank,
            device: device.device,
            steps: device.steps,
            peak_allocated: device.peak_allocated.0,
            peak_requested: device.peak_requested.0,
            peak_reserved: device.replayed.as_ref().ok().map(|replayed| replayed.reserved.0),
            growth_per_step: device.growth.as_ref().ok().map(|growth| growth.0),
            categories: categories.filter(|(_, bytes)| *bytes > 0).collect(),
            sites: kept.iter().map(site).collect::<Result<_, _>>()?,
            other_sites: others.iter().map(|usage| usage.bytes).sum::<Bytes>().0,
        })
    }
}

/// Reads the baseline to compare with. With `--update` returns none, but fails if the file is not a
/// baseline and would be overwritten.
pub(crate) fn read(file: &Path, budget: &Budget) -> anyhow::Result<Option<Baseline>> {
    let name = shown_path(file);
    let text = match text(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && budget.update => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let hint = "the same command with `--update` writes it; then commit it";
            return Err(Failure::new(format!("there is no baseline `{name}`"), None, Some(hint)).into());
        }
        Err(error) => {
            let what = format!("the baseline `{name}` cannot be read");
            let hint = "check the path and its permissions";
            return Err(Failure::new(what, Some(error.to_string()), Some(hint)).into());
        }
    };
    let parsed = parse(&text);
    match (parsed, budget.update) {
        (Ok(_) | Err(Unreadable { is_ours: true, .. }), true) => Ok(None),
        (Ok(baseline), false) => Ok(Some(baseline)),
        (Err(unreadable), is_update) => {
            let rewrite = "the same command with `--update` rewrites it";
            let hint = match &unreadable.hint {
                Some(hint) => hint,
                None if is_update => "it would be overwritten: name another file, or remove it",
                None => rewrite,
            };
            let what = format!("`{name}` is not a valid baseline");
            Err(Failure::new(what, Some(unreadable.why), Some(hint)).into())
        }
    }
}

fn text(file: &Path) -> io::Result<String> {
    let opened = std::fs::File::open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it is larger than {}", Bytes(MAX_FILE_BYTES))));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not a text file"))
}

/// Why a file cannot be used as a baseline.
#[derive(Debug)]
struct Unreadable {
    why: String,
    hint: Option<&'static str>,
    /// Whether it was written by oomph and may be overwritten.
    is_ours: bool,
}

fn parse(text: &str) -> Result<Baseline, Unreadable> {
    if text.contains("<<<<<<< ") {
        let hint = Some("the same command with `--update` rewrites it");
        return Err(Unreadable {
            why: "it has an unresolved merge conflict".to_owned(),
            hint,
            is_ours: true,
        });
    }
    let foreign = |why: String| Unreadable { why, hint: None, is_ours: false };
    let keys: Map<String, Value> = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
    match keys.get("oomph_baseline") {
        None => return Err(foreign("it has no key `oomph_baseline`".to_owned())),
        Some(version) if *version == VERSION => {}
        Some(version) => {
            let version = shortened(&version.to_string(), 20);
            let hint =
                "it was written by a newer oomph: use that, or remove the file and write it with `--update`";
            let why = format!("it has version {version}; this oomph knows {VERSION}");
            return Err(Unreadable { why, hint: Some(hint), is_ours: false });
        }
    }
    let damaged = |why: String| Unreadable { why, hint: None, is_ours: true };
    let baseline: Baseline = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    let mut devices: Vec<_> = baseline.devices.iter().map(|entry| (entry.rank, entry.device)).collect();
    devices.sort_unstable();
    match devices.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(damaged(format!("rank {} device {} appears twice", twice[0].0, twice[0].1))),
        None => Ok(baseline),
    }
}

/// Writes a baseline if it differs from the file. Returns a message that says so.
pub(crate) fn write(file: &Path, context: RunContext, devices: &[&Measured]) -> anyhow::Result<String> {
    if let Some(why) = devices.iter().find_map(|device| device.peak_doubt.as_ref()) {
        let what = "a baseline needs the peak, which could not be measured";
        return Err(Failure::new(what, Some(why.what.clone()), Some(&why.hint)).into());
    }
    #[derive(Serialize)]
    struct BaselineFile {
        oomph_baseline: u32,
        #[serde(flatten)]
        context: RunContext,
        devices: Vec<Entry<Box<RawValue>>>,
    }
    let devices = devices.iter().map(|device| Entry::of(device)).collect::<Result<Vec<_>, _>>()?;
    let count = counted(devices.len() as u64, "device");
    let mut text = serde_json::to_string_pretty(&BaselineFile { oomph_baseline: VERSION, context, devices })?;
    text.push('\n');
    let name = shown_path(file);
    if std::fs::read_to_string(file).is_ok_and(|before| before == text) {
        return Ok(format!("{name} is unchanged: {count}"));
    }
    replace(file, &text).map_err(|error| {
        let hint = "check the folder and its permissions";
        Failure::new(format!("the baseline `{name}` cannot be written"), Some(error.to_string()), Some(hint))
    })?;
    Ok(format!("{name} was written: {count}; commit it"))
}

/// Replaces a file atomically.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // The target of a link is replaced, not the link.
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut fresh = builder.prefix(".oomph-baseline-").tempfile_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    fresh.as_file().sync_all()?;
    fresh.persist(&target).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (String, bool) {
        match parse(text) {
            Ok(_) => panic!("it was read: {text}"),
            Err(unreadable) => (unreadable.why, unreadable.is_ours),
        }
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        assert!(refused("").0.contains("EOF"));
        assert_eq!(refused("{}"), ("it has no key `oomph_baseline`".to_owned(), false));
        assert!(!refused("[1]").1);
        assert_eq!(refused(r#"{"oomph_baseline": 7}"#).0, "it has version 7; this oomph knows 1");
        assert!(!refused(r#"{"oomph_baseline": 0, "devices": []}"#).1);
        assert!(refused(r#"{"oomph_baseline": 1}"#).0.contains("devices"));
        assert_eq!(refused("<<<<<<< HEAD\n{}").0, "it has an unresolved merge conflict");
        let entry = concat!(
            r#"{"rank":0,"device":0,"steps":1,"peak_allocated":1,"peak_requested":1,"#,
            r#""categories":{},"sites":[]}"#
        );
        let twice = format!(r#"{{"oomph_baseline": 1, "devices": [{entry}, {entry}]}}"#);
        assert_eq!(refused(&twice), ("rank 0 device 0 appears twice".to_owned(), true));
        let negative = entry.replace("\"peak_allocated\":1", "\"peak_allocated\":-1");
        assert!(refused(&format!(r#"{{"oomph_baseline": 1, "devices": [{negative}]}}"#)).0.contains("-1"));
        let deep = format!(r#"{{"oomph_baseline": 1, "x": {}"#, "[".repeat(100_000));
        assert!(refused(&deep).0.contains("recursion"));
    }

    #[test]
    fn only_values_known_on_both_sides_differ() {
        let context = |torch: &str, gpu: &str| RunContext {
            torch: torch.into(),
            gpu: gpu.into(),
            ..RunContext::default()
        };
        assert_eq!(context("2.11", "").differences(&context("2.11", "H200")), None);
        assert_eq!(
            context("2.10", "L4").differences(&context("2.11", "L4")).as_deref(),
            Some("the baseline was written with torch `2.10`, now `2.11`")
        );
    }
}
