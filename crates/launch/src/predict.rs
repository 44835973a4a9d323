//! A program on an emulated card: does it fit, and how sure is that.

use crate::{Card, Done, EmulatedGpu, Folder, Job, Output, Words};
use analysis::words::shown_path;
use failure::Failure;
use inputs::{Input, Talk};
use recording::{Exit, RunInfo, RunState, StopReason, ValueRead};
use snapshot::{Action, Bytes, History, Snapshot};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};

/// More than any card has: what a program would need if it could have it.
const PLENTY: u64 = 900 << 30;

/// Remark on a program that was stopped before its end.
const STOPPED: &str = "the program was stopped: later phases such as evaluation are not covered; \
                       `--steps all` runs it to the end";

/// What became of a program on a card.
pub struct Prediction {
    pub fits: bool,
    /// The device with the highest need, of the rank that has it: what it held, or would hold if it had plenty.
    pub highest: Figures,
    /// All devices of all ranks.
    pub all: Vec<Figures>,
    /// Its recording.
    pub recording: Input,
    /// How the run on the card itself ended.
    pub summary: RunInfo,
    /// Requests that failed on the card.
    pub failed_requests: u64,
    /// The memory of the card.
    pub memory: u64,
    pub sureness: Sureness,
}

/// Memory of one device of one rank at its highest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Figures {
    pub rank: usize,
    pub device: u32,
    pub allocated: Bytes,
    pub reserved: Bytes,
    /// The context and libraries.
    pub outside: Bytes,
    pub requests: u64,
    /// Whether a free had to wait for another stream.
    waits: bool,
    /// All requests, in order, as one number.
    fingerprint: u64,
}

impl Figures {
    pub fn total(&self) -> Bytes {
        self.reserved + self.outside
    }
}

/// What the answer hangs on besides the program.
#[derive(Default, Debug)]
pub struct Sureness {
    /// Reasons why the real run may differ.
    pub reasons: Vec<String>,
    /// What is known not to matter, and what the prediction does not cover.
    pub remarks: Vec<String>,
}

impl Sureness {
    pub fn is_exact(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// A command for people.
pub fn shown(program: &[OsString]) -> String {
    program.iter().map(shown_path).collect::<Vec<_>>().join(" ")
}

/// Runs a program on a card; again with plenty of memory if it ran out, and again with other values if it read some that
/// nobody knows.
pub fn predict(job: &Job, folder: &Folder, once: bool) -> anyhow::Result<Prediction> {
    let emulated = job.emulated.as_ref().ok_or_else(|| anyhow::anyhow!("a prediction needs a card"))?;
    let done = crate::run_to_end(job, folder)?;
    let first = look(&done, &job.talk)?;
    let summary = first.summary.clone();
    let ran_out = is_out_of_memory(&summary);
    if has_failed(&summary) {
        // A zero that nobody computed may be what the program failed with: it divides by it, for example.
        if emulated.unknown == 0 && !summary.emulation.reads.is_empty() && done.notes.uncovered.is_empty() {
            let other = Job { emulated: Some(EmulatedGpu { unknown: 1, ..emulated.clone() }), ..job.clone() };
            if let Ok(prediction) = predict(&other, folder, once) {
                return Ok(prediction);
            }
        }
        return Err(failed(&summary, &done).into());
    }
    let failed_requests = first.ooms;
    let (notes, seen) = if ran_out {
        let mut roomy = quiet(job);
        roomy.emulated = Some(EmulatedGpu { memory: PLENTY, ..emulated.clone() });
        let scratch = Folder::new(Output::Unkept)?;
        let done = crate::run_to_end(&roomy, &scratch)?;
        let seen = look(&done, &job.talk)?;
        if has_failed(&seen.summary) {
            return Err(failed(&seen.summary, &done).into());
        }
        (done.notes, seen)
    } else {
        (done.notes, first)
    };
    let mut sureness = Sureness::default();
    for name in &notes.uncovered {
        sureness.reasons.push(format!("`{name}` is not covered by the emulator: the call failed"));
    }
    for what in &notes.modelled {
        sureness.reasons.push(format!("modelled: {what}"));
    }
    if seen.all.iter().any(|figures| figures.waits) {
        sureness.reasons.push(
            "blocks are used on several streams: on a real GPU a free waits for the other stream, which is done at once here, so \
             more may be reserved"
                .to_owned(),
        );
    }
    if summary.emulation.uses_inductor {
        let reason = "compiled by Inductor: it chooses kernels by their time, and its programs were not compared with a real card";
        sureness.reasons.push(reason.to_owned());
    }
    if !summary.emulation.has_values {
        sureness.reasons.push(format!(
            "torch {} does not let small tensors be computed: values read as 0",
            summary.torch.as_deref().unwrap_or_default()
        ));
    }
    if !seen.summary.emulation.reads.is_empty() {
        let differs = (!once).then(|| differs_with_other_values(job, &seen, ran_out));
        judge_reads(&seen.summary.emulation.reads, differs, &mut sureness);
    }
    if matches!(summary.state.exit(), Some(Exit::Stopped(_))) {
        sureness.remarks.push(STOPPED.to_owned());
    }
    sureness.remarks.extend(card_remark(&emulated.card).map(str::to_owned));
    let Seen { highest, all, recording, .. } = seen;
    Ok(Prediction {
        fits: !ran_out,
        highest,
        all,
        recording,
        summary,
        failed_requests,
        memory: emulated.memory,
        sureness,
    })
}

fn quiet(job: &Job) -> Job {
    Job { words: Words::Kept, ..job.clone() }
}

/// Whether the program does something else when the values that it reads are others.
fn differs_with_other_values(job: &Job, seen: &Seen, ran_out: bool) -> bool {
    let mut other = quiet(job);
    if let Some(emulated) = &mut other.emulated {
        emulated.unknown = 1 - emulated.unknown;
        if ran_out {
            emulated.memory = PLENTY;
        }
    }
    // It must make the same number of steps, wherever it would have stopped by itself.
    if seen.summary.state == RunState::Exited(Exit::Stopped(StopReason::Periodic)) {
        other.steps = seen.summary.steps.and_then(|steps| u32::try_from(steps).ok());
    }
    let again = Folder::new(Output::Unkept)
        .and_then(|scratch| look(&crate::run_to_end(&other, &scratch)?, &job.talk));
    again.map_or(true, |again| again.all != seen.all)
}

fn judge_reads(reads: &[ValueRead], differs: Option<bool>, sureness: &mut Sureness) {
    let places: Vec<String> = reads
        .iter()
        .map(|read| {
            let file = read.file.rsplit('/').next().unwrap_or(&read.file);
            format!("{file}:{} ({}, {} times)", read.line, read.operator, read.count)
        })
        .collect();
    let places = match places.as_slice() {
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second}, {third} and {} more", rest.len())
        }
        few => few.join(", "),
    };
    match differs {
        Some(false) => sureness.remarks.push(format!(
            "values that only a real GPU computes are read at {places}; with another number for them the program asks for the same memory"
        )),
        Some(true) => sureness.reasons.push(format!(
            "the program's memory depends on values that only a real GPU computes, read at {places}"
        )),
        None => sureness.reasons.push(format!("values that only a real GPU computes are read at {places}")),
    }
}

/// What a run's recordings say.
struct Seen {
    highest: Figures,
    all: Vec<Figures>,
    recording: Input,
    summary: RunInfo,
    ooms: u64,
}

fn look(done: &Done, talk: &Talk) -> anyhow::Result<Seen> {
    let mut all = Vec::new();
    let mut ooms = 0;
    let mut best: Option<(Figures, Input, RunInfo)> = None;
    for (place, rank) in done.ranks.iter().enumerate() {
        let input = inputs::load(&rank.snapshot, talk)?;
        for device in input.snapshot.devices() {
            let history = History::new(&input.snapshot, device);
            let outside = rank.summary.emulation.non_pytorch.get(device as usize).copied().flatten();
            let events = input.snapshot.events.iter(input.snapshot.rows(device));
            ooms += events.filter(|event| event.action == Action::Oom).count() as u64;
            all.push(figures(place, &input.snapshot, &history, outside.unwrap_or_default()));
        }
        let highest =
            all.iter().filter(|figures| figures.rank == place).max_by_key(|figures| figures.total());
        if let Some(highest) = highest
            && best.as_ref().is_none_or(|(figures, _, _)| figures.total() < highest.total())
        {
            best = Some((highest.clone(), input, rank.summary.clone()));
        }
    }
    match best {
        Some((highest, recording, summary)) => {
            // How the job ended is the worst that happened to a rank.
            let worst =
                done.ranks.iter().find(|rank| has_failed(&rank.summary) || is_out_of_memory(&rank.summary));
            let summary = worst.map_or(summary, |rank| rank.summary.clone());
            Ok(Seen { highest, all, recording, summary, ooms })
        }
        None => Err(nothing_recorded(done).into()),
    }
}

fn figures(rank: usize, snapshot: &Snapshot, history: &History, outside: Bytes) -> Figures {
    let mut hasher = DefaultHasher::new();
    let mut count = 0;
    for event in snapshot.events.iter(snapshot.rows(history.device)) {
        if matches!(event.action, Action::Alloc | Action::FreeRequested) {
            (event.action == Action::Alloc, event.size.0).hash(&mut hasher);
            count += u64::from(event.action == Action::Alloc);
        }
    }
    Figures {
        rank,
        device: history.device,
        allocated: history.allocated_peak.bytes,
        reserved: history.reserved_peak.bytes,
        outside,
        requests: count,
        waits: history.allocations.iter().any(|life| history.is_deferred(snapshot, life)),
        fingerprint: hasher.finish(),
    }
}

fn is_out_of_memory(summary: &RunInfo) -> bool {
    summary.state == RunState::Exited(Exit::OutOfMemory)
}

fn has_failed(summary: &RunInfo) -> bool {
    summary.state == RunState::Exited(Exit::Failed)
}

fn failed(summary: &RunInfo, done: &Done) -> Failure {
    let first_line = summary.exception_line().unwrap_or_default().to_owned();
    let hint = match done.notes.uncovered.first() {
        Some(name) => {
            format!("`{name}` is not covered by the emulator; the program cannot be predicted as it is")
        }
        None => "the traceback is above; does the program run on a real GPU?".to_owned(),
    };
    Failure::new("the program failed on the emulated GPU", Some(first_line), Some(&hint))
}

pub fn nothing_recorded(done: &Done) -> Failure {
    let words = done.last_words.lines().last().map(str::to_owned);
    if let Some(failure) = done.notes.failures.first() {
        return Failure::new("the program could not run on an emulated GPU", Some(failure.clone()), None);
    }
    if let Some(why) = &done.unwritable {
        let hint = "free some space, or choose another folder with `-o`";
        return Failure::new("nothing was recorded", Some(why.clone()), Some(hint));
    }
    if let Some(problem) = done.problems.first() {
        return Failure::new("nothing was recorded", Some(problem.clone()), None);
    }
    if !done.notes.is_prepared && done.status.success() {
        return Failure::new(
            "nothing was recorded",
            Some("no Python process of the program has loaded the recorder".to_owned()),
            Some(
                "Python's options -I, -E and -S keep it out (PYTHONPATH is ignored); is it a Python program?",
            ),
        );
    }
    match done.status.code() {
        Some(0) => Failure::new(
            "the program never used CUDA",
            Some("it ended well, and no GPU memory was asked for".to_owned()),
            Some(
                "does it choose the GPU by an argument or an environment variable? `oomph run --cpu` records tensors on the CPU",
            ),
        ),
        Some(code) => Failure::new(
            "the program failed before it used CUDA",
            words.or(Some(format!("it ended with exit code {code}"))),
            Some("its own message is above; is torch installed in this environment (`--python`)?"),
        ),
        None => Failure::new(
            "the program was killed",
            Some(done.status.to_string()),
            Some("a program that needs much host memory may have been killed for it"),
        ),
    }
}

/// Whether a card's figures were all measured on a real one.
fn card_remark(card: &Card) -> Option<&'static str> {
    (!card.is_measured())
        .then_some("this card's figures come from its data sheet, its context is scaled from an H200's; only the H200 was compared with a real one")
}
