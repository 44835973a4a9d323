//! Which tiles of a picture an exported page has.

use super::columns::{Window, XAxis};
use crate::run::view::DeviceView;

/// Approximate height of a picture in pixels.
const PICTURE_HEIGHT_PIXELS: u64 = 600;

/// Returns the level that is `finer` than that of the whole run in one tile, and every second of its tiles:
/// these overlap enough for a screen.
pub(crate) fn tiles(
    view: &DeviceView<'_>,
    axis: XAxis,
    width: usize,
    finer: u32,
) -> impl Iterator<Item = (u32, usize)> {
    let columns = move |level| Window { axis, level, tile: 0, width }.columns_of(view);
    let coarsest = (0..64).find(|&level| columns(level) <= width).unwrap_or(0);
    // The levels of a time axis go down to microseconds, where nothing more can be seen.
    let is_worth_it =
        |level: &u32| finer == 0 || axis == XAxis::Event || columns(*level) <= 2 * view.history().len();
    let level = coarsest.checked_sub(finer).filter(is_worth_it);
    level.into_iter().flat_map(move |level| {
        let last = columns(level).saturating_sub(width / 2).div_ceil(width / 4);
        (0..=last).step_by(2).map(move |tile| (level, tile))
    })
}

/// Returns the power of two of bytes that are too small to see where a picture is this many bytes high.
pub(crate) fn invisible(bytes: u64) -> u32 {
    (bytes / PICTURE_HEIGHT_PIXELS).max(1).ilog2()
}
