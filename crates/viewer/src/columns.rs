//! From a piece of the x axis to the positions that each column of the picture covers.

use crate::view::View;
use std::ops::Range;

/// Columns of a tile of bands.
pub(crate) const BANDS: usize = 4096;
/// Columns of a tile of single blocks or of the memory map, which have more to say of each.
pub(crate) const BLOCKS: usize = 2048;

/// What the x axis counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Axis {
    Event,
    Time,
}

/// A tile of the x axis. They overlap: one begins at every quarter, so that any screen fits into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Window {
    pub(crate) axis: Axis,
    /// A column is 2^level events or microseconds wide.
    pub(crate) level: u32,
    pub(crate) tile: usize,
    /// Its columns.
    pub(crate) width: usize,
}

impl Window {
    /// The number of its first column, counted from the beginning of the run.
    pub(crate) fn first(&self) -> usize {
        self.tile.saturating_mul(self.width / 4)
    }

    /// Whether every event has a column of its own.
    pub(crate) fn is_by_event(&self) -> bool {
        self.axis == Axis::Event && self.level == 0
    }

    /// How many columns the whole run has at this level.
    pub(crate) fn columns_of(&self, view: &View<'_>) -> usize {
        let width = match self.axis {
            Axis::Event => view.history().len() as u64,
            Axis::Time => view.duration_us(),
        };
        (width >> self.level.min(63)) as usize + 1
    }

    /// The positions of each column. On a time axis a column begins with the state that it finds.
    pub(crate) fn columns(&self, view: &View<'_>) -> Vec<Range<usize>> {
        let end = self.columns_of(view).min(self.first().saturating_add(self.width));
        let positions = view.history().len() + 1;
        let level = self.level.min(63);
        let begins = |column: usize| match self.axis {
            Axis::Event => (column << level).min(positions),
            Axis::Time => 1 + view.events_before_us((column as u64) << level),
        };
        (self.first()..end)
            .map(|column| match self.axis {
                Axis::Event => begins(column)..begins(column + 1),
                Axis::Time => begins(column) - 1..begins(column + 1).min(positions),
            })
            .collect()
    }
}
