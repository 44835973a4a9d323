//! Reproducible reserved memory.
//!
//! What a run really reserved depends on its GPU: on the memory that other processes left free, on cached
//! memory that was released because of that, and up to torch 2.11 on the addresses chosen by the driver. So
//! the recorded requests are replayed through the allocator model, from an empty pool on a GPU with enough
//! memory: the same requests give the same bytes.

use crate::measure::MeasurementGap;
use allocator::{KnownConditions, RecordedRun};
use analysis::{Device, never_needed, words::share};
use snapshot::{Bytes, History};

/// Memory of a replayed run.
pub struct Replayed {
    /// Peak of reserved memory.
    pub reserved: Bytes,
    /// Share of it that was never needed at one time, from 0 to 1.
    pub fragmentation: f64,
}

/// Replays the requests of a device.
pub(crate) fn replay(device: &Device<'_>) -> Result<Replayed, MeasurementGap> {
    let history = &device.history;
    let refused =
        |what: &str, hint: &str| Err(MeasurementGap { what: what.to_owned(), hint: hint.to_owned() });
    if device.is_cpu() {
        return refused(
            "CPU memory has no caching allocator, so nothing is reserved",
            "`--emulate NAME` runs the command on an emulated GPU",
        );
    }
    if history.is_empty() {
        return refused("the snapshot has no history to replay", MeasurementGap::RECORD);
    }
    if !history.complete {
        return refused(
            "the history starts late, so it cannot be replayed from an empty pool",
            MeasurementGap::RECORD,
        );
    }
    let recorded = RecordedRun::new(device.snapshot, history, KnownConditions::default());
    let verification = recorded.verification();
    if verification.difference.is_some() {
        let what = format!("the allocator model matches this run only to event {}", verification.identical);
        return refused(&what, "`oomph simulate --verify` shows the first difference");
    }
    let replayed = recorded.replayed_with_fixed_addresses();
    let history = History::new(&replayed, history.device);
    let reserved = history.reserved_peak.bytes;
    Ok(Replayed { reserved, fragmentation: share(never_needed(&history), reserved) })
}
