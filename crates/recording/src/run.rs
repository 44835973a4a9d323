//! `rankN.json`: how the run of one process went; and `meta.json`: what it ran on.

use crate::settings::SettingsEntry;
use crate::{AllocationCounts, FileError, JobPlace, ObservedProgram, SettingsLog};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use snapshot::Bytes;
use std::collections::BTreeMap;

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The program ran to its end.
    Finished,
    /// An allocation on a GPU failed, and the exception ended it.
    OutOfMemory,
    /// Another exception ended it.
    Failed,
    /// A signal or a crash ended it.
    Killed,
    /// The recorder stopped it after enough steps.
    Stopped(StopReason),
}

/// Why the recorder ended a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The requested number of steps is reached.
    Steps,
    /// The memory of steps repeats.
    Periodic,
    /// Many steps ran, and none repeated the one before.
    Long,
    /// The time limit of a prediction is over.
    TimeLimit,
}

/// State of a program, as far as its files tell.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum RunState {
    /// Unknown: the file is missing, or has a value that this version does not know.
    #[default]
    Unknown,
    /// The program was running when the file was written, and has not written another.
    Running,
    /// The program has ended.
    Exited(Exit),
}

impl RunState {
    fn new(word: &str, exception: Option<&str>) -> RunState {
        RunState::Exited(match word {
            "running" => return RunState::Running,
            "finished" => Exit::Finished,
            "failed" if exception.is_some_and(is_out_of_memory) => Exit::OutOfMemory,
            "failed" => Exit::Failed,
            "killed" => Exit::Killed,
            "steps" => Exit::Stopped(StopReason::Steps),
            "periodic" => Exit::Stopped(StopReason::Periodic),
            "long" => Exit::Stopped(StopReason::Long),
            "time" => Exit::Stopped(StopReason::TimeLimit),
            _ => return RunState::Unknown,
        })
    }

    /// Returns how the program ended, if it has.
    pub fn exit(self) -> Option<Exit> {
        match self {
            RunState::Exited(exit) => Some(exit),
            RunState::Unknown | RunState::Running => None,
        }
    }

    /// Returns the word that the file and the JSON of reports have for `ended`.
    pub fn word(self) -> Option<&'static str> {
        Some(match self {
            RunState::Unknown => return None,
            RunState::Running => "running",
            RunState::Exited(Exit::Finished) => "finished",
            RunState::Exited(Exit::OutOfMemory | Exit::Failed) => "failed",
            RunState::Exited(Exit::Killed) => "killed",
            RunState::Exited(Exit::Stopped(StopReason::Steps)) => "steps",
            RunState::Exited(Exit::Stopped(StopReason::Periodic)) => "periodic",
            RunState::Exited(Exit::Stopped(StopReason::Long)) => "long",
            RunState::Exited(Exit::Stopped(StopReason::TimeLimit)) => "time",
        })
    }
}

/// Returns whether an exception, as `Type: message`, says that a GPU ran out of memory.
///
/// PyTorch raises `OutOfMemoryError` where its allocator fails. Other allocations of CUDA raise general
/// types: they count only if the message says so. `CUBLAS_STATUS_ALLOC_FAILED` alone does not: cuBLAS says it
/// for other reasons too.
pub fn is_out_of_memory(exception: &str) -> bool {
    const GENERAL_TYPES: [&str; 4] = ["RuntimeError", "AcceleratorError", "DistBackendError", "DistError"];
    const LIBRARIES: [&str; 5] = ["cuda", "nccl", "cublas", "cudnn", "hip"];
    let (class, message) = exception.split_once(':').unwrap_or((exception, ""));
    let class = class.trim().rsplit('.').next().unwrap_or_default();
    if class == "OutOfMemoryError" {
        return true;
    }
    let message = message.to_ascii_lowercase();
    GENERAL_TYPES.contains(&class)
        && message.contains("out of memory")
        && LIBRARIES.iter().any(|library| message.contains(library))
}

/// Why the recorder wrote a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpReason {
    /// The program or the recording ended.
    Exit,
    /// An allocation failed.
    OutOfMemory,
    /// The process got SIGUSR1.
    Signal,
    /// The process got SIGTERM.
    Killed,
    /// Memory grew step after step.
    Alarm,
    /// The program or a watcher asked for it.
    Asked,
    /// The recorder ended the program.
    Stop,
    /// Memory grew, and the heap alone was dumped.
    Growing,
}

impl DumpReason {
    const WORDS: [(DumpReason, &'static str); 8] = [
        (DumpReason::Exit, "exit"),
        (DumpReason::OutOfMemory, "oom"),
        (DumpReason::Signal, "signal"),
        (DumpReason::Killed, "killed"),
        (DumpReason::Alarm, "alarm"),
        (DumpReason::Asked, "asked"),
        (DumpReason::Stop, "stop"),
        (DumpReason::Growing, "growing"),
    ];

    /// Returns the reason that files have this word for.
    pub fn from_word(word: &str) -> Option<DumpReason> {
        DumpReason::WORDS.iter().find(|(_, known)| *known == word).map(|(reason, _)| *reason)
    }

    /// Returns the word that files and the JSON of reports have for `dumped`.
    pub fn word(self) -> &'static str {
        DumpReason::WORDS.iter().find(|(reason, _)| *reason == self).map_or("", |(_, word)| word)
    }
}

/// How the run of one process went.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RunInfo {
    /// Whether and how the program ended.
    pub state: RunState,
    /// The exception that ended it, as `Type: message`.
    pub exception: Option<String>,
    /// Why the snapshot was written.
    pub reason: Option<DumpReason>,
    /// Release of PyTorch.
    pub torch: Option<String>,
    /// Steps that the recorder counted.
    pub steps: Option<u64>,
    /// Process that recorded.
    pub pid: Option<u32>,
    /// Name of the machine.
    pub host: Option<String>,
    /// Place of the process in a distributed job.
    pub job: Option<JobPlace>,
    /// Arguments of the program, from `meta.json`.
    pub command: Vec<String>,
    /// Release of Python, from `meta.json`.
    pub python: Option<String>,
    /// Facts about a run on an emulated GPU.
    pub emulation: EmulationInfo,
}

impl RunInfo {
    /// Parses `rankN.json`.
    pub fn parse(bytes: &[u8]) -> Result<RunInfo, FileError> {
        parse_rank(bytes).map(|(run, _)| run)
    }

    /// Returns the first line of the exception that ended the program.
    pub fn exception_line(&self) -> Option<&str> {
        self.exception.as_deref()?.lines().next()
    }
}

/// Facts that the recorder notes about a run on an emulated GPU.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct EmulationInfo {
    /// For each requested technique, what was changed, or why nothing was.
    pub techniques: BTreeMap<String, String>,
    /// Lines that read values which only a real GPU computes.
    pub reads: Vec<ValueRead>,
    /// Whether the values of small tensors were computed.
    pub has_values: bool,
    /// Whether Inductor compiled something.
    pub uses_inductor: bool,
    /// Non-PyTorch memory of the process, by device ordinal.
    pub non_pytorch: Vec<Option<Bytes>>,
    /// Bytes of it that NCCL takes.
    pub nccl: Bytes,
    /// Bytes of it that are symmetric memory.
    pub symmetric: Bytes,
    /// Loops over data loaders.
    pub loops: Vec<LoopInfo>,
    /// When the program entered a loop or left all: time in microseconds, and row of `loops`.
    pub loop_marks: Vec<(u64, Option<usize>)>,
    /// Whether a trainer was given a number of batches that is not the loader's.
    pub has_shortened: bool,
    /// Whether a loop without a data loader was left early.
    pub has_left_loop: bool,
    /// Later iterations that ran although their loop was cut short, because a condition changes there.
    pub later_iterations: Vec<LaterIteration>,
    /// Whether the steps of a loop that was left differed.
    pub has_left_unsettled: bool,
    /// Whether the program would have done nothing else after the loop in which it was stopped.
    pub is_covered: bool,
    /// What a change to the program would touch, if that was asked for.
    pub observed: Option<ObservedProgram>,
}

/// A line that iterates over a data loader. A prediction cuts such loops short where their iterations repeat.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LoopInfo {
    /// File of the line.
    pub file: String,
    /// Number of the line.
    pub line: u32,
    /// Function of the line.
    pub function: String,
    /// Function of a library that iterates for the line, as `package: function`.
    pub library: Option<String>,
    /// Batches of one run of the loop, if the loader knows.
    pub batches: Option<u64>,
    /// Batches of the longest run that were not skipped.
    pub iterations: u64,
    /// Number of times the loop ran.
    pub runs: u64,
    /// Batches that all runs skipped.
    pub skipped: u64,
    /// Whether iterations were repeating where the loop was cut short.
    pub is_settled: bool,
    /// Bytes that each iteration was adding where the loop was cut short.
    pub growth: u64,
    /// Bytes that the skipped iterations of one run would have added.
    #[serde(default)]
    pub skipped_growth: u64,
}

/// An iteration of a loop that was run out of order.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LaterIteration {
    /// File of the loop.
    pub file: String,
    /// Line of the loop.
    pub line: u32,
    /// Number of the iteration, as the program counts.
    pub number: u64,
}

/// A line that read a value which only a real GPU computes.
#[derive(Deserialize, Serialize, Clone, PartialEq, Eq, Debug)]
pub struct ValueRead {
    /// File of the line.
    pub file: String,
    /// Number of the line.
    pub line: u32,
    /// Function of the line.
    pub function: String,
    /// Operator that read the value.
    pub operator: String,
    /// Value that was read.
    pub kind: String,
    /// Number of reads.
    pub count: u64,
}

/// End of the history, from `rankN.json`.
#[derive(Debug)]
pub(crate) struct HistoryEnd {
    pub(crate) allocations: AllocationCounts,
    pub(crate) has_stacks: bool,
    pub(crate) shortage: Option<Shortage>,
    pub(crate) settings: Option<SettingsLog>,
}

/// The driver's numbers when an allocation failed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Device ordinal.
    pub device: u32,
    /// Total memory of the device.
    pub total: Option<Bytes>,
    /// Free memory of the device.
    pub free: Option<Bytes>,
    /// Memory limit of the process, if it has one.
    pub limit: Option<Bytes>,
    /// Other processes on the device.
    pub others: Vec<Process>,
}

impl Shortage {
    /// Corrects a total below that of the device: PyTorch reports the limit of the process in place of the
    /// total.
    pub(crate) fn settle_limit(&mut self, device_total: Option<Bytes>) {
        if let (Some(reported), Some(total)) = (self.total, device_total)
            && reported < total
        {
            self.limit = Some(reported);
            self.total = Some(total);
        }
    }
}

/// A process that uses memory of a device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Process {
    /// Process id.
    pub pid: u64,
    /// Memory of the device that it uses.
    pub bytes: Bytes,
    /// Name, or empty.
    pub name: String,
}

/// Finds the recorded process among those that the driver lists, by index.
///
/// It is the one at `by_name`, which names itself. In a container the driver numbers processes differently:
/// then it is the one that holds just a little more than PyTorch has reserved.
pub fn own_process(by_name: Option<usize>, held: &[u64], reserved: u64) -> Option<usize> {
    by_name
        .or_else(|| (0..held.len()).filter(|&index| held[index] >= reserved).min_by_key(|&index| held[index]))
}

/// A device as the driver describes it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct GpuInfo {
    /// Device ordinal.
    pub device: u32,
    /// `NVIDIA H200`, or empty.
    pub name: String,
    /// Total memory.
    pub total: Option<Bytes>,
    /// Memory limit of the process, if it has one.
    pub limit: Option<Bytes>,
}

impl GpuInfo {
    /// Returns the memory that the process may use: its limit, or all of the device's.
    pub fn usable(&self) -> Option<Bytes> {
        self.limit.or(self.total)
    }
}

#[derive(Deserialize)]
struct RankFile {
    ended: Option<String>,
    exception: Option<String>,
    dumped: Option<String>,
    torch: Option<String>,
    steps: Option<StepsEntry>,
    pid: Option<u32>,
    host: Option<String>,
    job: Option<JobPlace>,
    #[serde(default)]
    allocations: BTreeMap<String, u64>,
    stacks: Option<bool>,
    settings: Option<SettingsEntry>,
    oom: Option<OomEntry>,
    #[serde(default)]
    techniques: BTreeMap<String, String>,
    #[serde(default)]
    reads: Vec<ValueRead>,
    #[serde(default)]
    values: bool,
    #[serde(default)]
    inductor: bool,
    #[serde(default)]
    devices: Vec<DeviceEntry>,
    #[serde(default)]
    nccl: u64,
    #[serde(default)]
    symmetric: u64,
    #[serde(default)]
    loops: Vec<LoopInfo>,
    #[serde(default)]
    marks: Vec<(u64, Option<usize>)>,
    #[serde(default)]
    shortened: bool,
    #[serde(default)]
    left: bool,
    #[serde(default)]
    later: Vec<LaterIteration>,
    settled: Option<bool>,
    #[serde(default)]
    covered: bool,
    observed: Option<ObservedProgram>,
}

#[derive(Deserialize)]
struct StepsEntry {
    count: Option<u64>,
}

#[derive(Deserialize)]
struct DeviceEntry {
    outside: Option<u64>,
}

#[derive(Deserialize)]
struct OomEntry {
    #[serde(default)]
    device: u32,
    total: Option<u64>,
    free: Option<u64>,
    limit: Option<u64>,
    reserved: Option<u64>,
    #[serde(default)]
    processes: Vec<ProcessEntry>,
}

#[derive(Deserialize)]
struct ProcessEntry {
    #[serde(default)]
    pid: u64,
    bytes: Option<u64>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct MetaFile {
    torch: Option<String>,
    python: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    devices: Vec<GpuEntry>,
}

#[derive(Deserialize)]
struct GpuEntry {
    #[serde(default)]
    index: u32,
    name: Option<String>,
    total: Option<u64>,
    limit: Option<u64>,
}

/// Contents of `meta.json`, about the whole run.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) torch: Option<String>,
    pub(crate) python: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) gpus: Vec<GpuInfo>,
}

/// Parses a JSON file. Other tools use the same name; a file of the recorder has this key.
fn parse_own<T: DeserializeOwned>(bytes: &[u8], key: &str) -> Result<T, FileError> {
    let value: Value = serde_json::from_slice(bytes)?;
    if value.get(key).is_none() {
        return Err(FileError::Foreign);
    }
    Ok(serde_json::from_value(value)?)
}

/// Parses `rankN.json`.
pub(crate) fn parse_rank(bytes: &[u8]) -> Result<(RunInfo, HistoryEnd), FileError> {
    let file: RankFile = parse_own(bytes, "ended")?;
    let emulation = EmulationInfo {
        techniques: file.techniques,
        reads: file.reads,
        has_values: file.values,
        uses_inductor: file.inductor,
        non_pytorch: file.devices.iter().map(|device| device.outside.map(Bytes)).collect(),
        nccl: Bytes(file.nccl),
        symmetric: Bytes(file.symmetric),
        loops: file.loops,
        loop_marks: file.marks,
        has_shortened: file.shortened,
        has_left_loop: file.left,
        later_iterations: file.later,
        has_left_unsettled: file.left && file.settled == Some(false),
        is_covered: file.covered,
        observed: file.observed,
    };
    let word = file.ended.as_deref().unwrap_or_default();
    let run = RunInfo {
        state: RunState::new(word, file.exception.as_deref()),
        exception: file.exception,
        reason: file.dumped.as_deref().and_then(DumpReason::from_word),
        torch: file.torch,
        steps: file.steps.and_then(|steps| steps.count),
        pid: file.pid,
        host: file.host,
        job: file.job.map(JobPlace::bounded),
        command: Vec::new(),
        python: None,
        emulation,
    };
    let end = HistoryEnd {
        allocations: AllocationCounts::from(file.allocations),
        // Older recorders always recorded stacks.
        has_stacks: file.stacks.unwrap_or(true),
        shortage: file.oom.map(Shortage::from),
        settings: file.settings.map(SettingsLog::from),
    };
    Ok((run, end))
}

/// Parses `meta.json`.
pub(crate) fn parse_meta(bytes: &[u8]) -> Result<Meta, FileError> {
    let file: MetaFile = parse_own(bytes, "started_us")?;
    let gpu = |entry: GpuEntry| GpuInfo {
        device: entry.index,
        name: entry.name.unwrap_or_default(),
        total: entry.total.map(Bytes),
        limit: entry.limit.map(Bytes),
    };
    let gpus = file.devices.into_iter().map(gpu).collect();
    Ok(Meta { torch: file.torch, python: file.python, command: file.command, gpus })
}

/// Removes the recorded process itself from the driver's list.
fn others(mut processes: Vec<ProcessEntry>, reserved: u64) -> Vec<ProcessEntry> {
    let is_own = |process: &ProcessEntry| process.name.as_deref() == Some("this process");
    let held: Vec<u64> = processes.iter().map(|process| process.bytes.unwrap_or(0)).collect();
    if let Some(own) = own_process(processes.iter().position(is_own), &held, reserved) {
        processes.remove(own);
    }
    processes
}

impl From<OomEntry> for Shortage {
    fn from(entry: OomEntry) -> Shortage {
        let process = |process: ProcessEntry| Process {
            pid: process.pid,
            bytes: Bytes(process.bytes.unwrap_or(0)),
            name: process.name.unwrap_or_default(),
        };
        let others = others(entry.processes, entry.reserved.unwrap_or(0));
        Shortage {
            device: entry.device,
            total: entry.total.map(Bytes),
            free: entry.free.map(Bytes),
            limit: entry.limit.map(Bytes),
            others: others.into_iter().map(process).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_recognised_by_type_or_by_what_cuda_says() {
        for (exception, expected) in [
            ("OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB.", true),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", true),
            ("torch.cuda.OutOfMemoryError: Allocation on device", true),
            ("OutOfMemoryError", true),
            ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total)", true),
            ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported later", true),
            ("AcceleratorError: CUDA error: out of memory", true),
            ("RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB", true),
            ("DistBackendError: NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'", true),
            ("DistBackendError: NCCL error in: a.cpp:1, unhandled system error", false),
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                false,
            ),
            ("RuntimeError: CUDA error: device-side assert triggered", false),
            (
                "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
                false,
            ),
            ("RuntimeError: the host is out of memory", false),
            ("MemoryError", false),
            ("ValueError: CUDA out of memory is what this test expects", false),
            ("NotAnOutOfMemoryError: x", false),
            ("", false),
        ] {
            assert_eq!(is_out_of_memory(exception), expected, "{exception}");
        }
    }

    #[test]
    fn the_end_of_a_program_is_decided_by_the_file_alone() {
        let oom = r#""OutOfMemoryError: CUDA out of memory.""#;
        for (ended, exception, expected) in [
            ("running", "null", RunState::Running),
            ("finished", "null", RunState::Exited(Exit::Finished)),
            ("failed", "\"KeyError: 'a'\"", RunState::Exited(Exit::Failed)),
            ("failed", "null", RunState::Exited(Exit::Failed)),
            ("failed", oom, RunState::Exited(Exit::OutOfMemory)),
            ("running", oom, RunState::Running),
            ("killed", "null", RunState::Exited(Exit::Killed)),
            ("steps", "null", RunState::Exited(Exit::Stopped(StopReason::Steps))),
            ("periodic", "null", RunState::Exited(Exit::Stopped(StopReason::Periodic))),
            ("long", "null", RunState::Exited(Exit::Stopped(StopReason::Long))),
            ("time", "null", RunState::Exited(Exit::Stopped(StopReason::TimeLimit))),
        ] {
            let json = format!(r#"{{"ended": "{ended}", "exception": {exception}}}"#);
            let run = RunInfo::parse(json.as_bytes()).expect("readable");
            assert_eq!(run.state, expected, "{json}");
            assert_eq!(run.state.word(), Some(ended), "the word survives the round trip");
        }
        let newer = RunInfo::parse(br#"{"ended": "evaporated"}"#).expect("readable");
        assert_eq!(newer.state, RunState::Unknown);
        assert!(matches!(RunInfo::parse(b"{}"), Err(FileError::Foreign)));
    }

    #[test]
    fn words_of_dump_reasons_survive_the_round_trip() {
        for (reason, word) in DumpReason::WORDS {
            assert_eq!((DumpReason::from_word(word), reason.word()), (Some(reason), word));
        }
    }

    #[test]
    fn the_recorded_process_is_not_among_the_others() {
        for own in ["this process", ""] {
            let processes = vec![
                ProcessEntry { pid: 77, bytes: Some(12 << 30), name: Some("python".to_owned()) },
                ProcessEntry { pid: 5, bytes: Some(9 << 30), name: Some(own.to_owned()) },
            ];
            let pids: Vec<u64> = others(processes, 8 << 30).iter().map(|process| process.pid).collect();
            assert_eq!(pids, [77]);
        }
    }

    #[test]
    fn a_total_below_the_devices_is_the_limit() {
        for (reported, limit, expected) in
            [(40, None, (Some(80), Some(40))), (80, Some(60), (Some(80), Some(60)))]
        {
            let mut shortage =
                Shortage { total: Some(Bytes(reported)), limit: limit.map(Bytes), ..Shortage::default() };
            shortage.settle_limit(Some(Bytes(80)));
            assert_eq!((shortage.total, shortage.limit), (expected.0.map(Bytes), expected.1.map(Bytes)));
        }
    }
}
