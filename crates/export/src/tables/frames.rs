//! The tables `frames` and `stacks`: each frame once, and which frames make up a call stack.

use super::ExportTable;
use super::dictionary::Dictionary;
use super::events::non_empty;
use arrow_array::types::UInt32Type;
use snapshot::{Frame, FrameId, Snapshot, StackId, StrId};

pub(super) fn frames(snapshot: &Snapshot) -> anyhow::Result<ExportTable<'_>> {
    let frames = snapshot.stacks.all_frames();
    let column = |of: fn(&Frame) -> StrId| {
        Dictionary::new(frames.iter().map(|frame| Some(snapshot.strings.get(of(frame)))))
    };
    let functions = column(|frame| frame.function)?;
    let files = column(|frame| frame.file)?;
    ExportTable::new("frames", frames.iter().enumerate(), move |columns| {
        columns
            .number::<UInt32Type>("frame_id", |(index, _)| *index as u32)
            .dictionary("function", &functions, |(index, _)| *index)?
            .dictionary("file", &files, |(index, _)| *index)?
            .number::<UInt32Type>("line", |(_, frame)| frame.line)
            .optional_text("extra", |(_, frame)| non_empty(snapshot, frame.extra))
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
