//! How much memory there is for what grows.

use crate::run::model::RunModel;
use crate::words::share;
use recording::GpuInfo;
use snapshot::Bytes;

/// Memory sizes that GPUs are sold with, in GiB, ascending.
pub const CARD_SIZES_GIB: [u64; 13] = [8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 192, 288];

/// The memory that growth will fill.
pub(super) struct Room {
    /// What PyTorch may reserve.
    pub(super) size: Bytes,
    pub(super) name: String,
}

impl Room {
    /// The room that a failed allocation met, if the leak has a part in that; otherwise the next common size.
    pub(super) fn of(model: &RunModel<'_>, leaked: Bytes) -> Room {
        let reserved = model.device.history.reserved_peak.bytes;
        if !model.step_peaks.ooms.is_empty() && share(leaked, reserved) >= 0.1 {
            return Room { size: reserved, name: "the memory that this process may use".to_owned() };
        }
        let device = model.device.history.device;
        let card = model.device.recording.gpu(device);
        if let Some(card) = card.and_then(GpuInfo::usable).filter(|&size| size > reserved) {
            let taken = model.device.recording.non_pytorch(device);
            let taken = taken.map_or(Bytes::ZERO, |taken| taken.process + taken.others);
            let size = card.saturating_sub(taken).max(reserved);
            return Room { size, name: format!("this {card} device") };
        }
        let next = CARD_SIZES_GIB.iter().copied().find(|&gib| (gib << 30) > reserved.0);
        let gib = next.unwrap_or_else(|| (reserved.0 >> 30).saturating_mul(2).min(u64::MAX >> 30));
        // The size of the GPU is not in a snapshot.
        let article = if matches!(gib, 8 | 80) { "an" } else { "a" };
        let thing = if model.device.is_cpu() { "machine" } else { "GPU" };
        Room { size: Bytes(gib << 30), name: format!("{article} {gib} GiB {thing} (the next common size)") }
    }
}
