//! Steps that were recorded without stacks, since they repeat an earlier one.

use crate::common::recorded;
use analysis::{fill_in_repeated_steps, recorded_devices};
use recording::Label;
use snapshot::{Action, Snapshot};

/// The lines of all allocations, each with what was running.
fn lines(snapshot: &Snapshot) -> Vec<String> {
    let events = &snapshot.events;
    let allocations = events.iter(0..events.len()).filter(|event| event.action == Action::Alloc);
    allocations
        .map(|event| {
            let frame =
                snapshot.stacks.frames(event.stack).first().map(|&frame| snapshot.stacks.frame(frame).line);
            let line = frame.map_or("?".to_owned(), |line| line.to_string());
            let place = snapshot.strings.get(events.context(event.context).user_metadata);
            format!("{line} {place}").trim().to_owned()
        })
        .collect()
}

fn filled_in(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut snapshot, recording) = recorded(text);
    fill_in_repeated_steps(&mut snapshot, &recording);
    (lines(&snapshot), snapshot.caveats)
}

const CLOSELY: &str = "
    +x 1MiB train.py:9 <module>
    in forward 0
    +h 4MiB train.py:20 forward
    in backward 0
    +g 2MiB -
    -h
    in
    mark
";

/// The same step, recorded without stacks.
const WITHOUT: &str = "
    +x 1MiB -
    +h 4MiB -
    in backward
    +g 2MiB -
    -h
    in
    mark without stacks
";

#[test]
fn a_repeated_step_has_the_lines_and_modules_of_the_one_it_repeats() {
    let (lines, caveats) = filled_in(&format!("{CLOSELY}{CLOSELY}{WITHOUT}{WITHOUT}"));
    let step = ["9", "20 forward 0", "? backward 0"];
    assert_eq!(lines, [step, step, step, step].concat());
    assert_eq!(caveats.len(), 1);
    assert!(
        caveats[0].starts_with("2 steps that repeat an earlier one were recorded without stacks"),
        "{caveats:?}"
    );
}

#[test]
fn of_several_kinds_of_steps_the_one_with_the_same_requests_is_taken() {
    let other = "
    +x 3MiB train.py:12 <module>
    +h 5MiB train.py:30 evaluate
    mark
";
    let without = "
    +x 1MiB -
    +h 4MiB -
    +g 2MiB -
    -h
    mark without stacks
";
    let (lines, _) = filled_in(&format!("{CLOSELY}{other}{without}"));
    assert_eq!(lines[5..], ["9", "20 forward 0", "? backward 0"]);
}

#[test]
fn a_step_that_differs_is_filled_in_as_far_as_it_is_alike() {
    // A larger batch: the same allocations and frees, of other sizes, up to where it differs.
    let larger = "
    +x 2MiB -
    +h 8MiB -
    +w 1MiB -
    -w
    +g 4MiB -
    mark without stacks
";
    let (lines, caveats) = filled_in(&format!("{CLOSELY}{CLOSELY}{larger}"));
    assert_eq!(lines[6..], ["9", "20 forward 0", "? backward 0", "?"]);
    assert!(caveats[1].starts_with("1 allocation in steps without stacks have no line"), "{caveats:?}");
}

#[test]
fn what_follows_the_last_step_has_no_line_of_a_step_unless_it_begins_like_one() {
    let tail = |after: &str| {
        let (mut snapshot, mut recording) = recorded(&format!("{CLOSELY}{CLOSELY}{WITHOUT}{after}"));
        recording.ends_with_stacks = false;
        fill_in_repeated_steps(&mut snapshot, &recording);
        lines(&snapshot).split_off(9)
    };
    assert_eq!(tail("\n    +cache 256MiB -\n    +h 4MiB -\n"), ["?", "?"]);
    assert_eq!(tail("\n    +x 1MiB -\n    +h 4MiB -\n"), ["9", "20 forward 0"]);
}

#[test]
fn what_was_recorded_with_its_stack_keeps_it() {
    let partly = "
    +x 2MiB -
    in forward 7
    +h 8MiB train.py:21 forward
    in backward 7
    +g 4MiB -
    in
    mark without stacks
";
    let (lines, caveats) = filled_in(&format!("{CLOSELY}{CLOSELY}{partly}"));
    assert_eq!(lines[6..], ["9", "21 forward 7", "? backward 7"]);
    assert_eq!(caveats.len(), 1, "{caveats:?}");
}

#[test]
fn marks_of_the_program_itself_stay() {
    let own = "
    in epoch 3
    +x 1MiB -
    +h 4MiB -
    +g 2MiB -
    -h
    in
    mark without stacks
";
    let (lines, _) = filled_in(&format!("{CLOSELY}{CLOSELY}{own}"));
    assert_eq!(lines[6..], ["9 epoch 3", "20 epoch 3", "? epoch 3"]);
}

#[test]
fn the_end_of_a_recording_is_filled_in_like_a_step() {
    let (mut snapshot, mut recording) = recorded(&format!("{CLOSELY}{CLOSELY}+x 1MiB -\n+h 4MiB -\n"));
    recording.ends_with_stacks = false;
    fill_in_repeated_steps(&mut snapshot, &recording);
    assert_eq!(lines(&snapshot)[6..], ["9", "20 forward 0"]);
}

#[test]
fn a_repeated_step_has_the_labels_of_the_one_it_repeats() {
    let closely = "
    +x 1MiB train.py:9 <module>
    see input input x
    +h 4MiB train.py:20 forward
    +g 2MiB -
    see gradient fc.weight g
    -h
    -g
    mark
";
    // The recorder looks at nothing here; a block of the same size that is no gradient stays none.
    let without = "
    +x 1MiB -
    +h 4MiB -
    +g 2MiB -
    -h
    -g
    mark without stacks
";
    let text = format!("{closely}{closely}{without}+t 2MiB train.py:40 evaluate\nmark\n");
    let (mut snapshot, recording) = recorded(&text);
    fill_in_repeated_steps(&mut snapshot, &recording);
    let devices = recorded_devices(&snapshot, &recording);
    let labels: Vec<Option<Label>> =
        (0..10).map(|row| devices[0].tensor_of(row).map(|tensor| tensor.label)).collect();
    let step = [Some(Label::Input), None, Some(Label::Gradient)];
    assert_eq!(labels, [&step[..], &step, &step, &[None]].concat());
}

#[test]
fn without_such_steps_nothing_is_touched() {
    let (lines, caveats) = filled_in(&format!("{CLOSELY}+z 1MiB -\nmark\n"));
    assert_eq!(lines[3..], ["?"]);
    assert!(caveats.is_empty());
}
