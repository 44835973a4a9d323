//! One walk over all events: what each step needed, and what each category held at most.

use crate::categories::{ByCategory, Categories};
use crate::steps::Steps;
use snapshot::{Action, Bytes, History, Peak, Snapshot};

/// The highest point of a stretch of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct High {
    /// Allocated bytes.
    pub bytes: Bytes,
    /// How many events had happened.
    pub position: usize,
}

/// What one walk over a history tells.
pub struct Course {
    /// The highest point of each step.
    pub steps: Vec<High>,
    /// The highest point before the first step.
    pub setup: High,
    /// Allocated bytes at each bound of the steps.
    pub at_bounds: Vec<Bytes>,
    /// The most that each category held at one time, in bytes asked for; they need not have been together.
    pub most: ByCategory,
    /// The most that was freed and waited for other streams, and when.
    pub pending: High,
    /// Events that reserved or returned memory.
    pub segments: Vec<SegmentEvent>,
    /// Failed allocations.
    pub ooms: Vec<usize>,
}

/// `cudaMalloc`, `cudaFree`, or pages mapped and unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEvent {
    /// Index of the event.
    pub event: usize,
    /// Row of [`History::regions`], if known.
    pub region: Option<usize>,
    /// Whether memory was reserved, not returned.
    pub reserves: bool,
    /// How much.
    pub bytes: Bytes,
}

/// Walks over `history`.
pub(crate) fn course(
    snapshot: &Snapshot,
    history: &History,
    steps: &Steps,
    categories: &Categories,
) -> Course {
    let mut held = [0u64; 8];
    for (row, life) in history.lives.iter().enumerate().take_while(|(_, life)| life.born().is_none()) {
        if life.is_allocated_at(0) {
            held[categories.of(row) as usize] += life.requested.0;
        }
    }
    let mut most = held;
    let mut allocated = history.start.0;
    let mut course = Course {
        steps: Vec::with_capacity(steps.count()),
        setup: High::default(),
        at_bounds: Vec::with_capacity(steps.bounds.len()),
        most: ByCategory::default(),
        pending: High::default(),
        segments: Vec::new(),
        ooms: Vec::new(),
    };
    let mut high = High { bytes: history.start, position: 0 };
    let mut pending = 0u64;
    let mut bounds = steps.bounds.iter().copied().peekable();
    for (index, (action, _)) in snapshot.events.actions(history.rows.clone()).enumerate() {
        while bounds.peek() == Some(&index) {
            bounds.next();
            course.close(high, allocated);
            high = High { bytes: Bytes(allocated), position: index };
        }
        match action {
            Action::Alloc => {
                if let Some(row) = history.life_of(index, action) {
                    let (life, category) = (&history.lives[row], categories.of(row) as usize);
                    allocated = allocated.saturating_add(life.size.0);
                    held[category] = held[category].saturating_add(life.requested.0);
                    most[category] = most[category].max(held[category]);
                    if allocated > high.bytes.0 {
                        high = High { bytes: Bytes(allocated), position: index + 1 };
                    }
                }
            }
            Action::FreeRequested | Action::FreeCompleted => {
                if let Some(row) = history.life_of(index, action) {
                    let life = &history.lives[row];
                    if life.freed() == Some(index) {
                        let category = categories.of(row) as usize;
                        allocated = allocated.saturating_sub(life.size.0);
                        held[category] = held[category].saturating_sub(life.requested.0);
                    }
                    if history.is_deferred(snapshot, life) {
                        if life.freed() == Some(index) {
                            pending = pending.saturating_add(life.size.0);
                            if pending > course.pending.bytes.0 {
                                course.pending = High { bytes: Bytes(pending), position: index + 1 };
                            }
                        } else {
                            pending = pending.saturating_sub(life.size.0);
                        }
                    }
                }
            }
            Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap => {
                let bytes = snapshot.events.get(history.rows.start + index).size;
                let reserves = matches!(action, Action::SegmentAlloc | Action::SegmentMap);
                let region = history.region_of(index, action);
                // PyTorch's event of a returned segment has its size; a region knows it for certain.
                let bytes = match (action, region) {
                    (Action::SegmentFree, Some(region)) => history.regions[region].size,
                    _ => bytes,
                };
                course.segments.push(SegmentEvent { event: index, region, reserves, bytes });
            }
            Action::Oom => course.ooms.push(index),
            Action::Snapshot | Action::Annotate | Action::Other(_) => {}
        }
    }
    if bounds.next().is_some() {
        course.close(high, allocated);
    }
    course.most = ByCategory(most.map(Bytes));
    course
}

impl Course {
    /// Ends the stretch before a bound.
    fn close(&mut self, high: High, allocated: u64) {
        if self.at_bounds.is_empty() {
            self.setup = high;
        } else {
            self.steps.push(high);
        }
        self.at_bounds.push(Bytes(allocated));
    }
}

impl From<Peak> for High {
    fn from(peak: Peak) -> High {
        High { bytes: peak.bytes, position: peak.position }
    }
}
