//! One pass over all events: the peak of each step, and of each category.

use crate::run::categories::{ByCategory, Categories, Category};
use crate::trace::steps::Steps;
use snapshot::{Action, Bytes, History, Snapshot};

/// The highest point of a stretch of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryPeak {
    /// Allocated bytes.
    pub bytes: Bytes,
    /// Number of events that had happened.
    pub position: usize,
}

/// Peak memory of each step, and other results of one pass over a history.
pub struct StepPeaks {
    /// The highest point of each step.
    pub steps: Vec<MemoryPeak>,
    /// The same for the steps of the main loop, with all that they contain.
    pub main: Vec<MainStep>,
    /// The highest point before the first step.
    pub setup: MemoryPeak,
    /// Allocated bytes at each bound of the steps.
    pub at_bounds: Vec<Bytes>,
    /// The most that each category held at one time, in requested bytes; they need not have been together.
    pub most: ByCategory,
    /// The most that was freed and waited for other streams, and when.
    pub pending: MemoryPeak,
    /// Events that reserved or returned memory.
    pub segments: Vec<SegmentEvent>,
    /// Failed allocations.
    pub ooms: Vec<usize>,
}

/// A step of the main loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MainStep {
    /// Its highest point.
    pub peak: MemoryPeak,
    /// Index of its first bound in [`Steps::bounds`].
    pub bound: usize,
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
    /// Bytes that were reserved or returned.
    pub bytes: Bytes,
}

/// Finds the peaks of a history in one walk.
pub(crate) fn step_peaks(
    snapshot: &Snapshot,
    history: &History,
    steps: &Steps,
    categories: &Categories,
) -> StepPeaks {
    let mut walk = PeaksPass::new(snapshot, history, categories);
    let mut peaks = StepPeaks {
        steps: Vec::with_capacity(steps.count()),
        main: Vec::new(),
        setup: MemoryPeak::default(),
        at_bounds: Vec::with_capacity(steps.bounds.len()),
        most: ByCategory::default(),
        pending: MemoryPeak::default(),
        segments: Vec::new(),
        ooms: Vec::new(),
    };
    let mut bounds = steps.bounds.iter().copied().peekable();
    let mut implied = history.implied_ends().iter().peekable();
    for (index, (action, _)) in snapshot.events.actions(history.rows.clone()).enumerate() {
        while bounds.next_if_eq(&index).is_some() {
            peaks.close(&mut walk, index);
        }
        // A block whose end was not recorded: this event shows that it has ended.
        while let Some(&(_, row)) = implied.next_if(|&&(event, _)| event as usize == index) {
            walk.end(row as usize, index);
        }
        match action {
            Action::Alloc => walk.begin(history.allocation_of(index, action), index),
            Action::FreeRequested | Action::FreeCompleted => {
                if let Some(row) = history.allocation_of(index, action) {
                    walk.end(row, index);
                }
            }
            Action::SegmentAlloc | Action::SegmentMap | Action::SegmentFree | Action::SegmentUnmap => {
                let region = history.region_of(index, action);
                let bytes = match (action, region) {
                    (Action::SegmentFree, Some(region)) => history.regions[region].size,
                    _ => snapshot.events.get(history.rows.start + index).size,
                };
                let reserves = matches!(action, Action::SegmentAlloc | Action::SegmentMap);
                peaks.segments.push(SegmentEvent { event: index, region, reserves, bytes });
            }
            Action::Oom => peaks.ooms.push(index),
            Action::Snapshot | Action::Annotate | Action::Other(_) => {}
        }
    }
    if bounds.next().is_some() {
        peaks.close(&mut walk, history.len());
    }
    peaks.main = main_steps(steps, &peaks.steps);
    peaks.most = ByCategory(walk.most.map(Bytes));
    peaks.pending = walk.most_pending;
    peaks
}

fn main_steps(steps: &Steps, peaks: &[MemoryPeak]) -> Vec<MainStep> {
    let index = |position: usize| steps.bounds.partition_point(|&bound| bound < position);
    let of_pair = |pair: &[usize]| {
        let (begin, end) = (index(pair[0]), index(pair[1]).min(peaks.len()));
        let peak =
            peaks.get(begin..end)?.iter().copied().reduce(|a, b| if b.bytes > a.bytes { b } else { a })?;
        Some(MainStep { peak, bound: begin })
    };
    steps.main.windows(2).filter_map(of_pair).collect()
}

impl StepPeaks {
    /// Ends the stretch before a bound.
    fn close(&mut self, walk: &mut PeaksPass<'_>, position: usize) {
        if self.at_bounds.is_empty() {
            self.setup = walk.high;
        } else {
            self.steps.push(walk.high);
        }
        self.at_bounds.push(Bytes(walk.allocated));
        walk.high = MemoryPeak { bytes: Bytes(walk.allocated), position };
    }
}

/// What is held as the walk goes on. Sums saturate: a damaged file has sizes beyond all memory.
struct PeaksPass<'a> {
    snapshot: &'a Snapshot,
    history: &'a History,
    categories: &'a Categories,
    allocated: u64,
    high: MemoryPeak,
    held: [u64; Category::ALL.len()],
    most: [u64; Category::ALL.len()],
    pending: u64,
    most_pending: MemoryPeak,
}

impl<'a> PeaksPass<'a> {
    fn new(snapshot: &'a Snapshot, history: &'a History, categories: &'a Categories) -> PeaksPass<'a> {
        let mut held = [0u64; Category::ALL.len()];
        for (row, allocation) in history
            .allocations
            .iter()
            .enumerate()
            .take_while(|(_, allocation)| allocation.alloc_event().is_none())
        {
            if allocation.is_allocated_at(0) {
                let held = &mut held[categories.of(row) as usize];
                *held = held.saturating_add(allocation.requested.0);
            }
        }
        PeaksPass {
            snapshot,
            history,
            categories,
            allocated: history.start.0,
            high: MemoryPeak { bytes: history.start, position: 0 },
            held,
            most: held,
            pending: 0,
            most_pending: MemoryPeak::default(),
        }
    }

    fn begin(&mut self, row: Option<usize>, event: usize) {
        let Some(row) = row else { return };
        let (allocation, category) = (&self.history.allocations[row], self.categories.of(row) as usize);
        self.allocated = self.allocated.saturating_add(allocation.size.0);
        self.held[category] = self.held[category].saturating_add(allocation.requested.0);
        self.most[category] = self.most[category].max(self.held[category]);
        if self.allocated > self.high.bytes.0 {
            self.high = MemoryPeak { bytes: Bytes(self.allocated), position: event + 1 };
        }
    }

    /// The program has freed a block, or its memory can be reused, or both.
    fn end(&mut self, row: usize, event: usize) {
        let allocation = &self.history.allocations[row];
        let is_freed = allocation.free_event() == Some(event);
        if is_freed {
            let category = self.categories.of(row) as usize;
            self.allocated = self.allocated.saturating_sub(allocation.size.0);
            self.held[category] = self.held[category].saturating_sub(allocation.requested.0);
        }
        if !self.history.is_deferred(self.snapshot, allocation) {
            return;
        }
        if !is_freed {
            self.pending = self.pending.saturating_sub(allocation.size.0);
            return;
        }
        self.pending = self.pending.saturating_add(allocation.size.0);
        if self.pending > self.most_pending.bytes.0 {
            self.most_pending = MemoryPeak { bytes: Bytes(self.pending), position: event + 1 };
        }
    }
}
