//! Details of the chosen row: memory split, verdict, timeline, and the lines that hold most.

use crate::bar::{bar, driver_parts, legend, parts};
use crate::palette::Palette;
use crate::state::WatchRow;
use crate::timeline::Timeline;
use crate::verdict::{GrowthVerdict, Tone, process_status};
use analysis::words::{counted, grouped, printable, shortened};
use live::{DeviceCounters, Gpu, LiveSite, MemorySplit, WatchedRecorder};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};
use snapshot::Bytes;

/// Widget with the details of one row.
pub struct Details<'a> {
    /// The row.
    pub row: &'a WatchRow,
    /// Whether to show the lines of code that hold most.
    pub shows_sites: bool,
    /// Colors and symbols.
    pub palette: Palette,
}

/// Largest number of lines of code to show.
const MAX_SITES: usize = 6;
/// Smallest useful height of the timeline, in rows.
const MIN_TIMELINE_ROWS: u16 = 6;

impl Widget for Details<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        match self.row {
            WatchRow::Recorded { recorder, device, split, .. } => {
                self.recorded(recorder, device, split, area, buffer)
            }
            WatchRow::DriverOnly(gpu) => self.driver_only(gpu, area, buffer),
        }
    }
}

impl Details<'_> {
    fn recorded(
        &self,
        recorder: &WatchedRecorder,
        device: &DeviceCounters,
        split: &MemorySplit,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        let width = usize::from(area.width);
        let parts = parts(split);
        let mut lines = vec![headline(recorder, device, self.palette), bar(&parts, width, self.palette)];
        lines.extend(legend(&parts, width, self.palette));
        lines.extend(counters(recorder, device, split, self.palette));
        lines.extend(owners(device, self.palette));
        let verdict = GrowthVerdict::new(recorder, device.device);
        let mark = if verdict.tone == Tone::Bad { "! " } else { "" };
        lines.push(Line::styled(format!("{mark}{}", verdict.sentence), self.palette.tone(verdict.tone)));
        if let Some((tone, status)) = process_status(recorder) {
            lines.push(Line::styled(shortened(&printable(&status), width), self.palette.tone(tone)));
        }
        let used = lines.len() as u16;
        Paragraph::new(lines).render(area, buffer);
        let rest = Rect { y: area.y + used, height: area.height.saturating_sub(used), ..area };
        let sites = self.site_lines(recorder, device, width);
        let wanted = (sites.len() as u16).min(rest.height.saturating_sub(MIN_TIMELINE_ROWS));
        let timeline_area = Rect { height: rest.height - wanted, ..rest };
        Timeline { timeline: &recorder.timeline, device: device.device, palette: self.palette }
            .render(timeline_area, buffer);
        Paragraph::new(sites)
            .render(Rect { y: timeline_area.y + timeline_area.height, height: wanted, ..rest }, buffer);
    }

    fn site_lines(
        &self,
        recorder: &WatchedRecorder,
        device: &DeviceCounters,
        width: usize,
    ) -> Vec<Line<'static>> {
        if !self.shows_sites {
            return Vec::new();
        }
        let mut sites = recorder.sites(device.device);
        let Some(step) = recorder.sites_step() else {
            let why = if recorder.state.has_stacks {
                "the lines that hold most come with the next step"
            } else {
                "the lines that hold most need torch 2.10 or later; d writes a recording that has them"
            };
            return vec![Line::styled(shortened(why, width), self.palette.dim())];
        };
        // Growing lines first, even if others hold more.
        sites.sort_by_key(|site| std::cmp::Reverse(site.bytes_per_step));
        let title = format!("the lines that hold most, at the end of step {}", grouped(step));
        let mut lines = vec![Line::styled(title, self.palette.dim())];
        lines.extend(sites.iter().take(MAX_SITES).map(|site| self.site_line(site, width)));
        lines
    }

    fn site_line(&self, site: &LiveSite, width: usize) -> Line<'static> {
        let held = format!("{:>9}  {:<12} ", site.bytes.to_string(), counted(site.count, "block"));
        let grows = site.bytes_per_step.map(|bytes| format!("  +{bytes} per step")).unwrap_or_default();
        let room = width.saturating_sub(held.len() + grows.chars().count());
        Line::from(vec![
            Span::raw(held),
            Span::styled(shortened(&site_text(site), room.max(2)), self.palette.bold()),
            Span::styled(grows, self.palette.tone(Tone::Bad)),
        ])
    }

    fn driver_only(&self, gpu: &Gpu, area: Rect, buffer: &mut Buffer) {
        let width = usize::from(area.width);
        let parts = driver_parts(gpu);
        let mut lines = vec![
            Line::from(vec![
                Span::styled(format!("GPU {}  ", gpu.index), self.palette.bold()),
                Span::raw(format!(
                    "{}, {} of {} in use",
                    printable(&gpu.name),
                    Bytes(gpu.used),
                    Bytes(gpu.total)
                )),
            ]),
            bar(&parts, width, self.palette),
        ];
        lines.extend(legend(&parts, width, self.palette));
        lines.push(Line::default());
        for process in &gpu.processes {
            let bytes = Bytes(process.bytes).to_string();
            lines.push(Line::raw(format!(
                "{bytes:>9}  process {} {}",
                process.pid,
                printable(&process.name)
            )));
        }
        lines.push(Line::default());
        lines.extend(NO_RECORDER_NOTE.iter().map(|line| Line::styled(*line, self.palette.dim())));
        Paragraph::new(lines).render(area, buffer);
    }
}

/// Note for a GPU without a recorder.
pub const NO_RECORDER_NOTE: [&str; 2] = [
    "no recorder: how much of this is tensors or cache, and whether it grows, is unknown;",
    "start the program with `oomph run`, or call `oomph.record()` in it",
];

fn headline(recorder: &WatchedRecorder, device: &DeviceCounters, palette: Palette) -> Line<'static> {
    let state = &recorder.state;
    let (device_name, description) = if state.is_cpu() {
        ("CPU  ".to_owned(), "tensors of this process".to_owned())
    } else {
        let total = device.total.map(|total| format!(", {}", Bytes(total))).unwrap_or_default();
        (format!("GPU {}  ", device.device), format!("{}{total}", printable(&device.card)))
    };
    Line::from(vec![
        Span::styled(device_name, palette.bold()),
        Span::raw(description),
        Span::styled(format!("   process {} · torch {}", state.pid, printable(&state.torch)), palette.dim()),
    ])
}

/// Returns the counters that the bar does not show, if they are worth showing.
fn counters(
    recorder: &WatchedRecorder,
    device: &DeviceCounters,
    split: &MemorySplit,
    palette: Palette,
) -> Option<Line<'static>> {
    let mut parts = vec![format!("peak {}", Bytes(device.peak))];
    let rounding = device.allocated.saturating_sub(device.requested);
    if rounding * 50 > device.allocated && device.requested > 0 {
        parts.push(format!("{} lost to rounding", Bytes(rounding)));
    }
    if device.inactive_split * 10 > device.reserved {
        parts.push(format!("{} of the cache in split segments", Bytes(device.inactive_split)));
    }
    if let Some(limit) = device.limit {
        parts.push(format!("limit {}", Bytes(limit)));
    }
    if let Some(pinned) = recorder.state.pinned.filter(|&pinned| pinned > 0) {
        parts.push(format!("pinned host {}", Bytes(pinned)));
    }
    for (number, what) in [(device.retries, "alloc retry"), (device.ooms, "out-of-memory error")] {
        if number > 0 {
            parts.push(match what {
                "alloc retry" if number > 1 => format!("{} alloc retries", grouped(number)),
                _ => counted(number, what),
            });
        }
    }
    let is_known = split.tensors.0 > 0 || device.peak > 0;
    is_known.then(|| Line::styled(parts.join(" · "), palette.dim()))
}

/// Returns who has the non-PyTorch memory of the process, if that is counted.
fn owners(device: &DeviceCounters, palette: Palette) -> Option<Line<'static>> {
    let rows = device.owners();
    let parts = rows.iter().map(|row| format!("{} {}", printable(row.owner.name()), row.bytes));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| Line::styled(format!("non-PyTorch: {}", parts.join(" · ")), palette.dim()))
}

/// Returns a site as text, such as `train.py:20 in train`.
pub fn site_text(site: &LiveSite) -> String {
    match &site.line {
        Some((file, line, function)) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("{}:{line} in {}", printable(name), printable(function))
        }
        None => "no Python on the stack (inside backward(), or before the recording)".to_owned(),
    }
}
