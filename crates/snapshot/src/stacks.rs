//! Interned call stacks: each frame and each stack is stored once.

use crate::text::StrId;
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// One line of code in a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Frame {
    /// Function name (`predict`, `<module>`) or C++ symbol.
    pub function: StrId,
    /// Path of the source file, as recorded.
    pub file: StrId,
    /// Line number; 0 if the recorder had none (C++).
    pub line: u32,
    /// Further keys of the recorded frame (`fx_node_name`, …) as JSON, or empty.
    pub extra: StrId,
}

/// Number of an interned [`Frame`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

/// Number of an interned stack; look it up with [`Stacks::frames`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StackId(pub u32);

impl StackId {
    /// Stack without frames: none was recorded for the event.
    pub const EMPTY: StackId = StackId(0);
}

/// Frames and stacks of a snapshot.
#[derive(Clone)]
pub struct Stacks {
    frames: Vec<Frame>,
    frame_index: FxHashMap<Frame, u32>,
    runs: Vec<FrameId>,
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: FxBuildHasher,
}

impl Default for Stacks {
    /// Returns a table with only the empty stack.
    fn default() -> Stacks {
        let mut stacks = Stacks {
            frames: Vec::new(),
            frame_index: FxHashMap::default(),
            runs: Vec::new(),
            ends: Vec::new(),
            index: HashTable::new(),
            hasher: FxBuildHasher,
        };
        stacks.intern(&[]);
        stacks
    }
}

impl Stacks {
    /// Returns the function, file and line of a frame.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> &[FrameId] {
        run(&self.runs, &self.ends, id.0)
    }

    /// Returns every distinct frame, in order of [`FrameId`].
    pub fn all_frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the number of distinct stacks, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Always `false`: the empty stack always exists.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn intern_frame(&mut self, frame: Frame) -> FrameId {
        let next = self.frames.len() as u32;
        let id = *self.frame_index.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
        }
        FrameId(id)
    }

    /// Returns the number of the stack with these frames, if it is known.
    pub(crate) fn find(&self, frames: &[FrameId]) -> Option<StackId> {
        let hash = self.hasher.hash_one(frames);
        let is_same = |&index: &u32| run(&self.runs, &self.ends, index) == frames;
        self.index.find(hash, is_same).map(|&found| StackId(found))
    }

    pub(crate) fn intern(&mut self, frames: &[FrameId]) -> StackId {
        if let Some(found) = self.find(frames) {
            return found;
        }
        let hash = self.hasher.hash_one(frames);
        let id = self.ends.len() as u32;
        self.runs.extend_from_slice(frames);
        self.ends.push(self.runs.len() as u32);
        let (runs, ends, hasher) = (&self.runs, &self.ends, &self.hasher);
        self.index.insert_unique(hash, id, |&index| hasher.hash_one(run(runs, ends, index)));
        StackId(id)
    }

    /// Replaces every frame. Stacks keep their numbers, so two of them may become equal.
    pub(crate) fn map_frames(&mut self, mut map: impl FnMut(&Frame) -> Frame) {
        self.frames.iter_mut().for_each(|frame| *frame = map(frame));
        self.frame_index = self.frames.iter().enumerate().map(|(id, frame)| (*frame, id as u32)).collect();
    }

    pub(crate) fn footprint(&self) -> usize {
        self.frames.len() * 16
            + self.frame_index.capacity() * 21
            + (self.runs.len() + self.ends.len()) * 4
            + self.index.capacity() * 5
    }
}

fn run<'a>(runs: &'a [FrameId], ends: &[u32], index: u32) -> &'a [FrameId] {
    let start = if index == 0 { 0 } else { ends[index as usize - 1] as usize };
    &runs[start..ends[index as usize] as usize]
}
