//! Text form of the tables of a snapshot, for comparisons.

// Each test file uses only a part of this.
#![allow(dead_code)]

use snapshot::Snapshot;
use std::fmt::Write;

/// JSON by content: whitespace depends on the writer.
fn json(snapshot: &Snapshot, id: snapshot::StrId) -> String {
    match snapshot.strings.get(id) {
        "" => String::new(),
        text => serde_json::from_str::<serde_json::Value>(text).expect("further keys are JSON").to_string(),
    }
}

/// Stack as the content of its frames: numbers of strings and frames depend on the order of the file.
pub(crate) fn stack(snapshot: &Snapshot, stack: snapshot::StackId) -> String {
    let get = |id| snapshot.strings.get(id);
    let frame = |&frame: &snapshot::FrameId| {
        let frame = snapshot.stacks.frame(frame);
        format!("{}:{} {} {}", get(frame.file), frame.line, get(frame.function), json(snapshot, frame.extra))
    };
    snapshot.stacks.frames(stack).iter().map(frame).collect::<Vec<_>>().join("; ")
}

/// Segments and their blocks, as text.
pub(crate) fn segments(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    for segment in &snapshot.segments {
        let head = (segment.device, segment.addr, segment.size, segment.stream, segment.small, segment.pool);
        let (trace, extra) = (stack(snapshot, segment.stack), json(snapshot, segment.extra));
        writeln!(out, "segment {head:?} {} {trace} {extra}", segment.expandable).expect("a string grows");
        for block in &snapshot.blocks[segment.blocks.clone()] {
            let head = (block.addr, block.size, block.requested, block.state);
            let (trace, extra) = (stack(snapshot, block.stack), json(snapshot, block.extra));
            writeln!(out, "  block {head:?} {trace} {extra}").expect("a string grows");
        }
    }
    out
}

/// Content of the tables, as text.
pub(crate) fn tables(snapshot: &Snapshot) -> String {
    let mut out = segments(snapshot);
    let get = |id| snapshot.strings.get(id);
    for trace in &snapshot.traces {
        writeln!(out, "device {}", trace.device).expect("a string grows");
        for event in trace.rows.clone().map(|row| snapshot.events.get(row)) {
            let context = snapshot.events.context(event.context);
            let action = get(snapshot.events.action_name(event.action));
            let labels = [context.compile_context, context.user_metadata, context.forward_frames].map(get);
            let extra = json(snapshot, context.extra);
            let place = (event.addr, event.size, event.time_us, context.stream, context.pool);
            let (labelled, trace) = (context.has_user_metadata, stack(snapshot, event.stack));
            writeln!(out, "{action} {place:?} {labelled} {labels:?} {extra} {trace}")
                .expect("a string grows");
        }
    }
    for annotation in &snapshot.annotations {
        let head = (annotation.start, annotation.device, annotation.time_us);
        writeln!(out, "annotation {} {head:?}", get(annotation.name)).expect("a string grows");
    }
    let settings = &snapshot.settings;
    let known =
        (settings.recorded, &settings.conf, settings.max_split, settings.gc_threshold, settings.divisions);
    writeln!(out, "settings {known:?} {}", settings.expandable_segments).expect("a string grows");
    for &(key, value) in &settings.pairs {
        writeln!(out, "  {} {}", get(key), json(snapshot, value)).expect("a string grows");
    }
    writeln!(out, "{} {:?}", snapshot.torch, snapshot.caveats).expect("a string grows");
    out
}

/// Asserts that `snapshot` equals the text of another one, and shows the first difference.
#[track_caller]
pub(crate) fn same(name: &str, snapshot: &Snapshot, expected: &str) {
    let found = tables(snapshot);
    if let Some((ours, theirs)) = found.lines().zip(expected.lines()).find(|(ours, theirs)| ours != theirs) {
        panic!("{name} differs:\n  found    {ours}\n  expected {theirs}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{name}: number of lines");
}
