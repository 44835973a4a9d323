//! The JSON of `oomph simulate`: public and versioned.

use crate::commands::report::json::site_name_report;
use crate::terminal::Terminal;
use allocator::{Oom, RecordedRun};
use inputs::Input;
use serde_json::{Value, json};
use snapshot::History;
use std::io::Write;
use whatif::{Caveat, Simulation, Trial, site};

const VERSION: u64 = 1;

pub(super) fn print(document: &Value, terminal: &mut Terminal) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(terminal.out(), document)?;
    writeln!(terminal.out())?;
    Ok(())
}

/// One replay.
pub(super) fn trial(simulation: &Simulation<'_>, trial: &Trial) -> Value {
    let Trial { what, outcome, .. } = trial;
    let (low, high) = outcome.peak_reserved_range;
    let room = [what.available, what.limit].into_iter().flatten().min();
    json!({
        "version": VERSION,
        "file": simulation.name,
        "device": simulation.device.history.device,
        "settings": trial.conf,
        "export": export(&trial.conf),
        "torch": simulation.recorded.release.to_string(),
        "gpu": what.total,
        "limit": room,
        "fits": trial.fits(),
        "peak_allocated": outcome.peak_allocated,
        "peak_reserved": outcome.peak_reserved,
        "peak_reserved_range": [low, high],
        "peak_reserved_event": outcome.peak_reserved_event,
        "end_reserved": outcome.end_reserved,
        "segments": { "allocs": outcome.device_allocs, "frees": outcome.device_frees },
        "retries": outcome.retries,
        "oom": outcome.oom.as_ref().map(|oom| failure(simulation, oom)),
        "rescued": outcome.rescued,
        "finished": outcome.finished,
        "smallest_gpu": trial.smallest,
        "recorded": recorded(simulation),
        "verify": Value::Null,
        "caveats": Caveat::all(simulation, trial).iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The line that puts settings into the environment; none are an empty string.
pub(super) fn export(conf: &str) -> String {
    if conf.is_empty() {
        return "unset PYTORCH_CUDA_ALLOC_CONF".to_owned();
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_:,.".contains(letter);
    let quoted = if conf.chars().all(is_plain) {
        conf.to_owned()
    } else {
        format!("'{}'", conf.replace('\'', r"'\''"))
    };
    format!("export PYTORCH_CUDA_ALLOC_CONF={quoted}")
}

fn failure(simulation: &Simulation<'_>, oom: &Oom) -> Value {
    let step = simulation.device.steps.of_event(oom.event);
    json!({
        "event": oom.event,
        "step": step.map(|step| step + 1),
        "site": site(simulation, oom.event).as_ref().map(site_name_report),
        "requested": oom.requested,
        "wanted": oom.wanted,
        "allocated": oom.allocated,
        "reserved": oom.reserved,
        "largest_free": oom.largest_free,
        "short": (oom.reserved + oom.wanted).saturating_sub(oom.room),
        "cause": if oom.is_fragmentation { "fragmentation" } else { "capacity" },
        "was_recorded": oom.was_recorded,
    })
}

fn recorded(simulation: &Simulation<'_>) -> Value {
    let history = &simulation.device.history;
    json!({
        "settings": simulation.recorded_conf(),
        "peak_allocated": history.allocated_peak.bytes.0,
        "peak_reserved": history.reserved_peak.bytes.0,
        "end_reserved": history.end.reserved.0,
        "segments": { "allocs": history.stats.device_allocs, "frees": history.stats.device_frees },
        "ooms": history.stats.ooms,
        "identical": simulation.recorded.verification().difference.is_none(),
    })
}

/// All settings that were tried, the best first.
pub(super) fn search(simulation: &Simulation<'_>, trials: &[Trial]) -> Value {
    json!({
        "version": VERSION,
        "file": simulation.name,
        "device": simulation.device.history.device,
        "recorded": recorded(simulation),
        "best": trials.first().filter(|best| best.fits()).map(|best| {
            let peak = best.outcome.peak_reserved;
            json!({ "settings": best.conf, "export": export(&best.conf), "peak_reserved": peak })
        }),
        "trials": trials.iter().map(|each| trial(simulation, each)).collect::<Vec<_>>(),
    })
}

/// One comparison with the record.
pub(super) fn verification(
    input: &Input,
    history: &History,
    recorded: &RecordedRun<'_>,
    settings: &str,
) -> Value {
    let verification = recorded.verification();
    let conditions = recorded.conditions();
    let room = [conditions.available, conditions.limit].into_iter().flatten().min();
    json!({
        "version": VERSION,
        "file": input.name,
        "device": history.device,
        "settings": settings,
        "torch": recorded.release.to_string(),
        "torch_of_the_file": input.snapshot.torch.to_string(),
        "limit": room,
        "peak_allocated": history.allocated_peak.bytes.0,
        "peak_reserved": history.reserved_peak.bytes.0,
        "peak_reserved_range": [history.reserved_peak.bytes.0, history.reserved_peak.bytes.0],
        "end_reserved": history.end.reserved.0,
        "segments": { "allocs": history.stats.device_allocs, "frees": history.stats.device_frees },
        "retries": verification.retries,
        "oom": Value::Null,
        "verify": {
            "events": verification.events,
            "identical": verification.identical,
            "first_difference": verification.difference.map(ToString::to_string),
            "around": verification.difference.map(|difference| &difference.around),
            "assumed_private_segments": verification.assumed_private,
        },
    })
}

/// One comparison as it is, several as a list.
pub(super) fn print_verifications(mut reports: Vec<Value>, terminal: &mut Terminal) -> anyhow::Result<()> {
    match reports.len() {
        1 => print(&reports.remove(0), terminal),
        _ => print(&json!({ "version": VERSION, "inputs": reports }), terminal),
    }
}
