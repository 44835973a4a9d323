//! The memory of a device as a bar, with a legend.

use crate::palette::{Palette, Part};
use live::{Gpu, MemorySplit};
use ratatui::text::{Line, Span};
use snapshot::Bytes;

/// Returns the known parts of a device's memory, in order.
pub fn parts(split: &MemorySplit) -> Vec<(Part, Bytes)> {
    let of = |part| match part {
        Part::Tensors => Some(split.tensors),
        Part::Cached => Some(split.cached),
        Part::NonPyTorch => split.non_pytorch,
        Part::Others => split.others,
        Part::UnknownOwner => split.unknown_owner,
        Part::Free => split.free,
    };
    Part::ALL.into_iter().filter_map(|part| Some((part, of(part)?))).collect()
}

/// Returns the parts of a GPU without a recorder: what other processes use, and what is free.
pub fn driver_parts(gpu: &Gpu) -> Vec<(Part, Bytes)> {
    let processes: u64 = gpu.processes.iter().map(|process| process.bytes).sum();
    vec![
        (Part::Others, Bytes(processes)),
        (Part::UnknownOwner, Bytes(gpu.used.saturating_sub(processes))),
        (Part::Free, Bytes(gpu.total.saturating_sub(gpu.used))),
    ]
}

/// Returns a bar of `width` cells. Every part larger than zero has at least one.
pub fn bar(parts: &[(Part, Bytes)], width: usize, palette: Palette) -> Line<'static> {
    let spans = cells(parts, width).into_iter().map(|(part, cells)| {
        let (letter, style) = palette.part(part);
        Span::styled(letter.to_string().repeat(cells), style)
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn cells(parts: &[(Part, Bytes)], width: usize) -> Vec<(Part, usize)> {
    let total: u64 = parts.iter().map(|(_, bytes)| bytes.0).sum();
    let mut cells: Vec<(Part, usize)> = parts
        .iter()
        .filter(|(_, bytes)| bytes.0 > 0)
        .map(|&(part, bytes)| {
            (part, (bytes.0 as f64 / total as f64 * width as f64).round().max(1.0) as usize)
        })
        .collect();
    // The rounding error goes to the largest part.
    let sum: usize = cells.iter().map(|(_, cells)| cells).sum();
    if let Some((_, largest)) = cells.iter_mut().max_by_key(|(_, cells)| *cells) {
        *largest = (*largest + width).saturating_sub(sum);
    }
    cells
}

/// Returns the names and sizes of the parts, wrapped to `width` columns.
pub fn legend(parts: &[(Part, Bytes)], width: usize, palette: Palette) -> Vec<Line<'static>> {
    let mut lines: Vec<(usize, Vec<Span<'static>>)> = vec![(0, Vec::new())];
    for &(part, bytes) in parts {
        let (letter, style) = palette.part(part);
        let text = format!(" {} {bytes}", part.name());
        let room = text.chars().count() + 1;
        if lines.last().is_some_and(|(used, _)| used + room > width) {
            lines.push((0, Vec::new()));
        }
        if let Some((used, spans)) = lines.last_mut() {
            if *used > 0 {
                spans.push(Span::raw("  "));
            }
            spans.push(Span::styled(letter.to_string(), style));
            spans.push(Span::raw(text));
            *used += room + 2;
        }
    }
    lines.into_iter().map(|(_, spans)| Line::from(spans)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_it_should_be_and_leaves_nobody_out() {
        let parts = [
            (Part::Tensors, Bytes(1)),
            (Part::Cached, Bytes(0)),
            (Part::Others, Bytes(499)),
            (Part::Free, Bytes(500)),
        ];
        for width in [10, 40, 77] {
            let cells = cells(&parts, width);
            assert_eq!(cells.iter().map(|(_, cells)| cells).sum::<usize>(), width);
            assert_eq!(
                cells.iter().map(|(part, _)| *part).collect::<Vec<_>>(),
                [Part::Tensors, Part::Others, Part::Free]
            );
        }
        assert!(cells(&[], 10).is_empty());
    }
}
