//! Replaces names in a snapshot: files, functions, and the text that a program attached to events.

use crate::snapshot::Snapshot;
use crate::stacks::Frame;
use crate::text::StrId;
use rustc_hash::FxHashMap;

/// Gives names new names. The same name must always get the same one.
pub trait Renamer {
    /// Returns the new file and function of a frame.
    fn frame(&mut self, file: &str, function: &str) -> (String, String);
    /// Returns the new text of an annotation, of an event's metadata, or of a compiled region.
    fn text(&mut self, text: &str) -> String;
}

impl Snapshot {
    /// Renames every file, function, annotation and metadata string; drops keys that are not understood and
    /// the caveats, which may quote them. Sizes, addresses, times and settings stay.
    pub fn rename(&mut self, renamer: &mut impl Renamer) {
        let strings = &mut self.strings;
        self.stacks.map_frames(|frame| {
            let (file, function) = renamer.frame(strings.get(frame.file), strings.get(frame.function));
            let (file, function) = (strings.intern(&file), strings.intern(&function));
            Frame { file, function, line: frame.line, extra: StrId::EMPTY }
        });
        let mut renamed: FxHashMap<StrId, StrId> = FxHashMap::default();
        let mut text = |id: StrId| {
            *renamed.entry(id).or_insert_with(|| {
                let new = renamer.text(strings.get(id));
                strings.intern(&new)
            })
        };
        self.events.map_contexts(|context| {
            context.compile_context = text(context.compile_context);
            context.user_metadata = text(context.user_metadata);
            context.forward_frames = StrId::EMPTY;
            context.extra = StrId::EMPTY;
        });
        self.annotations.iter_mut().for_each(|annotation| annotation.name = text(annotation.name));
        self.blocks.iter_mut().for_each(|block| block.extra = StrId::EMPTY);
        let segments = self.segments.iter_mut().chain(&mut self.pinned.segments);
        segments.for_each(|segment| segment.extra = StrId::EMPTY);
        self.caveats.clear();
    }

    /// Keeps the last `count` events of each device.
    pub fn keep_last_events(&mut self, count: usize) {
        for trace in &mut self.traces {
            trace.rows.start = trace.rows.start.max(trace.rows.end.saturating_sub(count));
        }
        let pinned = &mut self.pinned.rows;
        pinned.start = pinned.start.max(pinned.end.saturating_sub(count));
    }
}
