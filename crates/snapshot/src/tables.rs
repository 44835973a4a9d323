//! Tables of a snapshot: fixed-width columns and small rows that refer to interned strings and stacks.

use crate::bytes::Bytes;
use crate::stacks::StackId;
use crate::text::StrId;
use crate::words;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// Action that an event records, in PyTorch's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// The memory of a freed block can be reused.
    FreeCompleted,
    /// A segment was allocated: `cudaMalloc`.
    SegmentAlloc,
    /// A segment was released: `cudaFree`.
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
    /// Action unknown to this version; the number is its index in [`Events::other_actions`].
    Other(u8),
}

const KNOWN_ACTIONS: [Action; 10] = [
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
            other => Action::Other(other - KNOWN_ACTIONS.len() as u8),
        }
    }

    /// Returns the code of the action in the column.
    pub(crate) fn code(self) -> u8 {
        match self {
            Action::Other(index) => KNOWN_ACTIONS.len() as u8 + index,
            known => KNOWN_ACTIONS.iter().position(|&other| other == known).unwrap_or(0) as u8,
        }
    }
}

/// Fields that rarely change from one event to the next, stored once per combination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Context {
    /// Raw stream handle; 0 is the default stream.
    pub stream: u64,
    /// Name of the compiled region or `N/A`; empty before torch 2.8.
    pub compile_context: StrId,
    /// String set by `_set_memory_metadata`, or empty.
    pub user_metadata: StrId,
    /// Whether the event had this string, even an empty one (torch 2.10 and later).
    pub has_user_metadata: bool,
    /// Pool of the block; recorded since torch 2.12.
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
    /// Pool that serves everything outside graphs and `MemPool`s.
    pub const DEFAULT: PoolId = PoolId(0, 0);
}

/// One event, assembled from the columns.
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
    /// Call stack that caused the event.
    pub stack: StackId,
    /// Number of the stream, pool and labels in [`Events::context`].
    pub context: u32,
}

/// Columns of fixed width: one row per event, one vector per field.
#[derive(Default)]
pub(crate) struct EventColumns {
    action: Vec<u8>,
    addr: Vec<u64>,
    size: Vec<u64>,
    time_us: Vec<i64>,
    pub(crate) stack: Vec<StackId>,
    context: Vec<u32>,
}

/// One event to be added to the columns.
#[derive(Clone, Copy)]
pub(crate) struct EventRow {
    pub(crate) action: u8,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) time_us: i64,
    pub(crate) stack: StackId,
    pub(crate) context: u32,
}

/// Size of one event in the columns, in bytes.
pub(crate) const ROW_BYTES: usize = 1 + 8 + 8 + 8 + 4 + 4;

impl EventColumns {
    pub(crate) fn len(&self) -> usize {
        self.action.len()
    }

    pub(crate) fn clear(&mut self) {
        self.action.clear();
        self.addr.clear();
        self.size.clear();
        self.time_us.clear();
        self.stack.clear();
        self.context.clear();
    }

    /// Moves the rows of `more` to the end, which leaves it empty.
    fn append(&mut self, more: &mut EventColumns) {
        self.action.append(&mut more.action);
        self.addr.append(&mut more.addr);
        self.size.append(&mut more.size);
        self.time_us.append(&mut more.time_us);
        self.stack.append(&mut more.stack);
        self.context.append(&mut more.context);
    }

    fn reserve(&mut self, rows: usize) {
        self.action.reserve(rows);
        self.addr.reserve(rows);
        self.size.reserve(rows);
        self.time_us.reserve(rows);
        self.stack.reserve(rows);
        self.context.reserve(rows);
    }

    pub(crate) fn push(&mut self, row: EventRow) -> u32 {
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
        self.push(EventRow {
            action: self.action[row],
            addr: self.addr[row],
            size: self.size[row],
            time_us: self.time_us[row],
            stack: self.stack[row],
            context: self.context[row],
        });
    }

    /// Reorders the rows of `range` as given by `order`, a permutation of them.
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

/// Distinct [`Context`]s, each stored once.
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

    /// Replaces every combination; they keep their numbers.
    fn map(&mut self, map: impl FnMut(&mut Context)) {
        self.contexts.iter_mut().for_each(map);
        self.index = self.contexts.iter().enumerate().map(|(id, context)| (*context, id as u32)).collect();
    }

    /// Returns the number of `context`, if it is known.
    fn find(&self, context: Context) -> Option<u32> {
        self.index.get(&context).copied()
    }

    /// Returns the number of `context`, interning it if it is new; nearly always that of the event
    /// before.
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

/// Returns the column code of an action that every version knows.
#[inline]
pub(crate) fn known_action(name: StrId) -> Option<u8> {
    (words::ALLOC.0..=words::ANNOTATE.0).contains(&name.0).then(|| (name.0 - words::ALLOC.0) as u8)
}

/// Events of all devices. [`Trace`] gives the rows of a device.
#[derive(Default)]
pub struct Events {
    rows: EventColumns,
    contexts: ContextTable,
    other_actions: Vec<StrId>,
}

impl Events {
    /// Returns the number of rows of all devices together.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the event of row `row`.
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

    /// Returns the stack of row `row`.
    #[inline]
    pub fn stack(&self, row: usize) -> StackId {
        self.rows.stack[row]
    }

    /// Iterates over the events of `rows`, in order.
    pub fn iter(&self, rows: Range<usize>) -> impl ExactSizeIterator<Item = Event> {
        let EventColumns { action, addr, size, time_us, stack, context } = &self.rows;
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

    /// Iterates over the actions and addresses of `rows`: the two columns that most passes need.
    pub fn actions(
        &self,
        rows: Range<usize>,
    ) -> impl ExactSizeIterator<Item = (Action, u64)> + DoubleEndedIterator {
        let columns = self.rows.action[rows.clone()].iter().zip(&self.rows.addr[rows]);
        columns.map(|(&action, &addr)| (Action::from_code(action), addr))
    }

    /// Returns the stream, pool and labels of an [`Event::context`].
    #[inline]
    pub fn context(&self, context: u32) -> &Context {
        &self.contexts.contexts[context as usize]
    }

    /// Returns every distinct context.
    pub fn contexts(&self) -> &[Context] {
        self.contexts.all()
    }

    /// Returns the names of the actions unknown to this version.
    pub fn other_actions(&self) -> &[StrId] {
        &self.other_actions
    }

    /// Returns the name of an action as written in the file.
    pub fn action_name(&self, action: Action) -> StrId {
        match action {
            Action::Other(index) => self.other_actions[index as usize],
            known => StrId(words::ALLOC.0 + u32::from(known.code())),
        }
    }

    /// Returns the code of the action `name` in the column.
    pub(crate) fn action_code(&mut self, name: StrId) -> u8 {
        known_action(name).unwrap_or_else(|| {
            let place = self.other_actions.iter().position(|&other| other == name).unwrap_or_else(|| {
                // The byte of the column has room for 240 unknown actions; any further ones share the
                // last.
                if self.other_actions.len() < 240 {
                    self.other_actions.push(name);
                }
                self.other_actions.len() - 1
            });
            (KNOWN_ACTIONS.len() + place) as u8
        })
    }

    /// Returns an empty table with the same names of unknown actions.
    pub(crate) fn with_the_same_names(&self) -> Events {
        Events { other_actions: self.other_actions.clone(), ..Events::default() }
    }

    pub(crate) fn intern_context(&mut self, context: Context) -> u32 {
        self.contexts.intern(context)
    }

    pub(crate) fn find_context(&self, context: Context) -> Option<u32> {
        self.contexts.find(context)
    }

    /// Copies the stack of row `like` to row `row`.
    pub fn copy_stack(&mut self, row: usize, like: usize) {
        self.rows.stack[row] = self.rows.stack[like];
    }

    /// Copies the compiled region and the metadata string of row `like` to row `row`.
    pub fn copy_metadata(&mut self, row: usize, like: usize) {
        let Context { compile_context, user_metadata, has_user_metadata, forward_frames, .. } =
            *self.context(self.rows.context[like]);
        let own = *self.context(self.rows.context[row]);
        let context = Context { compile_context, user_metadata, has_user_metadata, forward_frames, ..own };
        self.rows.context[row] = self.intern_context(context);
    }

    #[inline]
    pub(crate) fn push(&mut self, row: EventRow) -> u32 {
        self.rows.push(row)
    }

    /// Moves the rows of `more` to the end, which leaves it empty.
    pub(crate) fn append(&mut self, more: &mut EventColumns) {
        self.rows.append(more);
    }

    /// Iterates over the allocations among `rows`, in order: offset into the rows, and stack.
    pub fn allocations(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, StackId)> {
        let columns = self.rows.action[rows.clone()].iter().zip(&self.rows.stack[rows]).enumerate();
        columns
            .filter(|(_, (action, _))| Action::from_code(**action) == Action::Alloc)
            .map(|(at, (_, stack))| (at, *stack))
    }

    /// Reserves memory for `rows` more rows.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.rows.reserve(rows);
    }

    /// Returns the time of the newest row.
    pub(crate) fn last_time(&self) -> i64 {
        self.rows.time_us.last().copied().unwrap_or(0)
    }

    /// Appends copies of `rows`, in that order, and returns their range.
    pub(crate) fn copy_rows(&mut self, rows: impl Iterator<Item = u32>) -> Range<usize> {
        let start = self.len();
        for row in rows {
            self.rows.push_copy(row as usize);
        }
        start..self.len()
    }

    /// Sorts the rows of one trace by time if necessary; returns whether it was.
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

    pub(crate) fn map_contexts(&mut self, map: impl FnMut(&mut Context)) {
        self.contexts.map(map);
    }

    pub(crate) fn footprint(&self) -> usize {
        self.len() * ROW_BYTES + self.contexts.footprint()
    }
}

/// Rows of [`Events`] that one device recorded, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Device ordinal.
    pub device: u32,
    /// Rows of the device.
    pub rows: Range<usize>,
}

/// State of a block at the end of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// Handed out to the program.
    Allocated,
    /// Freed by the program, still waiting for another stream.
    PendingFree,
    /// Free.
    Inactive,
}

/// Block of a final segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes taken, rounding included.
    pub size: Bytes,
    /// Bytes requested by the program; stale on inactive blocks, as PyTorch leaves it.
    pub requested: Bytes,
    /// State at the time of the dump.
    pub state: BlockState,
    /// Stack of its allocation.
    pub stack: StackId,
    /// Further keys as a JSON object, or empty.
    pub extra: StrId,
}

/// Segment at the time of the dump.
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
    /// Whether it is a mapped run of an expandable segment.
    pub expandable: bool,
    /// Stack of the `cudaMalloc`, if recorded.
    pub stack: StackId,
    /// Rows of [`Snapshot::blocks`](crate::Snapshot::blocks).
    pub blocks: Range<usize>,
    /// Further keys as a JSON object, or empty.
    pub extra: StrId,
}

/// One end of a `record_function` range or profiler step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// Name of the range (`ProfilerStep#3`, `Optimizer.step#AdamW.step`).
    pub name: StrId,
    /// Whether this is the start of the range.
    pub start: bool,
    /// Device ordinal.
    pub device: u32,
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
}
