//! What is uncertain about a replay.

use crate::{Simulation, Trial};
use analysis::words::counted;
use snapshot::{Action, Bytes};
use std::fmt;

/// Events for which a library keeps a workspace, at most.
const MAX_WORKSPACE_EVENTS: usize = 2;

/// A reason why the real run may differ from a replay.
pub enum Caveat {
    /// The model leaves the recorded run at this event.
    Diverges { identical: usize, difference: String },
    /// Segments that belong to no pool that the recording names.
    AssumedPrivate(usize),
    /// The history begins late.
    Truncated,
    /// A setting that does nothing without a memory limit.
    IdleGarbageCollection,
    /// The request that fails was freed after a few events, as workspaces are.
    BriefRequest(usize),
    /// Another order of addresses gives the other answer.
    DependsOnAddresses,
    /// The replay ends at its failure.
    Unfinished,
    /// Addresses decide how high the peak is.
    AddressRange { low: u64, high: u64, improbable: Option<u64> },
}

impl Caveat {
    /// All that applies to a replay.
    pub fn all(simulation: &Simulation<'_>, trial: &Trial) -> Vec<Caveat> {
        let verification = simulation.recorded.verification();
        let (what, outcome) = (&trial.what, &trial.outcome);
        let diverges = verification.difference.map(|difference| Caveat::Diverges {
            identical: verification.identical,
            difference: difference.to_string(),
        });
        let assumed = verification.assumed_private;
        let assumed = (assumed > 0).then_some(Caveat::AssumedPrivate(assumed));
        let truncated = (!simulation.device.history.complete).then_some(Caveat::Truncated);
        let idle = what.conf.gc_threshold > 0.0 && what.limit.is_none();
        let lifetime = outcome.oom.and_then(|oom| lifetime(simulation, oom.event));
        let brief = lifetime.filter(|&events| events <= MAX_WORKSPACE_EVENTS).map(Caveat::BriefRequest);
        let (low, high) = outcome.peak_reserved_range;
        let improbable = outcome.improbable.iter().max().copied();
        let has_range = low != high || improbable.is_some();
        [
            diverges,
            assumed,
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

/// How many events the block of a request lived in the recorded run.
fn lifetime(simulation: &Simulation<'_>, event: usize) -> Option<usize> {
    let history = &simulation.device.history;
    let allocation = history.allocation_of(event, Action::Alloc)?;
    Some(history.allocations[allocation].free_event()?.saturating_sub(event))
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caveat::Diverges { identical, difference } => {
                write!(f, "the model follows the recorded run only to event {identical}: {difference}")
            }
            Caveat::AssumedPrivate(segments) => write!(
                f,
                "{segments} segments are taken to have belonged to private pools that were gone at the end: that explains the \
                 recording, which does not name them"
            ),
            Caveat::Truncated => f.write_str(
                "the history begins late: what was allocated before stays where it was recorded, under any settings",
            ),
            Caveat::IdleGarbageCollection => f.write_str(
                "`garbage_collection_threshold` does nothing without a memory limit (`per_process_memory_fraction`, or \
                 `set_per_process_memory_fraction`)",
            ),
            Caveat::BriefRequest(events) => write!(
                f,
                "the request that fails was given back after {}: if it is a workspace of cuDNN, the library goes on with a \
                 smaller one, and so does the program",
                counted(*events as u64, "event")
            ),
            Caveat::DependsOnAddresses => f.write_str(
                "whether it fits hangs on the addresses that the driver returns: another order gives the other answer",
            ),
            Caveat::Unfinished => {
                f.write_str("the replay ends at this failure: the figures are those of the part before it")
            }
            Caveat::AddressRange { low, high, improbable } => {
                write!(
                    f,
                    "up to torch 2.11 the addresses that the driver returns decide between free blocks of equal size; over \
                     the orders tried the peak lies between {} and {}",
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
