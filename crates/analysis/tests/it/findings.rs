//! Spikes, categories and comparisons, on traces drawn by hand.

use crate::common::trace;
use analysis::{
    Category, DeviceSummary, Finding, FindingChange, FindingKind, RunModel, changes, devices,
    finding_changes, findings, skew, words,
};
use snapshot::Bytes;

fn summary(text: &str) -> DeviceSummary {
    let snapshot = trace(text);
    let devices = devices(&snapshot);
    let model = RunModel::new(&devices[0]);
    DeviceSummary::new("trace", &model, &findings(&model))
}

/// The finding of a kind, with the place it names.
fn finding(text: &str, kind: FindingKind) -> Option<(Finding, String)> {
    let snapshot = trace(text);
    let devices = devices(&snapshot);
    let model = RunModel::new(&devices[0]);
    let found = findings(&model).into_iter().find(|finding| finding.kind == kind)?;
    let place = found.site.map_or("-".to_owned(), |frame| words::site_name(&snapshot, frame));
    Some((found, place))
}

const MIB: u64 = 1 << 20;

#[test]
fn an_evaluation_that_only_some_steps_run_is_a_spike_at_its_line() {
    let text = "repeat 4
       repeat 4
         +x 4MiB train.py:9 <module>
         +h 64MiB train.py:10 <module>
         -h
       end
       +logits 300MiB train.py:12 <module> > train.py:4 evaluate
       +probs 200MiB train.py:12 <module> > train.py:5 evaluate
       -logits
       -probs
     end";
    let (spike, place) = finding(text, FindingKind::Spike).expect("a spike");
    assert_eq!(place, "train.py:4");
    assert_eq!(spike.bytes, Bytes(436 * MIB), "{}", spike.summary);
    assert!(spike.summary.contains("in 4 of 16 steps"), "{}", spike.summary);
}

/// Training, and an evaluation that keeps the outputs of ten batches of a model before it joins them.
fn collects(output: &str, ends: &str) -> String {
    let kept: String =
        (0..10).map(|batch| format!("+out{batch} 40MiB {output}\n+m 4MiB {output}\n-m\n")).collect();
    let freed: String = (0..10).map(|batch| format!("{ends}\n-out{batch}\n")).collect();
    let train = "+x 4MiB train.py:9 <module>\n+h 64MiB train.py:10 <module> > model.py:3 forward\n-x\n-h\n";
    format!("repeat 4\nrepeat 12\n{train}end\n{kept}+joined 400MiB train.py:14 <module>\n{freed}-joined\nend")
}

#[test]
fn results_that_pile_up_are_to_be_reduced_before_they_are_kept() {
    let at_once = |output: &str| finding(&collects(output, ""), FindingKind::Spike).expect("a spike").0;
    let advice = "train.py:12 makes 10 results that stay until the peak: reduce each before it is kept";
    let own_line = at_once("train.py:12 <module>");
    assert!(own_line.fix.starts_with(advice), "{}", own_line.fix);
    // Gradients between the frees show that these are the activations of one pass.
    let graph = collects("train.py:12 <module>", "+grad 40MiB train.py:13 <module>\n-grad");
    let (graph, _) = finding(&graph, FindingKind::Spike).expect("a spike");
    assert!(!graph.fix.contains("reduce each before it is kept"), "{}", graph.fix);
}

/// A step whose forward pass goes through a library, then a request of 2 GiB that fails.
fn fails_in(library: &str) -> String {
    format!(
        "+w 512MiB train.py:3 <module>
         repeat 6
           +x 4MiB train.py:9 <module>
           +a 700MiB train.py:10 <module> > {library}
           +b 300MiB train.py:10 <module> > {library}
           +l 1MiB train.py:10 <module>
           +g 512MiB train.py:11 <module> > torch/_tensor.py:600 backward
           -a
           -b
           -g
         end
         +a 700MiB train.py:10 <module> > {library}
         +b 300MiB train.py:10 <module> > {library}
         !c 2GiB train.py:10 <module> > {library}"
    )
}

#[test]
fn a_failed_allocation_names_the_setting_of_the_library_that_has_the_memory() {
    let scores = "transformers/models/llama/modeling_llama.py:180 eager_attention_forward";
    let (oom, _) = finding(&fails_in(scores), FindingKind::Oom).expect("an oom");
    assert!(oom.fix.starts_with("load the model with `attn_implementation=\"sdpa\"`"), "{}", oom.fix);
    // 3,048 MiB of 3,565 with the request that failed.
    assert!(
        oom.details[0].starts_with("85% of what was in use or asked for (2.98 GiB) came from"),
        "{}",
        oom.details[0]
    );
    // Of functions inside each other the innermost counts.
    let inside = format!("transformers/trainer.py:2000 training_step > {scores}");
    let (oom, _) = finding(&fails_in(&inside), FindingKind::Oom).expect("an oom");
    assert!(oom.fix.contains("attn_implementation"), "{}", oom.fix);
}

const MODULE: &str = "torch/nn/modules/module.py:1790 _call_impl";
const COMPILED: &str = "torch/_functorch/_aot_autograd/runtime_wrappers.py";

#[test]
fn settings_of_deepspeed_and_of_compiled_models_are_named() {
    let zero = "deepspeed/runtime/zero/stage_1_and_2.py";
    for (frames, setting) in [
        (format!("deepspeed/runtime/engine.py:1935 _configure_zero_optimizer > {zero}:480 __init__"), "cpu"),
        (format!("{zero}:2000 reduce_gradients > {zero}:3266 setup_buckets"), "reduce_bucket_size"),
        (format!("{MODULE} > {COMPILED}:2503 forward"), "activation_memory_budget"),
    ] {
        let (oom, _) = finding(&fails_in(&frames), FindingKind::Oom).expect("an oom");
        let first = oom.fix.split(" Otherwise: ").next().unwrap_or_default();
        assert!(first.contains(setting), "{frames}: {}", oom.fix);
    }
    // Without `backward()` a compiled model saves nothing.
    let frames = format!("{MODULE} > {COMPILED}:566 runtime_wrapper");
    let (oom, _) = finding(&fails_in(&frames), FindingKind::Oom).expect("an oom");
    assert!(!oom.fix.contains("activation_memory_budget"), "{}", oom.fix);
}

#[test]
fn a_step_that_does_something_else_is_not_compared_with_the_one_before() {
    let text = "+w 512MiB train.py:3 <module>
       repeat 6
         +x 4MiB train.py:9 <module>
         +a 700MiB train.py:10 <module>
         +l 1MiB train.py:10 <module>
         -a
       end
       +x 4MiB train.py:9 <module>
       +a 700MiB train.py:10 <module>
       !c 16GiB train.py:12 <module>";
    let (oom, _) = finding(text, FindingKind::Oom).expect("an oom");
    assert!(oom.details.iter().all(|detail| !detail.contains("the previous step")), "{:?}", oom.details);
}

#[test]
fn a_setting_is_named_only_for_the_category_and_the_package_that_it_changes() {
    for frame in [
        "llama/modeling.py:180 eager_attention_forward", // somebody else's package
        "transformers/models/llama/modeling_llama.py:180 rotate_half",
        "timm/utils/metrics.py:20 accuracy",
    ] {
        let (oom, _) = finding(&fails_in(frame), FindingKind::Oom).expect("an oom");
        assert!(!oom.details[0].contains("came from"), "{frame}: {}", oom.details[0]);
    }
}

#[test]
fn a_leak_that_was_freed_before_an_allocation_failed_is_not_the_reason() {
    let frees: String = (0..12).map(|block| format!("-h{block}\n")).collect();
    let text = |frees: &str| {
        format!(
            "repeat 12
               +x 4MiB train.py:9 <module>
               +h* 512MiB train.py:10 <module>
               +l 1MiB train.py:11 <module>
             end
             {frees}
             !c 14GiB train.py:20 <module>"
        )
    };
    let (held, _) = finding(&text(""), FindingKind::Oom).expect("an oom");
    assert!(held.fix.starts_with("stop the leak"), "{}", held.fix);
    let (freed, _) = finding(&text(&frees), FindingKind::Oom).expect("an oom");
    assert!(!freed.fix.contains("leak"), "{}", freed.fix);
    assert!(freed.details.iter().all(|detail| !detail.contains("accumulated")), "{:?}", freed.details);
}

#[test]
fn what_ends_the_run_first_comes_first() {
    let text = "+m 64MiB train.py:3 <module>
     repeat 4
       repeat 4
         +x 4MiB train.py:9 <module>
         +h 64MiB train.py:10 <module>
         -h
         +kept 1MiB train.py:11 <module>
         keep kept
       end
       +logits 900MiB train.py:13 <module> > train.py:5 evaluate
       -logits
     end";
    let snapshot = trace(text);
    let devices = devices(&snapshot);
    let found = findings(&RunModel::new(&devices[0]));
    let spike = found.iter().find(|finding| finding.kind == FindingKind::Spike).expect("a spike");
    assert_eq!(found[0].kind, FindingKind::Leak);
    assert!(found[0].steps_until_full.is_some_and(|steps| steps < 10_000));
    assert!(spike.severity == found[0].severity && spike.bytes > found[0].bytes);
}

#[test]
fn a_level_that_rises_once_and_stays_is_no_spike() {
    let text = "repeat 14
         +x 4MiB train.py:9 <module>
         +h 64MiB train.py:10 <module>
         -h
       end
       repeat 6
         +x 4MiB train.py:9 <module>
         +h 256MiB train.py:10 <module>
         -h
       end";
    assert_eq!(finding(text, FindingKind::Spike), None);
}

#[test]
fn a_leak_is_not_a_spike_as_well() {
    let text = "repeat 20
         +x 4MiB train.py:9 <module>
         +kept* 64MiB train.py:10 <module>
       end";
    assert_eq!(finding(text, FindingKind::Spike), None);
}

/// A training loop with two parameters, their gradients, Adam's state and activations.
const TRAINING: &str = "+w1 3MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
     +w2 5MiB train.py:2 <module> > torch/nn/modules/module.py:900 _apply
     repeat 8
       +x 7MiB train.py:9 <module>
       +a 11MiB train.py:10 <module> > torch/nn/modules/linear.py:134 forward
       +b 13MiB train.py:10 <module> > torch/nn/modules/linear.py:134 forward
       +one 4B train.py:11 <module> > torch/_tensor.py:600 backward
       +g2 5MiB -
       -b
       +t 11MiB -
       +g1 3MiB -
       -a
       -t
       +m1 3MiB train.py:12 <module> > torch/optim/adam.py:178 _init_group
       +v1 3MiB train.py:12 <module> > torch/optim/adam.py:182 _init_group
       +m2 5MiB train.py:12 <module> > torch/optim/adam.py:178 _init_group
       +v2 5MiB train.py:12 <module> > torch/optim/adam.py:182 _init_group
     end";

#[test]
fn parameters_gradients_and_optimizer_state_pair_up() {
    let summary = summary(TRAINING);
    for (category, expected) in [
        (Category::Parameter, 8),
        (Category::Gradient, 8),
        (Category::Optimizer, 16),
        (Category::Activation, 24),
        (Category::Input, 7),
    ] {
        // A name is bound to the new block before the old one goes: at most one block more.
        let found = summary.most.get(category).0 / MIB;
        assert!((expected..=expected + 13).contains(&found), "{}: {found} MiB", category.name());
    }
    assert_eq!(summary.at_peak.0.iter().copied().sum::<Bytes>(), summary.allocated.0);
}

#[test]
fn a_line_that_has_moved_is_still_the_same_line() {
    let before = summary(
        "+a 4MiB train.py:9 make > model.py:3 forward
                           +b 8MiB train.py:9 make > model.py:7 forward",
    );
    let after = summary(
        "+a 4MiB train.py:11 make > model.py:5 forward
                          +b 2MiB train.py:11 make > model.py:9 forward",
    );
    let changes = changes(&before.sites, &after.sites);
    assert_eq!(changes.len(), 1, "{changes:?}");
    let site = changes[0].site.as_ref().expect("a site");
    assert_eq!(
        (site.short().as_str(), changes[0].moved_from, changes[0].by()),
        ("model.py:9", Some(7), -6 * MIB as i64)
    );
}

#[test]
fn a_line_that_has_moved_to_the_number_of_another_is_not_taken_for_it() {
    let before = summary("+a 4MiB train.py:17 make\n+b 8MiB train.py:19 make");
    let after = summary("+a 4MiB train.py:19 make\n+b 9MiB train.py:21 make");
    let changes = changes(&before.sites, &after.sites);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!((changes[0].moved_from, changes[0].by()), (Some(19), MIB as i64));
}

#[test]
fn another_function_is_another_line() {
    let before = summary("+a 4MiB train.py:9 make");
    let after = summary("+a 4MiB train.py:9 build");
    assert_eq!(changes(&before.sites, &after.sites).len(), 2);
}

#[test]
fn a_leak_that_is_fixed_has_gone_away_and_one_that_moved_has_stayed() {
    let leak = |line: u32| {
        summary(&format!(
            "repeat 12
               +x 4MiB train.py:9 <module>
               +kept* 64MiB train.py:{line} <module>
             end"
        ))
    };
    let clean = summary(
        "repeat 12
               +x 4MiB train.py:9 <module>
               +h 64MiB train.py:10 <module>
             end",
    );
    let of_leaks = |a: &DeviceSummary, b: &DeviceSummary| -> Vec<FindingChange> {
        finding_changes(&a.findings, &b.findings)
            .iter()
            .filter(|found| found.1.kind == FindingKind::Leak)
            .map(|found| found.0)
            .collect()
    };
    assert_eq!(of_leaks(&leak(10), &clean), [FindingChange::Gone]);
    assert_eq!(of_leaks(&clean, &leak(10)), [FindingChange::Appeared]);
    assert_eq!(of_leaks(&leak(10), &leak(14)), [FindingChange::Stayed]);
}

#[test]
fn the_rank_that_peaks_is_held_against_the_middle_one() {
    let even = "+a 100MiB train.py:9 <module>";
    let odd = "+a 100MiB train.py:9 <module>
               +gathered 60MiB train.py:14 gather";
    let ranks = [summary(even), summary(odd), summary(even)];
    let skew = skew(&ranks).expect("three ranks");
    assert_eq!((skew.highest, ranks[skew.middle].allocated.0), (1, Bytes(100 * MIB)));
    assert_eq!(skew.changes.len(), 1);
    assert_eq!(skew.changes[0].site.as_ref().map(|site| site.line), Some(14));
    assert_eq!(skew.changes[0].by(), 60 * MIB as i64);
}
