//! Puts the recorder into a running process, and takes it out again.
//!
//! What runs there is in `python/oomph/bootstrap/attach*.py`. The two sides share a private folder: this one
//! writes the recorder's files and holds a lock, the other writes notes and the recording. If this process
//! ends, even by `kill -9`, the lock is free, and the other side leaves within a second.

mod folder;
#[cfg(target_arch = "x86_64")]
mod inserted_code;
#[cfg(target_arch = "x86_64")]
mod main_thread;
mod process;
mod recorded;
mod remote_exec;
mod symbols;
#[cfg(target_arch = "x86_64")]
mod traced_thread;

use crate::attach::{AttachRequest, AttachedRecording};
use crate::output::{self, ClaimedFolder};
use crate::run_folder::PYTHON_FILES;
use crate::scratch::{Scratch, unwritable};
use crate::{path_for_python, waiting};
use analysis::words::counted;
use failure::Failure;
use folder::SharedFolder;
use process::RunningProcess;
use remote_exec::AskedThread;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which the user is told what is being waited for.
const NOTICE_DELAY: Duration = Duration::from_secs(1);
/// Time after which a main thread that has not come is looked at again, and then again after twice that time:
/// it may have begun to wait.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Time between two messages about a recording.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// How long the recorder may take to leave when it is asked to.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(10);
/// Packages that an attached recorder needs, and the files of `bootstrap` among them.
const PACKAGES: [&str; 3] = ["heap/", "interpreter/", "recording/"];
const BOOTSTRAP_FILES: [&str; 3] = ["bootstrap/__init__.py", "bootstrap/attach.py", "bootstrap/settings.py"];
const PARTS: &str = "parts";
const START: &str = "start.py";
const NOTES: &str = "notes";
const PROBLEMS: &str = "problems";

/// What the process loads: the globals of `attach_load.py`.
#[derive(Serialize)]
struct LoadedParts<'a> {
    load: &'a str,
    files: BTreeMap<&'a str, &'a str>,
    folder: Box<RawValue>,
    settings: VisitSettings,
    attachment: Attachment,
}

/// What runs first in the process.
struct PythonText {
    /// Up to a dictionary in a call.
    before_address: String,
}

/// End of the text. Python would print an error, as when the program is ending and no module can be imported
/// any more.
const AFTER_ADDRESS: &str = "\nexcept: pass\n";

impl PythonText {
    /// Returns the text for memory of its own, `length` bytes at `page`.
    #[cfg(target_arch = "x86_64")]
    fn bytes(&self, page: u64, length: u64) -> Vec<u8> {
        format!("{}{page:#018x}, {length:12})}}){AFTER_ADDRESS}\0", self.before_address).into_bytes()
    }

    /// Returns the text as a script.
    fn script(&self) -> String {
        format!("{}0, 0)}}){AFTER_ADDRESS}", self.before_address)
    }
}

/// Fields of `settings.py`.
#[derive(Serialize)]
struct VisitSettings {
    output: Box<RawValue>,
    notes: Box<RawValue>,
    problems: Box<RawValue>,
}

/// Fields of `Attachment` in `attach.py`.
#[derive(Serialize)]
struct Attachment {
    folder: Box<RawValue>,
    lock: Box<RawValue>,
    seconds: Option<f64>,
    steps: Option<u32>,
    timeout: f64,
    has_holders: bool,
}

pub(crate) fn attach(request: &AttachRequest<'_>) -> anyhow::Result<AttachedRecording> {
    let process = RunningProcess::open(request.pid)?;
    if let Some(recording) = recorded::dump(&process, request)? {
        return Ok(recording);
    }
    let scratch = Scratch::new()?;
    let claimed = output::claim(request.output)?;
    let claimed = claimed.unwrap_or_else(|| ClaimedFolder { folder: scratch.at("recording"), is_new: true });
    let visited = visit(&process, request, &scratch, &claimed);
    if visited.is_err() && claimed.is_new {
        // Succeeds only for an empty folder.
        let _ = std::fs::remove_dir(&claimed.folder);
    }
    visited
}

fn visit(
    process: &RunningProcess,
    request: &AttachRequest<'_>,
    scratch: &Scratch,
    claimed: &ClaimedFolder,
) -> anyhow::Result<AttachedRecording> {
    process.check_traceable()?;
    let shared = SharedFolder::new(process, scratch).map_err(|error| match process.is_running() {
        true => process.refuse(format!("no private folder can be made for it: {error}"), None),
        false => process.refuse("it has ended", None),
    })?;
    let text = write_parts(&shared, request)?;
    shared.write(START, text.script().as_bytes())?;
    shared.hand_over()?;
    let start = shared.at(START);
    let asked = start.to_str().map(|path| AskedThread::ask(process, path)).transpose()?.flatten();
    if asked.is_none() {
        run_soon(process, &text, MainThreadNeed::Any)?;
    }
    let pause = AttachVisit { process, request, shared: &shared, text: &text, asked }.wait()?;
    let shown = output::shown(&claimed.folder);
    shared.collect(&claimed.folder).map_err(|error| unwritable(&shown, &error))?;
    let snapshots = crate::ranks(&claimed.folder)?.into_iter().map(|rank| rank.snapshot).collect::<Vec<_>>();
    let problems = shared.lines(PROBLEMS);
    if snapshots.is_empty() {
        let cause = problems.first().cloned().or_else(|| Some("it wrote nothing".to_owned()));
        let what = format!("process {} was not recorded", process.pid);
        return Err(Failure::new(what, cause, None).into());
    }
    Ok(AttachedRecording { snapshots, folder: shown, problems, pause })
}

/// Whether a main thread is disturbed that does not wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MainThreadNeed {
    Any,
    Waiting,
}

#[cfg(target_arch = "x86_64")]
use main_thread::run_soon;

#[cfg(not(target_arch = "x86_64"))]
fn run_soon(process: &RunningProcess, _: &PythonText, _: MainThreadNeed) -> Result<(), Failure> {
    let cause = format!(
        "its Python 3.{} cannot be asked to run code, and this is not an x86-64 processor",
        process.python
    );
    Err(process.refuse(cause, Some("Python 3.14 can be; or use `oomph run`")))
}

/// Writes what the process loads, and returns what makes it do so.
fn write_parts(shared: &SharedFolder, request: &AttachRequest<'_>) -> anyhow::Result<PythonText> {
    let is_needed = |name: &str| {
        PACKAGES.iter().any(|package| name.starts_with(package)) || BOOTSTRAP_FILES.contains(&name)
    };
    let file = |wanted: &str| PYTHON_FILES.iter().find(|(name, _)| *name == wanted).map_or("", |file| file.1);
    let path = |name: &str| path_for_python(&shared.at(name));
    let parts = LoadedParts {
        load: file("bootstrap/attach_load.py"),
        files: PYTHON_FILES.iter().copied().filter(|(name, _)| is_needed(name)).collect(),
        folder: path_for_python(&shared.inside)?,
        settings: VisitSettings {
            output: path_for_python(&shared.output())?,
            notes: path(NOTES)?,
            problems: path(PROBLEMS)?,
        },
        attachment: Attachment {
            folder: path_for_python(&shared.inside)?,
            lock: path_for_python(&shared.lock_path())?,
            seconds: request.duration.map(|duration| duration.as_secs_f64()),
            steps: request.steps,
            timeout: request.timeout.as_secs_f64(),
            has_holders: request.has_holders,
        },
    };
    // Nobody else can make a file that begins like this one.
    let token = random()?;
    let mut text = token.clone().into_bytes();
    serde_json::to_writer(&mut text, &parts)?;
    shared.write(PARTS, &text)?;
    // JSON's strings are Python's as well. The text gives no name to anything: it runs among the program's
    // own names.
    let start = serde_json::to_string(file("bootstrap/attach_start.py"))?;
    let before_address = format!(
        "try: __import__('builtins').exec({start}, {{'__name__': 'oomph_attach', 'PATH': {}, \
         'TOKEN': '{token}', 'PAGE': (",
        path(PARTS)?
    );
    Ok(PythonText { before_address })
}

/// What the recorder has noted: the last text of each kind.
type VisitNotes = BTreeMap<String, String>;

/// A process that has been asked to load the recorder.
struct AttachVisit<'a> {
    process: &'a RunningProcess,
    request: &'a AttachRequest<'a>,
    shared: &'a SharedFolder,
    text: &'a PythonText,
    asked: Option<AskedThread>,
}

impl AttachVisit<'_> {
    /// Waits until the recorder has left the process; returns how long the program stood still for the dump.
    fn wait(mut self) -> anyhow::Result<Option<Duration>> {
        let waited = self.wait_for_end();
        if waited.is_err() {
            self.take_back();
            self.leave();
        }
        waited
    }

    fn wait_for_end(&mut self) -> anyhow::Result<Option<Duration>> {
        let began = Instant::now();
        let mut retry = RETRY_DELAY;
        let mut progress = VisitProgress { stage: VisitStage::Waiting, at: began, is_told: false };
        loop {
            waiting::check_not_stopped()?;
            let is_running = self.process.is_running();
            let notes = self.notes();
            if notes.contains_key("ended") || !is_running {
                return self.outcome(&notes);
            }
            let is_loaded = notes.contains_key("loaded");
            if !is_loaded && began.elapsed() > self.request.timeout {
                return Err(self.too_late().into());
            }
            if !is_loaded && began.elapsed() > retry {
                retry *= 2;
                let need = if self.take_back() { MainThreadNeed::Any } else { MainThreadNeed::Waiting };
                // A failure leaves what it was asked first.
                let _ = run_soon(self.process, self.text, need);
            }
            progress.tell(&notes, self.process.pid, self.request);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns why the recorder was not loaded in time.
    fn too_late(&self) -> Failure {
        let seconds = self.request.timeout.as_secs();
        if !self.shared.has(PARTS) {
            let cause = format!("it has been importing modules for {seconds} s, PyTorch perhaps");
            return self.process.refuse(cause, Some("try again, or with a longer --timeout"));
        }
        let cause =
            format!("its main thread ran no Python code for {seconds} s: it is busy in C code, or waits");
        let hint =
            "try again while it works (a server: while it serves a request), or with a longer --timeout";
        self.process.refuse(cause, Some(hint))
    }

    /// Returns how the visit ended.
    fn outcome(&self, notes: &VisitNotes) -> anyhow::Result<Option<Duration>> {
        let what = format!("process {} was not recorded", self.process.pid);
        if let Some(why) = notes.get("stopped") {
            return Err(Failure::new(what, Some(why.clone()), None).into());
        }
        if notes.is_empty() {
            return Err(Failure::new(what, Some("it has ended".to_owned()), None).into());
        }
        let seconds = notes.get("written").and_then(|seconds| seconds.parse().ok());
        Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    }

    /// VisitNotes of the recorder: the last of each kind.
    fn notes(&self) -> VisitNotes {
        let lines = self.shared.lines(NOTES);
        let split =
            |line: &String| line.split_once('\t').map(|(kind, text)| (kind.to_owned(), text.to_owned()));
        lines.iter().filter_map(split).collect()
    }

    /// Takes back what the main thread has been asked for. Returns whether it was.
    fn take_back(&mut self) -> bool {
        let asked = self.asked.take();
        asked.inspect(|asked| asked.take_back(self.process)).is_some()
    }

    /// Has the recorder leave, and waits until it has.
    fn leave(&self) {
        self.shared.unlock();
        let began = Instant::now();
        let is_there = || self.process.is_running() && self.notes().contains_key("loaded");
        while is_there() && !self.notes().contains_key("ended") && began.elapsed() < LEAVING_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// What the process does for us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitStage {
    /// Its main thread has not come to us.
    Waiting,
    Recording,
    Writing,
}

/// Messages about what takes longer than a second.
struct VisitProgress {
    stage: VisitStage,
    at: Instant,
    is_told: bool,
}

impl VisitProgress {
    fn tell(&mut self, notes: &VisitNotes, pid: u32, request: &AttachRequest<'_>) {
        let stages = [("writing", VisitStage::Writing), ("recording", VisitStage::Recording)];
        let stage = stages.into_iter().find(|(note, _)| notes.contains_key(*note));
        let stage = stage.map_or(VisitStage::Waiting, |(_, stage)| stage);
        if stage != self.stage {
            *self = VisitProgress { stage, at: Instant::now(), is_told: false };
        }
        let seconds = |duration: Duration| duration.as_secs_f64();
        let text = match (stage, self.is_told) {
            (VisitStage::Waiting, false) if self.at.elapsed() > NOTICE_DELAY => {
                format!("waiting for the main thread of process {pid}, up to {} s", seconds(request.timeout))
            }
            (VisitStage::Writing, false) if self.at.elapsed() > NOTICE_DELAY => {
                format!("process {pid} is writing the recording")
            }
            (VisitStage::Recording, false) => {
                let duration = request.duration.unwrap_or_default();
                format!("recording process {pid} for {} s", seconds(duration))
            }
            (VisitStage::Recording, true) if self.at.elapsed() > PROGRESS_INTERVAL => {
                let steps = notes.get("steps").and_then(|steps| steps.parse().ok()).unwrap_or(0);
                format!("{} so far", counted(steps, "step"))
            }
            _ => return,
        };
        (request.progress.say)(&text);
        (self.is_told, self.at) = (true, Instant::now());
    }
}

/// Returns 32 hexadecimal digits that nobody can guess.
fn random() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
