//! The folder that a recording goes to: chosen before the program starts, so that nothing of anybody's is ever overwritten.
//!
//! A launcher may start an `oomph run` for each rank, all on one folder. The first leaves a marker with what identifies the job;
//! those that find the marker of their own job join it, whenever they start.

use super::scratch;
use analysis::words::shown_path;
use chrono::{DateTime, Utc};
use failure::Failure;
use recording::{META_FILE, rank_of_file, unfinished_name};
use serde_json::Value;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Name of the folder where the user names none.
pub const DEFAULT_FOLDER: &str = "oomph-recording";
/// The marker of a job whose ranks have an `oomph run` each.
const MARKER: &str = ".oomph-job";
/// Variables that launchers give to all ranks of a job, and that tell jobs apart.
const JOB_VARIABLES: [&str; 10] = [
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PBS_JOBID",
    "LSB_JOBID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
];
/// Variables that count how often a launcher has restarted the ranks of a job.
const RESTART_VARIABLES: [&str; 2] = ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"];

/// What the user says about the folder.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// Nothing, and the recording need not stay.
    Unkept,
    /// Nothing, and the recording stays: the first name that is free.
    Default,
    /// This folder; with `force` also if it holds something.
    Named { folder: &'a Path, force: bool },
}

impl<'a> Output<'a> {
    /// The folder that was asked for, if one was.
    pub fn kept_if_named(folder: Option<&'a Path>, force: bool) -> Output<'a> {
        folder.map_or(Output::Unkept, |folder| Output::Named { folder, force })
    }
}

/// A folder that is ours to write to.
#[derive(Debug)]
pub(super) struct Claimed {
    /// An absolute path: the processes of a run may change their working directory.
    pub(super) folder: PathBuf,
    /// Whether it was created here.
    pub(super) is_new: bool,
}

/// Why a folder is not ours to write to.
#[derive(PartialEq, Eq, Debug)]
enum Taken {
    /// A recording, with the time that it was made.
    Recording(String),
    /// Other files, one of them by name.
    Foreign(String),
    /// Files that are not of a recording but have the name of one.
    Conflict(String),
}

/// The process that asks, as far as it matters here.
struct Asker {
    rank: Option<u32>,
    job: String,
    is_restarted: bool,
}

impl Asker {
    fn this() -> Asker {
        let set = |name: &&str| Some(format!("{name}={}", std::env::var(name).ok()?));
        let restarts = |name: &&str| std::env::var(name).is_ok_and(|count| !matches!(&*count, "" | "0"));
        Asker {
            rank: launched_as(),
            job: JOB_VARIABLES.iter().filter_map(set).collect::<Vec<_>>().join("\n"),
            is_restarted: RESTART_VARIABLES.iter().any(restarts),
        }
    }
}

/// The rank that a launcher gave us: then other ranks write to the same folder, each with an `oomph run` of its own. The
/// recorder goes by the same variables (`files.py`).
pub fn launched_as() -> Option<u32> {
    let number = |variable: &str| std::env::var(variable).ok()?.parse().ok();
    let of_slurm =
        || number("SLURM_PROCID").filter(|_| number("SLURM_NTASKS").is_some_and(|tasks| tasks > 1));
    ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(number).or_else(of_slurm)
}

/// The rank of a file, if the file is of a recording and of a rank that this `oomph` runs.
pub(crate) fn own_rank(name: &str) -> Option<u32> {
    rank_of_file(name).filter(|&rank| launched_as().is_none_or(|own| own == rank))
}

/// Chooses the folder for a recording and makes sure that it is ours; `None` where it need not stay.
pub(super) fn claim(output: Output) -> anyhow::Result<Option<Claimed>> {
    let asker = Asker::this();
    match output {
        Output::Unkept => Ok(None),
        Output::Named { folder, force } => named(folder, force, &asker).map(Some),
        Output::Default => default(&std::env::current_dir()?, &asker).map(Some),
    }
}

fn named(folder: &Path, force: bool, asker: &Asker) -> anyhow::Result<Claimed> {
    let name = shown_path(folder);
    let folder = std::path::absolute(folder)?;
    let claimed = claim_one(&folder, force, asker).map_err(|error| super::unwritable(&name, &error))?;
    claimed.map_err(|taken| {
        let other = "use -o for another folder";
        let (what, cause, hint) = match taken {
            Taken::Recording(time) => (
                format!("`{name}` already holds a recording of {time}"),
                None,
                format!("{other}, or --force to replace it"),
            ),
            Taken::Foreign(file) => (
                format!("`{name}` holds files that are not of a recording"),
                Some(format!("`{file}`, for example")),
                format!("{other}, or --force to write next to them"),
            ),
            Taken::Conflict(file) => (
                format!("`{name}` holds a file with the name of a recording's that is not of a recording"),
                Some(format!("`{file}` would be overwritten")),
                other.to_owned(),
            ),
        };
        Failure::new(what, cause, Some(&hint)).into()
    })
}

/// The first of `oomph-recording`, `oomph-recording-2`, … that is free.
fn default(parent: &Path, asker: &Asker) -> anyhow::Result<Claimed> {
    for number in 1.. {
        let name = if number == 1 { DEFAULT_FOLDER.to_owned() } else { format!("{DEFAULT_FOLDER}-{number}") };
        let folder = parent.join(&name);
        let claimed = match asker.rank {
            // Not one that is there and empty: another run may be about to write to it.
            None => create_new(&folder).map(|is_new| is_new.then_some(Claimed { folder, is_new })),
            Some(_) => claim_one(&folder, false, asker).map(Result::ok),
        };
        match claimed {
            Ok(Some(claimed)) => return Ok(claimed),
            Ok(None) => {}
            Err(error) => return Err(super::unwritable(&name, &error).into()),
        }
    }
    anyhow::bail!("no number is left for another {DEFAULT_FOLDER}")
}

/// Creates a private folder; whether it was not there before.
fn create_new(folder: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn claim_one(folder: &Path, force: bool, asker: &Asker) -> io::Result<Result<Claimed, Taken>> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let is_new = create_new(folder)?;
    // Ranks that start together ask one after the other. Where there are no locks, the marker alone has to do.
    let lock = File::open(folder)?;
    // Links that its owner puts there would be followed.
    if !is_new && lock.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder belongs to another user"));
    }
    let _ = lock.lock();
    let contents = Contents::of(folder)?;
    let claimed = Claimed { folder: folder.to_owned(), is_new };
    if let (Some(rank), Some(job)) = (asker.rank, &contents.job)
        && *job == asker.job
    {
        let own: Vec<&String> =
            contents.files.iter().filter(|name| rank_of_file(name) == Some(rank)).collect();
        if !own.is_empty() && !force && !asker.is_restarted {
            return Ok(Err(Taken::Recording(contents.time)));
        }
        remove(folder, own)?;
        return Ok(Ok(claimed));
    }
    if !contents.is_empty() {
        let taken = contents.taken();
        if !force || matches!(taken, Taken::Conflict(_)) {
            return Ok(Err(taken));
        }
        remove(folder, &contents.files)?;
    }
    if asker.rank.is_some() {
        scratch::write(&folder.join(MARKER), asker.job.as_bytes())?;
    }
    Ok(Ok(claimed))
}

fn remove(folder: &Path, names: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<()> {
    names.into_iter().try_for_each(|name| std::fs::remove_file(folder.join(name)))
}

/// Removes what this run has recorded so far: another attempt follows.
pub(super) fn clear(folder: &Path) {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter(|name| name.to_str().and_then(own_rank).is_some()) {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

/// What a folder holds.
#[derive(Default, Debug)]
struct Contents {
    /// Files of a recording.
    files: Vec<String>,
    foreign: Vec<String>,
    /// Those of the foreign files that a recording would overwrite.
    conflicts: Vec<String>,
    job: Option<String>,
    /// When the recording was made.
    time: String,
}

impl Contents {
    fn of(folder: &Path) -> io::Result<Contents> {
        let mut contents = Contents::default();
        let mut modified = 0;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = entry.file_type()?.is_file();
            let is_meta = name == META_FILE || unfinished_name(&name) == Some(META_FILE);
            if is_file && name == MARKER {
                contents.job = std::fs::read_to_string(entry.path()).ok();
                contents.files.push(name);
            } else if is_file && (is_meta || rank_of_file(&name).is_some()) {
                modified = modified.max(entry.metadata()?.mtime());
                contents.files.push(name);
            } else {
                contents.foreign.push(name);
            }
        }
        contents.foreign.sort();
        contents.files.sort();
        let meta = object(&folder.join(META_FILE));
        let is_meta = meta.as_ref().is_some_and(|meta| meta["version"].is_u64() && meta["torch"].is_string());
        let has_meta = contents.files.iter().any(|name| name == META_FILE);
        // A process that was killed early has left its `rankN.json` alone.
        let is_rank = |name: &String| {
            name.ends_with(".json")
                && object(&folder.join(name)).is_some_and(|rank| rank["ended"].is_string())
        };
        let is_recording = if has_meta { is_meta } else { contents.files.iter().any(is_rank) };
        if !is_recording {
            let (files, named_alike) =
                std::mem::take(&mut contents.files).into_iter().partition(|name| name == MARKER);
            contents.files = files;
            contents.conflicts = named_alike;
        }
        let started = meta.and_then(|meta| meta["started_us"].as_i64());
        let time =
            started.map_or_else(|| DateTime::from_timestamp(modified, 0), DateTime::from_timestamp_micros);
        contents.time =
            time.map_or_else(String::new, |time: DateTime<Utc>| time.format("%F %H:%M UTC").to_string());
        Ok(contents)
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.foreign.is_empty() && self.conflicts.is_empty()
    }

    fn taken(&self) -> Taken {
        if let Some(name) = self.conflicts.first() {
            Taken::Conflict(name.clone())
        } else if let Some(name) = self.foreign.first() {
            Taken::Foreign(name.clone())
        } else {
            Taken::Recording(self.time.clone())
        }
    }
}

/// A JSON file of reasonable size.
fn object(path: &Path) -> Option<Value> {
    const MAX_BYTES: u64 = 1 << 24;
    let metadata = path.symlink_metadata().ok()?;
    let is_readable = metadata.is_file() && metadata.len() <= MAX_BYTES;
    is_readable.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}

/// A folder as the user would name it: from where they are, if it lies below.
pub(crate) fn shown(folder: &Path) -> String {
    let here = std::env::current_dir().ok();
    let below = here.as_ref().and_then(|here| folder.strip_prefix(here).ok());
    shown_path(below.filter(|below| !below.as_os_str().is_empty()).unwrap_or(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    const META_TEXT: &str = r#"{"version":1,"torch":"2.11.0","started_us":1760000000000000}"#;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        folder
    }

    fn recording() -> tempfile::TempDir {
        let names = ["rank0.pickle", "rank0.steps.jsonl", "rank1.growing.heap", "rank1.pickle.77.part"];
        let files = names.map(|name| (name, "x"));
        folder(&[&files[..], &[("meta.json", META_TEXT), ("rank0.json", r#"{"ended":"finished"}"#)]].concat())
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    fn alone() -> Asker {
        Asker { rank: None, job: String::new(), is_restarted: false }
    }

    fn rank(rank: u32, job: &str) -> Asker {
        Asker { rank: Some(rank), job: job.to_owned(), is_restarted: false }
    }

    fn claim(folder: &Path, force: bool, asker: &Asker) -> Result<(), Taken> {
        claim_one(folder, force, asker).expect("no error").map(|_| ())
    }

    #[test]
    fn names_of_a_recording_are_exact() {
        for name in [
            "rank0.json",
            "rank12.steps.jsonl",
            "rank3.growing.heap",
            "rank0.ask.part",
            "rank0.pickle.9.part",
        ] {
            assert!(rank_of_file(name).is_some(), "{name}");
        }
        for name in [
            "rank0.pt",
            "rank12.log",
            "rank.json",
            "rank00.json",
            "rank+1.json",
            "rank0.json.bak",
            "rank0",
            "meta.json",
        ] {
            assert_eq!(rank_of_file(name), None, "{name}");
        }
    }

    #[test]
    fn a_recording_is_refused_and_replaced_only_by_force() {
        let folder = recording();
        let before = names(folder.path());
        let taken = claim(folder.path(), false, &alone());
        assert_eq!(taken, Err(Taken::Recording("2025-10-09 08:53 UTC".to_owned())));
        assert_eq!(names(folder.path()), before);
        assert_eq!(claim(folder.path(), true, &alone()), Ok(()));
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn files_of_others_are_never_removed() {
        let folder = recording();
        for name in ["rank0.pt", "rank12.log", "rank1.steps.jsonl.bak"] {
            std::fs::write(folder.path().join(name), "precious").expect("a file");
        }
        assert_eq!(claim(folder.path(), false, &alone()), Err(Taken::Foreign("rank0.pt".to_owned())));
        assert_eq!(claim(folder.path(), true, &alone()), Ok(()));
        assert_eq!(names(folder.path()), ["rank0.pt", "rank1.steps.jsonl.bak", "rank12.log"]);
    }

    #[test]
    fn files_that_are_only_named_like_ours_stay_even_by_force() {
        for (name, text) in
            [("rank0.pickle", "shard"), ("meta.json", r#"{"version":"2.0"}"#), ("rank0.json", "[1]")]
        {
            let folder = folder(&[(name, text)]);
            for force in [false, true] {
                assert_eq!(claim(folder.path(), force, &alone()), Err(Taken::Conflict(name.to_owned())));
            }
            assert_eq!(std::fs::read_to_string(folder.path().join(name)).expect("a file"), text);
        }
    }

    #[test]
    fn ranks_of_one_job_share_a_folder_whenever_they_start() {
        let folder = folder(&[]);
        let folder = folder.path();
        assert_eq!(claim(folder, false, &rank(0, "a")), Ok(()));
        std::fs::write(folder.join("rank0.json"), r#"{"ended":"finished"}"#).expect("a file");
        std::fs::write(folder.join("meta.json"), META_TEXT).expect("a file");
        assert_eq!(claim(folder, false, &rank(1, "a")), Ok(()), "rank 0 has ended before");
        assert!(claim(folder, false, &rank(0, "a")).is_err(), "the same job again");
        assert!(claim(folder, false, &rank(1, "b")).is_err(), "another job");
        assert!(claim(folder, false, &alone()).is_err());
        let restarted = Asker { is_restarted: true, ..rank(0, "a") };
        assert_eq!(claim(folder, false, &restarted), Ok(()));
        assert_eq!(names(folder), [MARKER, "meta.json"]);
        assert_eq!(claim(folder, true, &rank(1, "b")), Ok(()), "another job, by force");
        assert_eq!(names(folder), [MARKER]);
        assert_eq!(claim(folder, true, &rank(0, "b")), Ok(()), "and joined");
    }

    #[test]
    fn without_a_name_the_next_free_one_is_taken() {
        let parent = folder(&[]);
        let chosen = |asker: &Asker| {
            let claimed = default(parent.path(), asker).expect("a folder");
            let mode = claimed.folder.metadata().expect("a folder").mode();
            assert_eq!(mode & 0o777, 0o700);
            claimed.folder.file_name().expect("a name").to_string_lossy().into_owned()
        };
        assert_eq!([chosen(&alone()), chosen(&alone())], ["oomph-recording", "oomph-recording-2"]);
        // The first two are empty: a job may have them.
        assert_eq!([chosen(&rank(0, "a")), chosen(&rank(1, "a"))], ["oomph-recording"; 2]);
        assert_eq!([chosen(&rank(1, "b")), chosen(&rank(0, "b"))], ["oomph-recording-2"; 2]);
        assert_eq!(chosen(&alone()), "oomph-recording-3");
    }
}
