//! A snapshot in memory.

use crate::settings::{Settings, TorchRange};
use crate::stacks::Stacks;
use crate::tables::{Annotation, Block, Events, Segment, Trace};
use crate::text::Strings;

/// Whose memory a snapshot is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceKind {
    /// A GPU's, handed out by PyTorch's caching allocator.
    #[default]
    Gpu,
    /// The CPU's, as oomph's recorder writes it: each tensor is a segment of its own, and no size is rounded.
    Cpu,
}

/// Everything that a snapshot file says, as interned columns.
pub struct Snapshot {
    /// Every name, path and label.
    pub strings: Strings,
    /// Every frame and call stack.
    pub stacks: Stacks,
    /// Every recorded event.
    pub events: Events,
    /// Which events belong to which device; devices without events are left out.
    pub traces: Vec<Trace>,
    /// The segments at the time of the dump, by device and address.
    pub segments: Vec<Segment>,
    /// Their blocks; each segment knows its rows.
    pub blocks: Vec<Block>,
    /// Profiler steps and `record_function` ranges.
    pub annotations: Vec<Annotation>,
    /// Allocator settings at the time of the dump.
    pub settings: Settings,
    /// Whose memory it is.
    pub kind: DeviceKind,
    /// Releases of torch that write this shape of file.
    pub torch: TorchRange,
    /// What was unusual about the file, and what it means for the numbers.
    pub caveats: Vec<String>,
}

impl Snapshot {
    /// Ordinals of the devices that hold memory or recorded events, ascending.
    pub fn devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self.segments.iter().map(|segment| segment.device).collect();
        devices.extend(self.traces.iter().map(|trace| trace.device));
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The rows of `device` in [`Snapshot::events`].
    pub fn rows(&self, device: u32) -> std::ops::Range<usize> {
        self.traces.iter().find(|trace| trace.device == device).map_or(0..0, |trace| trace.rows.clone())
    }

    /// The bytes that this release took for a request of `n` bytes, before it decided whether to split.
    pub fn round(&self, n: u64) -> u64 {
        if self.kind == DeviceKind::Cpu {
            return n;
        }
        let group = n.max(1).ilog2().saturating_sub(20).min(15) as usize;
        // Up to 2.3 one division meant no rounding at all.
        if self.torch.newest <= 3 && n > 512 && self.settings.divisions[group] == 1 {
            return n;
        }
        self.settings.round(n)
    }

    /// The segments of `device`, by address.
    pub fn segments_of(&self, device: u32) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.device == device)
    }
}
