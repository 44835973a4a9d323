//! Verdict on the growth of a device's memory, in words.

use analysis::Pace;
use analysis::words::{counted, grouped};
use live::WatchedRecorder;
use recording::Exit;
use snapshot::Bytes;
use std::time::Duration;

/// Importance of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// A problem.
    Bad,
    /// A possible problem.
    Unsure,
    /// No problem.
    Good,
    /// Not worth attention.
    Quiet,
}

/// Whether the memory of a device grows.
pub struct GrowthVerdict {
    /// Importance.
    pub tone: Tone,
    /// A few words, for a table.
    pub short: String,
    /// A sentence.
    pub sentence: String,
}

impl GrowthVerdict {
    /// Returns the verdict on a device of a recorder.
    pub fn new(recorder: &WatchedRecorder, device: u32) -> GrowthVerdict {
        let (tone, short, sentence) = match recorder.pace(device) {
            Pace::NoSteps => (
                Tone::Quiet,
                "no steps".to_owned(),
                "no step has ended yet: growth is judged from step to step".to_owned(),
            ),
            Pace::WarmingUp { steps } => (
                Tone::Quiet,
                "warming up".to_owned(),
                format!("warming up: {} more until growth can be judged", counted(steps as u64, "step")),
            ),
            Pace::Flat => {
                (Tone::Good, "flat".to_owned(), "flat: every step ends with the same memory".to_owned())
            }
            Pace::Varies { least, most } => (
                Tone::Good,
                "varies".to_owned(),
                format!("varies: steps end between {least} and {most}, without a trend"),
            ),
            Pace::Rising { bytes_per_step } => (
                Tone::Unsure,
                format!("rising {bytes_per_step}/step"),
                format!("rising {bytes_per_step} per step: too early or too little to call it a leak"),
            ),
            Pace::Settled { grown } => {
                (Tone::Good, "settled".to_owned(), format!("settled: it grew by {grown} and stays there"))
            }
            Pace::Growing { bytes_per_step } => {
                let short = format!("LEAKING {bytes_per_step}/step");
                (Tone::Bad, short, leaking(bytes_per_step, recorder, device))
            }
        };
        GrowthVerdict { tone, short, sentence }
    }
}

fn leaking(bytes_per_step: Bytes, recorder: &WatchedRecorder, device: u32) -> String {
    let full = recorder.steps_left(device).map(|steps| {
        let time = recorder.time_per_step().and_then(|each| each.checked_mul(u32::try_from(steps).ok()?));
        let time = time.map(|time| format!(", {} at this rate", duration(time))).unwrap_or_default();
        format!("; full in about {} steps{time}", grouped(steps))
    });
    format!("LEAKING {bytes_per_step} per step{}", full.unwrap_or_default())
}

/// Returns how a process has exited, or that it does not answer; `None` if it answers.
pub fn process_status(recorder: &WatchedRecorder) -> Option<(Tone, String)> {
    match recorder.exit {
        Some(Exit::Finished | Exit::Stopped(_)) => Some((Tone::Quiet, "finished".to_owned())),
        Some(Exit::Failed | Exit::OutOfMemory) => {
            let why = recorder.exception.as_deref().unwrap_or("for an unknown reason");
            Some((Tone::Bad, format!("failed: {why}")))
        }
        Some(Exit::Killed) => Some((Tone::Bad, "exited without reporting (killed or crashed)".to_owned())),
        None => {
            let silent = recorder.answered_at.elapsed();
            let text =
                format!("no answer for {}: its interpreter is busy, or it is stopped", duration(silent));
            (silent > Duration::from_secs(3)).then_some((Tone::Unsure, text))
        }
    }
}

/// Returns a duration as text with one unit, such as `5 min`.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
