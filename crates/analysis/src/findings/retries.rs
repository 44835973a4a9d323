//! How often `cudaMalloc` failed and was retried after the cache had been released.

use crate::run::device::Device;
use snapshot::{Action, StackId};

/// `num_alloc_retries`, where the trace shows it. There is no event for a retry: one that helped leaves the
/// segments that it released before the new one, one that did not leaves an `oom`. `None` where releases may
/// have another reason (garbage collection, `max_split_size_mb`, cuDNN trying its algorithms) or their stacks
/// are missing.
pub fn retries(device: &Device<'_>) -> Option<u64> {
    let (snapshot, history) = (device.snapshot, &device.history);
    if !history.complete {
        return None;
    }
    let settings = &snapshot.settings;
    let only_retries_release = settings.gc_threshold == 0.0 && settings.max_split.is_none();
    let mut count = 0;
    // Segments were released inside an allocation that has not ended yet.
    let mut releasing = false;
    for row in history.rows.clone() {
        let event = snapshot.events.get(row);
        match event.action {
            Action::SegmentFree | Action::SegmentUnmap => {
                if !only_retries_release || event.stack == StackId::EMPTY {
                    return None;
                }
                let role = device.roles.of(event.stack);
                if role.convolution && !role.empty_cache {
                    return None;
                }
                releasing |= !role.empty_cache;
            }
            Action::Oom => {
                count += 1;
                releasing = false;
            }
            Action::SegmentAlloc | Action::SegmentMap | Action::Alloc => {
                count += u64::from(releasing);
                releasing = false;
            }
            Action::FreeRequested => releasing = false,
            Action::FreeCompleted | Action::Snapshot | Action::Annotate | Action::Other(_) => {}
        }
    }
    Some(count)
}
