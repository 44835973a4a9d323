//! One device with what its pictures are made from. Each part is made when it is first asked for, and kept.

use crate::alive::{Index, allocated};
use crate::changes::Curve;
use crate::groups::{By, Groups};
use crate::space::{Reserved, Space};
use analysis::{Device, Finding, Outline, SegmentEvent};
use serde_json::{Value, json};
use snapshot::{Frame, FrameId, History, Snapshot, StackId};
use std::sync::OnceLock;

/// What is kept of one device between questions.
#[derive(Default)]
pub(crate) struct Kept {
    curve: OnceLock<Curve>,
    index: OnceLock<Index>,
    space: OnceLock<Space>,
    reserved: OnceLock<Reserved>,
    groups: [OnceLock<Groups>; By::ALL.len()],
}

/// One device of one input.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// Its number among all that are shown.
    pub(crate) id: usize,
    /// The number of its input.
    pub(crate) input: usize,
    pub(crate) name: &'a str,
    pub(crate) is_what_if: bool,
    pub(crate) outline: &'a Outline<'a>,
    pub(crate) findings: &'a [Finding],
    pub(crate) kept: &'a Kept,
}

impl<'a> View<'a> {
    pub(crate) fn device(&self) -> &'a Device<'a> {
        self.outline.device
    }

    /// The name without folders.
    pub(crate) fn short_name(&self) -> &'a str {
        self.name.rsplit(['/', '\\']).next().unwrap_or(self.name)
    }

    pub(crate) fn history(&self) -> &'a History {
        &self.outline.device.history
    }

    pub(crate) fn snapshot(&self) -> &'a Snapshot {
        self.outline.device.snapshot
    }

    pub(crate) fn segments(&self) -> &'a [SegmentEvent] {
        &self.outline.course.segments
    }

    pub(crate) fn curve(&self) -> &'a Curve {
        self.kept.curve.get_or_init(|| Curve::new(self.device()))
    }

    pub(crate) fn index(&self) -> &'a Index {
        self.kept.index.get_or_init(|| Index::new(self.history()))
    }

    pub(crate) fn space(&self) -> &'a Space {
        self.kept.space.get_or_init(|| Space::new(self.device(), self.segments()))
    }

    pub(crate) fn reserved(&self) -> &'a Reserved {
        self.kept.reserved.get_or_init(|| Reserved::new(self.device(), self.segments()))
    }

    pub(crate) fn groups(&self, by: By) -> &'a Groups {
        self.kept.groups[by as usize].get_or_init(|| Groups::new(self.outline, by))
    }

    /// The rows of blocks that the program holds at a position, oldest first.
    pub(crate) fn allocated_at(&self, position: usize) -> Vec<u32> {
        allocated(self.history(), self.index(), position)
    }

    /// A position that there is.
    pub(crate) fn clamped(&self, position: usize) -> usize {
        position.min(self.history().len())
    }

    fn time_us(&self, event: usize) -> i64 {
        self.snapshot().events.get(self.history().rows.start + event).time_us
    }

    /// When the first event happened; 0 without a clock.
    pub(crate) fn begin_us(&self) -> i64 {
        if self.history().is_empty() { 0 } else { self.time_us(0) }
    }

    /// From the first event to the last.
    pub(crate) fn duration_us(&self) -> u64 {
        let last = self.history().len().checked_sub(1).map_or(0, |last| self.time_us(last));
        u64::try_from(last.saturating_sub(self.begin_us())).unwrap_or(0)
    }

    /// When a position was reached, since the first event.
    pub(crate) fn elapsed_us(&self, position: usize) -> u64 {
        let event = position.min(self.history().len()).checked_sub(1);
        let time = event.map_or_else(|| self.begin_us(), |event| self.time_us(event));
        u64::try_from(time.saturating_sub(self.begin_us())).unwrap_or(0)
    }

    /// How many events happened less than this long after the first.
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

    /// A group as the page shows it.
    pub(crate) fn group_json(&self, by: By, id: u32) -> Value {
        let Some(group) = self.groups(by).all.get(id as usize) else { return Value::Null };
        let (label, detail) = self.device().words_for(group.origin);
        json!({"id": id, "label": label, "detail": detail, "blocks": group.blocks})
    }

    /// The frames of a stack as the page shows them, innermost first.
    pub(crate) fn stack_json(&self, stack: StackId) -> Vec<Value> {
        self.snapshot().stacks.frames(stack).iter().map(|&frame| self.frame_json(frame)).collect()
    }

    fn frame_json(&self, id: FrameId) -> Value {
        let Frame { function, file, line, .. } = *self.snapshot().stacks.frame(id);
        let text = |id| self.snapshot().strings.get(id);
        let user = self.device().sites.is_user(id);
        json!({"file": text(file), "line": line, "function": text(function), "user": user})
    }
}
