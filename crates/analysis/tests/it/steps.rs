//! Where steps are found, on traces drawn by hand.

use crate::common::trace;
use analysis::devices;

#[track_caller]
fn check(text: &str, expected: usize) {
    let snapshot = trace(text);
    assert_eq!(devices(&snapshot)[0].steps.count(), expected);
}

#[test]
fn a_loop_over_two_lines_has_as_many_steps_as_iterations() {
    check(
        "+w 4MiB train.py:2 <module>
         repeat 9
           +x 4MiB train.py:9 <module>
           +h 64MiB train.py:10 <module>
         end",
        9,
    );
}

#[test]
fn a_loop_in_a_function_is_found_under_its_callers() {
    check(
        "repeat 9
           +x 4MiB train.py:30 <module> > train.py:20 main > data.py:4 batch
           +h 64MiB train.py:30 <module> > train.py:21 main > model.py:9 forward
         end",
        9,
    );
}

#[test]
fn steps_are_the_inner_loop_of_epochs() {
    check(
        "repeat 3
           repeat 8
             +x 4MiB train.py:9 <module>
             +h 64MiB train.py:10 <module>
             +t 1MiB train.py:11 <module> > torch/optim/adam.py:791 step
             -t
           end
           +v 9MiB train.py:14 <module>
         end",
        24,
    );
}

#[test]
fn micro_batches_between_optimizer_steps_are_one_step() {
    check(
        "repeat 6
           repeat 4
             +x 4MiB train.py:9 <module>
             +h 64MiB train.py:10 <module>
           end
           +t 1MiB train.py:12 <module> > torch/optim/adam.py:791 step
           -t
         end",
        6,
    );
}

#[test]
fn two_optimizers_in_turn_are_one_step() {
    check(
        "repeat 10
           +real 4MiB gan.py:9 <module>
           +d 64MiB gan.py:10 <module>
           +t 1MiB gan.py:11 <module> > torch/optim/adam.py:791 step
           +g 32MiB gan.py:13 <module>
           +u 1MiB gan.py:14 <module> > torch/optim/adam.py:791 step
           -t
           -u
         end",
        10,
    );
}

#[test]
fn evaluation_every_few_steps_does_not_change_the_count() {
    check(
        "repeat 5
           repeat 4
             +x 4MiB train.py:9 <module>
             +h 64MiB train.py:10 <module>
             +t 1MiB train.py:11 <module> > torch/optim/adam.py:791 step
             -t
           end
           repeat 3
             +x 4MiB train.py:14 <module> > train.py:4 evaluate
             +logits 99MiB train.py:14 <module> > train.py:5 evaluate
           end
         end",
        20,
    );
}

#[test]
fn steps_that_a_loss_scaler_skips_are_counted() {
    check(
        "repeat 3
           +x 4MiB train.py:9 <module>
           +h 64MiB train.py:10 <module>
         end
         repeat 7
           +x 4MiB train.py:9 <module>
           +h 64MiB train.py:10 <module>
           +t 1MiB train.py:11 <module> > torch/optim/adam.py:791 step
           -t
         end",
        10,
    );
}

#[test]
fn loops_of_layers_inside_a_forward_pass_are_no_steps() {
    check(
        "repeat 7
           +x 4MiB train.py:30 <module>
           repeat 12
             +a* 1MiB train.py:31 <module> > model.py:8 forward
             +b* 1MiB train.py:31 <module> > model.py:9 forward
           end
         end",
        7,
    );
}

#[test]
fn a_loop_on_one_line_is_found_in_the_library_that_it_calls() {
    check(
        "repeat 11
           +a 4MiB train.py:9 <module> > torch/nn/modules/resnet.py:20 forward
           +b 4MiB train.py:9 <module> > torch/nn/modules/resnet.py:21 forward
         end",
        11,
    );
}

#[test]
fn what_another_thread_allocates_does_not_disturb_the_count() {
    check(
        "repeat 9
           +x 4MiB train.py:9 <module>
           +p* 1MiB loader.py:77 worker
           +h 64MiB train.py:10 <module>
           +q* 1MiB loader.py:78 worker
         end",
        9,
    );
}

#[test]
fn a_second_phase_has_steps_of_its_own() {
    check(
        "repeat 8
           +x 4MiB train.py:9 <module>
           +h 64MiB train.py:10 <module>
           +t 1MiB train.py:11 <module> > torch/optim/adam.py:791 step
           -t
         end
         repeat 30
           +y 4MiB train.py:20 <module>
           +z 8MiB train.py:21 <module>
           -z
         end",
        38,
    );
}

#[test]
fn a_program_without_a_loop_has_no_steps() {
    check(
        "+a 4MiB train.py:1 <module>
         +b 4MiB train.py:2 <module>
         +c 4MiB train.py:3 <module>
         +d 4MiB train.py:4 <module>",
        0,
    );
}
