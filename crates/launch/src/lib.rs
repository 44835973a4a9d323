//! A user's program in a process of its own, with oomph's recorder in it, on this machine's GPU or on an emulated one.
//!
//! The Python half (`bootstrap`, `recording` and what they use of `python/oomph`) is part of this binary. It is laid out in a private folder of the
//! run, which is first on PYTHONPATH, so every Python process of the run prepares itself: also those that a launcher starts.

mod cards;
mod output;
mod parallel;
mod predict;
mod scratch;
mod techniques;
mod vary;
mod waiting;

pub use cards::{CARDS, Card};
pub use output::{DEFAULT_FOLDER, Output, launched_as};
pub use parallel::in_parallel;
pub use predict::{Figures, Prediction, Sureness, nothing_recorded, predict, shown};
pub use techniques::{TECHNIQUES, technique_cost};
pub use vary::{Variant, Variants, Varied, Vary};
pub use waiting::{Stopped, go_on, stopped_by};

use analysis::words::shown_path;
use failure::Failure;
use inputs::Talk;
use output::own_rank;
use recording::RunInfo;
use scratch::{Lifeline, Scratch};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The files of the Python half: name and text.
const PYTHON_HALF: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/python_half.rs"));
/// The one of them that Python itself looks for, on PYTHONPATH and not in a package.
const SITE: &str = "bootstrap/sitecustomize.py";

/// The CUDA emulator: a library beside this program.
const LIBRARY: &str = "liboomph_emulator.so";
/// Names that others look for it under.
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
/// Where it is, if not there.
const LIBRARY_VARIABLE: &str = "OOMPH_EMULATOR_LIB";

/// What a program that has `oomph` in it knows better than `oomph` itself.
#[derive(Clone, Default, Debug)]
pub struct Host {
    /// The interpreter for users' programs, where neither they nor an active environment name one.
    pub python: Option<PathBuf>,
    /// The folder with the CUDA emulator, if it is not beside the executable.
    pub libraries: Option<PathBuf>,
}

/// A card to emulate.
#[derive(Clone, Debug)]
pub struct EmulatedGpu {
    pub card: Card,
    pub memory: u64,
    pub devices: u32,
    /// What programs get that read a value nobody knows.
    pub unknown: u8,
    /// Where the emulator is, if not beside this program.
    pub libraries: Option<PathBuf>,
}

impl EmulatedGpu {
    /// So many cards, with their usual memory unless another is given.
    pub fn new(card: &Card, memory: Option<u64>, devices: u32, host: &Host) -> EmulatedGpu {
        let (memory, libraries) = (memory.unwrap_or(card.memory), host.libraries.clone());
        EmulatedGpu { card: card.clone(), memory, devices, unknown: 0, libraries }
    }
}

/// Which steps are recorded with the stacks and modules of their allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// Not those that repeat the ones before: the report shows them with the lines of the step that they repeat
    Auto,
    /// All
    Full,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct Job {
    pub command: Vec<OsString>,
    pub environment: Vec<(String, String)>,
    pub emulated: Option<EmulatedGpu>,
    pub steps: Option<u32>,
    /// Bound on the history, if not the usual one.
    pub max_events: Option<u64>,
    /// Which steps to record with stacks.
    pub detail: Detail,
    /// Whether to record the CPU's tensors although there may be a GPU.
    pub is_on_cpu: bool,
    pub techniques: Vec<String>,
    /// Whether an emulated run may write checkpoints.
    pub keep_files: bool,
    /// A command for when memory grows step after step.
    pub on_leak: Option<OsString>,
    /// Whether the program gets an exception then.
    pub raise_on_leak: bool,
    pub words: Words,
    /// Whether others may watch the run.
    pub is_live: bool,
    /// How the user is kept informed.
    pub talk: Talk,
}

/// Where the program's own output goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Words {
    /// Where it would go without us.
    Own,
    /// All to standard error: standard output is for our own answer.
    Talk,
    /// Nowhere.
    Kept,
}

impl Job {
    /// A program as it is; `steps` as the recorder takes them (`settings.py`).
    pub fn new(command: Vec<OsString>, emulated: Option<EmulatedGpu>, steps: Option<u32>, talk: Talk) -> Job {
        Job {
            command,
            environment: Vec::new(),
            emulated,
            steps,
            max_events: None,
            detail: Detail::Auto,
            is_on_cpu: false,
            techniques: Vec::new(),
            keep_files: false,
            on_leak: None,
            raise_on_leak: false,
            words: Words::Talk,
            is_live: false,
            talk,
        }
    }
}

/// What the recorder reads; the fields of `settings.py`.
#[derive(Serialize)]
struct Settings<'a> {
    output: &'a Path,
    library: Option<&'a Path>,
    device: &'static str,
    max_events: Option<u64>,
    detail: Detail,
    steps: Option<u32>,
    techniques: &'a [String],
    unknown: u8,
    is_live: bool,
    keep_files: bool,
    raise_on_leak: bool,
    lifeline: Option<&'a Path>,
    notes: &'a Path,
    problems: &'a Path,
}

/// How a run went.
pub struct Done {
    pub status: ExitStatus,
    pub ranks: Vec<Rank>,
    pub notes: Notes,
    /// What the recorder could not do, each once.
    pub problems: Vec<String>,
    /// Why nothing can be written to the folder for the recording, if that is so.
    pub unwritable: Option<String>,
    /// The last lines that a quiet program said.
    pub last_words: String,
}

/// One process's recording.
pub struct Rank {
    pub snapshot: PathBuf,
    pub summary: RunInfo,
}

/// What the processes of a run noted, by kind.
#[derive(Default, Debug)]
pub struct Notes {
    /// Whether a Python process has loaded our half.
    pub is_prepared: bool,
    /// Why tensors on the CPU are recorded, where nobody chose that.
    pub no_gpu: Option<String>,
    pub uncovered: Vec<String>,
    pub modelled: Vec<String>,
    pub failures: Vec<String>,
}

/// The folders of a run: a private one, and the one that the recording goes to.
pub struct Folder {
    scratch: Scratch,
    output: PathBuf,
    /// Whether the recordings stay.
    is_kept: bool,
    /// Whether the folder for the recording was not there before.
    is_new: bool,
}

impl Folder {
    /// Lays out what a run needs, and makes sure that the recording overwrites nothing.
    pub fn new(output: Output) -> anyhow::Result<Folder> {
        let scratch = Scratch::new()?;
        let claimed = output::claim(output)?;
        let is_new = claimed.as_ref().is_some_and(|claimed| claimed.is_new);
        let is_kept = claimed.is_some();
        let output = claimed.map_or_else(|| scratch.at("out"), |claimed| claimed.folder);
        let folder = Folder { scratch, output, is_kept, is_new };
        folder.fill().map_err(|error| unwritable(&shown_path(folder.scratch.at("")), &error))?;
        Ok(folder)
    }

    /// Where the recording goes, as an absolute path.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// The same, as a person would write it from here.
    pub fn shown(&self) -> String {
        output::shown(&self.output)
    }

    fn site(&self) -> PathBuf {
        self.scratch.at("site")
    }

    fn libraries(&self) -> PathBuf {
        self.scratch.at("lib")
    }

    fn notes(&self) -> PathBuf {
        self.scratch.at("notes")
    }

    fn problems(&self) -> PathBuf {
        self.scratch.at("problems")
    }

    fn rendezvous(&self) -> PathBuf {
        self.scratch.at("ranks")
    }

    fn fill(&self) -> io::Result<()> {
        for folder in [self.libraries(), self.rendezvous()] {
            scratch::create_folder(&folder)?;
        }
        if !self.is_kept {
            scratch::create_folder(&self.output)?;
        }
        let site = self.site();
        let package = site.join("oomph_child");
        for (name, text) in PYTHON_HALF {
            let place = if *name == SITE { site.join("sitecustomize.py") } else { package.join(name) };
            place.parent().map(scratch::create_folder).transpose()?;
            scratch::write(&place, text.as_bytes())?;
        }
        Ok(())
    }

    /// Why nothing can be written to the folder for the recording.
    fn unwritable(&self) -> Option<String> {
        /// More than a file system keeps for its own tables.
        static TRIAL: [u8; 1 << 16] = [0; 1 << 16];
        let file = self.output.join(format!(".oomph-trial-{}", std::process::id()));
        let written = scratch::write(&file, &TRIAL);
        let _ = std::fs::remove_file(&file);
        written.err().map(|error| format!("`{}` cannot be written: {error}", output::shown(&self.output)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_kept && self.is_new {
            // Only an empty one goes: nothing was recorded.
            let _ = std::fs::remove_dir(&self.output);
        }
    }
}

fn unwritable(what: &str, error: &io::Error) -> Failure {
    Failure::new(
        format!("`{what}` cannot be written"),
        Some(error.to_string()),
        Some("free some space, or choose another folder with `-o`, or with OOMPH_CACHE_DIR for the cache"),
    )
}

/// Runs a program that is to come to its end: when a signal has stopped us meanwhile, or before, what it left is no answer.
pub fn run_to_end(job: &Job, folder: &Folder) -> anyhow::Result<Done> {
    waiting::go_on()?;
    let done = run(job, folder)?;
    waiting::go_on()?;
    Ok(done)
}

/// Runs a program and collects its recordings.
pub fn run(job: &Job, folder: &Folder) -> anyhow::Result<Done> {
    let library = job.emulated.as_ref().map(library).transpose()?;
    let Some((program, arguments)) = job.command.split_first() else {
        return Err(Failure::new("no program was given", None, Some("name a script, or `-m MODULE`")).into());
    };
    output::clear(&folder.output);
    for reports in [folder.notes(), folder.problems()] {
        let _ = std::fs::remove_file(reports);
    }
    let mut command = Command::new(program);
    command.args(arguments);
    // On an emulated GPU nobody is there to answer.
    if job.emulated.is_some() {
        command.stdin(Stdio::null());
    }
    // Held until the program has ended: what is left of an emulated run then ends as well.
    let lifeline = job.emulated.as_ref().and_then(|_| folder.scratch.lifeline());
    prepare(&mut command, job, folder, library.as_deref(), lifeline.as_ref())?;
    let said = folder.scratch.at("said");
    match job.words {
        Words::Own => &mut command,
        Words::Talk => command.stdout(io::stderr()),
        Words::Kept => {
            let file = scratch::create(&said)?;
            command.stdout(file.try_clone()?).stderr(file)
        }
    };
    let child = command.spawn().map_err(|error| {
        Failure::new(
            format!("`{}` cannot be started", shown_path(program)),
            Some(error.to_string()),
            Some("activate the environment that has torch, or name its interpreter with `--python`"),
        )
    })?;
    let kept = folder.is_kept.then_some(folder.output.as_path());
    let mut announced = Announced { is_done: false, say: job.talk.say };
    let status =
        waiting::wait(child, kept, job.on_leak.as_deref(), job.talk.say, || announced.look(&folder.notes()))?;
    drop(lifeline);
    announced.look(&folder.notes());
    let last_words = std::fs::read(&said).map(|bytes| tail(&bytes)).unwrap_or_default();
    let ranks = ranks(&folder.output)?;
    Ok(Done {
        status,
        notes: notes(&folder.notes()),
        problems: problems(&folder.problems()),
        unwritable: if ranks.is_empty() { folder.unwritable() } else { None },
        ranks,
        last_words,
    })
}

/// Whether it has been said which memory is recorded, where nobody chose that.
struct Announced {
    is_done: bool,
    say: fn(&str),
}

impl Announced {
    fn look(&mut self, path: &Path) {
        if let Some(why) = notes(path).no_gpu.filter(|_| !self.is_done) {
            self.is_done = true;
            (self.say)(&format!(
                "no usable GPU ({why}): recording tensors on the CPU (--cpu to choose this silently; --emulate NAME for an \
                 emulated GPU)"
            ));
        }
    }
}

fn prepare(
    command: &mut Command,
    job: &Job,
    folder: &Folder,
    library: Option<&Path>,
    lifeline: Option<&Lifeline>,
) -> anyhow::Result<()> {
    let (site, libraries, compiled) = (folder.site(), folder.libraries(), folder.scratch.at("compiled"));
    let (notes, problems) = (folder.notes(), folder.problems());
    let settings = Settings {
        output: &folder.output,
        library,
        device: if job.is_on_cpu { "cpu" } else { "auto" },
        max_events: job.max_events,
        detail: job.detail,
        steps: job.steps,
        techniques: &job.techniques,
        unknown: job.emulated.as_ref().map_or(0, |emulated| emulated.unknown),
        is_live: job.is_live,
        keep_files: job.keep_files,
        raise_on_leak: job.raise_on_leak,
        lifeline: lifeline.map(|lifeline| lifeline.path.as_path()),
        notes: &notes,
        problems: &problems,
    };
    command.env("OOMPH_CHILD", serde_json::to_string(&settings)?);
    command.env("PYTHONPATH", in_front(&site, "PYTHONPATH")?);
    if let (Some(emulated), Some(library)) = (&job.emulated, library) {
        for name in LIBRARY_NAMES {
            let link = libraries.join(name);
            if !link.exists() {
                std::os::unix::fs::symlink(library, link)?;
            }
        }
        command.env("LD_LIBRARY_PATH", in_front(&libraries, "LD_LIBRARY_PATH")?);
        command.env("OOMPH_EMULATOR", emulated.card.describe(emulated.memory, emulated.devices));
        command.env("OOMPH_EMULATOR_NOTES", &notes);
        command.env("OOMPH_EMULATOR_RENDEZVOUS", folder.rendezvous());
        // Where segments lie depends on the process's other memory: the arenas of threads lie elsewhere in every run.
        command.env("MALLOC_ARENA_MAX", "1");
        // Triton compiles for the card without one; it links against the driver, and keeps what it has compiled.
        command.env("TRITON_LIBCUDA_PATH", &libraries);
        command.env("TRITON_CACHE_DIR", compiled.join("triton"));
        command.env("TORCHINDUCTOR_CACHE_DIR", compiled.join("torchinductor"));
        // People hide real devices this way; the emulated ones are all there.
        if std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|devices| matches!(devices.trim(), "" | "-1")) {
            command.env_remove("CUDA_VISIBLE_DEVICES");
        }
        // Losses that nobody computed have no place among a project's experiments.
        if std::env::var_os("WANDB_MODE").is_none() {
            command.env("WANDB_MODE", "disabled");
        }
    }
    command.envs(job.environment.iter().map(|(name, value)| (name, value)));
    Ok(())
}

/// A list of paths with ours in front.
fn in_front(path: &Path, variable: &str) -> anyhow::Result<OsString> {
    let others = std::env::var_os(variable).filter(|value| !value.is_empty());
    let others = others.iter().flat_map(|value| std::env::split_paths(value));
    Ok(std::env::join_paths(std::iter::once(path.to_owned()).chain(others))?)
}

fn library(emulated: &EmulatedGpu) -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(path.into());
    }
    let program = std::env::current_exe()?;
    let beside = program.parent().unwrap_or(Path::new("."));
    let folder = emulated.libraries.as_deref().unwrap_or(beside);
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    places.iter().find(|path| path.exists()).map(|path| Ok(path.canonicalize()?)).unwrap_or_else(|| {
        Err(Failure::new(
            format!("the CUDA emulator, `{LIBRARY}`, is not there"),
            Some(format!("looked in `{}`", shown_path(folder))),
            Some("build it with `cargo build --release -p oomph-emulator`, or say where it is in OOMPH_EMULATOR_LIB"),
        )
        .into())
    })
}

/// The recordings of a folder, by rank. The ranks of one machine need not begin with 0.
fn ranks(output: &Path) -> anyhow::Result<Vec<Rank>> {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| own_rank(entry.file_name().to_str().filter(|name| name.ends_with(".pickle"))?))
        .collect();
    numbers.sort_unstable();
    let read = |number: u32| {
        let path = |ending: &str| PathBuf::from(output::shown(output)).join(format!("rank{number}.{ending}"));
        let summary = RunInfo::parse(&std::fs::read(path("json"))?)?;
        Ok(Rank { snapshot: path("pickle"), summary })
    };
    numbers.into_iter().map(read).collect()
}

fn notes(path: &Path) -> Notes {
    let mut notes = Notes::default();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for (kind, text) in text.lines().filter_map(|line| line.split_once('\t')) {
        let list = match kind {
            "prepared" => {
                notes.is_prepared = true;
                continue;
            }
            "device" => {
                notes.no_gpu.get_or_insert_with(|| text.to_owned());
                continue;
            }
            "uncovered" => &mut notes.uncovered,
            "modelled" => &mut notes.modelled,
            _ => &mut notes.failures,
        };
        // Every rank writes its own.
        if !list.iter().any(|known| known == text) {
            list.push(text.to_owned());
        }
    }
    notes
}

/// What the recorder could not do, each once: every rank writes its own.
fn problems(path: &Path) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let line = analysis::words::printable(line);
        if !line.is_empty() && !problems.iter().any(|known| *known == line) {
            problems.push(line.into_owned());
        }
    }
    problems
}

/// The last lines of what a program said.
fn tail(bytes: &[u8]) -> String {
    const LINES: usize = 12;
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
