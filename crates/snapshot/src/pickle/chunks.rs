//! Events of one window decoded by several threads.
//!
//! The window is cut into chunks where bytes look like the start of an event. Each chunk is decoded by a
//! thread of its own, which sees the memo and the tables as they were before the window and adds nothing
//! to them: an event with a new string, stack or context ends the chunk, and is decoded by the machine. A
//! chunk does not know its first memo slot. The only values of the window itself that events refer to are
//! stacks; those references are resolved when the chunks are put together, in order. A chunk counts only
//! if the one before it ended exactly where it starts, so a wrong cut costs time, never a result.

use super::events::{EventCache, EventTables, RunDecoder, stack_in};
use super::machine::{Machine, WINDOW_BYTES};
use super::nodes::Nodes;
use super::template::Template;
use super::value::PickleValue;
use crate::builder::Builder;
use crate::error::Error;
use crate::stacks::{FrameId, StackId};
use crate::tables::{Context, EventColumns, EventRow, ROW_BYTES};
use crate::text::StrId;
use std::io::Read;
use std::thread;

/// Most bytes that one thread decodes after a chunk ended early, before several are used again. What the
/// threads behind that chunk decoded is lost, so each time in a row doubles the pause.
const MAX_PAUSE_BYTES: u64 = 4 << 20;

/// Threads that decode events, and when they are used.
pub(super) struct ParallelDecoding {
    workers: Vec<ChunkWorker>,
    /// Bytes that are worth a thread, and the first pause.
    min_chunk: usize,
    /// Stream position from which on they are used.
    resume_at: u64,
    pause: u64,
}

impl ParallelDecoding {
    pub(super) fn new(threads: usize, min_chunk: usize) -> ParallelDecoding {
        let workers = (0..threads).map(|_| ChunkWorker::default()).collect();
        ParallelDecoding { workers, min_chunk, resume_at: 0, pause: min_chunk as u64 }
    }

    pub(super) fn forget_encodings(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.cache = EventCache::default());
    }
}

/// State of one thread between two windows.
#[derive(Default)]
struct ChunkWorker {
    cache: EventCache,
    chunk: DecodedChunk,
}

/// Events of one chunk. Rows and memo slots are relative to its start.
#[derive(Default)]
struct DecodedChunk {
    rows: EventColumns,
    memo: Vec<PickleValue>,
    unresolved: Vec<UnresolvedStack>,
    /// Ends of batches (the opcodes `e(`): rows before it, and its position in bytes.
    batches: Vec<(u32, usize)>,
    /// Bytes decoded.
    length: usize,
}

/// Event whose stack is a value of the same window.
struct UnresolvedStack {
    row: u32,
    slot: usize,
    /// Length of the chunk's memo before the event.
    memoized: usize,
}

/// State of the machine before the window.
#[derive(Clone, Copy)]
struct KnownState<'a> {
    memo: &'a [PickleValue],
    nodes: &'a Nodes,
    builder: &'a Builder,
}

impl ChunkWorker {
    /// Decodes the events that start before `limit`.
    fn decode(&mut self, bytes: &[u8], limit: usize, known: KnownState<'_>) {
        let chunk = &mut self.chunk;
        chunk.rows.clear();
        chunk.memo.clear();
        chunk.unresolved.clear();
        chunk.batches.clear();
        let mut length = 0;
        let tables = ChunkTables { known, chunk, recalled: None, begun: 0 };
        let mut run = RunDecoder { tables, cache: &mut self.cache };
        loop {
            length += run.take_run(&bytes[length..], limit - length);
            match bytes[length..] {
                [b'e', b'(', b'}', ..] if length < limit => {
                    let row = run.tables.next_row();
                    run.tables.chunk.batches.push((row, length));
                    length += 2;
                }
                _ => break,
            }
            if length >= limit {
                break;
            }
        }
        self.chunk.length = length;
    }
}

/// Tables of a chunk.
struct ChunkTables<'a> {
    known: KnownState<'a>,
    chunk: &'a mut DecodedChunk,
    /// Memo slot of the current event's stack, if it is not known yet.
    recalled: Option<usize>,
    /// Length of the chunk's memo before the current event.
    begun: usize,
}

impl EventTables for ChunkTables<'_> {
    #[inline]
    fn begin_event(&mut self) -> usize {
        self.recalled = None;
        self.begun = self.chunk.memo.len();
        self.begun
    }

    fn abandon_event(&mut self, begun: usize) {
        self.chunk.memo.truncate(begun);
    }

    #[inline]
    fn next_row(&self) -> u32 {
        self.chunk.rows.len() as u32
    }

    #[inline]
    fn push_event(&mut self, row: EventRow) {
        let number = self.chunk.rows.push(row);
        if let Some(slot) = self.recalled {
            self.chunk.unresolved.push(UnresolvedStack { row: number, slot, memoized: self.begun });
        }
    }

    fn next_slot(&self) -> Option<usize> {
        None
    }

    #[inline]
    fn memoized(&self, slot: usize) -> Option<PickleValue> {
        self.known.memo.get(slot).copied()
    }

    #[inline]
    fn recalled_stack(&mut self, slot: usize) -> Option<StackId> {
        match self.memoized(slot) {
            Some(value) => stack_in(self.known.nodes, value),
            None => {
                self.recalled = Some(slot);
                Some(StackId::EMPTY)
            }
        }
    }

    #[inline]
    fn new_values(&mut self) -> &mut Vec<PickleValue> {
        &mut self.chunk.memo
    }

    fn nodes(&self) -> &Nodes {
        self.known.nodes
    }

    fn text(&mut self, text: &str) -> Option<StrId> {
        self.known.builder.strings.find(text)
    }

    fn stack(&mut self, frames: &[FrameId]) -> Option<StackId> {
        self.known.builder.stacks.find(frames)
    }

    fn context(&mut self, context: Context) -> Option<u32> {
        self.known.builder.events.find_context(context)
    }
}

impl<R: Read> Machine<R> {
    /// Decodes the events of the window with several threads, if that is worth it; returns whether any
    /// were decoded.
    pub(super) fn take_chunks(&mut self) -> Result<bool, Error> {
        let Some(mut parallel) = self.parallel.take() else { return Ok(false) };
        let taken = self.take_chunks_with(&mut parallel);
        self.parallel = Some(parallel);
        taken
    }

    fn take_chunks_with(&mut self, parallel: &mut ParallelDecoding) -> Result<bool, Error> {
        let start = self.window.offset();
        let bytes = self.window.rest();
        let end = bytes.len().saturating_sub(WINDOW_BYTES);
        let count = parallel.workers.len().min(end / parallel.min_chunk);
        let Some(template) = &self.cache.template else { return Ok(false) };
        if start < parallel.resume_at || count < 2 {
            return Ok(false);
        }
        let bounds = bounds(bytes, end, count, template);
        let known = KnownState { memo: &self.memo, nodes: &self.nodes, builder: &self.builder };
        thread::scope(|scope| {
            let mut jobs = parallel.workers.iter_mut().zip(bounds.windows(2));
            let first = jobs.next();
            for (worker, bound) in jobs {
                scope.spawn(move || worker.decode(&bytes[bound[0]..], bound[1] - bound[0], known));
            }
            if let Some((worker, bound)) = first {
                worker.decode(&bytes[bound[0]..], bound[1] - bound[0], known);
            }
        });
        let mut is_complete = true;
        for (worker, bound) in parallel.workers.iter_mut().zip(bounds.windows(2)) {
            is_complete = self.window.offset() - start == bound[0] as u64
                && self.add_chunk(&mut worker.chunk)?
                && worker.chunk.length >= bound[1] - bound[0];
            if !is_complete {
                break;
            }
        }
        let position = self.window.offset();
        if is_complete {
            parallel.pause = parallel.min_chunk as u64;
        } else {
            parallel.resume_at = position + parallel.pause;
            parallel.pause = (parallel.pause * 2).min(MAX_PAUSE_BYTES);
        }
        Ok(position > start)
    }

    /// Adds the events of a chunk that starts at the current position, as if the machine had decoded them;
    /// returns `false`, and adds nothing, if the machine has to.
    fn add_chunk(&mut self, chunk: &mut DecodedChunk) -> Result<bool, Error> {
        let count = chunk.rows.len();
        // Whether a budget check within the chunk could fail: the machine then finds the exact position.
        if !self.is_within_budget(count * (ROW_BYTES + 8) + chunk.memo.len() * 8) {
            return Ok(false);
        }
        let known = self.memo.len();
        for &UnresolvedStack { row, slot, memoized } in &chunk.unresolved {
            let value = match slot.checked_sub(known) {
                None => Some(self.memo[slot]),
                Some(relative) => chunk.memo[..memoized].get(relative).copied(),
            };
            let Some(stack) = value.and_then(|value| stack_in(&self.nodes, value)) else {
                return Ok(false);
            };
            // The list of frames that an unresolved stack refers to is never unresolved itself.
            chunk.rows.stack[row as usize] = stack;
        }
        let first = self.builder.events.len() as u32;
        self.memo.extend(chunk.memo.iter().map(|value| value.moved(first)));
        self.builder.append_events(&mut chunk.rows);
        let (mut row, mut position) = (0, 0);
        for &(end, at) in &chunk.batches {
            self.window.advance(at - position);
            self.push_events(first + row..first + end);
            self.close_batch()?;
            self.window.advance(2);
            (row, position) = (end, at + 2);
        }
        self.window.advance(chunk.length - position);
        self.push_events(first + row..first + count as u32);
        Ok(true)
    }
}

/// Returns the starts of up to `count` chunks of about the same length, and the end of the last one.
fn bounds(bytes: &[u8], end: usize, count: usize, template: &Template) -> Vec<usize> {
    let length = end / count;
    let starts = (1..count).filter_map(|index| {
        let mut places = index * length..(index + 1) * length;
        places.find(|&at| bytes[at] == b'}' && template.begins(&bytes[at..]))
    });
    [0].into_iter().chain(starts).chain([end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::unpacked;
    use crate::tables::Event;
    use crate::window::{MAX_CHUNK, StreamWindow};
    use proptest::prelude::*;
    use std::fs::File;
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;

    /// How a file is read: bytes at a time, and the threads that decode them with their shortest chunk.
    type Reading = (usize, Option<(usize, usize)>);

    fn machine_of<'scope, 'env>(
        bytes: &'env [u8],
        (window, parallel): Reading,
        scope: &'scope thread::Scope<'scope, 'env>,
    ) -> Machine<&'env [u8]> {
        let mut machine = Machine::new(StreamWindow::ahead(bytes, window, scope));
        machine.parallel = parallel.map(|(threads, min_chunk)| ParallelDecoding::new(threads, min_chunk));
        machine
    }

    /// Everything that a file leaves in the machine, and its error.
    #[derive(PartialEq)]
    struct MachineState {
        error: Option<String>,
        memo: Vec<PickleValue>,
        stack: Vec<PickleValue>,
        marks: Vec<usize>,
        events: Vec<Event>,
        small_tables: String,
    }

    fn decode(bytes: &[u8], reading: Reading) -> MachineState {
        thread::scope(|scope| {
            let mut machine = machine_of(bytes, reading, scope);
            let error = machine.run().err().map(|error| format!("{error}: {}", error.cause));
            let builder = &machine.builder;
            let strings = (0..builder.strings.len()).map(|id| builder.strings.get(StrId(id as u32)));
            let stacks = (0..builder.stacks.len()).map(|id| builder.stacks.frames(StackId(id as u32)));
            let small_tables = format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                strings.collect::<Vec<_>>(),
                stacks.collect::<Vec<_>>(),
                builder.stacks.all_frames(),
                builder.events.contexts(),
                builder.events.other_actions(),
                builder.blocks,
                builder.segments,
                builder.shape,
                machine.nodes.lists
            );
            let events = builder.events.iter(0..builder.events.len()).collect();
            let Machine { memo, stack, marks, .. } = machine;
            MachineState { error, memo, stack, marks, events, small_tables }
        })
    }

    /// Checks that both ways leave the same memo and the same tables, numbers of strings and stacks included,
    /// and end in the same error at the same byte.
    #[track_caller]
    fn check(name: &str, bytes: &[u8], reading: Reading) {
        let (expected, decoded) = (decode(bytes, (MAX_CHUNK, None)), decode(bytes, reading));
        assert_eq!(decoded.error, expected.error, "{name} {reading:?}");
        assert_eq!(decoded.events.len(), expected.events.len(), "{name} {reading:?}");
        assert!(decoded == expected, "{name} {reading:?}");
    }

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
    }

    /// The first `most` bytes of a file, without its compression.
    fn bytes_of(path: &Path, most: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        unpacked(File::open(path).ok()?).ok()?.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("a file of the repository").path();
            match path.is_dir() {
                true => files_below(&path, files),
                false => files.push(path),
            }
        }
    }

    #[test]
    fn every_fixture_gives_the_same_tables_or_the_same_error() {
        let mut files = Vec::new();
        files_below(&fixtures(), &mut files);
        files.retain(|path| path.metadata().is_ok_and(|metadata| metadata.len() < 100 << 10));
        let checked = files.iter().filter_map(|path| Some((path, bytes_of(path, 4 << 20)?)));
        let count = checked
            .map(|(path, bytes)| check(&path.to_string_lossy(), &bytes, (30_000, Some((3, 1000)))))
            .count();
        assert!(count > 300, "{count} files");
    }

    /// Recording of a training run, cut.
    fn long_recording() -> &'static [u8] {
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        BYTES.get_or_init(|| {
            let path = fixtures().join("large/gpt2_150_steps.pickle.xz");
            bytes_of(&path, 3 << 20).expect("a fixture")
        })
    }

    #[test]
    fn all_threads_decode_a_long_recording() {
        let bytes = long_recording();
        thread::scope(|scope| {
            let mut machine = machine_of(bytes, (512 << 10, Some((4, 16 << 10))), scope);
            machine.run().map(drop).expect_err("it is cut");
            let workers = machine.parallel.expect("set above").workers;
            let lengths: Vec<usize> = workers.iter().map(|worker| worker.chunk.length).collect();
            assert!(lengths.iter().all(|&length| length > 64 << 10), "{lengths:?}");
            assert!(
                workers[2].chunk.unresolved.len() > 100,
                "its events refer to stacks of their own window"
            );
        });
        check("long", bytes, (512 << 10, Some((4, 16 << 10))));
    }

    /// Start of a list of events, and the first event, with memo slots 0 to 8.
    const FIRST_EVENT: &[u8] =
        b"\x80\x04]\x94(}\x94(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94\x8a\x01\x05\
        \x8c\x04size\x94K\x01\x8c\x07time_us\x94\x8a\x01\x05\x8c\x06frames\x94]\x94u";
    /// Another event up to its stack.
    const NEXT_EVENT: &[u8] = b"}\x94(h\x02h\x03h\x04\x8a\x01\x05h\x05K\x01h\x06\x8a\x01\x05h\x07";

    #[test]
    fn a_file_beyond_its_budget_is_refused_at_the_same_byte() {
        let next = [NEXT_EVENT, b"]\x94u"].concat();
        let bytes = [FIRST_EVENT, &next.repeat(700_000)].concat();
        let error = decode(&bytes, (MAX_CHUNK, None)).error.expect("it has more rows than bytes");
        assert!(error.contains("far more memory"), "{error}");
        check("too large", &bytes, (1 << 20, Some((4, 4096))));
    }

    #[test]
    fn a_stack_that_comes_later_in_the_same_chunk_is_an_error() {
        let next = [NEXT_EVENT, b"]\x94u"].concat();
        // Each event takes two memo slots; the one with the reference takes one.
        let (before, later) = (15_000, 9 + 2 * 15_000 + 22_u32);
        let reference = [NEXT_EVENT, b"j", &later.to_le_bytes(), b"u"].concat();
        let bytes = [FIRST_EVENT, &next.repeat(before), &reference, &next.repeat(5000)].concat();
        let error = decode(&bytes, (MAX_CHUNK, None)).error.expect("a reference to nothing");
        assert!(error.contains("was never stored"), "{error}");
        check("later stack", &bytes, (bytes.len(), Some((2, 4096))));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        /// A damaged file: some bytes are changed, the end is missing, and any chunks are decoded.
        #[test]
        fn damaged_recordings_end_in_the_same_error(
            length in 300_000_usize..700_000,
            window in 5_000_usize..300_000,
            threads in 2_usize..6,
            min_chunk in 200_usize..30_000,
            changes in prop::collection::vec((200_000_usize..700_000, any::<u8>()), 0..4),
        ) {
            let mut bytes = long_recording()[..length].to_vec();
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            check("damaged", &bytes, (window, Some((threads, min_chunk))));
        }
    }
}
