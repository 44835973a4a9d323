//! One device, with indexes that are built when they are first needed.

use super::changes::Curve;
use super::groups::{GroupBy, Groups};
use super::live::{LiveIndex, allocated};
use super::space::{AddressSpace, ReservedCurve};
use crate::run::shapes::{BlockGroup, StackFrame};
use analysis::words::printable;
use analysis::{Device, Finding, Origin, RunModel, SegmentEvent};
use snapshot::{Frame, FrameId, History, Snapshot, StackId};
use std::sync::OnceLock;

/// Callers in a call path.
const MAX_CALLERS: usize = 5;
/// Functions around every `forward` of a module, which say nothing.
const MODULE_WRAPPERS: [&str; 2] = ["_call_impl", "_wrapped_call_impl"];

/// Indexes of one device, kept between questions.
#[derive(Default)]
pub(crate) struct Indexes {
    curve: OnceLock<Curve>,
    live: OnceLock<LiveIndex>,
    space: OnceLock<AddressSpace>,
    reserved: OnceLock<ReservedCurve>,
    groups: [OnceLock<Groups>; GroupBy::COUNT],
}

/// One device of one input.
#[derive(Clone, Copy)]
pub(crate) struct DeviceView<'a> {
    /// Number among the devices of all inputs.
    pub(crate) id: usize,
    /// Number of the input.
    pub(crate) input: usize,
    pub(crate) name: &'a str,
    pub(crate) is_what_if: bool,
    pub(crate) model: &'a RunModel<'a>,
    pub(crate) findings: &'a [Finding],
    pub(crate) indexes: &'a Indexes,
}

impl<'a> DeviceView<'a> {
    pub(crate) fn device(&self) -> &'a Device<'a> {
        self.model.device
    }

    /// Name of the input without folders.
    pub(crate) fn short_name(&self) -> &'a str {
        self.name.rsplit(['/', '\\']).next().unwrap_or(self.name)
    }

    pub(crate) fn history(&self) -> &'a History {
        &self.model.device.history
    }

    pub(crate) fn snapshot(&self) -> &'a Snapshot {
        self.model.device.snapshot
    }

    pub(crate) fn segments(&self) -> &'a [SegmentEvent] {
        &self.model.step_peaks.segments
    }

    pub(crate) fn curve(&self) -> &'a Curve {
        self.indexes.curve.get_or_init(|| Curve::new(self.device()))
    }

    pub(crate) fn index(&self) -> &'a LiveIndex {
        self.indexes.live.get_or_init(|| LiveIndex::new(self.history()))
    }

    pub(crate) fn space(&self) -> &'a AddressSpace {
        self.indexes.space.get_or_init(|| AddressSpace::new(self.device(), self.segments()))
    }

    pub(crate) fn reserved(&self) -> &'a ReservedCurve {
        self.indexes.reserved.get_or_init(|| ReservedCurve::new(self.device(), self.segments()))
    }

    pub(crate) fn groups(&self, by: GroupBy) -> &'a Groups {
        self.indexes.groups[by as usize].get_or_init(|| Groups::new(self.model, by))
    }

    /// Returns the rows of blocks allocated at a position, oldest first.
    pub(crate) fn allocated_at(&self, position: usize) -> Vec<u32> {
        allocated(self.history(), self.index(), position)
    }

    /// Limits a position to those of the run.
    pub(crate) fn clamped(&self, position: usize) -> usize {
        position.min(self.history().len())
    }

    fn time_us(&self, event: usize) -> i64 {
        self.snapshot().events.get(self.history().rows.start + event).time_us
    }

    /// Time of the first event in microseconds since the epoch; 0 without a clock.
    pub(crate) fn begin_us(&self) -> i64 {
        if self.history().is_empty() { 0 } else { self.time_us(0) }
    }

    /// Microseconds from the first event to the last.
    pub(crate) fn duration_us(&self) -> u64 {
        let last = self.history().len().checked_sub(1).map_or(0, |last| self.time_us(last));
        u64::try_from(last.saturating_sub(self.begin_us())).unwrap_or(0)
    }

    /// Microseconds from the first event to a position.
    pub(crate) fn elapsed_us(&self, position: usize) -> u64 {
        let event = position.min(self.history().len()).checked_sub(1);
        let time = event.map_or_else(|| self.begin_us(), |event| self.time_us(event));
        u64::try_from(time.saturating_sub(self.begin_us())).unwrap_or(0)
    }

    /// Number of events less than `elapsed` microseconds after the first.
    pub(crate) fn events_before_us(&self, elapsed: u64) -> usize {
        let (mut low, mut high) = (0, self.history().len());
        let wanted = i64::try_from(elapsed).unwrap_or(i64::MAX);
        while low < high {
            let middle = (low + high) / 2;
            if self.time_us(middle).saturating_sub(self.begin_us()) < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Describes a group for the page.
    pub(crate) fn group(&self, by: GroupBy, id: u32) -> Option<BlockGroup> {
        let group = self.groups(by).all.get(id as usize)?;
        let (label, mut detail) = self.device().words_for(group.origin);
        if let Origin::Stack(stack) = group.origin {
            detail = self.call_path(stack).unwrap_or(detail);
        }
        Some(BlockGroup { id, label, detail, blocks: group.blocks })
    }

    /// Writes the innermost functions of a stack: `dropout:1425 ← forward ← _ff_block`. Many stacks share a
    /// site, and these tell them apart.
    fn call_path(&self, stack: StackId) -> Option<String> {
        let (stacks, strings) = (&self.snapshot().stacks, &self.snapshot().strings);
        let is_python = |frame: &&FrameId| !self.device().sites.is_native(**frame);
        let mut frames = stacks.frames(stack).iter().filter(is_python).map(|&frame| stacks.frame(frame));
        let innermost = frames.next()?;
        let callers = frames
            .map(|frame| strings.get(frame.function))
            .filter(|function| !MODULE_WRAPPERS.contains(function))
            .take(MAX_CALLERS);
        let mut path = format!("{}:{}", printable(strings.get(innermost.function)), innermost.line);
        for caller in callers {
            path.push_str(" ← ");
            path.push_str(&printable(caller));
        }
        Some(path)
    }

    /// Names a group.
    pub(crate) fn label(&self, by: GroupBy, id: u32) -> String {
        self.group(by, id).map(|group| group.label).unwrap_or_default()
    }

    /// Describes the frames of a stack for the page, innermost first.
    pub(crate) fn stack(&self, stack: StackId) -> Vec<StackFrame> {
        let text = |id| self.snapshot().strings.get(id).to_owned();
        let frames = self.snapshot().stacks.frames(stack).iter();
        frames
            .map(|&id| {
                let &Frame { function, file, line, .. } = self.snapshot().stacks.frame(id);
                let user = self.device().sites.is_user(id);
                StackFrame { file: text(file), line, function: text(function), user }
            })
            .collect()
    }
}
