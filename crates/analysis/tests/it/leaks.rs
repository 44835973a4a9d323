//! What is a leak and what is not, on traces drawn by hand.

use crate::common::{recorded, trace};
use analysis::{FindingKind, RunModel, devices, findings, recorded_devices, words};

/// Every leak as `severity line: bytes per step`.
fn leaks(text: &str) -> Vec<String> {
    of_kind(text, FindingKind::Leak)
}

/// Every finding of a kind as `severity line: bytes per step`.
fn of_kind(text: &str, kind: FindingKind) -> Vec<String> {
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let model = RunModel::new(&devices[0]);
    findings(&model)
        .iter()
        .filter(|finding| finding.kind == kind)
        .map(|finding| {
            let line = finding.site.map_or("-".to_owned(), |frame| words::site_name(&snapshot, frame));
            let pace = finding.bytes_per_step.map_or(0, |bytes| bytes.0);
            format!("{} {line}: {pace}", finding.severity.name())
        })
        .collect()
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(leaks(text), expected);
}

#[test]
fn growth_on_every_step_is_a_leak() {
    check(
        "repeat 12
           +x 4MiB train.py:9 <module>
           +kept* 64MiB train.py:10 <module>
         end",
        &["high train.py:10: 67108864"],
    );
}

#[test]
fn what_is_there_before_the_loop_is_no_leak() {
    check(
        "repeat 20
           +w* 4MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
         end
         repeat 12
           +x 4MiB train.py:9 <module>
           +h 64MiB train.py:10 <module>
         end",
        &[],
    );
}

#[test]
fn a_leak_every_third_step_is_counted_per_step() {
    check(
        "repeat 8
           +x 4MiB train.py:9 <module>
           +h 8MiB train.py:10 <module>
           +x 4MiB train.py:9 <module>
           +h 8MiB train.py:10 <module>
           +x 4MiB train.py:9 <module>
           +h 8MiB train.py:10 <module>
           +log* 3MiB train.py:12 <module>
         end",
        &["high train.py:12: 1048576"],
    );
}

#[test]
fn a_leak_that_begins_late_is_found() {
    check(
        "repeat 20
           +x 4MiB train.py:9 <module>
           +h 8MiB train.py:10 <module>
         end
         repeat 15
           +x 4MiB train.py:9 <module>
           +kept* 2MiB train.py:10 <module>
         end",
        &["high train.py:10: 2097152"],
    );
}

#[test]
fn a_tiny_leak_amid_gigabytes_of_churn_is_low() {
    check(
        "repeat 20
           +x 1GiB train.py:9 <module>
           +h 2GiB train.py:10 <module>
           +loss* 4B train.py:11 <module>
         end",
        &["low train.py:11: 512"],
    );
}

#[test]
fn lazy_optimizer_state_is_no_leak_however_late_it_comes() {
    for late in [1, 4, 9] {
        check(
            &format!(
                "+w1 4MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
                 +w2 8MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
                 repeat {late}
                   +x 4MiB train.py:9 <module>
                   +h 64MiB train.py:10 <module>
                 end
                 +m1 4MiB train.py:12 <module> > torch/optim/sgd.py:100 step
                 +m2 8MiB train.py:12 <module> > torch/optim/sgd.py:100 step
                 repeat 12
                   +x 4MiB train.py:9 <module>
                   +h 64MiB train.py:10 <module>
                 end"
            ),
            &[],
        );
    }
}

#[test]
fn a_queue_of_fixed_length_is_no_leak() {
    check(
        "repeat 30
           +x 4MiB train.py:9 <module>
           +out* 8MiB train.py:10 <module>
           -out*-6
         end",
        &[],
    );
}

#[test]
fn what_fills_and_empties_is_no_leak() {
    let epoch = "repeat 8
           +x 4MiB train.py:9 <module>
           +out* 8MiB train.py:10 <module>
         end
         -out0
         -out1
         -out2
         -out3
         -out4
         -out5
         -out6
         -out7\n";
    check(&epoch.repeat(4), &[]);
}

#[test]
fn growth_that_has_stopped_is_no_leak() {
    let text = "repeat 12
           +x 4MiB train.py:9 <module>
           +cache* 8MiB train.py:10 <module>
         end
         repeat 20
           +x 4MiB train.py:9 <module>
           +h 8MiB train.py:10 <module>
         end";
    check(text, &[]);
    assert_eq!(of_kind(text, FindingKind::RetainedGrowth), ["low train.py:10: 8388608"]);
}

#[test]
fn three_rises_in_eight_steps_are_no_trend() {
    let step = |kept: &str| format!("+x 4MiB train.py:9 <module>\n{kept}");
    let kept =
        |number: u32| format!("+k{number} 256KiB train.py:10 <module>\n-t\n+t 1MiB train.py:11 <module>\n");
    let plain = "+p 256KiB train.py:10 <module>\n-p\n-t\n+t 1MiB train.py:11 <module>\n";
    let steps = [plain.to_owned(), plain.to_owned(), kept(0), plain.to_owned(), kept(1), kept(2)];
    let text: String =
        steps.iter().chain([&plain.to_owned(), &plain.to_owned()]).map(|kept| step(kept)).collect();
    check(&text, &[]);
}

#[test]
fn the_last_state_of_each_request_is_a_leak_although_the_others_are_freed() {
    // Four steps of a request replace its cache; the last one is stored.
    let request = "
         repeat 1
           +x 1MiB serve.py:9 <module>
           +a 4MiB serve.py:10 <module>
           +x 1MiB serve.py:9 <module>
           +b 4MiB serve.py:10 <module>
           +x 1MiB serve.py:9 <module>
           -a
           +a 4MiB serve.py:10 <module>
           +x 1MiB serve.py:9 <module>
           -b
           +kept* 4MiB serve.py:10 <module>
           -a
         end
";
    let text: String = (0..12).map(|number| request.replace("kept*", &format!("kept{number}x"))).collect();
    let found = leaks(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("serve.py:10"), "{found:?}");
}

#[test]
fn steps_that_need_more_each_time_are_a_rising_peak_and_no_leak() {
    let text: String = (0..20)
        .map(|step| {
            format!(
                "+x 1MiB train.py:9 <module>\n+h {}MiB train.py:10 <module>\n-h\n+g 1MiB train.py:11 <module>\n",
                64 + 4 * step
            )
        })
        .collect();
    check(&text, &[]);
    let found = of_kind(&text, FindingKind::RisingPeak);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("train.py:10: 4194304"), "{found:?}");
}

#[test]
fn steps_that_need_more_now_and_less_then_are_no_rising_peak() {
    let text: String = (0..20)
        .map(|step| {
            format!(
                "+x 1MiB train.py:9 <module>\n+h {}MiB train.py:10 <module>\n-h\n+g 1MiB train.py:11 <module>\n",
                64 + 4 * (step * 7 % 20)
            )
        })
        .collect();
    assert_eq!(of_kind(&text, FindingKind::RisingPeak), [""; 0]);
}

#[test]
fn what_is_kept_of_a_line_that_also_makes_the_batch_is_a_leak() {
    check(
        "repeat 12
           +x 8MiB train.py:9 <module>
           +y* 64KiB train.py:9 <module>
           +h 16MiB train.py:10 <module>
           -h
         end",
        &["medium train.py:9: 65536"],
    );
    // Batches of the same few sizes, one at a time.
    check(
        "repeat 6
           +x 8MiB train.py:9 <module>
           +h 16MiB train.py:10 <module>
           -h
           +x 9MiB train.py:9 <module>
           +h 16MiB train.py:10 <module>
           -h
         end",
        &[],
    );
}

#[test]
fn one_tensor_that_becomes_larger_each_step_is_a_leak() {
    check(
        "repeat 1
           +x 1MiB train.py:9 <module>
           +all 10MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 20MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 30MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 40MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 50MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 60MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 70MiB train.py:10 <module>
           +x 1MiB train.py:9 <module>
           +all 80MiB train.py:10 <module>
         end",
        &["high train.py:10: 10485760"],
    );
}

#[test]
fn lines_that_are_kept_together_are_one_leak_and_the_largest_is_named() {
    check(
        "repeat 12
           +x* 4MiB train.py:9 <module>
           +h* 32MiB train.py:10 <module>
           +y 2MiB train.py:11 <module>
         end",
        &["high train.py:10: 37748736"],
    );
}

#[test]
fn what_backward_leaves_behind_is_named_by_its_call() {
    check(
        "+w 4MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
         repeat 12
           +x 2MiB train.py:9 <module>
           +h 8MiB train.py:10 <module> > torch/nn/modules/linear.py:134 forward
           +one 4B train.py:11 <module> > torch/_tensor.py:600 backward
           +t 6MiB -
           +grad* 3MiB -
           -t
         end",
        &["high train.py:11: 3145728"],
    );
}

#[test]
fn a_new_parameter_is_named_before_the_state_that_follows_from_it() {
    check(
        "+w 4MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
         repeat 12
           +x 2MiB train.py:9 <module>
           +p* 4MiB train.py:10 <module>
           +m* 4MiB train.py:12 <module> > torch/optim/adam.py:178 _init_group
           +v* 4MiB train.py:12 <module> > torch/optim/adam.py:182 _init_group
         end",
        &["high train.py:10: 12582912"],
    );
}

#[test]
fn a_few_steps_are_not_enough_to_tell() {
    check(
        "repeat 4
           +x 4MiB train.py:9 <module>
           +kept* 64MiB train.py:10 <module>
         end",
        &[],
    );
}

#[test]
fn the_fix_fits_what_is_kept() {
    let fix = |text: &str| {
        let snapshot = trace(text);
        let devices = devices(&snapshot);
        let model = RunModel::new(&devices[0]);
        let leak = findings(&model).into_iter().find(|finding| finding.kind == FindingKind::Leak);
        leak.expect("a leak").fix
    };
    let scalar = fix("repeat 12
           +x 4MiB train.py:9 <module>
           +loss* 4B train.py:10 <module>
         end");
    assert!(scalar.contains(".item()"), "{scalar}");
    let tensors = fix("repeat 12
           +x 4MiB train.py:9 <module>
           +out* 4MiB train.py:10 <module>
         end");
    assert!(tensors.contains("`.detach()` does not help"), "{tensors}");
    let graph = fix("repeat 12
           +x 4MiB train.py:9 <module>
           +a* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:134 forward
           +b* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:135 forward
           +c* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:136 forward
           +d* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:137 forward
           +e* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:138 forward
           +f* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:139 forward
           +g* 4MiB train.py:10 <module> > torch/nn/modules/linear.py:140 forward
         end");
    assert!(graph.contains("inference_mode"), "{graph}");
}

#[test]
fn one_block_that_is_far_larger_than_the_rest_is_not_part_of_the_growth() {
    // The workspace of a thread's cuBLAS handle, and the result of every request.
    check(
        "repeat 2
           +x 1MiB serve.py:8 <module>
           +y 1MiB serve.py:10 <module>
         end
         repeat 1
           +x 1MiB serve.py:8 <module>
           +handle 100MiB serve.py:9 <module>
           +y 1MiB serve.py:10 <module>
         end
         repeat 30
           +x 1MiB serve.py:8 <module>
           +kept* 1MiB serve.py:9 <module>
           +y 1MiB serve.py:10 <module>
         end",
        &["high serve.py:9: 1048576"],
    );
}

/// A queue of which each step takes one block, after what is put into it.
fn emptied_queue(put_before_each_step: impl Iterator<Item = usize>) -> String {
    let (mut text, mut made) = (String::new(), 0);
    for (step, put) in put_before_each_step.enumerate() {
        for item in made..made + put {
            text += &format!("+item{item} 1MiB lib/threading.py:1002 _bootstrap > feed.py:8 load\n");
        }
        made += put;
        text += &format!("+x 4MiB train.py:9 <module>\n-item{step}\nmark\n");
    }
    text
}

#[test]
fn a_queue_that_is_filled_in_bursts_is_a_leak() {
    let bursts = (0..64).map(|step| if step % 8 == 0 { 16 } else { 0 });
    // 1 MiB, and 4% for where the bursts lie.
    check(&emptied_queue(bursts), &["high feed.py:8: 1092267"]);
}

#[test]
fn a_queue_that_a_thread_stops_filling_near_the_end_is_a_leak() {
    let late = (0..64).map(|step| if step < 52 { 2 } else { 0 });
    check(&emptied_queue(late), &["high feed.py:8: 1048576"]);
}

#[test]
fn a_queue_with_a_limit_that_is_filled_in_bursts_is_no_leak() {
    let mut level = 0;
    let bursts = (0..64).map(|step| {
        let put = if step % 4 == 0 { (45 - level).min(8) } else { 0 };
        level = level + put - 1;
        put
    });
    check(&emptied_queue(bursts), &[]);
}

/// A run of two seconds without steps, in which a queue gets longer.
fn queue(thread: &str) -> String {
    let put = |name: usize| format!("+item{name} 1MiB {thread} > feed.py:8 produce\nwait 10\n");
    (0..200).map(put).collect()
}

#[test]
fn what_another_thread_piles_up_without_steps_is_a_leak_per_second() {
    let text = queue("threading.py:1002 _bootstrap > threading.py:1045 _bootstrap_inner");
    let snapshot = trace(&text.replace("threading.py", "lib/threading.py"));
    let devices = devices(&snapshot);
    let found = findings(&RunModel::new(&devices[0]));
    let leak = found.iter().find(|finding| finding.kind == FindingKind::Leak).expect("a leak");
    // The segment is reserved a second before the first block.
    let expected = "99.6 MiB per second in another thread, for 3 seconds, still growing";
    assert_eq!(leak.summary, expected);
    assert!(leak.bytes_per_step.is_none() && leak.steps_until_full.is_none());
}

#[test]
fn what_the_main_thread_loads_without_steps_is_no_leak() {
    check(&queue("load.py:3 <module>"), &[]);
}
