//! How often `cudaMalloc` failed at first and was tried again after the cache had been given back.

use snapshot::{Action, History, Snapshot, StackId};

/// `num_alloc_retries`, where the trace tells. There is no event for a retry: one that helped leaves the segments
/// that it released before the new one, one that did not leaves an `oom`. `None` where releases may have another
/// reason (garbage collection, `max_split_size_mb`) or their stacks are missing.
pub fn retries(snapshot: &Snapshot, history: &History) -> Option<u64> {
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
                releasing |= !calls_empty_cache(snapshot, event.stack);
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

fn calls_empty_cache(snapshot: &Snapshot, stack: StackId) -> bool {
    snapshot.stacks.frames(stack).iter().any(|&frame| {
        let function = snapshot.strings.get(snapshot.stacks.frame(frame).function);
        function == "empty_cache" || function.contains("emptyCache")
    })
}
