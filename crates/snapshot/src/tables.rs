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
    #[inline]
    fn from_code(code: u8) -> Action {
        match code {
            0 => Action::Alloc,
            1 => Action::FreeRequested,
            2 => Action::FreeCompleted,
            3 => Action::SegmentAlloc,
            4 => Action::SegmentFree,
            5 => Action::SegmentMap,
            6 => Action::SegmentUnmap,
            7 => Action::Snapshot,
            8 => Action::Oom,
            9 => Action::Annotate,
            other => Action::Other(other - KNOWN.len() as u8),
        }
    }

    /// The number that stands for the action in the column.
    pub(crate) fn code(self) -> u8 {
        match self {
            Action::Other(index) => KNOWN.len() as u8 + index,
            known => KNOWN.iter().position(|&other| other == known).unwrap_or(0) as u8,
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
    /// Whether the event had such a string, even an empty one (torch 2.10 and later).
    pub has_user_metadata: bool,
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

/// Fixed-width columns: one row per event, one vector per field.
#[derive(Default)]
struct Rows {
    action: Vec<u8>,
    addr: Vec<u64>,
    size: Vec<u64>,
    time_us: Vec<i64>,
    stack: Vec<StackId>,
    context: Vec<u32>,
}

/// One event on its way into the columns.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) action: u8,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) time_us: i64,
    pub(crate) stack: StackId,
    pub(crate) context: u32,
}

/// Bytes that one event takes in the columns.
const ROW_WIDTH: usize = 1 + 8 + 8 + 8 + 4 + 4;

impl Rows {
    fn len(&self) -> usize {
        self.action.len()
    }

    fn reserve(&mut self, rows: usize) {
        self.action.reserve(rows);
        self.addr.reserve(rows);
        self.size.reserve(rows);
        self.time_us.reserve(rows);
        self.stack.reserve(rows);
        self.context.reserve(rows);
    }

    fn push(&mut self, row: Row) -> u32 {
        let number = self.action.len() as u32;
        self.action.push(row.action);
        self.addr.push(row.addr);
        self.size.push(row.size);
        self.time_us.push(row.time_us);
        self.stack.push(row.stack);
        self.context.push(row.context);
        number
    }

    fn push_copy(&mut self, row: usize) {
        self.push(Row {
            action: self.action[row],
            addr: self.addr[row],
            size: self.size[row],
            time_us: self.time_us[row],
            stack: self.stack[row],
            context: self.context[row],
        });
    }

    /// Puts the rows of `range` into the order given by `order`, which has the same rows.
    fn permute(&mut self, range: Range<usize>, order: &[usize]) {
        fn column<T: Copy>(values: &mut [T], range: Range<usize>, order: &[usize]) {
            let sorted: Vec<T> = order.iter().map(|&row| values[row]).collect();
            values[range].copy_from_slice(&sorted);
        }
        column(&mut self.action, range.clone(), order);
        column(&mut self.addr, range.clone(), order);
        column(&mut self.size, range.clone(), order);
        column(&mut self.time_us, range.clone(), order);
        column(&mut self.stack, range.clone(), order);
        column(&mut self.context, range, order);
    }
}

/// Every different [`Context`], once.
#[derive(Default)]
pub(crate) struct ContextTable {
    contexts: Vec<Context>,
    index: HashMap<Context, u32, FxBuildHasher>,
    last: u32,
}

impl ContextTable {
    pub(crate) fn all(&self) -> &[Context] {
        &self.contexts
    }

    /// The number of `context`, new or known; nearly always that of the event before.
    #[inline]
    pub(crate) fn intern(&mut self, context: Context) -> u32 {
        if self.contexts.get(self.last as usize) != Some(&context) {
            let next = self.contexts.len() as u32;
            self.last = *self.index.entry(context).or_insert(next);
            if self.last == next {
                self.contexts.push(context);
            }
        }
        self.last
    }

    pub(crate) fn footprint(&self) -> usize {
        self.contexts.len() * size_of::<Context>() + self.index.capacity() * (size_of::<Context>() + 5)
    }
}

/// The column code of an action that every version knows.
#[inline]
pub(crate) fn known_action(name: StrId) -> Option<u8> {
    (words::ALLOC.0..=words::ANNOTATE.0).contains(&name.0).then(|| (name.0 - words::ALLOC.0) as u8)
}

/// All events of all devices. [`Trace`] says which rows belong to a device.
#[derive(Default)]
pub struct Events {
    rows: Rows,
    contexts: ContextTable,
    other_actions: Vec<StrId>,
}

impl Events {
    /// Number of rows, all devices together.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row `row`.
    #[inline]
    pub fn get(&self, row: usize) -> Event {
        Event {
            action: Action::from_code(self.rows.action[row]),
            addr: self.rows.addr[row],
            size: Bytes(self.rows.size[row]),
            time_us: self.rows.time_us[row],
            stack: self.rows.stack[row],
            context: self.rows.context[row],
        }
    }

    /// The stack of row `row`.
    #[inline]
    pub fn stack(&self, row: usize) -> StackId {
        self.rows.stack[row]
    }

    /// The events of `rows`, in order.
    pub fn iter(&self, rows: Range<usize>) -> impl ExactSizeIterator<Item = Event> {
        let Rows { action, addr, size, time_us, stack, context } = &self.rows;
        let columns = action[rows.clone()]
            .iter()
            .zip(&addr[rows.clone()])
            .zip(&size[rows.clone()])
            .zip(&time_us[rows.clone()])
            .zip(&stack[rows.clone()])
            .zip(&context[rows]);
        columns.map(|(((((&action, &addr), &size), &time_us), &stack), &context)| Event {
            action: Action::from_code(action),
            addr,
            size: Bytes(size),
            time_us,
            stack,
            context,
        })
    }

    /// What happened in `rows`, and to which address: the two columns that most passes need.
    pub fn actions(
        &self,
        rows: Range<usize>,
    ) -> impl ExactSizeIterator<Item = (Action, u64)> + DoubleEndedIterator {
        let columns = self.rows.action[rows.clone()].iter().zip(&self.rows.addr[rows]);
        columns.map(|(&action, &addr)| (Action::from_code(action), addr))
    }

    /// The stream, pool and labels behind [`Event::context`].
    #[inline]
    pub fn context(&self, context: u32) -> &Context {
        &self.contexts.contexts[context as usize]
    }

    /// Every different context.
    pub fn contexts(&self) -> &[Context] {
        self.contexts.all()
    }

    /// Names of the actions that this version does not know.
    pub fn other_actions(&self) -> &[StrId] {
        &self.other_actions
    }

    /// The name of an action as it stands in the file.
    pub fn action_name(&self, action: Action) -> StrId {
        match action {
            Action::Other(index) => self.other_actions[index as usize],
            known => StrId(words::ALLOC.0 + u32::from(known.code())),
        }
    }

    /// The code that stands for the action `name` in the column.
    pub(crate) fn action_code(&mut self, name: StrId) -> u8 {
        known_action(name).unwrap_or_else(|| {
            let place = self.other_actions.iter().position(|&other| other == name).unwrap_or_else(|| {
                // 240 unknown actions share the column's byte; any further ones share the last.
                if self.other_actions.len() < 240 {
                    self.other_actions.push(name);
                }
                self.other_actions.len() - 1
            });
            (KNOWN.len() + place) as u8
        })
    }

    /// No events yet; the names of unknown actions are as here.
    pub(crate) fn with_the_same_names(&self) -> Events {
        Events { other_actions: self.other_actions.clone(), ..Events::default() }
    }

    pub(crate) fn intern_context(&mut self, context: Context) -> u32 {
        self.contexts.intern(context)
    }

    /// Gives row `row` the stack of row `like`.
    pub fn copy_stack(&mut self, row: usize, like: usize) {
        self.rows.stack[row] = self.rows.stack[like];
    }

    /// Gives row `row` what row `like` says of the code that ran: the compiled region, and the string of the program or recorder.
    pub fn copy_metadata(&mut self, row: usize, like: usize) {
        let Context { compile_context, user_metadata, has_user_metadata, forward_frames, .. } =
            *self.context(self.rows.context[like]);
        let own = *self.context(self.rows.context[row]);
        let context = Context { compile_context, user_metadata, has_user_metadata, forward_frames, ..own };
        self.rows.context[row] = self.intern_context(context);
    }

    #[inline]
    pub(crate) fn push(&mut self, row: Row) -> u32 {
        self.rows.push(row)
    }

    /// The allocations among `rows`, in order: how far into the rows, and who asked.
    pub fn allocations(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, StackId)> {
        let columns = self.rows.action[rows.clone()].iter().zip(&self.rows.stack[rows]).enumerate();
        columns
            .filter(|(_, (action, _))| Action::from_code(**action) == Action::Alloc)
            .map(|(at, (_, stack))| (at, *stack))
    }

    /// Claims room for `rows` more.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.rows.reserve(rows);
    }

    /// Time of the newest row.
    pub(crate) fn last_time(&self) -> i64 {
        self.rows.time_us.last().copied().unwrap_or(0)
    }

    /// Appends copies of `rows`, in that order, and says where they are now.
    pub(crate) fn copy_rows(&mut self, rows: impl Iterator<Item = u32>) -> Range<usize> {
        let start = self.len();
        for row in rows {
            self.rows.push_copy(row as usize);
        }
        start..self.len()
    }

    /// Sorts the rows of one trace by time where they are not; says whether it had to.
    pub(crate) fn sort_by_time(&mut self, range: Range<usize>) -> bool {
        let times = &self.rows.time_us;
        if times[range.clone()].is_sorted() {
            return false;
        }
        let mut order: Vec<usize> = range.clone().collect();
        order.sort_by_key(|&row| times[row]);
        self.rows.permute(range, &order);
        true
    }

    pub(crate) fn footprint(&self) -> usize {
        self.len() * ROW_WIDTH + self.contexts.footprint()
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
