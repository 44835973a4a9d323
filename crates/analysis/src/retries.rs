//! How often `cudaMalloc` failed at first and was tried again after the cache had been given back.

use crate::roles;
use snapshot::{Action, History, Snapshot, StackId};

/// `num_alloc_retries`, where the trace tells. There is no event for a retry: one that helped leaves the segments
/// that it released before the new one, one that did not leaves an `oom`. `None` where releases may have another
/// reason (garbage collection, `max_split_size_mb`, cuDNN trying its algorithms) or their stacks are missing.
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
                match releaser(snapshot, event.stack) {
                    Releaser::Convolution => return None,
                    Releaser::EmptyCache => {}
                    Releaser::Other => releasing = true,
                }
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

/// Whose code returned a segment.
enum Releaser {
    EmptyCache,
    Convolution,
    Other,
}

fn releaser(snapshot: &Snapshot, stack: StackId) -> Releaser {
    let roles = snapshot.stacks.frames(stack).iter().map(|&frame| roles::of_frame_id(snapshot, frame));
    roles.fold(Releaser::Other, |found, role| match (found, role.empty_cache, role.convolution) {
        (Releaser::EmptyCache, ..) | (_, true, _) => Releaser::EmptyCache,
        (Releaser::Convolution, ..) | (_, _, true) => Releaser::Convolution,
        _ => Releaser::Other,
    })
}
