//! Runs a user's program in its own process with oomph's recorder in it, on the GPUs of this machine or on
//! emulated ones.
//!
//! The Python part (packages of `python/oomph`) is compiled into this binary. Each run unpacks it into a
//! private folder that comes first on PYTHONPATH, so every Python process of the run loads the recorder,
//! including the ranks that a launcher starts.
//!
//! A [`Job`] is a program with its settings, a [`RunFolder`] the place for its recordings. [`run`] runs a job
//! once; [`predict()`] runs it on an emulated GPU, as often as its answer needs.
//!
//! ```
//! use launch::{EmulatedGpu, GpuModel, Host};
//!
//! let model = GpuModel::find("RTX 4090").expect("a known GPU");
//! let emulated = EmulatedGpu::new(model, None, 2, &Host::default());
//! assert_eq!((emulated.model.key, emulated.memory, emulated.devices), ("rtx4090", 24_210 << 20, 2));
//! ```

#![warn(missing_docs)]

mod attach;
mod calibration;
mod confidence;
mod gpu_models;
mod notes;
mod output;
mod parallel;
mod phases;
mod predict;
mod ranks;
mod run_folder;
mod scratch;
mod system;
mod techniques;
mod template;
mod vary;
mod waiting;

pub use attach::{AttachRequest, AttachedRecording, attach};
pub use confidence::PredictionConfidence;
pub use gpu_models::{GPU_MODELS, GpuModel};
pub use notes::Notes;
pub use output::{DEFAULT_FOLDER, OutputFolder, launcher_rank, shown};
pub use parallel::in_parallel;
pub use phases::{ProgramPart, ProgramPhase};
pub use predict::{
    DevicePeak, FitVerdict, PredictedJob, Prediction, command_text, nothing_recorded, observe, predict,
};
pub use ranks::{JobLayout, MAX_RANKS, RankChoice, RankDimension, RankNeed, RankPlan, StageMove};
pub use run_folder::RunFolder;
pub use techniques::{TECHNIQUES, is_technique, technique_cost};
pub use template::ForkTemplate;
pub use vary::{FittingLayouts, ValueSweep, Variant, Variants, Vary, try_techniques};
pub use waiting::{Stopped, check_not_stopped, stop_signal};

use analysis::words::shown_path;
use failure::Failure;
use inputs::ProgressReporter;
use output::own_rank;
use ranks::PlanSettings;
use recording::RunInfo;
use scratch::Lifeline;
use serde::Serialize;
use serde_json::value::RawValue;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// File name of the CUDA emulator, which is installed next to this program.
const EMULATOR_LIBRARY: &str = "liboomph_emulator.so";
/// Names under which PyTorch and Triton load the driver.
const DRIVER_LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
/// File name of the library that counts calls of the CUDA driver, which is installed next to this program.
const TRACER_LIBRARY: &str = "liboomph_tracer.so";
/// Environment variable with the path of the CUDA emulator.
const EMULATOR_LIBRARY_VARIABLE: &str = "OOMPH_EMULATOR_LIB";

/// Bytes that can be allocated on an emulated GPU on which no program runs out.
const AMPLE_MEMORY_BYTES: u64 = 900 << 30;

/// Paths that depend on how oomph is installed: as a program of its own, or inside a Python package.
#[derive(Clone, Default, Debug)]
pub struct Host {
    /// Interpreter for users' programs when neither the user nor an active environment names one.
    pub python: Option<PathBuf>,
    /// Folder of the CUDA emulator, if it is not next to the executable.
    pub libraries: Option<PathBuf>,
}

/// GPUs to emulate.
#[derive(Clone, Debug)]
pub struct EmulatedGpu {
    /// The GPU model.
    pub model: GpuModel,
    /// Memory of each device, in bytes.
    pub memory: u64,
    /// Bytes that can be allocated on each device, if more than the memory it reports.
    pub capacity: Option<u64>,
    /// Number of devices.
    pub devices: u32,
    /// Byte that fills values which only a real GPU could compute.
    pub unknown: u8,
    /// Folder of the CUDA emulator, if it is not next to the executable.
    pub libraries: Option<PathBuf>,
}

impl EmulatedGpu {
    /// Returns `devices` GPUs of one model, with the usual memory of the model unless `memory` (bytes) is
    /// given.
    pub fn new(model: &GpuModel, memory: Option<u64>, devices: u32, host: &Host) -> EmulatedGpu {
        let (memory, libraries) = (memory.unwrap_or(model.memory), host.libraries.clone());
        EmulatedGpu { model: model.clone(), memory, capacity: None, devices, unknown: 0, libraries }
    }
}

/// Which steps are recorded with the stacks and modules of their allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordingDetail {
    /// All but those that repeat an earlier step; reports show these with the lines of the step that they
    /// repeat.
    Auto,
    /// All steps.
    Full,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Environment variables to set for the program.
    pub environment: Vec<(String, String)>,
    /// GPUs to emulate; `None` uses the devices of this machine.
    pub emulated: Option<EmulatedGpu>,
    /// Number of steps after which the program is stopped.
    pub steps: Option<u32>,
    /// Time in which a prediction looks for later phases of the program; `None` stops at the first loop that
    /// repeats.
    pub time_limit: Option<Duration>,
    /// Whether a prediction cuts loops short where their iterations repeat.
    pub cuts_loops: bool,
    /// Whether it runs the later iterations of these loops in which a condition changes.
    pub runs_later_iterations: bool,
    /// Largest number of events in the recorded history; `None` is the recorder's default.
    pub max_events: Option<u64>,
    /// Which steps are recorded with stacks.
    pub detail: RecordingDetail,
    /// Whether tensors on the CPU are recorded even if there is a GPU.
    pub is_on_cpu: bool,
    /// Library that counts what libraries take from the CUDA driver, if that is to be recorded
    /// ([`tracer_library`]).
    pub tracer: Option<PathBuf>,
    /// Ranks that run, if the program is one of a job that is predicted as a whole.
    pub ranks: Option<RankPlan>,
    /// Memory-saving techniques to switch on in the program (`--try`).
    pub techniques: Vec<String>,
    /// Whether an emulated run may write checkpoints.
    pub keep_files: bool,
    /// Shell command to run when memory grows step after step.
    pub on_leak: Option<OsString>,
    /// Whether an exception is raised in the program when memory grows step after step.
    pub raise_on_leak: bool,
    /// Destination of the program's own output.
    pub output: ProgramOutput,
    /// Process from which runs with captured output are forked, if there is one.
    pub template: Option<Arc<ForkTemplate>>,
    /// Whether the recorder opens a live socket for `oomph watch`.
    pub is_live: bool,
    /// Receiver of messages and progress.
    pub progress: ProgressReporter,
}

/// Destination of the program's own output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramOutput {
    /// To the streams of this process.
    Inherited,
    /// To standard error: standard output is for oomph's own result.
    Stderr,
    /// To a file; [`CompletedRun::last_message`] has the last of it.
    Captured,
}

impl Job {
    /// Returns a job with default settings. `steps` is passed to the recorder (`settings.py`).
    pub fn new(
        command: Vec<OsString>,
        emulated: Option<EmulatedGpu>,
        steps: Option<u32>,
        progress: ProgressReporter,
    ) -> Job {
        Job {
            command,
            environment: Vec::new(),
            emulated,
            steps,
            time_limit: None,
            cuts_loops: true,
            runs_later_iterations: true,
            max_events: None,
            detail: RecordingDetail::Auto,
            is_on_cpu: false,
            tracer: None,
            ranks: None,
            techniques: Vec::new(),
            keep_files: false,
            on_leak: None,
            raise_on_leak: false,
            output: ProgramOutput::Stderr,
            template: None,
            is_live: false,
            progress,
        }
    }
}

/// Settings passed to the recorder: the fields of `settings.py`.
#[derive(Serialize)]
struct RecorderSettings<'a> {
    output: Box<RawValue>,
    library: Option<Box<RawValue>>,
    tracer: Option<Box<RawValue>>,
    device: &'static str,
    max_events: Option<u64>,
    detail: RecordingDetail,
    steps: Option<u32>,
    time_limit: Option<f64>,
    cuts_loops: bool,
    runs_later_iterations: bool,
    techniques: &'a [String],
    unknown: u8,
    is_live: bool,
    keep_files: bool,
    raise_on_leak: bool,
    job: Option<PlanSettings<'a>>,
    is_template: bool,
    lifeline: Option<Box<RawValue>>,
    notes: Box<RawValue>,
    problems: Box<RawValue>,
}

/// A run that has ended, with its recordings.
pub struct CompletedRun {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Recordings, ordered by rank.
    pub ranks: Vec<RankRecording>,
    /// Notes of the processes of the run.
    pub notes: Notes,
    /// Distinct problems that the recorder reported.
    pub problems: Vec<String>,
    /// Why the folder for the recordings cannot be written to, if it cannot.
    pub unwritable: Option<String>,
    /// The exception that ended the program, or the last line that it printed, if its output was captured.
    pub last_message: Option<String>,
}

impl CompletedRun {
    /// Returns the exit code that a shell would give the program.
    pub fn exit_code(&self) -> u8 {
        let of_signal = || system::end_signal(self.status).map(|signal| 128 + signal);
        self.status.code().or_else(of_signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(2)
    }
}

/// The recording of one process.
pub struct RankRecording {
    /// The rank.
    pub rank: u32,
    /// Path of the snapshot.
    pub snapshot: PathBuf,
    /// Contents of `rankN.json`.
    pub info: RunInfo,
}

/// Fails if this system cannot run programs with the recorder; the error says what to do instead.
pub fn check_system() -> Result<(), Failure> {
    system::check()
}

/// Runs a program like [`run`]; fails if a signal stops oomph before the program has ended.
pub fn run_to_end(job: &Job, folder: &RunFolder) -> anyhow::Result<CompletedRun> {
    waiting::check_not_stopped()?;
    let done = run(job, folder)?;
    waiting::check_not_stopped()?;
    Ok(done)
}

/// Runs a program and collects its recordings.
pub fn run(job: &Job, folder: &RunFolder) -> anyhow::Result<CompletedRun> {
    let library = job.emulated.as_ref().map(emulator_library).transpose()?;
    let Some((program, arguments)) = job.command.split_first() else {
        return Err(Failure::new("no program was given", None, Some("name a script, or `-m MODULE`")).into());
    };
    output::clear(folder.output());
    for reports in [folder.notes(), folder.problems()] {
        let _ = std::fs::remove_file(reports);
    }
    folder.clear_rendezvous()?;
    let mut command = Command::new(program);
    command.args(arguments);
    // Emulated runs are not interactive.
    if job.emulated.is_some() {
        command.stdin(Stdio::null());
    }
    // Dropped when the program has ended; other processes of an emulated run then end as well.
    let lifeline = job.emulated.as_ref().and_then(|_| folder.scratch.lifeline());
    prepare(&mut command, job, folder, library.as_deref(), lifeline.as_ref(), false)?;
    let captured = folder.scratch.at("output");
    match job.output {
        ProgramOutput::Inherited => &mut command,
        ProgramOutput::Stderr => command.stdout(io::stderr()),
        ProgramOutput::Captured => {
            let file = system::create_private(&captured)?;
            command.stdout(file.try_clone()?).stderr(file)
        }
    };
    let kept = folder.is_kept.then(|| folder.output());
    let mut notice = NoGpuNotice { is_done: false, say: job.progress.say };
    let forked = job.template.as_ref().and_then(|template| template.run(job, folder, &command, &captured));
    let status = match forked {
        Some(status) => status?,
        None => {
            let child = command.spawn().map_err(|error| {
                Failure::new(
                    format!("`{}` cannot be started", shown_path(program)),
                    Some(error.to_string()),
                    Some("activate the environment that has torch, or name its interpreter with `--python`"),
                )
            })?;
            waiting::wait(child, kept, job.on_leak.as_deref(), job.progress.say, || {
                notice.update(&folder.notes())
            })?
        }
    };
    drop(lifeline);
    notice.update(&folder.notes());
    let last_message = std::fs::read(&captured).ok().and_then(|output| last_message(&output));
    let ranks = ranks(folder.output())?;
    Ok(CompletedRun {
        status,
        notes: notes::read(&folder.notes()),
        problems: notes::problems(&folder.problems()),
        unwritable: if ranks.is_empty() { folder.write_problem() } else { None },
        ranks,
        last_message,
    })
}

/// Tells the user once that tensors on the CPU are recorded because no GPU is usable.
struct NoGpuNotice {
    is_done: bool,
    say: fn(&str),
}

impl NoGpuNotice {
    fn update(&mut self, path: &Path) {
        if self.is_done {
            return;
        }
        if let Some(why) = notes::read(path).no_gpu {
            self.is_done = true;
            (self.say)(&format!(
                "no usable GPU ({why}): recording tensors on the CPU (--cpu to choose this silently; \
                 --emulate NAME for an emulated GPU)"
            ));
        }
    }
}

fn prepare(
    command: &mut Command,
    job: &Job,
    folder: &RunFolder,
    library: Option<&Path>,
    lifeline: Option<&Lifeline>,
    is_template: bool,
) -> anyhow::Result<()> {
    let (python_path, libraries, compiled) =
        (folder.python_path(), folder.libraries(), folder.scratch.at("compiled"));
    let (notes, problems) = (folder.notes(), folder.problems());
    let gpus = job.emulated.as_ref().map_or(1, |emulated| emulated.devices);
    let shared = path_for_python(&folder.rendezvous())?;
    let plan = job.ranks.as_ref().map(|plan| plan.settings(gpus, shared));
    let settings = RecorderSettings {
        output: path_for_python(folder.output())?,
        library: library.map(path_for_python).transpose()?,
        tracer: job.tracer.as_deref().map(path_for_python).transpose()?,
        device: if job.is_on_cpu { "cpu" } else { "auto" },
        max_events: job.max_events,
        detail: job.detail,
        steps: job.steps,
        time_limit: job.time_limit.map(|limit| limit.as_secs_f64()),
        cuts_loops: job.cuts_loops,
        runs_later_iterations: job.cuts_loops && job.runs_later_iterations,
        techniques: &job.techniques,
        unknown: job.emulated.as_ref().map_or(0, |emulated| emulated.unknown),
        is_live: job.is_live,
        keep_files: job.keep_files,
        raise_on_leak: job.raise_on_leak,
        job: plan,
        is_template,
        lifeline: lifeline.map(|lifeline| path_for_python(&lifeline.path)).transpose()?,
        notes: path_for_python(&notes)?,
        problems: path_for_python(&problems)?,
    };
    command.env("OOMPH_CHILD", serde_json::to_string(&settings)?);
    command.env("PYTHONPATH", prepended(&python_path, "PYTHONPATH")?);
    if let (Some(emulated), Some(library)) = (&job.emulated, library) {
        for name in DRIVER_LIBRARY_NAMES {
            let link = libraries.join(name);
            if !link.exists() {
                system::link(library, &link)?;
            }
        }
        command.env("LD_LIBRARY_PATH", prepended(&libraries, "LD_LIBRARY_PATH")?);
        let EmulatedGpu { model, memory, capacity, devices, .. } = emulated;
        command.env("OOMPH_EMULATOR", model.describe(*memory, *capacity, *devices));
        command.env("OOMPH_EMULATOR_NOTES", &notes);
        command.env("OOMPH_EMULATOR_RENDEZVOUS", folder.rendezvous());
        // Addresses of segments depend on the other memory of the process, and malloc places the arenas of
        // threads differently in every run.
        command.env("MALLOC_ARENA_MAX", "1");
        // Triton compiles without a GPU but links against the driver. The compiled code is only for this run.
        command.env("TRITON_LIBCUDA_PATH", &libraries);
        command.env("TRITON_CACHE_DIR", compiled.join("triton"));
        command.env("TORCHINDUCTOR_CACHE_DIR", compiled.join("torchinductor"));
        // Inductor starts its workers with a PYTHONPATH of its own making, so there is no emulated GPU in
        // them.
        command.env("TORCHINDUCTOR_COMPILE_THREADS", "1");
        // Users hide real devices this way; emulated devices stay visible.
        if std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|devices| matches!(devices.trim(), "" | "-1")) {
            command.env_remove("CUDA_VISIBLE_DEVICES");
        }
        // Losses of an emulated run are not computed and must not be logged as an experiment.
        if std::env::var_os("WANDB_MODE").is_none() {
            command.env("WANDB_MODE", "disabled");
        }
    }
    command.envs(job.environment.iter().map(|(name, value)| (name, value)));
    Ok(())
}

/// Returns a path as a JSON string for Python, which writes bytes that are not UTF-8 as lone surrogates.
fn path_for_python(path: &Path) -> serde_json::Result<Box<RawValue>> {
    let mut text = String::from("\"");
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        let valid = serde_json::to_string(chunk.valid())?;
        text.push_str(&valid[1..valid.len() - 1]);
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\udc{byte:02x}")));
    }
    text.push('"');
    RawValue::from_string(text)
}

/// Returns the paths of a variable with `path` in front.
fn prepended(path: &Path, variable: &str) -> anyhow::Result<OsString> {
    let others = std::env::var_os(variable).filter(|value| !value.is_empty());
    let others = others.iter().flat_map(|value| std::env::split_paths(value));
    Ok(std::env::join_paths(std::iter::once(path.to_owned()).chain(others))?)
}

/// Returns the path of the CUDA emulator.
fn emulator_library(emulated: &EmulatedGpu) -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(EMULATOR_LIBRARY_VARIABLE) {
        return Ok(path.into());
    }
    own_library(EMULATOR_LIBRARY, emulated.libraries.as_deref())?.map_err(|looked_in| {
        let hint =
            "build it with `cargo build --release -p oomph-emulator`, or set OOMPH_EMULATOR_LIB to its path";
        let missing = format!("the CUDA emulator, `{EMULATOR_LIBRARY}`, was not found");
        Failure::new(missing, Some(looked_in), Some(hint)).into()
    })
}

/// Returns the path of the library that counts calls of the CUDA driver.
pub fn tracer_library(host: &Host) -> anyhow::Result<PathBuf> {
    own_library(TRACER_LIBRARY, host.libraries.as_deref())?.map_err(|looked_in| {
        let missing = format!("the library for --trace-driver, `{TRACER_LIBRARY}`, was not found");
        Failure::new(missing, Some(looked_in), Some("build it with `cargo build --release -p oomph-tracer`"))
            .into()
    })
}

/// Returns the path of a library that is installed with this program, or else where it was looked for.
fn own_library(name: &str, folder: Option<&Path>) -> anyhow::Result<Result<PathBuf, String>> {
    let program = std::env::current_exe()?;
    let folder = folder.unwrap_or(program.parent().unwrap_or(Path::new(".")));
    let candidates = [folder.join(name), folder.join("../lib").join(name)];
    Ok(match candidates.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.canonicalize()?),
        None => Err(format!("looked in `{}`", shown_path(folder))),
    })
}

/// Returns the recordings in a folder, by rank. The ranks of one machine need not start at 0.
fn ranks(output: &Path) -> anyhow::Result<Vec<RankRecording>> {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| own_rank(entry.file_name().to_str().filter(|name| name.ends_with(".pickle"))?))
        .collect();
    numbers.sort_unstable();
    let read = |number: u32| {
        let path = |suffix: &str| PathBuf::from(output::shown(output)).join(format!("rank{number}.{suffix}"));
        let info = RunInfo::parse(&std::fs::read(path("json"))?)?;
        Ok(RankRecording { rank: number, snapshot: path("pickle"), info })
    };
    numbers.into_iter().map(read).collect()
}

/// Returns the exception that ended a program, or the last line that it printed.
fn last_message(output: &[u8]) -> Option<String> {
    const BEGIN: &str = "Traceback (most recent call last)";
    // A launcher that raises one of its own only says that a process has failed.
    const OF_LAUNCHER: &str = "ChildFailedError";
    let text = String::from_utf8_lossy(output);
    // PyTorch puts the rank before each line of a traceback.
    let lines: Vec<&str> = text
        .lines()
        .map(|line| match line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: ")) {
            Some((_, rest)) => rest,
            None => line,
        })
        .filter(|line| !line.trim().is_empty())
        .collect();
    let exception = |(index, _)| lines[index + 1..].iter().find(|line| !line.starts_with(' '));
    let tracebacks = lines.iter().enumerate().rev().filter(|(_, line)| line.starts_with(BEGIN));
    tracebacks
        .filter_map(exception)
        .find(|line| !line.contains(OF_LAUNCHER))
        .or(lines.last())
        .map(|line| (*line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::last_message;

    #[test]
    fn a_program_ended_with_its_exception_whatever_is_printed_after_it() {
        let output = b"loading\n[rank0]: Traceback (most recent call last):\n[rank0]:   File \"a.py\"\n\
            [rank0]: ModuleNotFoundError: No module named 'x'\n[rank0]:[W1118] Warning: not destroyed\n\
            Traceback (most recent call last):\n  File \"run.py\"\n\
            torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\n";
        assert_eq!(last_message(output).as_deref(), Some("ModuleNotFoundError: No module named 'x'"));
        assert_eq!(last_message(b"usage: a.py\nerror: --dim\n\n").as_deref(), Some("error: --dim"));
        assert_eq!(last_message(b"\n"), None);
    }
}
