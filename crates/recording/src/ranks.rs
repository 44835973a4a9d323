//! The files of one rank: their names, and reading all of them.

use crate::{
    FileError, HeapDump, HostMemory, LedgerFile, NonPytorchMemory, PhaseMark, Recording, RunInfo, StepLine,
    StepMark, labels, run,
};
use snapshot::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest file that is read, in bytes: a year of steps takes less.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Suffixes of the files of a rank.
const RANK_FILE_SUFFIXES: [&str; 12] = [
    "json",
    "pickle",
    "steps.jsonl",
    "phases.jsonl",
    "host.jsonl",
    "labels",
    "ledger",
    "heap",
    "oom.heap",
    "growing.heap",
    "ask",
    SUMMARY_SUFFIX,
];
/// Of those, what is no sidecar of the snapshot.
const NOT_SIDECARS: [&str; 3] = ["pickle", "ask", SUMMARY_SUFFIX];
/// Suffix of the summary of a rank, which `oomph fleet` reads in place of the snapshot.
pub const SUMMARY_SUFFIX: &str = "summary.arrow";
/// Suffixes of compressed snapshots.
pub const COMPRESSED_SUFFIXES: [&str; 3] = ["gz", "xz", "zst"];

/// Name of the file that all ranks of a recording share.
pub const META_FILE: &str = "meta.json";

/// Returns the rank of a file of a recording, by its exact name: `rank3.labels`, or `rank3.labels.77.part`
/// while it is written.
pub fn rank_of_file(name: &str) -> Option<u32> {
    let (number, suffix) = name.strip_prefix("rank")?.split_once('.')?;
    let suffix = unfinished_name(suffix).unwrap_or(suffix);
    let rank: u32 = number.parse().ok()?;
    // The recorder never writes `rank+1` or `rank01`.
    (rank.to_string() == number && RANK_FILE_SUFFIXES.contains(&suffix)).then_some(rank)
}

/// Returns the final name of a file that is being written under `NAME.PID.part` or `NAME.part`.
pub fn unfinished_name(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".part")?;
    match name.rsplit_once('.') {
        Some((before, number)) if number.bytes().all(|letter| letter.is_ascii_digit()) => Some(before),
        _ => Some(name),
    }
}

/// The sidecar files of one snapshot.
#[derive(Default, Debug)]
pub struct Sidecars {
    /// Contents of the files that describe the history.
    pub recording: Recording,
    /// How the run went, if `rankN.json` exists.
    pub run: Option<RunInfo>,
    /// Files that exist and cannot be used.
    pub unreadable: Vec<UnreadableFile>,
}

/// A sidecar file that exists and cannot be used.
#[derive(Debug)]
pub struct UnreadableFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The error.
    pub error: FileError,
    /// Which part of the recording is missing without it.
    pub part: SidecarPart,
}

/// A part of a recording that has a file of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidecarPart {
    /// `rankN.steps.jsonl`
    Steps,
    /// `rankN.phases.jsonl`
    Phases,
    /// `rankN.labels`
    Labels,
    /// `rankN.ledger`
    Ledger,
    /// `rankN.json`
    Run,
    /// `meta.json`
    Meta,
    /// `rankN.heap`, `rankN.oom.heap` or `rankN.growing.heap`
    Heap,
    /// `rankN.host.jsonl`
    Host,
}

impl SidecarPart {
    /// Returns what is lost without the file, as a clause.
    pub fn consequence(self) -> Option<&'static str> {
        match self {
            SidecarPart::Steps => Some("steps are inferred"),
            SidecarPart::Phases => Some("phases are unknown"),
            SidecarPart::Labels => Some("what each block is for is inferred"),
            SidecarPart::Heap => Some("the holders of memory are unknown"),
            SidecarPart::Ledger => Some("non-PyTorch memory is not split by owner"),
            SidecarPart::Host => Some("host memory is unknown"),
            SidecarPart::Run | SidecarPart::Meta => None,
        }
    }
}

impl Sidecars {
    /// Reads all files next to a snapshot. A snapshot whose name is not `NAME.pickle`, possibly compressed,
    /// has none.
    pub fn read(snapshot: &Path) -> Sidecars {
        Sidecars::read_with(snapshot, read_file)
    }

    /// Reads all files of a snapshot that is not on disk as itself: `read` returns the bytes of a path, or
    /// `None` where there is no such file.
    pub fn read_with(
        snapshot: &Path,
        mut read: impl FnMut(&Path) -> Option<Result<Vec<u8>, FileError>>,
    ) -> Sidecars {
        let mut sidecars = Sidecars::default();
        if let Some(stem) = Stem::of(snapshot) {
            sidecars.read_steps(&stem, &mut read);
            sidecars.read_labels(&stem, &mut read);
            sidecars.read_ledger(&stem, &mut read);
            sidecars.read_run(&stem, &mut read);
            sidecars.read_heaps(&stem, &mut read);
            let phases = stem.with_suffix("phases.jsonl");
            let parsed = sidecars.parse(phases, SidecarPart::Phases, &mut read, PhaseMark::parse_all);
            sidecars.recording.phases = parsed.unwrap_or_default();
            let host = stem.with_suffix("host.jsonl");
            sidecars.recording.host = sidecars.parse(host, SidecarPart::Host, &mut read, HostMemory::parse);
        }
        sidecars
    }

    /// Returns the sidecar files of a snapshot that exist.
    pub fn files(snapshot: &Path) -> Vec<PathBuf> {
        let Some(stem) = Stem::of(snapshot) else { return Vec::new() };
        let own = RANK_FILE_SUFFIXES.into_iter().filter(|suffix| !NOT_SIDECARS.contains(suffix));
        let all = own.map(|suffix| stem.with_suffix(suffix)).chain([stem.folder().join(META_FILE)]);
        all.filter(|path| path.is_file()).collect()
    }

    fn read_steps(&mut self, stem: &Stem, read: Read<'_>) {
        let path = stem.with_suffix("steps.jsonl");
        if let Some(lines) = self.parse(path, SidecarPart::Steps, read, StepLine::parse_all) {
            self.recording.non_pytorch = NonPytorchMemory::highest(&lines);
            self.recording.counted_peaks = StepLine::counted_peaks(&lines);
            self.recording.marks = lines.into_iter().map(StepMark::from).collect();
        }
    }

    fn read_labels(&mut self, stem: &Stem, read: Read<'_>) {
        let parsed = self.parse(stem.with_suffix("labels"), SidecarPart::Labels, read, labels::parse);
        if let Some((labels, modules)) = parsed {
            self.recording.labels = labels;
            self.recording.modules = modules;
        }
    }

    fn read_ledger(&mut self, stem: &Stem, read: Read<'_>) {
        let parsed = self.parse(stem.with_suffix("ledger"), SidecarPart::Ledger, read, LedgerFile::parse);
        self.recording.ledger = parsed.map(Arc::new);
    }

    fn read_run(&mut self, stem: &Stem, read: Read<'_>) {
        let parsed = self.parse(stem.with_suffix("json"), SidecarPart::Run, read, run::parse_rank);
        if let Some((run, end)) = parsed {
            self.recording.allocations = end.allocations;
            self.recording.ends_with_stacks = end.has_stacks;
            self.recording.settings = end.settings;
            self.recording.shortage = end.shortage;
            self.run = Some(run);
        }
        let meta = stem.folder().join(META_FILE);
        if let Some(meta) = self.parse(meta, SidecarPart::Meta, read, run::parse_meta) {
            let run = self.run.get_or_insert_default();
            run.command = meta.command;
            run.python = meta.python;
            run.torch = run.torch.take().or(meta.torch);
            self.recording.gpus = meta.gpus;
        }
        if let Some(shortage) = &mut self.recording.shortage {
            let gpu = self.recording.gpus.iter().find(|gpu| gpu.device == shortage.device);
            shortage.settle_limit(gpu.and_then(|gpu| gpu.total));
        }
    }

    /// At the end of a program the variables of its functions are gone: the dumps written when an allocation
    /// failed, and while memory grew may say more.
    fn read_heaps(&mut self, stem: &Stem, read: Read<'_>) {
        for suffix in ["heap", "oom.heap", "growing.heap"] {
            let dump = self.parse(stem.with_suffix(suffix), SidecarPart::Heap, read, HeapDump::parse);
            self.recording.heaps.extend(dump.map(Arc::new));
        }
    }

    /// Reads and parses one file. One that is missing, or another tool's, gives nothing; any other error is
    /// kept.
    fn parse<T>(
        &mut self,
        path: PathBuf,
        part: SidecarPart,
        read: Read<'_>,
        parser: impl FnOnce(&[u8]) -> Result<T, FileError>,
    ) -> Option<T> {
        match read(&path)?.and_then(|bytes| parser(&bytes)) {
            Ok(parsed) => Some(parsed),
            Err(FileError::Foreign) => None,
            Err(error) => {
                self.unreadable.push(UnreadableFile { path, error, part });
                None
            }
        }
    }
}

/// Returns the bytes of a path; `None` where there is no such file.
type Read<'a> = &'a mut dyn FnMut(&Path) -> Option<Result<Vec<u8>, FileError>>;

/// Returns the bytes of a file; `None` where there is none.
fn read_file(path: &Path) -> Option<Result<Vec<u8>, FileError>> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(if !metadata.is_file() {
        Err(FileError::NotRegular)
    } else if metadata.len() > MAX_FILE_BYTES {
        Err(FileError::TooLarge(Bytes(metadata.len())))
    } else {
        std::fs::read(path).map_err(FileError::from)
    })
}

/// Returns the part of a snapshot's name that its sidecar files share: `rank0` of `rank0.pickle.xz`. `None`
/// if it is not a pickle.
pub fn snapshot_stem(name: &str) -> Option<&str> {
    let suffixes = COMPRESSED_SUFFIXES.iter();
    let plain = suffixes.copied().find_map(|suffix| strip_suffix_ignoring_case(name, suffix)).unwrap_or(name);
    strip_suffix_ignoring_case(plain, "pickle")
}

/// `folder/rank0`, the part of the path that all files of a rank share.
struct Stem(PathBuf);

impl Stem {
    /// Removes `.pickle`, and the suffix of a compressed file, from the path of a snapshot.
    fn of(snapshot: &Path) -> Option<Stem> {
        Some(Stem(snapshot.with_file_name(snapshot_stem(snapshot.file_name()?.to_str()?)?)))
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".");
        path.push(suffix);
        path.into()
    }

    fn folder(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new(""))
    }
}

/// Returns a name without its suffix, in upper or lower case.
fn strip_suffix_ignoring_case<'a>(name: &'a str, suffix: &str) -> Option<&'a str> {
    let (stem, found) = name.rsplit_once('.')?;
    found.eq_ignore_ascii_case(suffix).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_rank_share_its_name() {
        for (snapshot, expected) in [
            ("r/rank0.pickle", Some("r/rank0.labels")),
            ("r/Rank10.PICKLE.XZ", Some("r/Rank10.labels")),
            ("rank0.pickle.zst", Some("rank0.labels")),
            ("a.pkl", None),
            ("pickle", None),
        ] {
            let labels = Stem::of(Path::new(snapshot)).map(|stem| stem.with_suffix("labels"));
            assert_eq!(labels.as_deref(), expected.map(Path::new), "{snapshot}");
        }
    }
}
