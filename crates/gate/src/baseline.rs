//! The baseline: a small file in git with the numbers of a run that was fine. `docs/check.md` describes it.

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

/// The format that this program writes and reads.
const VERSION: u32 = 1;
/// Larger files are no baselines.
const LARGEST: u64 = 16 << 20;
/// Lines of code that are kept of each device; a program's memory is nearly all in a few.
const SITES: usize = 32;

/// A baseline as it was read.
#[derive(Deserialize)]
pub struct Baseline {
    #[serde(flatten)]
    pub context: RunContext,
    pub devices: Vec<Entry<BaselineSite>>,
}

/// What the numbers were measured on. They may differ where this does.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct RunContext {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    command: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    torch: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    gpu: String,
}

/// The numbers of one device of one rank, in bytes.
#[derive(Serialize, Deserialize)]
pub struct Entry<S> {
    pub rank: usize,
    pub device: u32,
    pub steps: usize,
    pub peak_allocated: u64,
    pub peak_requested: u64,
    /// Replayed from an empty pool; absent where it could not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_reserved: Option<u64>,
    /// Absent where there were too few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_per_step: Option<u64>,
    /// Requested at the peak.
    pub categories: BTreeMap<String, u64>,
    /// The same by line, largest first.
    pub sites: Vec<S>,
    #[serde(default)]
    pub other_sites: u64,
}

/// What a line had asked for at the peak.
#[derive(Serialize, Deserialize)]
pub struct BaselineSite {
    bytes: u64,
    /// Absent where no stack tells.
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
    /// Takes what one input of a run tells.
    pub fn learn(&mut self, input: &Input, command: &[OsString]) {
        let run = input.run.as_ref();
        if self.torch.is_empty() {
            self.torch = run.and_then(|run| run.torch.clone()).unwrap_or_default();
        }
        if self.gpu.is_empty() {
            self.gpu = input.recording.gpus.first().map(|gpu| gpu.name.clone()).unwrap_or_default();
        }
        if self.command.is_empty() {
            // Where the interpreter lies differs from machine to machine.
            let words = command.iter().map(|word| word.to_string_lossy()).enumerate();
            let words = words.map(|(place, word)| match word.rsplit_once('/') {
                Some((_, name)) if place == 0 => name.to_owned(),
                _ => word.into_owned(),
            });
            self.command = words.collect::<Vec<_>>().join(" ");
        }
    }

    /// What is not as it was when the baseline was written, in words.
    pub fn differences(&self, now: &RunContext) -> Option<String> {
        let pairs = [
            ("torch", &self.torch, &now.torch),
            ("GPU", &self.gpu, &now.gpu),
            ("command", &self.command, &now.command),
        ];
        let differing = pairs.into_iter().filter(|(_, a, b)| a != b && !a.is_empty() && !b.is_empty());
        let words: Vec<String> = differing
            .map(|(what, a, b)| format!("{what} `{}`, now `{}`", printable(a), printable(b)))
            .collect();
        (!words.is_empty()).then(|| format!("the baseline was written with {}", words.join("; ")))
    }
}

impl Entry<BaselineSite> {
    /// The lines as the analysis compares them.
    pub fn site_usages(&self) -> Vec<SiteUsage> {
        let usage = |site: &BaselineSite| SiteUsage {
            place: site.file.as_ref().map(|file| SiteName {
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
    /// One line of text for each line of code, so that a diff of two baselines can be read.
    fn of(device: &Measured) -> serde_json::Result<Entry<Box<RawValue>>> {
        let (kept, others) = device.sites.split_at(SITES.min(device.sites.len()));
        let site = |usage: &SiteUsage| {
            to_raw_value(&BaselineSite {
                bytes: usage.bytes.0,
                file: usage.place.as_ref().map(|place| place.file.clone()),
                line: usage.place.as_ref().map_or(0, |place| place.line),
                function: usage.place.as_ref().map(|place| place.function.clone()).unwrap_or_default(),
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

/// Reads a baseline to compare with. With `--update` there is none, but a file that is something else stays.
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
            let rewrite = "the same command with `--update` writes it anew";
            let hint = match &unreadable.hint {
                Some(hint) => hint,
                None if is_update => "it would be overwritten: name another file, or remove it",
                None => rewrite,
            };
            let what = format!("`{name}` is no baseline that can be compared with");
            Err(Failure::new(what, Some(unreadable.why), Some(hint)).into())
        }
    }
}

fn text(file: &Path) -> io::Result<String> {
    let opened = std::fs::File::open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    opened.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!("it is larger than {}", Bytes(LARGEST))));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text"))
}

/// MeasurementGap a file is no baseline.
#[derive(Debug)]
struct Unreadable {
    why: String,
    hint: Option<&'static str>,
    /// Whether it was written by this program and may be overwritten by it.
    is_ours: bool,
}

fn parse(text: &str) -> Result<Baseline, Unreadable> {
    if text.contains("<<<<<<< ") {
        let hint = Some("the same command with `--update` settles it");
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
        Some(twice) => Err(damaged(format!("rank {} device {} is in it twice", twice[0].0, twice[0].1))),
        None => Ok(baseline),
    }
}

/// Writes a baseline, if it would be another one. Says what became of it.
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
        return Ok(format!("{name} is as it was: {count}"));
    }
    replace(file, &text).map_err(|error| {
        let hint = "check the folder and its permissions";
        Failure::new(format!("the baseline `{name}` cannot be written"), Some(error.to_string()), Some(hint))
    })?;
    Ok(format!("{name} was written: {count}; commit it"))
}

/// All of it or nothing: a file that is there is whole.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // What a link points to is replaced, not the link.
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
    fn what_is_no_baseline_says_why_and_whose_it_is() {
        assert!(refused("").0.contains("EOF"));
        assert_eq!(refused("{}"), ("it has no key `oomph_baseline`".to_owned(), false));
        assert!(!refused("[1]").1);
        assert_eq!(refused(r#"{"oomph_baseline": 7}"#).0, "it has version 7; this oomph knows 1");
        assert!(!refused(r#"{"oomph_baseline": 0, "devices": []}"#).1);
        assert!(refused(r#"{"oomph_baseline": 1}"#).0.contains("devices"));
        assert_eq!(refused("<<<<<<< HEAD\n{}").0, "it has an unresolved merge conflict");
        let entry = r#"{"rank":0,"device":0,"steps":1,"peak_allocated":1,"peak_requested":1,"categories":{},"sites":[]}"#;
        let twice = format!(r#"{{"oomph_baseline": 1, "devices": [{entry}, {entry}]}}"#);
        assert_eq!(refused(&twice), ("rank 0 device 0 is in it twice".to_owned(), true));
        let negative = entry.replace("\"peak_allocated\":1", "\"peak_allocated\":-1");
        assert!(refused(&format!(r#"{{"oomph_baseline": 1, "devices": [{negative}]}}"#)).0.contains("-1"));
        let deep = format!(r#"{{"oomph_baseline": 1, "x": {}"#, "[".repeat(100_000));
        assert!(refused(&deep).0.contains("recursion"));
    }

    #[test]
    fn a_difference_of_the_context_is_told_once_it_is_known_on_both_sides() {
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
