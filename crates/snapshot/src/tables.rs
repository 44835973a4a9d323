//! The tables of a snapshot: fixed-width columns and small rows that refer to interned strings and stacks.

use crate::bytes::Bytes;
use crate::stacks::StackId;
use crate::text::StrId;
use crate::words;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// What an event records, in PyTorch's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program gave a block back.
    FreeRequested,
    /// The block can be used again.
    FreeCompleted,
    /// `cudaMalloc`.
    SegmentAlloc,
    /// `cudaFree`.
    SegmentFree,
    /// Pages were mapped into an expandable segment.
    SegmentMap,
    /// Pages were unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation failed.
    Oom,
    /// The program labelled a block (`_annotate_tensor`, torch 2.14 and later).
    Annotate,
    /// An action that this version does not know; the number is its place in [`Events::other_actions`].
    Other(u8),
}

const KNOWN: [Action; 10] = [
    Action::Alloc,
    Action::FreeRequested,
    Action::FreeCompleted,
    Action::SegmentAlloc,
    Action::SegmentFree,
    Action::SegmentMap,
    Action::SegmentUnmap,
    Action::Snapshot,
    Action::Oom,
    Action::Annotate,
];

impl Action {
    fn from_code(code: u8) -> Action {
        match KNOWN.get(code as usize) {
            Some(&action) => action,
            None => Action::Other(code - KNOWN.len() as u8),
        }
    }
}

/// What rarely changes from one event to the next, stored once per combination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Context {
    /// Raw stream handle; 0 is the default stream.
    pub stream: u64,
    /// Name of the compiled region, `N/A`, or empty before torch 2.8.
    pub compile_context: StrId,
    /// The string set by `_set_memory_metadata`, or empty.
    pub user_metadata: StrId,
    /// Pool of the block; recorded from torch 2.12 on.
    pub pool: Option<PoolId>,
    /// Frames of the forward pass (torch 2.11 and later, rarely set), one per line.
    pub forward_frames: StrId,
    /// Further keys of the recorded event as a JSON object, or empty.
    pub extra: StrId,
}

/// Identity of an allocator pool: (0, 0) is the default, others belong to CUDA graphs and `MemPool`s.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The pool that serves everything outside graphs and `MemPool`s.
    pub const DEFAULT: PoolId = PoolId(0, 0);
}

/// One event, put together from the columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Block or segment address; for [`Action::Oom`] the bytes that CUDA reported as free.
    pub addr: u64,
    /// Requested bytes for block events, segment or mapped bytes for segment events.
    pub size: Bytes,
    /// Microseconds since the Unix epoch; 0 before torch 2.2.
    pub time_us: i64,
    /// Who did it.
    pub stack: StackId,
    /// Stream, pool and labels.
    pub context: u32,
}

/// All events of all devices, one column per field. [`Trace`] says which rows belong to a device.
#[derive(Default)]
pub struct Events {
    action: Vec<u8>,
    addr: Vec<u64>,
    size: Vec<u64>,
    time_us: Vec<i64>,
    stack: Vec<StackId>,
    context: Vec<u32>,
    contexts: Vec<Context>,
    context_index: HashMap<Context, u32, FxBuildHasher>,
    other_actions: Vec<StrId>,
}

/// Bytes that one event takes in the columns.
pub(crate) const EVENT_WIDTH: usize = 1 + 8 + 8 + 8 + 4 + 4;

impl Events {
    /// Number of rows, all devices together.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// Row `row`.
    #[inline]
    pub fn get(&self, row: usize) -> Event {
        Event {
            action: Action::from_code(self.action[row]),
            addr: self.addr[row],
            size: Bytes(self.size[row]),
            time_us: self.time_us[row],
            stack: self.stack[row],
            context: self.context[row],
        }
    }

    /// The stream, pool and labels behind [`Event::context`].
    #[inline]
    pub fn context(&self, context: u32) -> &Context {
        &self.contexts[context as usize]
    }

    /// Every different context.
    pub fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// Names of the actions that this version does not know.
    pub fn other_actions(&self) -> &[StrId] {
        &self.other_actions
    }

    /// The name of an action as it stands in the file.
    pub fn action_name(&self, action: Action) -> StrId {
        match action {
            Action::Other(index) => self.other_actions[index as usize],
            known => {
                let place = KNOWN.iter().position(|&other| other == known).unwrap_or(0);
                StrId(words::ALLOC.0 + place as u32)
            }
        }
    }

    /// The code that stands for the action `name` in the column.
    pub(crate) fn action_code(&mut self, name: StrId) -> u8 {
        if (words::ALLOC.0..=words::ANNOTATE.0).contains(&name.0) {
            return (name.0 - words::ALLOC.0) as u8;
        }
        let place = self.other_actions.iter().position(|&other| other == name).unwrap_or_else(|| {
            // 240 unknown actions share the column's byte; any further ones share the last.
            if self.other_actions.len() < 240 {
                self.other_actions.push(name);
            }
            self.other_actions.len() - 1
        });
        (KNOWN.len() + place) as u8
    }

    pub(crate) fn intern_context(&mut self, context: Context) -> u32 {
        let next = self.contexts.len() as u32;
        let id = *self.context_index.entry(context).or_insert(next);
        if id == next {
            self.contexts.push(context);
        }
        id
    }

    #[inline]
    pub(crate) fn push(
        &mut self,
        action: u8,
        addr: u64,
        size: u64,
        time_us: i64,
        stack: StackId,
        context: u32,
    ) -> u32 {
        let row = self.action.len() as u32;
        self.action.push(action);
        self.addr.push(addr);
        self.size.push(size);
        self.time_us.push(time_us);
        self.stack.push(stack);
        self.context.push(context);
        row
    }

    /// Appends copies of `rows`, in that order, and says where they are now.
    pub(crate) fn copy_rows(&mut self, rows: impl Iterator<Item = u32>) -> Range<usize> {
        let start = self.len();
        for row in rows {
            let row = row as usize;
            self.push(
                self.action[row],
                self.addr[row],
                self.size[row],
                self.time_us[row],
                self.stack[row],
                self.context[row],
            );
        }
        start..self.len()
    }

    /// Sorts the rows of one trace by time where they are not; says whether it had to.
    pub(crate) fn sort_by_time(&mut self, rows: Range<usize>) -> bool {
        if self.time_us[rows.clone()].is_sorted() {
            return false;
        }
        let mut order: Vec<usize> = rows.clone().collect();
        order.sort_by_key(|&row| self.time_us[row]);
        fn permute<T: Copy>(column: &mut [T], start: usize, order: &[usize]) {
            let sorted: Vec<T> = order.iter().map(|&row| column[row]).collect();
            column[start..start + order.len()].copy_from_slice(&sorted);
        }
        permute(&mut self.action, rows.start, &order);
        permute(&mut self.addr, rows.start, &order);
        permute(&mut self.size, rows.start, &order);
        permute(&mut self.time_us, rows.start, &order);
        permute(&mut self.stack, rows.start, &order);
        permute(&mut self.context, rows.start, &order);
        true
    }

    pub(crate) fn footprint(&self) -> usize {
        self.len() * EVENT_WIDTH
            + self.contexts.len() * size_of::<Context>()
            + self.context_index.capacity() * (size_of::<Context>() + 5)
    }
}

/// The rows of [`Events`] that one device recorded, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Device ordinal.
    pub device: u32,
    /// Its rows.
    pub rows: Range<usize>,
}

/// State of a block at the end of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// Handed out to the program.
    Allocated,
    /// Given back by the program, still waiting for another stream.
    PendingFree,
    /// Free.
    Inactive,
}

/// A block of a final segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes it takes, rounding included.
    pub size: Bytes,
    /// Bytes the program asked for; stale on inactive blocks, as PyTorch leaves it.
    pub requested: Bytes,
    /// In use or not.
    pub state: BlockState,
    /// Stack of its allocation.
    pub stack: StackId,
    /// Further keys as a JSON object, or empty.
    pub extra: StrId,
}

/// A segment as it stood when the snapshot was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Device ordinal.
    pub device: u32,
    /// Address of its first byte.
    pub addr: u64,
    /// Reserved bytes.
    pub size: Bytes,
    /// Stream that it serves.
    pub stream: u64,
    /// Whether it belongs to the small pool (requests up to 1 MiB).
    pub small: bool,
    /// Owning pool.
    pub pool: PoolId,
    /// A mapped run of an expandable segment.
    pub expandable: bool,
    /// Stack of the `cudaMalloc`, where it survived.
    pub stack: StackId,
    /// Rows of [`Snapshot::blocks`](crate::Snapshot::blocks).
    pub blocks: Range<usize>,
    /// Further keys as a JSON object, or empty.
    pub extra: StrId,
}

/// A `record_function` range or profiler step: one end of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// Its name (`ProfilerStep#3`, `Optimizer.step#AdamW.step`).
    pub name: StrId,
    /// Whether this is the start of the range.
    pub start: bool,
    /// Device ordinal.
    pub device: u32,
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
}
