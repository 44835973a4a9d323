//! Writer for snapshots in PyTorch's own format, readable by every tool for them.
//!
//! Any Python loads the pickle, but PyTorch's viewer has a small reader of its own that sets the limits:
//! only opcodes that it knows (no POP, no FRAME needed), and lists in batches, because it spreads a batch
//! over the arguments of one JavaScript call.

mod json;
mod pickler;

use crate::snapshot::{DeviceKind, Snapshot};
use crate::stacks::{FrameId, StackId};
use crate::tables::{Action, Annotation, Block, BlockState, Context, Event, PoolId, Segment};
use crate::text::StrId;
use crate::words;
use pickler::{Pickler, Slots};
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Writes `snapshot` as the pickle that `torch.cuda.memory._dump_snapshot` of its release
/// ([`Snapshot::torch`]) writes: keys that the release did not have are left out.
///
/// The output lacks what the tables do not hold: past owners of a block (torch 2.0), and all but the first
/// 4 KiB of keys that this version does not know. Settings are left out if the recording had none (before
/// torch 2.3). A bare list of segments becomes a dictionary.
pub fn write(snapshot: &Snapshot, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer {
        snapshot,
        pickle: Pickler::new(out),
        strings: Slots::new(snapshot.strings.len()),
        frames: Slots::new(snapshot.stacks.all_frames().len()),
        stacks: Slots::new(snapshot.stacks.len()),
        pools: FxHashMap::default(),
    };
    writer.top_level()?;
    writer.pickle.finish()
}

/// The snapshot, the pickle being written, and the current content of its memo.
struct Writer<'a, W> {
    snapshot: &'a Snapshot,
    pickle: Pickler<'a, W>,
    strings: Slots,
    frames: Slots,
    stacks: Slots,
    pools: FxHashMap<PoolId, u32>,
}

impl<W: Write> Writer<'_, W> {
    fn top_level(&mut self) -> io::Result<()> {
        let Snapshot { segments, annotations, settings, torch, pinned, .. } = self.snapshot;
        self.pickle.open_dict();
        // torch writes the segments first. Here the events come first, so that their keys are among the
        // first 256 entries of the memo: two bytes instead of five for nine keys of every event.
        self.key(words::DEVICE_TRACES);
        let devices = self.snapshot.devices().last().map_or(0, |&last| last + 1);
        self.list(0..devices, Self::trace)?;
        self.key(words::SEGMENTS);
        self.list(segments, Self::segment)?;
        if settings.recorded {
            self.key(words::ALLOCATOR_SETTINGS);
            self.settings();
        }
        if torch.oldest >= 5 || !annotations.is_empty() {
            self.key(words::EXTERNAL_ANNOTATIONS);
            self.list(annotations, Self::annotation)?;
        }
        if torch.oldest >= 14 {
            self.key(words::HOST_SEGMENTS);
            self.list(&pinned.segments, Self::segment)?;
            self.key(words::HOST_TRACES);
            self.list(self.snapshot.events.iter(pinned.rows.clone()), Self::event)?;
        }
        if self.snapshot.kind == DeviceKind::Cpu {
            self.key(words::OOMPH);
            self.pickle.open_dict();
            self.word_pair(words::DEVICE, words::CPU);
            self.pickle.close_dict();
        }
        self.pickle.close_dict();
        Ok(())
    }

    fn trace(&mut self, device: u32) -> io::Result<()> {
        let events = &self.snapshot.events;
        self.list(events.iter(self.snapshot.rows(device)), Self::event)
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        let events = &self.snapshot.events;
        let Context {
            stream,
            compile_context,
            user_metadata,
            has_user_metadata,
            pool,
            forward_frames,
            extra,
        } = *events.context(event.context);
        // Nothing refers to an event or to an empty stack, but Python's pickler gives each a memo entry,
        // and our own reader is fastest with its output.
        self.pickle.open_memoized_dict();
        self.word_pair(words::ACTION, events.action_name(event.action));
        if event.action == Action::Oom {
            self.key(words::DEVICE_FREE);
            self.pickle.unsigned(event.addr);
        } else {
            self.address_pair(words::ADDR, event.addr);
        }
        self.size_pair(words::SIZE, event.size.0);
        self.address_pair(words::STREAM, stream);
        if self.snapshot.torch.newest >= 2 {
            self.key(words::TIME_US);
            self.pickle.int(event.time_us);
        }
        if compile_context != StrId::EMPTY {
            self.word_pair(words::COMPILE_CONTEXT, compile_context);
        }
        if has_user_metadata {
            self.word_pair(words::USER_METADATA, user_metadata);
        }
        if let Some(pool) = pool {
            self.pool_pair(words::POOL_ID, pool);
        }
        // If stacks were recorded, an empty one means that no Python was running (`backward()`), and
        // torch writes it. torch writes no stack for its own events, and none if stacks were not
        // requested.
        let stacks_recorded = self.snapshot.stacks.len() > 1;
        if event.stack != StackId::EMPTY || (stacks_recorded && event.action != Action::Snapshot) {
            self.stack_pair(event.stack)?;
        }
        if forward_frames != StrId::EMPTY {
            self.key(words::FORWARD_FRAMES);
            self.lines(forward_frames)?;
        }
        self.extra(extra);
        self.pickle.close_dict();
        Ok(())
    }

    fn segment(&mut self, segment: &Segment) -> io::Result<()> {
        let blocks = &self.snapshot.blocks[segment.blocks.clone()];
        let sum = |states: &[BlockState], part: fn(&Block) -> u64| {
            let counted = blocks.iter().filter(|block| states.contains(&block.state));
            counted.fold(0u64, |sum, block| sum.saturating_add(part(block)))
        };
        let active = [BlockState::Allocated, BlockState::PendingFree];
        self.pickle.open_dict();
        self.size_pair(words::DEVICE, u64::from(segment.device));
        self.address_pair(words::ADDRESS, segment.addr);
        self.size_pair(words::TOTAL_SIZE, segment.size.0);
        self.size_pair(words::ALLOCATED_SIZE, sum(&active[..1], |block| block.size.0));
        self.size_pair(words::ACTIVE_SIZE, sum(&active, |block| block.size.0));
        self.size_pair(words::REQUESTED_SIZE, sum(&active, |block| block.requested.0));
        self.address_pair(words::STREAM, segment.stream);
        self.word_pair(words::SEGMENT_TYPE, if segment.small { words::SMALL } else { words::LARGE });
        if self.has_block_addresses() {
            self.pool_pair(words::SEGMENT_POOL_ID, segment.pool);
            self.key(words::IS_EXPANDABLE);
            self.pickle.bool(segment.expandable);
            self.stack_pair(segment.stack)?;
        }
        self.key(words::BLOCKS);
        self.list(blocks, Self::block)?;
        self.extra(segment.extra);
        self.pickle.close_dict();
        Ok(())
    }

    fn block(&mut self, block: &Block) -> io::Result<()> {
        self.pickle.open_dict();
        if self.has_block_addresses() {
            self.address_pair(words::ADDRESS, block.addr);
        }
        self.size_pair(words::SIZE, block.size.0);
        self.size_pair(words::REQUESTED_SIZE, block.requested.0);
        let state = match block.state {
            BlockState::Allocated => words::ACTIVE_ALLOCATED,
            BlockState::PendingFree => words::ACTIVE_PENDING_FREE,
            BlockState::Inactive => words::INACTIVE,
        };
        self.word_pair(words::STATE, state);
        if self.has_block_addresses() {
            self.stack_pair(block.stack)?;
        } else if block.stack != StackId::EMPTY {
            self.key(words::HISTORY);
            self.list([block], Self::owner)?;
        }
        self.extra(block.extra);
        self.pickle.close_dict();
        Ok(())
    }

    /// Writes an entry of `history`, where torch 2.0 keeps the stack of a block.
    fn owner(&mut self, block: &Block) -> io::Result<()> {
        self.pickle.open_dict();
        self.address_pair(words::ADDR, block.addr);
        self.size_pair(words::REAL_SIZE, block.requested.0);
        self.stack_pair(block.stack)?;
        self.pickle.close_dict();
        Ok(())
    }

    fn annotation(&mut self, annotation: &Annotation) -> io::Result<()> {
        self.pickle.open_dict();
        self.word_pair(words::STAGE, if annotation.start { words::START } else { words::END });
        self.word_pair(words::NAME, annotation.name);
        self.size_pair(words::DEVICE, u64::from(annotation.device));
        self.key(words::TIME_US);
        self.pickle.int(annotation.time_us);
        self.pickle.close_dict();
        Ok(())
    }

    fn settings(&mut self) {
        let Snapshot { settings, strings, .. } = self.snapshot;
        self.pickle.open_dict();
        for &(key, value) in &settings.pairs {
            self.key(key);
            json::value(strings.get(value), &mut self.pickle);
        }
        self.pickle.close_dict();
    }

    /// Writes further keys of the open dictionary.
    fn extra(&mut self, extra: StrId) {
        if extra != StrId::EMPTY {
            json::pairs(self.snapshot.strings.get(extra), &mut self.pickle);
        }
    }

    /// Returns whether blocks have an address and a stack: in all releases but torch 2.0.
    fn has_block_addresses(&self) -> bool {
        self.snapshot.torch.oldest >= 1
    }

    fn key(&mut self, key: StrId) {
        self.word(key);
    }

    fn word(&mut self, id: StrId) {
        if let Some(slot) = self.strings.get(id.0) {
            self.pickle.recall(slot);
        } else {
            self.pickle.text(self.snapshot.strings.get(id));
            self.strings.set(id.0, self.pickle.memoize());
        }
    }

    fn word_pair(&mut self, key: StrId, word: StrId) {
        self.key(key);
        self.word(word);
    }

    fn size_pair(&mut self, key: StrId, size: u64) {
        self.key(key);
        self.pickle.unsigned(size);
    }

    /// Writes an address or a handle; PyTorch writes those with the top bit set as negative numbers.
    fn address_pair(&mut self, key: StrId, addr: u64) {
        self.key(key);
        self.pickle.int(addr as i64);
    }

    fn pool_pair(&mut self, key: StrId, pool: PoolId) {
        self.key(key);
        if let Some(&slot) = self.pools.get(&pool) {
            self.pickle.recall(slot);
        } else {
            self.pickle.pair(pool.0, pool.1);
            self.pools.insert(pool, self.pickle.memoize());
        }
    }

    fn stack_pair(&mut self, stack: StackId) -> io::Result<()> {
        self.key(words::FRAMES);
        if stack == StackId::EMPTY {
            // A new list each time, because a program that loads the file may append to it.
            self.pickle.empty_list();
            self.pickle.memoize();
        } else if let Some(slot) = self.stacks.get(stack.0) {
            self.pickle.recall(slot);
        } else {
            self.pickle.empty_list();
            self.stacks.set(stack.0, self.pickle.memoize());
            self.extend(self.snapshot.stacks.frames(stack), Self::frame)?;
        }
        Ok(())
    }

    fn frame(&mut self, &id: &FrameId) -> io::Result<()> {
        if let Some(slot) = self.frames.get(id.0) {
            self.pickle.recall(slot);
            return Ok(());
        }
        let frame = *self.snapshot.stacks.frame(id);
        self.frames.set(id.0, self.pickle.open_memoized_dict());
        self.word_pair(words::NAME, frame.function);
        self.word_pair(words::FILENAME, frame.file);
        self.size_pair(words::LINE, u64::from(frame.line));
        self.extra(frame.extra);
        self.pickle.close_dict();
        Ok(())
    }

    /// Writes the list of strings that was read into one text. PyTorch's strings end with a line break,
    /// so there is an empty line between them.
    fn lines(&mut self, text: StrId) -> io::Result<()> {
        let lines = self.snapshot.strings.get(text).split("\n\n");
        self.list(lines, |writer, line| {
            writer.pickle.text(&format!("{line}\n"));
            Ok(())
        })
    }

    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.pickle.empty_list();
        self.extend(items, write)
    }

    /// Appends `items` to the list that was written last.
    fn extend<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            self.pickle.open_batch();
            for item in items.by_ref().take(pickler::BATCH_ITEMS) {
                write(self, item)?;
            }
            self.pickle.close_batch();
            self.pickle.spill()?;
        }
        Ok(())
    }
}
