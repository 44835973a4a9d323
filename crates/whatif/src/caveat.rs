//! Reasons why a real run may differ from a replay.

use crate::{Simulation, Trial};
use analysis::words::counted;
use snapshot::{Action, Bytes};
use std::fmt;

/// Longest lifetime of a library's workspace, in events.
const MAX_WORKSPACE_EVENTS: usize = 2;

/// Maximum number of changes of the settings that are listed.
const MAX_SHOWN_CHANGES: usize = 6;

/// A reason why the real run may differ from a replay.
pub enum Caveat {
    /// The allocator model differs from the recorded run.
    Diverges {
        /// Number of events before the first difference.
        identical: usize,
        /// The first difference, in words.
        difference: String,
    },
    /// Number of segments without a pool in the recording, which are assumed to be of private pools.
    AssumedPrivate(usize),
    /// The program changed its settings while it ran.
    SettingsChanged {
        /// First event after each change.
        events: Vec<usize>,
        /// Whether the events are inferred, not recorded.
        is_inferred: bool,
    },
    /// The history starts late.
    Truncated,
    /// `garbage_collection_threshold` is set without a memory limit.
    IdleGarbageCollection,
    /// The allocation that fails was freed after so few events that it may be a workspace.
    BriefRequest(usize),
    /// The result depends on addresses chosen by the driver.
    DependsOnAddresses,
    /// The replay stops at the failed allocation.
    Unfinished,
    /// The peak depends on addresses chosen by the driver.
    AddressRange {
        /// Lowest peak, in bytes.
        low: u64,
        /// Highest peak, in bytes.
        high: u64,
        /// Peak with an improbable order of addresses, in bytes.
        improbable: Option<u64>,
    },
}

impl Caveat {
    /// Returns all caveats of a replay.
    pub fn all(simulation: &Simulation<'_>, trial: &Trial) -> Vec<Caveat> {
        let verification = simulation.recorded.verification();
        let (what, outcome) = (&trial.what, &trial.outcome);
        let diverges = verification.difference.map(|difference| Caveat::Diverges {
            identical: verification.identical,
            difference: difference.to_string(),
        });
        let assumed = verification.assumed_private;
        let assumed = (assumed > 0).then_some(Caveat::AssumedPrivate(assumed));
        let events: Vec<usize> =
            simulation.recorded.conf.changes().iter().map(|change| change.event).collect();
        let is_inferred = verification.infers_changes;
        let changed = (!events.is_empty()).then_some(Caveat::SettingsChanged { events, is_inferred });
        let truncated = (!simulation.device.history.complete).then_some(Caveat::Truncated);
        let idle = what.conf.last().gc_threshold > 0.0 && what.limit.is_none();
        let lifetime = outcome.oom.and_then(|oom| lifetime(simulation, oom.event));
        let brief = lifetime.filter(|&events| events <= MAX_WORKSPACE_EVENTS).map(Caveat::BriefRequest);
        let (low, high) = outcome.peak_reserved_range;
        let improbable = outcome.improbable.iter().max().copied();
        let has_range = low != high || improbable.is_some();
        [
            diverges,
            assumed,
            changed,
            truncated,
            idle.then_some(Caveat::IdleGarbageCollection),
            brief,
            outcome.outcome_depends_on_addresses.then_some(Caveat::DependsOnAddresses),
            (!outcome.finished).then_some(Caveat::Unfinished),
            has_range.then_some(Caveat::AddressRange { low, high, improbable }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Returns for how many events the block of an allocation lived in the recorded run.
fn lifetime(simulation: &Simulation<'_>, event: usize) -> Option<usize> {
    let history = &simulation.device.history;
    let allocation = history.allocation_of(event, Action::Alloc)?;
    Some(history.allocations[allocation].free_event()?.saturating_sub(event))
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caveat::Diverges { identical, difference } => {
                write!(f, "the model matches the recorded run only to event {identical}: {difference}")
            }
            Caveat::AssumedPrivate(segments) => write!(
                f,
                "{segments} segments are assumed to have belonged to private pools that no longer exist at \
                 the end: this explains the recording, which does not name them"
            ),
            Caveat::SettingsChanged { events, is_inferred } => {
                let shown: Vec<String> =
                    events.iter().take(MAX_SHOWN_CHANGES).map(usize::to_string).collect();
                let more = events.len().saturating_sub(MAX_SHOWN_CHANGES);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let source = if *is_inferred { " (inferred from its segments)" } else { "" };
                let word = if events.len() == 1 { "event" } else { "events" };
                write!(
                    f,
                    "the program changes its allocator settings at {word} {}{more}{source}: options that are \
                     not given here follow",
                    shown.join(", ")
                )
            }
            Caveat::Truncated => f.write_str(
                "the history starts late: earlier allocations stay where they were recorded, under any \
                 settings",
            ),
            Caveat::IdleGarbageCollection => f.write_str(
                "`garbage_collection_threshold` does nothing without a memory limit \
                 (`per_process_memory_fraction`, or `set_per_process_memory_fraction`)",
            ),
            Caveat::BriefRequest(events) => write!(
                f,
                "the allocation that fails was freed after {}: if it is a cuDNN workspace, the library \
                 continues with a smaller one, and so does the program",
                counted(*events as u64, "event")
            ),
            Caveat::DependsOnAddresses => f.write_str(
                "whether it fits depends on addresses chosen by the driver: another order changes the result",
            ),
            Caveat::Unfinished => {
                f.write_str("the replay stops at this failure: the figures cover the events before it")
            }
            Caveat::AddressRange { low, high, improbable } => {
                write!(
                    f,
                    "up to torch 2.11, addresses chosen by the driver decide between free blocks of equal \
                     size; over the orders tried the peak lies between {} and {}",
                    Bytes(*low),
                    Bytes(*high)
                )?;
                match improbable {
                    Some(far) => write!(f, ", in an improbable one at {}", Bytes(*far)),
                    None => Ok(()),
                }
            }
        }
    }
}
