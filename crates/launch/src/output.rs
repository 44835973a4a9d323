//! The folder for a recording, chosen before the program starts, so that no other file is overwritten.
//!
//! A launcher may start one `oomph run` per rank, all with the same folder. The first writes a marker file
//! that identifies the job; those that find the marker of their own job share the folder, whenever they
//! start.

use super::{scratch, system};
use analysis::words::shown_path;
use chrono::{DateTime, Utc};
use failure::Failure;
use recording::{META_FILE, rank_of_file, unfinished_name};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Default name of the folder for recordings.
pub const DEFAULT_FOLDER: &str = "oomph-recording";
/// Name of the marker file of a job whose ranks each have their own `oomph run`.
const JOB_MARKER: &str = ".oomph-job";
/// Environment variables that are equal for all ranks of a job and differ between jobs.
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
/// Environment variables that count how often a launcher has restarted the ranks of a job.
const RESTART_VARIABLES: [&str; 2] = ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"];

/// The folder for a recording, as the user asks for it.
#[derive(Clone, Copy, Debug)]
pub enum OutputFolder<'a> {
    /// A temporary folder, removed after the run.
    Temporary,
    /// The first free one of `oomph-recording`, `oomph-recording-2` and so on.
    Default,
    /// The folder of this path.
    Named {
        /// The path.
        folder: &'a Path,
        /// Whether an older recording in it is replaced.
        force: bool,
    },
}

impl<'a> OutputFolder<'a> {
    /// Returns the folder of this path; without a path, a temporary one.
    pub fn named_or_temporary(folder: Option<&'a Path>, force: bool) -> OutputFolder<'a> {
        folder.map_or(OutputFolder::Temporary, |folder| OutputFolder::Named { folder, force })
    }
}

/// A folder that this run may write to.
#[derive(Debug)]
pub(super) struct ClaimedFolder {
    /// Absolute path: the processes of a run may change their working directory.
    pub(super) folder: PathBuf,
    /// Whether it was created here.
    pub(super) is_new: bool,
}

/// Why a run may not write to a folder.
#[derive(PartialEq, Eq, Debug)]
enum FolderConflict {
    /// It holds a recording, made at this time.
    Recording(String),
    /// It holds other files, such as the one named here.
    Foreign(String),
    /// It holds a file that is not part of a recording but has the name of such a file.
    Conflict(String),
}

/// The rank and job of this process.
struct JobIdentity {
    rank: Option<u32>,
    job: String,
    is_restarted: bool,
}

impl JobIdentity {
    fn of_this_process() -> JobIdentity {
        let set = |name: &&str| Some(format!("{name}={}", std::env::var(name).ok()?));
        let restarts = |name: &&str| std::env::var(name).is_ok_and(|count| !matches!(&*count, "" | "0"));
        JobIdentity {
            rank: launcher_rank(),
            job: JOB_VARIABLES.iter().filter_map(set).collect::<Vec<_>>().join("\n"),
            is_restarted: RESTART_VARIABLES.iter().any(restarts),
        }
    }
}

/// Returns the rank assigned by a launcher to this process, if there is one. Other ranks then write to the
/// same folder, each with its own `oomph run`. The recorder reads the same variables (`files.py`).
pub fn launcher_rank() -> Option<u32> {
    let number = |variable: &str| std::env::var(variable).ok()?.parse().ok();
    let of_slurm =
        || number("SLURM_PROCID").filter(|_| number("SLURM_NTASKS").is_some_and(|tasks| tasks > 1));
    ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(number).or_else(of_slurm)
}

/// Returns the rank of a file of a recording, if this `oomph` runs that rank.
pub(crate) fn own_rank(name: &str) -> Option<u32> {
    rank_of_file(name).filter(|&rank| launcher_rank().is_none_or(|own| own == rank))
}

/// Chooses and claims the folder for a recording; `None` for a temporary one.
pub(super) fn claim(output: OutputFolder) -> anyhow::Result<Option<ClaimedFolder>> {
    let identity = JobIdentity::of_this_process();
    match output {
        OutputFolder::Temporary => Ok(None),
        OutputFolder::Named { folder, force } => named(folder, force, &identity).map(Some),
        OutputFolder::Default => default(&std::env::current_dir()?, &identity).map(Some),
    }
}

fn named(folder: &Path, force: bool, identity: &JobIdentity) -> anyhow::Result<ClaimedFolder> {
    let name = shown_path(folder);
    let folder = std::path::absolute(folder)?;
    let claimed =
        claim_one(&folder, force, identity).map_err(|error| crate::scratch::unwritable(&name, &error))?;
    claimed.map_err(|conflict| {
        let other = "use -o for another folder";
        let (what, cause, hint) = match conflict {
            FolderConflict::Recording(time) => (
                format!("`{name}` already holds a recording of {time}"),
                None,
                format!("{other}, or --force to replace it"),
            ),
            FolderConflict::Foreign(file) => (
                format!("`{name}` holds files that are not of a recording"),
                Some(format!("`{file}`, for example")),
                format!("{other}, or --force to write next to them"),
            ),
            FolderConflict::Conflict(file) => (
                format!("`{name}` holds a file with the name of a recording's that is not of a recording"),
                Some(format!("`{file}` would be overwritten")),
                other.to_owned(),
            ),
        };
        Failure::new(what, cause, Some(&hint)).into()
    })
}

/// Claims the first free one of `oomph-recording`, `oomph-recording-2` and so on.
fn default(parent: &Path, identity: &JobIdentity) -> anyhow::Result<ClaimedFolder> {
    for number in 1.. {
        let name = if number == 1 { DEFAULT_FOLDER.to_owned() } else { format!("{DEFAULT_FOLDER}-{number}") };
        let folder = parent.join(&name);
        let claimed = match identity.rank {
            // Not an existing empty folder: another run may be about to write to it.
            None => create_new(&folder).map(|is_new| is_new.then_some(ClaimedFolder { folder, is_new })),
            Some(_) => claim_one(&folder, false, identity).map(Result::ok),
        };
        match claimed {
            Ok(Some(claimed)) => return Ok(claimed),
            Ok(None) => {}
            Err(error) => return Err(crate::scratch::unwritable(&name, &error).into()),
        }
    }
    anyhow::bail!("no free number is left for {DEFAULT_FOLDER}")
}

/// Creates a private folder. Returns `false` if it existed before.
fn create_new(folder: &Path) -> io::Result<bool> {
    match system::create_new_private_folder(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn claim_one(
    folder: &Path,
    force: bool,
    identity: &JobIdentity,
) -> io::Result<Result<ClaimedFolder, FolderConflict>> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let is_new = create_new(folder)?;
    // Ranks that start at the same time take turns. File systems without locks have only the marker.
    let lock = File::open(folder)?;
    // Another owner could put links there, which would be followed.
    if !is_new && !system::is_own(&lock.metadata()?) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder belongs to another user"));
    }
    let _ = lock.lock();
    let contents = FolderContents::of(folder)?;
    let claimed = ClaimedFolder { folder: folder.to_owned(), is_new };
    if let (Some(rank), Some(job)) = (identity.rank, &contents.job)
        && *job == identity.job
    {
        let own: Vec<&String> =
            contents.files.iter().filter(|name| rank_of_file(name) == Some(rank)).collect();
        if !own.is_empty() && !force && !identity.is_restarted {
            return Ok(Err(FolderConflict::Recording(contents.time)));
        }
        remove(folder, own)?;
        return Ok(Ok(claimed));
    }
    if !contents.is_empty() {
        let conflict = contents.conflict();
        if !force || matches!(conflict, FolderConflict::Conflict(_)) {
            return Ok(Err(conflict));
        }
        remove(folder, &contents.files)?;
    }
    if identity.rank.is_some() {
        scratch::write(&folder.join(JOB_MARKER), identity.job.as_bytes())?;
    }
    Ok(Ok(claimed))
}

fn remove(folder: &Path, names: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<()> {
    names.into_iter().try_for_each(|name| std::fs::remove_file(folder.join(name)))
}

/// Removes the recordings of earlier attempts of this run.
pub(super) fn clear(folder: &Path) {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter(|name| name.to_str().and_then(own_rank).is_some()) {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

/// Files in a folder.
#[derive(Default, Debug)]
struct FolderContents {
    /// Files of a recording.
    files: Vec<String>,
    /// Other files.
    foreign: Vec<String>,
    /// Other files that a recording would overwrite.
    conflicts: Vec<String>,
    /// Content of the marker file.
    job: Option<String>,
    /// Time of the recording, such as `2025-10-09 08:53 UTC`.
    time: String,
}

impl FolderContents {
    fn of(folder: &Path) -> io::Result<FolderContents> {
        let mut contents = FolderContents::default();
        let mut modified = SystemTime::UNIX_EPOCH;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = entry.file_type()?.is_file();
            let is_meta = name == META_FILE || unfinished_name(&name) == Some(META_FILE);
            if is_file && name == JOB_MARKER {
                contents.job = std::fs::read_to_string(entry.path()).ok();
                contents.files.push(name);
            } else if is_file && (is_meta || rank_of_file(&name).is_some()) {
                modified = modified.max(entry.metadata()?.modified()?);
                contents.files.push(name);
            } else {
                contents.foreign.push(name);
            }
        }
        contents.foreign.sort();
        contents.files.sort();
        let meta = read_json(&folder.join(META_FILE));
        let is_meta = meta.as_ref().is_some_and(|meta| meta["version"].is_u64() && meta["torch"].is_string());
        let has_meta = contents.files.iter().any(|name| name == META_FILE);
        // A process that was killed early has left only its `rankN.json`.
        let is_rank = |name: &String| {
            name.ends_with(".json")
                && read_json(&folder.join(name)).is_some_and(|rank| rank["ended"].is_string())
        };
        let is_recording = if has_meta { is_meta } else { contents.files.iter().any(is_rank) };
        if !is_recording {
            let (files, conflicts) =
                std::mem::take(&mut contents.files).into_iter().partition(|name| name == JOB_MARKER);
            contents.files = files;
            contents.conflicts = conflicts;
        }
        let started = meta.and_then(|meta| meta["started_us"].as_i64());
        let time = started.map_or_else(|| Some(modified.into()), DateTime::from_timestamp_micros);
        contents.time =
            time.map_or_else(String::new, |time: DateTime<Utc>| time.format("%F %H:%M UTC").to_string());
        Ok(contents)
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.foreign.is_empty() && self.conflicts.is_empty()
    }

    fn conflict(&self) -> FolderConflict {
        if let Some(name) = self.conflicts.first() {
            FolderConflict::Conflict(name.clone())
        } else if let Some(name) = self.foreign.first() {
            FolderConflict::Foreign(name.clone())
        } else {
            FolderConflict::Recording(self.time.clone())
        }
    }
}

/// Reads a JSON file of at most 16 MiB.
fn read_json(path: &Path) -> Option<Value> {
    const MAX_BYTES: u64 = 1 << 24;
    let metadata = path.symlink_metadata().ok()?;
    let is_readable = metadata.is_file() && metadata.len() <= MAX_BYTES;
    is_readable.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}

/// Returns a path relative to the current folder, if it is inside of it.
pub fn shown(folder: &Path) -> String {
    let here = std::env::current_dir().ok();
    let below = here.as_ref().and_then(|here| folder.strip_prefix(here).ok());
    shown_path(below.filter(|below| !below.as_os_str().is_empty()).unwrap_or(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

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

    fn alone() -> JobIdentity {
        JobIdentity { rank: None, job: String::new(), is_restarted: false }
    }

    fn rank(rank: u32, job: &str) -> JobIdentity {
        JobIdentity { rank: Some(rank), job: job.to_owned(), is_restarted: false }
    }

    fn claim(folder: &Path, force: bool, identity: &JobIdentity) -> Result<(), FolderConflict> {
        claim_one(folder, force, identity).expect("no error").map(|_| ())
    }

    #[test]
    fn names_of_a_recording_are_exact() {
        for name in [
            "rank0.json",
            "rank12.steps.jsonl",
            "rank3.growing.heap",
            "rank3.summary.arrow",
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
        assert_eq!(taken, Err(FolderConflict::Recording("2025-10-09 08:53 UTC".to_owned())));
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
        assert_eq!(
            claim(folder.path(), false, &alone()),
            Err(FolderConflict::Foreign("rank0.pt".to_owned()))
        );
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
                assert_eq!(
                    claim(folder.path(), force, &alone()),
                    Err(FolderConflict::Conflict(name.to_owned()))
                );
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
        let restarted = JobIdentity { is_restarted: true, ..rank(0, "a") };
        assert_eq!(claim(folder, false, &restarted), Ok(()));
        assert_eq!(names(folder), [JOB_MARKER, "meta.json"]);
        assert_eq!(claim(folder, true, &rank(1, "b")), Ok(()), "another job, by force");
        assert_eq!(names(folder), [JOB_MARKER]);
        assert_eq!(claim(folder, true, &rank(0, "b")), Ok(()), "and joined");
    }

    #[test]
    fn without_a_name_the_next_free_one_is_taken() {
        let parent = folder(&[]);
        let chosen = |identity: &JobIdentity| {
            let claimed = default(parent.path(), identity).expect("a folder");
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
