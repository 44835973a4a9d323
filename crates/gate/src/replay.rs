//! Reserved memory that does not jitter.
//!
//! What a run really reserved hangs on its card: on what other processes left free, on cached memory that was given back
//! for that, and up to torch 2.11 on the addresses that the driver returned. So the recorded requests are replayed through
//! the model of the allocator, from an empty pool on a card that has enough: the same requests give the same bytes.

use crate::measure::MeasurementGap;
use allocator::{KnownConditions, RecordedRun};
use analysis::{Device, never_needed, words::share};
use snapshot::{Bytes, History};

/// The replayed run.
pub struct Replayed {
    /// Highest reserved bytes.
    pub reserved: Bytes,
    /// What of that was never needed at one time, as a share.
    pub fragmentation: f64,
}

pub(crate) fn replay(device: &Device<'_>) -> Result<Replayed, MeasurementGap> {
    let history = &device.history;
    let refused =
        |what: &str, hint: &str| Err(MeasurementGap { what: what.to_owned(), hint: hint.to_owned() });
    if device.is_cpu() {
        return refused(
            "the memory of a CPU has no caching allocator, so nothing is reserved",
            "`--emulate NAME` runs the command on an emulated GPU",
        );
    }
    if history.is_empty() {
        return refused("the snapshot has no history to replay", MeasurementGap::RECORD);
    }
    if !history.complete {
        return refused(
            "the history begins late, so it cannot be replayed from an empty pool",
            MeasurementGap::RECORD,
        );
    }
    let recorded = RecordedRun::new(device.snapshot, history, KnownConditions::default());
    let verification = recorded.verification();
    if verification.difference.is_some() {
        let what =
            format!("the model of the allocator follows this run only to event {}", verification.identical);
        return refused(&what, "`oomph simulate --verify` shows where they part");
    }
    let replayed = recorded.replayed_with_fixed_addresses();
    let history = History::new(&replayed, history.device);
    let reserved = history.reserved_peak.bytes;
    Ok(Replayed { reserved, fragmentation: share(never_needed(&history), reserved) })
}
