//! Memory timeline of a device: tensors at the ends of steps, memory used within steps above, reserved
//! memory on top.

use crate::palette::{Palette, Part};
use crate::verdict::duration;
use analysis::words::grouped;
use live::{DeviceLevel, MemoryTimeline};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;
use snapshot::Bytes;
use std::time::Duration;

/// Widget with the memory timeline of one device.
pub struct Timeline<'a> {
    /// The timeline of the recorder.
    pub timeline: &'a MemoryTimeline,
    /// Device ordinal.
    pub device: u32,
    /// Colors and symbols.
    pub palette: Palette,
}

/// Columns for the numbers on the left.
const MARGIN_COLUMNS: u16 = 9;
/// Eighths of a cell, from nothing to all of it.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One column of the timeline.
#[derive(Clone, Copy, Default)]
struct Column {
    level: Option<DeviceLevel>,
    /// Whether a step ended in it.
    has_step: bool,
}

impl Widget for Timeline<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.height < 4 || area.width < MARGIN_COLUMNS + 8 {
            return;
        }
        let (width, height) = (area.width - MARGIN_COLUMNS - 1, area.height - 2);
        let columns = self.columns(usize::from(width));
        let highest =
            columns.iter().filter_map(|column| column.level).map(|level| level.reserved.max(level.top)).max();
        // Leaves some space above the highest level.
        let highest = highest.unwrap_or(0).max(1) as f64 * 1.05;
        let axis = self.palette.axis();
        for row in 0..height {
            let y = area.y + row;
            buffer.set_string(area.x + MARGIN_COLUMNS, y, axis[0].to_string(), self.palette.dim());
            let (low, high) = (f64::from(height - row - 1), f64::from(height - row));
            for (x, column) in columns.iter().enumerate() {
                let Some(level) = column.level else { continue };
                let heights = [level.floor.unwrap_or(level.top), level.top, level.reserved];
                let heights = heights.map(|bytes| bytes as f64 / highest * f64::from(height));
                let (letter, style) = self.cell(heights, low, high);
                let x = area.x + MARGIN_COLUMNS + 1 + x as u16;
                buffer.set_string(x, y, letter.to_string(), style);
            }
        }
        let top = Bytes(highest as u64).to_string();
        buffer.set_string(area.x, area.y, format!("{top:>8}"), self.palette.dim());
        buffer.set_string(area.x, area.y + height - 1, format!("{:>8}", 0), self.palette.dim());
        self.draw_axis(area, &columns, buffer);
    }
}

impl Timeline<'_> {
    /// Returns the timeline in `width` columns of equal duration.
    fn columns(&self, width: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); width];
        let spans = self.timeline.spans();
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return columns };
        let span = (last.time_us - first.time_us).max(1) as f64;
        for part in spans {
            let position = (part.time_us - first.time_us) as f64 / span * (width - 1) as f64;
            let column = &mut columns[position as usize];
            if let Some(level) = part.level(self.device) {
                column.level = Some(column.level.map_or(level, |before| before.merged(level)));
            }
            column.has_step |= part.step.is_some();
        }
        // Columns without a sample repeat the previous one.
        let mut before = None;
        for column in &mut columns {
            column.level = column.level.or(before);
            before = column.level;
        }
        columns
    }

    /// Returns the symbol and style of the cell between two heights: the lowest layer that ends in it, over
    /// the layer above.
    fn cell(&self, [floor, top, reserved]: [f64; 3], low: f64, high: f64) -> (char, Style) {
        let palette = self.palette;
        let layers = [
            (floor, palette.part(Part::Tensors)),
            (top, palette.within_steps()),
            (reserved, palette.part(Part::Cached)),
        ];
        let middle = (low + high) / 2.0;
        if !palette.is_fine() {
            let shown = layers.into_iter().find(|(height, _)| *height >= middle);
            return shown.map_or((' ', Style::new()), |(_, symbol)| symbol);
        }
        for (index, &(height, (_, style))) in layers.iter().enumerate() {
            if height >= high {
                return ('█', style);
            }
            let eighths = ((height - low) * 8.0).round();
            if eighths >= 1.0 {
                let above = layers[index + 1..].iter().find(|(height, _)| *height >= middle);
                let behind = above.and_then(|(_, (_, style))| style.fg);
                return (EIGHTHS[(eighths as usize).min(8)], behind.map_or(style, |color| style.bg(color)));
            }
        }
        (' ', Style::new())
    }

    fn draw_axis(&self, area: Rect, columns: &[Column], buffer: &mut Buffer) {
        let [_, corner, horizontal, mark] = self.palette.axis();
        let y = area.y + area.height - 2;
        let steps = columns.iter().filter(|column| column.has_step).count();
        // Marks in adjacent columns are not readable.
        let shows_marks = steps * 2 < columns.len();
        let line: String = columns
            .iter()
            .map(|column| if column.has_step && shows_marks { mark } else { horizontal })
            .collect();
        buffer.set_string(area.x + MARGIN_COLUMNS, y, format!("{corner}{line}"), self.palette.dim());
        let spans = self.timeline.spans();
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return };
        let span = Duration::from_micros(u64::try_from(last.time_us - first.time_us).unwrap_or(0));
        let step =
            |step: Option<u64>| step.map(|step| format!(", step {}", grouped(step))).unwrap_or_default();
        let begin = format!("{} ago{}", duration(span), step(spans.iter().find_map(|part| part.step)));
        let end = format!("now{}", step(spans.iter().rev().find_map(|part| part.step)));
        buffer.set_string(area.x + MARGIN_COLUMNS + 1, y + 1, &begin, self.palette.dim());
        let x = (area.x + area.width).saturating_sub(end.len() as u16);
        if usize::from(x) > usize::from(area.x + MARGIN_COLUMNS) + begin.len() + 2 {
            buffer.set_string(x, y + 1, end, self.palette.dim());
        }
    }
}
