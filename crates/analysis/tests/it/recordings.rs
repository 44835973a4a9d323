//! What a recorder's marks, labels and places add to a snapshot, on traces drawn by hand.

use crate::common::recorded;
use analysis::{
    Category, FindingKind, Key, Origin, RunModel, Site, StepSource, findings, recorded_devices, words,
};
use recording::{AllocationCounts, Label, LabelMark, LabeledTensor, Placed, Process, Recording, Shortage};
use snapshot::{Bytes, Snapshot};

const MIB: u64 = 1 << 20;

/// Two steps of training with a recorder: a parameter, its buffer, gradient and state, an activation, an
/// input, and a tensor that only looks like a parameter.
const TRAINING: &str = "+w 3MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
     +mask 2MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
     +ema 3MiB train.py:3 <module> > torch/nn/modules/module.py:900 _apply
     repeat 2
       +x 7MiB train.py:9 <module>
       in forward Net.fc
       +a 11MiB train.py:10 <module> > model.py:5 forward > torch/nn/modules/linear.py:134 forward
       in
       +loss 4B train.py:10 <module>
       in backward
       +one 4B train.py:11 <module> > torch/_tensor.py:600 backward
       in backward Net.fc
       +t 11MiB -
       +g 3MiB -
       -t
       -a
       in optimizer
       +m 3MiB train.py:12 <module> > torch/optim/adam.py:178 _init_group
       +scale 1MiB train.py:12 <module> > torch/optim/adam.py:179 _init_group
       in
       see parameter fc.weight w
       see buffer fc.mask mask
       see gradient fc.weight g
       see optimizer fc.weight.exp_avg m
       see input x x
       mark
       -g
     end";

/// The bytes that a category held at most, in MiB.
#[track_caller]
fn check_most(text: &str, expected: &[(Category, u64)]) {
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let model = RunModel::new(&devices[0]);
    for &(category, mib) in expected {
        assert_eq!(model.step_peaks.most.get(category).0 / MIB, mib, "{}", category.name());
    }
}

#[test]
fn labelled_blocks_are_what_the_recorder_saw() {
    check_most(
        TRAINING,
        &[
            (Category::Parameter, 3),
            (Category::Buffer, 2),
            (Category::Gradient, 3),
            // The second step binds `m` again before the first one goes.
            (Category::Optimizer, 6),
            (Category::Activation, 11),
            (Category::Input, 14),
        ],
    );
}

#[test]
fn a_copy_of_a_parameter_is_none_unless_the_recorder_says_so() {
    let (snapshot, recording) = recorded(TRAINING);
    let devices = recorded_devices(&snapshot, &recording);
    let model = RunModel::new(&devices[0]);
    // `ema` and `scale`: they stay, and they are no tensors of the module.
    assert!(model.step_peaks.most.get(Category::Unknown).0 >= 4 * MIB);
    let plain = analysis::devices(&snapshot);
    let guessed = RunModel::new(&plain[0]).step_peaks.most.get(Category::Parameter).0 / MIB;
    assert_eq!(guessed, 8, "without labels all three look like parameters");
}

#[test]
fn the_sums_of_labelled_tensors_are_exact() {
    let (snapshot, recording) = recorded(TRAINING);
    let devices = recorded_devices(&snapshot, &recording);
    let named = RunModel::new(&devices[0]).labelled();
    let sums = Label::ALL.map(|label| {
        let of = named[label as usize];
        format!("{} {} {}", label.name(), of.tensors, of.most.0 / MIB)
    });
    assert_eq!(sums, ["parameter 1 3", "buffer 1 2", "gradient 1 3", "optimizer 2 6", "input 2 14"]);
}

/// The site and module of the group that holds the most of a category at the peak.
fn groups(text: &str, by: Key) -> Vec<String> {
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let model = RunModel::new(&devices[0]);
    let live = model.live_at(devices[0].history.allocated_peak.position, by);
    live.groups.iter().map(|group| described(&snapshot, &model, group)).collect()
}

fn described(snapshot: &Snapshot, model: &RunModel<'_>, group: &analysis::LiveGroup) -> String {
    let name = match group.origin {
        Origin::Site(Site::BackwardOf(frame)) => {
            format!("{} its backward", words::site_name(snapshot, frame))
        }
        Origin::Site(Site::Backward(frame)) => format!("{} backward()", words::site_name(snapshot, frame)),
        Origin::Site(site) => site.frame().map_or("-".to_owned(), |frame| words::site_name(snapshot, frame)),
        Origin::Module(module) => {
            module.map_or("outside".to_owned(), |module| model.device.modules.path(module).to_owned())
        }
        _ => String::new(),
    };
    format!("{name} {}", group.bytes.0 / MIB)
}

#[test]
fn what_backward_allocates_belongs_to_the_line_that_ran_the_module() {
    let lines = groups(TRAINING, Key::Site);
    assert!(lines.contains(&"model.py:5 its backward 14".to_owned()), "{lines:?}");
}

#[test]
fn a_module_without_memory_of_its_own_has_the_line_of_what_it_lies_in() {
    let text = "in forward Net
         +a 4MiB train.py:10 <module> > model.py:7 forward
         in backward Net.act.inner
         +g 3MiB -
         in backward Other.act
         +h 2MiB -";
    assert_eq!(groups(text, Key::Site), ["model.py:7 4", "model.py:7 its backward 3", "- 2"]);
}

#[test]
fn without_a_module_the_call_of_backward_is_the_line() {
    let text = "in backward
         +one 4B train.py:11 <module> > torch/_tensor.py:600 backward
         +g 3MiB -";
    assert_eq!(groups(text, Key::Site), ["train.py:11 backward() 3"]);
}

#[test]
fn compiled_code_and_hooks_of_libraries_in_backward_belong_to_its_call() {
    let text = "in backward
         +one 4B train.py:11 <module> > torch/_tensor.py:600 backward
         +t 3MiB torch/_functorch/aot_autograd.py:26 backward > torch/utils/_device.py:116 call
         in
         +x 2MiB torch/utils/_device.py:116 call";
    assert_eq!(groups(text, Key::Site), ["train.py:11 backward() 3", "_device.py:116 2"]);
}

#[test]
fn on_the_cpu_backward_runs_below_its_call() {
    let text = "in forward Net.fc
         +a 4MiB train.py:10 <module> > model.py:5 forward
         in backward Net.fc
         +g 3MiB train.py:11 <module> > torch/_tensor.py:600 backward
         +own 2MiB train.py:11 <module> > torch/_tensor.py:600 backward > op.py:9 backward";
    assert_eq!(groups(text, Key::Site), ["model.py:5 4", "model.py:5 its backward 3", "op.py:9 2"]);
}

#[test]
fn a_module_holds_its_parameters_gradients_state_and_activations() {
    let groups = groups(TRAINING, Key::Module { most: 10 });
    // w 3, mask 2, a 11, t 11, g 3 and the state of the first step; the rest is outside.
    assert!(groups.contains(&"Net.fc 33".to_owned()), "{groups:?}");
    assert!(groups.iter().any(|group| group.starts_with("outside ")), "{groups:?}");
}

#[test]
fn too_many_modules_are_counted_by_numbered_layer() {
    let text = "in forward Net.h.0.mlp.up
         +a 1MiB model.py:5 forward
         in forward Net.h.0.mlp.down
         +b 2MiB model.py:6 forward
         in forward Net.h.1.mlp.up
         +c 4MiB model.py:5 forward
         in forward Net.head
         +d 8MiB model.py:9 forward";
    assert_eq!(
        groups(text, Key::Module { most: 4 }),
        ["Net.head 8", "Net.h.1.mlp.up 4", "Net.h.0.mlp.down 2", "Net.h.0.mlp.up 1"]
    );
    assert_eq!(groups(text, Key::Module { most: 3 }), ["Net.head 8", "Net.h.1 4", "Net.h.0 3"]);
}

#[track_caller]
fn check_steps(text: &str, change: impl Fn(&mut Recording), expected: &[usize], source: StepSource) {
    let (snapshot, mut recording) = recorded(text);
    change(&mut recording);
    let devices = recorded_devices(&snapshot, &recording);
    let steps = &devices[0].steps;
    assert_eq!((&steps.bounds[..], steps.source), (expected, source));
}

const ONE_STEP: &str = "+w 4MiB train.py:2 <module>
     +h 64MiB train.py:9 <module> > torch/nn/modules/linear.py:134 forward
     -h
     mark
     +e 1MiB train.py:20 evaluate";

#[test]
fn a_recording_with_one_step_has_one_step() {
    check_steps(ONE_STEP, |_| {}, &[2, 5], StepSource::Recorded);
}

#[test]
fn steps_are_found_by_count_where_the_clock_is_off() {
    check_steps(ONE_STEP, |recording| recording.marks[0].time_us = 5_000_000, &[2, 5], StepSource::Recorded);
    check_steps(ONE_STEP, |recording| recording.marks[0].time_us = 3, &[2, 3], StepSource::Recorded);
}

#[test]
fn steps_are_found_by_the_clock_where_counts_were_reset() {
    for count in [1000, 3] {
        // More than there are in the end, or the end is not known.
        let change = |recording: &mut Recording| {
            recording.marks[0].allocations = AllocationCounts(vec![(0, count)]);
            recording.allocations =
                if count == 3 { AllocationCounts::default() } else { AllocationCounts(vec![(0, 3)]) };
        };
        check_steps(ONE_STEP, change, &[2, 5], StepSource::Recorded);
    }
}

/// Steps of a program without an optimizer, and what is said about them.
fn steps_of_calls(text: &str) -> (usize, StepSource, Option<String>) {
    let (snapshot, recording) = recorded(text);
    let steps = recorded_devices(&snapshot, &recording).remove(0).steps;
    (steps.main_count(), steps.source, steps.note)
}

#[test]
fn a_handler_that_calls_layers_one_by_one_makes_one_step_per_request() {
    let text = "+w 4MiB server.py:2 <module>
         repeat 10
           +x 1MiB server.py:30 <module> > server.py:9 handle
           +h 1MiB server.py:30 <module> > server.py:10 handle > torch/nn/modules/linear.py:134 forward
           mark of a call
           +y 1MiB server.py:30 <module> > server.py:11 handle > torch/nn/modules/linear.py:134 forward
           mark of a call
         end";
    let note = "a step is one pass through server.py:9 handle, with about 2 calls of modules";
    assert_eq!(steps_of_calls(text), (10, StepSource::Inferred, Some(note.to_owned())));
}

#[test]
fn one_call_of_a_module_in_each_iteration_is_one_step() {
    let text = "+w 4MiB server.py:2 <module>
         repeat 10
           +x 1MiB server.py:9 <module>
           +h 1MiB server.py:10 <module> > torch/nn/modules/linear.py:134 forward
           mark of a call
         end";
    assert_eq!(steps_of_calls(text), (10, StepSource::Recorded, None));
}

#[test]
fn requests_that_overlap_in_threads_are_counted_one_by_one() {
    let thread = "lib/threading.py:1002 _bootstrap";
    let text = format!(
        "+w 4MiB server.py:2 <module>
         repeat 5
           +a 1MiB {thread} > server.py:9 handle
           +b 1MiB {thread} > server.py:9 handle
           +c 2MiB {thread} > server.py:10 handle > torch/nn/modules/linear.py:134 forward
           mark of a call
           +d 2MiB {thread} > server.py:10 handle > torch/nn/modules/linear.py:134 forward
           mark of a call
           +e 3MiB {thread} > server.py:11 handle > torch/nn/modules/linear.py:134 forward
           mark of a call
           +f 3MiB {thread} > server.py:11 handle > torch/nn/modules/linear.py:134 forward
           mark of a call
         end"
    );
    assert_eq!(steps_of_calls(&text).0, 10);
}

#[test]
fn calls_of_modules_without_a_loop_are_said_to_be_that() {
    let call = |line: usize| format!("+h{line} 1MiB run.py:{line} <module>\nmark of a call\n");
    let text: String = (1..6).map(call).collect();
    let (count, source, note) = steps_of_calls(&text);
    assert_eq!((count, source), (5, StepSource::Recorded));
    assert!(note.is_some_and(|note| note.starts_with("a step is one call of a module")));
}

#[test]
fn an_address_that_is_used_again_is_another_tensor() {
    let text = "+a 4MiB train.py:2 <module>
         see parameter a a
         -a
         +b 4MiB train.py:3 <module>
         see gradient b b
         -b
         +c 4MiB train.py:4 <module>";
    let (snapshot, recording) = recorded(text);
    assert_eq!(recording.labels.sets[0][0].addr, recording.labels.sets[1][0].addr);
    let devices = recorded_devices(&snapshot, &recording);
    let names: Vec<Option<&str>> =
        (0..3).map(|row| devices[0].tensor_of(row).map(|tensor| tensor.label.name())).collect();
    assert_eq!(names, [Some("parameter"), Some("gradient"), None]);
}

#[test]
fn an_activation_that_is_handed_to_a_module_is_no_input() {
    let text = "in forward Net.body
         +h 4MiB model.py:5 forward
         in
         +x 2MiB train.py:5 <module>
         see input input h
         see input target x
         see parameter weight x";
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let names = [0, 1].map(|row| devices[0].tensor_of(row).map(|tensor| tensor.label));
    assert_eq!(names, [None, Some(Label::Parameter)], "the first of several labels counts");
}

#[test]
fn a_leak_in_the_backward_pass_names_its_module_and_line() {
    let text = "repeat 12
           in forward Net.fc
           +a 4MiB train.py:10 <module> > model.py:5 forward
           in backward
           +one 4B train.py:11 <module> > torch/_tensor.py:600 backward
           in backward Net.fc
           +kept* 64MiB -
           -a
           in
           mark
         end";
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let model = RunModel::new(&devices[0]);
    let leak =
        findings(&model).into_iter().find(|finding| finding.kind == FindingKind::Leak).expect("a leak");
    assert_eq!(leak.site.map(|frame| words::site_name(&snapshot, frame)).as_deref(), Some("model.py:5"));
    assert_eq!(leak.module.map(|module| devices[0].modules.path(module)), Some("Net.fc"));
    assert!(leak.caveats.iter().any(|caveat| caveat.contains("by its module")), "{:?}", leak.caveats);
    assert!(leak.evidence.iter().any(|(name, _)| *name == "module"));
}

#[test]
fn gradients_of_a_step_that_was_skipped_are_gradients_all_the_same() {
    // A loss scaler skips the optimizer's second step, so its gradients are not examined.
    let text = "+w 3MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
         in backward Net.fc
         +g 3MiB -
         in
         see parameter fc.weight w
         see gradient fc.weight g
         mark
         -g
         in backward Net.fc
         +h 3MiB -
         in
         +x 1MiB train.py:9 <module>
         mark
         -h
         see parameter fc.weight w
         +y 1MiB train.py:9 <module>";
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let model = RunModel::new(&devices[0]);
    let second =
        devices[0].history.allocations.iter().rposition(|allocation| allocation.requested == Bytes(3 * MIB));
    assert_eq!(model.categories.of(second.expect("a block")), Category::Gradient);
}

#[test]
fn what_is_computed_again_in_backward_is_an_activation() {
    let text = "+w 3MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
         repeat 4
           in forward Net.fc
           +a 4MiB train.py:10 <module> > model.py:5 forward > torch/nn/modules/linear.py:134 forward
           in backward Net.fc
           +again 9MiB train.py:11 <module> > torch/_tensor.py:600 backward > model.py:5 forward > torch/nn/modules/linear.py:134 forward
           +g 3MiB -
           -again
           -a
           in
           see gradient fc.weight g
           mark
         end";
    check_most(text, &[(Category::Activation, 13), (Category::Gradient, 6), (Category::Unknown, 0)]);
}

#[test]
fn a_number_stands_for_a_module_of_the_recording() {
    let text = "in forward 1
         +a 4MiB model.py:5 forward
         in forward 7
         +b 2MiB model.py:6 forward";
    let (snapshot, mut recording) = recorded(text);
    recording.modules = vec!["Net".to_owned(), "Net.fc".to_owned()];
    let devices = recorded_devices(&snapshot, &recording);
    let paths = [0, 1].map(|row| devices[0].module_of(row).map(|module| devices[0].modules.path(module)));
    assert_eq!(paths, [Some("Net.fc"), None], "a number that stands for nothing is no module");
}

#[test]
fn a_backward_that_was_not_followed_is_like_that_of_a_step_with_the_same_requests() {
    let step = |size: &str, place: &str| {
        format!(
            "in forward Net.fc
             +a {size} train.py:10 <module> > model.py:5 forward
             in {place}
             +g 3MiB -
             -a
             in
             mark
             -g\n"
        )
    };
    let known = "backward Net.fc";
    // The last one has no end; the fourth makes another request.
    let text = [
        step("4MiB", known),
        step("4MiB", known),
        step("4MiB", "backward"),
        step("5MiB", "backward"),
        step("4MiB", "backward").replace("mark", ""),
    ];
    let (snapshot, recording) = recorded(&text.concat());
    let devices = recorded_devices(&snapshot, &recording);
    let gradients =
        devices[0].history.allocations.iter().filter(|allocation| allocation.requested == Bytes(3 * MIB));
    let modules: Vec<Option<&str>> = gradients
        .map(|allocation| {
            devices[0].scope_of(allocation).module.map(|module| devices[0].modules.path(module))
        })
        .collect();
    assert_eq!(modules, [Some("Net.fc"), Some("Net.fc"), Some("Net.fc"), None, Some("Net.fc")]);
}

/// Numbers that no recorder writes.
#[test]
fn hostile_notes_change_nothing_but_the_answer() {
    let (snapshot, good) = recorded(TRAINING);
    for count in [0, 1, 7, u64::MAX] {
        for set in [0, 1, usize::MAX] {
            let mut recording = good.clone();
            recording.allocations = AllocationCounts(vec![(0, count), (0, 3), (9, u64::MAX)]);
            recording.labels.marks.push(LabelMark { allocations: AllocationCounts(vec![(0, count)]), set });
            recording.labels.sets[0].push(Placed { tensor: 99, device: 0, addr: 1 << 44, bytes: 1 });
            recording.labels.sets[0].push(Placed { tensor: 0, device: 7, addr: u64::MAX, bytes: u64::MAX });
            recording.labels.tensors.push(LabeledTensor {
                label: Label::Optimizer,
                name: "..".repeat(4000),
                root: ".".into(),
            });
            let process = Process { pid: 1, bytes: Bytes(count), name: "\u{1b}[2J".to_owned() };
            let limit = Some(Bytes(count));
            recording.shortage = Some(Shortage { limit, others: vec![process; 2], ..Shortage::default() });
            recording.marks.iter_mut().for_each(|mark| mark.time_us = i64::MIN);
            let devices = recorded_devices(&snapshot, &recording);
            let model = RunModel::new(&devices[0]);
            let live = model.live_at(devices[0].history.len(), Key::Module { most: 1 });
            assert_eq!(live.bytes, devices[0].history.end.allocated);
            findings(&model);
            model.labelled();
        }
    }
}

/// A thousand tensors at five thousand marks are a matter of milliseconds; a search for each would take
/// minutes.
#[test]
fn many_marks_are_applied_in_one_pass() {
    let mut text = String::new();
    for block in 0..1000 {
        text.push_str(&format!("+w{block} 1KiB train.py:2 <module>\n"));
    }
    for block in 0..1000 {
        text.push_str(&format!("see parameter p{block} w{block}\n"));
    }
    let (snapshot, mut recording) = recorded(&text);
    let mark = recording.labels.marks[0].clone();
    recording.labels.marks = vec![mark; 5000];
    let devices = recorded_devices(&snapshot, &recording);
    let named = RunModel::new(&devices[0]).labelled();
    assert_eq!(named[Label::Parameter as usize].most, Bytes(1000 << 10));
}
