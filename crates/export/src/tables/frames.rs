//! The tables `frames` and `stacks`: each line of code once, and which of them make up a call stack.

use super::ExportTable;
use super::dictionary::Dictionary;
use super::events::given;
use arrow_array::types::UInt32Type;
use snapshot::{Frame, FrameId, Snapshot, StackId, StrId};

pub(super) fn frames(snapshot: &Snapshot) -> anyhow::Result<ExportTable<'_>> {
    let frames = snapshot.stacks.all_frames();
    let words = |of: fn(&Frame) -> StrId| {
        Dictionary::new(frames.iter().map(|frame| Some(snapshot.strings.get(of(frame)))))
    };
    let functions = words(|frame| frame.function)?;
    let files = words(|frame| frame.file)?;
    ExportTable::new("frames", frames.iter().enumerate(), move |columns| {
        columns
            .number::<UInt32Type>("frame_id", |(place, _)| *place as u32)
            .word("function", &functions, |(place, _)| *place)?
            .word("file", &files, |(place, _)| *place)?
            .number::<UInt32Type>("line", |(_, frame)| frame.line)
            .optional_text("extra", |(_, frame)| given(snapshot, frame.extra))
    })
}

pub(super) fn stacks(snapshot: &Snapshot) -> anyhow::Result<ExportTable<'_>> {
    let stacks = (0..snapshot.stacks.len() as u32).map(StackId);
    let rows = stacks.flat_map(|stack| {
        let frames = snapshot.stacks.frames(stack).iter().enumerate();
        frames.map(move |(depth, &frame)| (stack, depth, frame))
    });
    ExportTable::new("stacks", rows, |columns| {
        Ok(columns
            .number::<UInt32Type>("stack_id", |(StackId(stack), ..)| *stack)
            .number::<UInt32Type>("depth", |(_, depth, _)| *depth as u32)
            .number::<UInt32Type>("frame_id", |(.., FrameId(frame))| *frame))
    })
}
