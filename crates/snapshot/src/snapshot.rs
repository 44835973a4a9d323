//! Snapshot in memory.

use crate::replayed::ReplayedEvent;
use crate::settings::{EarlierSettings, Settings, TorchRange};
use crate::stacks::{Frame, FrameId, Stacks};
use crate::tables::{Annotation, Block, Event, Events, Segment, Trace};
use crate::text::{StrId, Strings};
use std::ops::Range;

/// Kind of device that a snapshot is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceKind {
    /// GPU memory, handed out by PyTorch's caching allocator.
    #[default]
    Gpu,
    /// CPU memory, as oomph's recorder writes it: each tensor is a segment of its own, and sizes are not
    /// rounded.
    Cpu,
    /// Pinned host memory, handed out by PyTorch's host allocator: each block is a segment of its own.
    Pinned,
}

/// Pinned host memory in a snapshot of the devices (torch 2.14 and later).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PinnedTables {
    /// Its rows in [`Snapshot::events`], which belong to no trace.
    pub rows: Range<usize>,
    /// Its segments; [`Snapshot::blocks`] has their blocks.
    pub segments: Vec<Segment>,
}

/// Content of a snapshot file, as interned columns.
pub struct Snapshot {
    /// Names, paths and labels.
    pub strings: Strings,
    /// Frames and call stacks.
    pub stacks: Stacks,
    /// Recorded events of all devices.
    pub events: Events,
    /// Rows of the events of each device; devices without events are left out.
    pub traces: Vec<Trace>,
    /// Segments at the time of the dump, by device and address.
    pub segments: Vec<Segment>,
    /// Blocks of the segments; each segment has a range of rows.
    pub blocks: Vec<Block>,
    /// Pinned host memory.
    pub pinned: PinnedTables,
    /// Profiler steps and `record_function` ranges.
    pub annotations: Vec<Annotation>,
    /// Allocator settings at the time of the dump.
    pub settings: Settings,
    /// Settings before those, if a recorder noted that they changed: by device, then by time. A snapshot
    /// itself contains only the last.
    pub earlier_settings: Vec<EarlierSettings>,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Releases of torch that write this shape of file.
    pub torch: TorchRange,
    /// What was unusual about the file, and its effect on the numbers.
    pub caveats: Vec<String>,
}

impl Snapshot {
    /// Returns the ordinals of the devices that hold memory or recorded events, ascending.
    pub fn devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self.segments.iter().map(|segment| segment.device).collect();
        devices.extend(self.traces.iter().map(|trace| trace.device));
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Returns the frame of a line of code, adding it if no stack has it.
    pub fn frame_at(&mut self, file: &str, line: u32, function: &str) -> FrameId {
        let (file, function) = (self.strings.intern(file), self.strings.intern(function));
        self.stacks.intern_frame(Frame { function, file, line, extra: StrId::EMPTY })
    }

    /// Returns the rows of `device` in [`Snapshot::events`].
    pub fn rows(&self, device: u32) -> std::ops::Range<usize> {
        self.traces.iter().find(|trace| trace.device == device).map_or(0..0, |trace| trace.rows.clone())
    }

    /// Returns the settings of `device` before its event `event`, and the event at which they were replaced.
    pub fn settings_at(&self, device: u32, event: usize) -> (&Settings, Option<usize>) {
        let mut of_device = self.earlier_settings.iter().filter(|earlier| earlier.device == device);
        match of_device.find(|earlier| event < earlier.until) {
            Some(earlier) => (&earlier.settings, Some(earlier.until)),
            None => (&self.settings, None),
        }
    }

    /// Returns the bytes that this release took for a request of `n` bytes under `settings`, before it
    /// decided whether to split.
    pub fn round(&self, n: u64, settings: &Settings) -> u64 {
        if self.kind != DeviceKind::Gpu {
            return n;
        }
        let group = n.max(1).ilog2().saturating_sub(20).min(15) as usize;
        // Up to torch 2.3, one division meant no rounding at all.
        if self.torch.newest <= 3 && n > 512 && settings.divisions[group] == 1 {
            return n;
        }
        settings.round(n)
    }

    /// Returns pinned host memory as a snapshot of its own, with one device; `None` if there is none.
    pub fn pinned_snapshot(&self) -> Option<Snapshot> {
        let PinnedTables { rows, segments } = &self.pinned;
        if rows.is_empty() && segments.is_empty() {
            return None;
        }
        let events = rows.clone().map(|row| {
            let Event { action, addr, size, context, .. } = self.events.get(row);
            ReplayedEvent { action, addr, size, row, stream: self.events.context(context).stream }
        });
        let segments = segments
            .iter()
            .map(|segment| (segment.clone(), self.blocks[segment.blocks.clone()].to_vec()))
            .collect();
        let pinned = self.replayed(0, events, segments, self.settings.clone(), Vec::new());
        let caveat = "sizes are those of blocks: PyTorch rounds requests for pinned memory up to powers of \
                      two, and does not record them";
        Some(Snapshot { kind: DeviceKind::Pinned, caveats: vec![caveat.to_owned()], ..pinned })
    }

    /// Iterates over the segments of `device`, by address.
    pub fn segments_of(&self, device: u32) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.device == device)
    }
}
