//! The x axis: which positions each column of a tile covers.

use crate::run::view::DeviceView;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Columns of a tile of bands.
pub(crate) const BAND_COLUMNS: usize = 4096;
/// Columns of a tile of single blocks or of the memory map, whose columns are larger.
pub(crate) const BLOCK_COLUMNS: usize = 2048;

/// What the x axis counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum XAxis {
    #[default]
    Event,
    Time,
}

/// A tile of the x axis. A tile begins at every quarter of one, so that any screen fits into a single tile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Window {
    pub(crate) axis: XAxis,
    /// A column is 2^level events or microseconds wide.
    pub(crate) level: u32,
    pub(crate) tile: usize,
    /// Number of columns.
    pub(crate) width: usize,
}

impl Window {
    /// Number of its first column, counted from the beginning of the run.
    pub(crate) fn first(&self) -> usize {
        self.tile.saturating_mul(self.width / 4)
    }

    /// Whether each event has its own column.
    pub(crate) fn is_by_event(&self) -> bool {
        self.axis == XAxis::Event && self.level == 0
    }

    /// Number of columns of the whole run at this level.
    pub(crate) fn columns_of(&self, view: &DeviceView<'_>) -> usize {
        let width = match self.axis {
            XAxis::Event => view.history().len() as u64,
            XAxis::Time => view.duration_us(),
        };
        (width >> self.level.min(63)) as usize + 1
    }

    /// Positions of each column. On a time axis a column includes the position before its first event.
    pub(crate) fn columns(&self, view: &DeviceView<'_>) -> Vec<Range<usize>> {
        let end = self.columns_of(view).min(self.first().saturating_add(self.width));
        let positions = view.history().len() + 1;
        let level = self.level.min(63);
        let begins = |column: usize| match self.axis {
            XAxis::Event => (column << level).min(positions),
            XAxis::Time => 1 + view.events_before_us((column as u64) << level),
        };
        (self.first()..end)
            .map(|column| match self.axis {
                XAxis::Event => begins(column)..begins(column + 1),
                XAxis::Time => begins(column) - 1..begins(column + 1).min(positions),
            })
            .collect()
    }
}
