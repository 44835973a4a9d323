//! From a recorder's counts of allocations to positions in the history.

use crate::trace::order::Order;
use recording::{Recording, StepMark};
use std::ops::RangeInclusive;

/// Positions in the history by a recorder's counts. Counting goes back from the end, since a history may have
/// lost its beginning.
pub(crate) struct Counted {
    /// The events that allocate.
    alloc_events: Vec<usize>,
    /// The count at the end.
    end: u64,
    len: usize,
}

/// A count of allocations at the end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MarkCount {
    Reliable(u64),
    /// The program reset its statistics afterwards.
    BeforeReset,
    /// A recorder does not count at the end of every step.
    NotCounted,
}

impl Counted {
    /// `None` where the recording does not say how many there were in the end.
    pub(crate) fn new(order: &Order<'_>, recording: &Recording) -> Option<Counted> {
        let end = recording.allocations.of(order.device)?;
        let alloc_events = order.allocations(0..order.len()).map(|(event, _)| event).collect();
        Some(Counted { alloc_events, end, len: order.len() })
    }

    /// The events that allocate, in order.
    pub(crate) fn alloc_events(&self) -> &[usize] {
        &self.alloc_events
    }

    /// How many of the allocations that the history has had been made at a count; `None` before the history.
    pub(crate) fn place(&self, count: u64) -> Option<usize> {
        let later = usize::try_from(self.end.checked_sub(count)?).ok()?;
        self.alloc_events.len().checked_sub(later)
    }

    /// How many of the last `counts` are reliable: a count that is higher than a later one was made before
    /// the program reset its statistics.
    pub(crate) fn reliable(&self, counts: impl DoubleEndedIterator<Item = u64>) -> usize {
        let mut limit = self.end;
        let believed = |&count: &u64| {
            let fits = count <= limit;
            limit = limit.min(count);
            fits
        };
        counts.rev().take_while(believed).count()
    }

    /// How far the count at the end of each step can be trusted.
    pub(crate) fn of_marks<'a>(
        &self,
        marks: &'a [StepMark],
        device: u32,
    ) -> impl Iterator<Item = (&'a StepMark, MarkCount)> {
        let count_of = move |mark: &StepMark| mark.allocations.of(device);
        let counts: Vec<u64> = marks.iter().filter_map(count_of).collect();
        let mut unreliable = counts.len() - self.reliable(counts.iter().copied());
        marks.iter().map(move |mark| {
            let count = match count_of(mark) {
                None => MarkCount::NotCounted,
                Some(_) if unreliable > 0 => {
                    unreliable -= 1;
                    MarkCount::BeforeReset
                }
                Some(count) => MarkCount::Reliable(count),
            };
            (mark, count)
        })
    }

    /// Positions at which exactly `count` allocations had been made; `None` before the history.
    pub(crate) fn at(&self, count: u64) -> Option<RangeInclusive<usize>> {
        let made = self.place(count)?;
        let from = made.checked_sub(1).map_or(0, |last| self.alloc_events[last] + 1);
        Some(from..=self.alloc_events.get(made).copied().unwrap_or(self.len))
    }
}
