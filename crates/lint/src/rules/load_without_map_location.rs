use crate::checked::Checked;
use crate::edit::{Applicability, Edit, Fix};
use crate::facts::{AbstractValue, CallFact, FunctionFacts};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::torch;
use crate::tree::{ExprKind, SourceRange, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM503",
    name: "load-without-map-location",
    summary: "`torch.load` restores a checkpoint's tensors to the GPU that they were saved from.",
    severity: RuleSeverity::Medium,
    why: "Without `map_location` the weights are on the GPU twice until the checkpoint is freed: those of
the model and those of the file (with the optimizer state, which is twice as large for Adam). With several
processes, all of them load onto the same GPU.",
    costs: "One checkpoint, until the last variable that holds it is gone. In a distributed program: one per
process, on GPU 0.",
    bad: "
model = Net().cuda()
model.load_state_dict(torch.load('model.pt'))
",
    good: "
model = Net().cuda()
model.load_state_dict(torch.load('model.pt', map_location='cpu'))
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    if !uses_gpu(checked) {
        return;
    }
    for (facts, call) in checked.calls() {
        // A call with hidden arguments may have one that maps.
        if !call.is("torch.load")
            || call.call.hides_arguments()
            || call.call.argument("map_location", 1).is_some()
            || call.call.args.is_empty()
            || runs_without_gpu(checked, facts, call.expr.range)
        {
            continue;
        }
        let Some(use_) = use_of(checked, facts, call) else { continue };
        let distributed = ["torch.distributed", "DistributedDataParallel", "local_rank"]
            .iter()
            .any(|word| checked.file.source.contains(word));
        let in_all = distributed && !is_guarded(checked, facts, call.expr.range);
        let (severity, message) = match (in_all, use_) {
            (true, _) => (
                RuleSeverity::Medium,
                "the tensors are restored to the GPU that they were saved from: the same one in every \
                 process of a distributed job",
            ),
            (false, Use::Stays) => (
                RuleSeverity::Medium,
                "the checkpoint's tensors are on the GPU in addition to the model's own, as long as its \
                 variable lives",
            ),
            (false, Use::Direct | Use::Brief) if !is_on_gpu(checked, facts, call) => continue,
            (false, Use::Direct | Use::Brief) => (
                RuleSeverity::Low,
                "while it loads, the checkpoint's tensors are on the GPU in addition to the model's own",
            ),
        };
        found.push(
            RULE.at(severity, call.expr.range, message.to_owned())
                .advise("`map_location=\"cpu\"`: `load_state_dict` copies to where the parameters are")
                .fix((use_ == Use::Direct && !assigns(facts, call)).then(|| fix(checked, call.expr.range))),
        );
    }
}

/// Returns whether a position is reached only without a GPU: in the `else` of `if use_cuda:`.
fn runs_without_gpu(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, load: SourceRange) -> bool {
    let mut without = false;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        let StmtKind::If(branches) = &stmt.kind else { return };
        let at = branches.iter().position(|(_, body)| body.iter().any(|stmt| stmt.range.contains(load)));
        let Some(at) = at else { return };
        for (place, (test, _)) in branches.iter().enumerate().take(at + 1) {
            let Some(test) = test else { continue };
            let text = checked.file.text(test.range).to_ascii_lowercase();
            let asks = text.contains("cuda") || text.contains("gpu");
            let negated = text.contains("not ") || text.contains("no_");
            without |= asks && (place == at) == negated;
        }
    });
    without
}

/// Returns whether only one process gets there: `if rank == 0:`, or after `if rank != 0: return`.
fn is_guarded(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, load: SourceRange) -> bool {
    let mut guarded = false;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        let StmtKind::If(branches) = &stmt.kind else { return };
        for (test, body) in branches {
            let Some(test) = test else { continue };
            let is_inside = body.iter().any(|stmt| stmt.range.contains(load));
            let is_after = stmt.range.end <= load.start
                && matches!(body.last().map(|last| &last.kind), Some(StmtKind::Return(_)));
            guarded |= match is_first_process(checked.file.text(test.range)) {
                Some(true) => is_inside,
                Some(false) => is_after,
                None => false,
            };
        }
    });
    guarded
}

/// Returns whether a condition holds in the first process only (true), or in all others (false).
fn is_first_process(test: &str) -> Option<bool> {
    let test = test.to_ascii_lowercase();
    let asks = ["is_main", "is_master", "is_first", "is_rank_zero", "is_rank0", "is_local_main"];
    if asks.iter().any(|word| test.contains(word)) {
        return Some(!test.contains("not "));
    }
    let compact: String = test.split_whitespace().collect();
    let compares = |sign: &str| {
        ["rank", "rank()", "local_rank"].iter().any(|name| compact.contains(&format!("{name}{sign}")))
    };
    match () {
        () if compares("==0") || compares("in[-1,0]") || compares("in(-1,0)") || compares("<1") => Some(true),
        () if compares("!=0") || compares(">0") => Some(false),
        () => None,
    }
}

/// Matches `load_state_dict(torch.load(path), assign=True)`, which takes the tensors themselves, wherever
/// they are.
fn assigns(facts: &FunctionFacts<'_, '_>, load: &CallFact<'_, '_>) -> bool {
    facts
        .calls
        .iter()
        .any(|call| call.expr.range.contains(load.expr.range) && call.call.keyword("assign").is_some())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// `model.load_state_dict(torch.load(path))`.
    Direct,
    /// `checkpoint = torch.load(path)`, in a function that returns soon.
    Brief,
    /// `checkpoint = torch.load(path)`, which exists until the end.
    Stays,
}

/// Returns how the checkpoint is used: only those that are loaded into a model, or saved again, matter.
fn use_of(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    load: &CallFact<'_, '_>,
) -> Option<Use> {
    let at = load.expr.range;
    let mut loads = loads_of(checked, facts, load).into_iter();
    if loads.any(|call| call.call.args.iter().any(|arg| arg.range.contains(at))) {
        return Some(Use::Direct);
    }
    let (name, bound) = facts.emptied.iter().find(|(_, bound)| {
        let text = checked.file.text(*bound);
        bound.contains(at) && text.contains('=') && bound.end == at.end
    })?;
    if loads_of(checked, facts, load).is_empty() && !is_saved_again(checked, facts, at) {
        return None;
    }
    let is_gone = facts.emptied.iter().any(|(other, place)| {
        let is_deleted = checked.file.text(*place).starts_with("del");
        let is_after = place.start > bound.end && !checked.are_exclusive(facts, *place, *bound);
        other == name && (is_deleted || is_after)
    });
    // In a separate function it is freed when that returns, unless the work is done in there.
    let works = !facts.backwards.is_empty()
        || facts.id == FunctionId::MODULE
        || facts.loops.iter().any(|found| found.counts && found.range.end > at.end)
        || facts.calls.iter().any(|call| call.expr.range.start > at.end && does_work(checked, call))
        || calls_loop(checked, facts, at);
    Some(if works && !is_gone { Use::Stays } else { Use::Brief })
}

/// Returns the calls that copy a checkpoint into a model: `load_state_dict`, or one with such a name.
fn loads_of<'x, 't, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &'x FunctionFacts<'t, 'a>,
    load: &CallFact<'t, 'a>,
) -> Vec<&'x CallFact<'t, 'a>> {
    let at = load.expr.range;
    let gives = |call: &CallFact<'t, 'a>| {
        let comes_from_it = |value: &AbstractValue<'a>| match value {
            AbstractValue::Checkpoint(loads) => loads.contains(&at),
            _ => false,
        };
        call.args.iter().any(comes_from_it) || call.call.args.iter().any(|arg| arg.range.contains(at))
    };
    let calls = facts.calls.iter().filter(|call| call.path.is_none() && !is_scheduler(checked, call));
    calls.filter(|call| callee(call).contains("load") && gives(call)).collect()
}

/// Returns the last part of the name of what is called.
fn callee<'a>(call: &CallFact<'_, 'a>) -> &'a str {
    match call.call.callee.kind {
        ExprKind::Name(name) | ExprKind::Attribute(_, name) => name,
        _ => "",
    }
}

/// Returns whether a call trains or tests a model that it is given: `train(model, loader)`.
fn does_work(checked: &Checked<'_, '_, '_>, call: &CallFact<'_, '_>) -> bool {
    const WORK: &[&str] = &["train", "training", "trainer", "fit", "run", "loop", "generate", "sample"];
    let name = callee(call);
    let reads_as_work = torch::reads_as_evaluation(name)
        || name.split('_').any(|word| WORK.contains(&word.to_ascii_lowercase().as_str()));
    let is_given = call
        .call
        .args
        .iter()
        .chain(call.call.keywords.iter().map(|of| &of.value))
        .any(|arg| checked.file.key(arg).is_some_and(|key| checked.file.is_module_name(key)));
    let has_model = is_given || call.args.contains(&AbstractValue::Model);
    reads_as_work && has_model && call.receiver != AbstractValue::Model
}

/// Returns whether a function of the file that is called after the load trains, or goes through batches.
fn calls_loop(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, load: SourceRange) -> bool {
    let calls = facts.local_calls.iter();
    let mut after = calls.filter(|call| call.range.is_some_and(|range| range.start > load.end));
    after.any(|call| {
        let callee = checked.facts.iter().find(|of| of.id == call.callee);
        callee.is_some_and(|of| {
            !of.forwards.is_empty()
                && (!of.backwards.is_empty() || of.loops.iter().any(|found| found.over_batches))
        })
    })
}

/// Matches `torch.save` of parts of a checkpoint that was just loaded.
fn is_saved_again(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, load: SourceRange) -> bool {
    facts.calls.iter().filter(|call| call.is("torch.save")).any(|call| {
        let is_state = |text: &str| text.contains("state_dict") || text.contains("optim");
        call.call.args.first().is_some_and(|saved| {
            call.expr.range.start > load.end
                && saved.any(&mut |part| match &part.kind {
                    ExprKind::Subscript(base, index) => {
                        let of_it = checked.file.key(base).is_some_and(|key| {
                            let bound = |(name, at): &(&str, SourceRange)| *name == key && at.contains(load);
                            facts.emptied.iter().any(bound)
                        });
                        of_it && index.text().is_some_and(is_state)
                    }
                    _ => false,
                })
        })
    })
}

/// Returns whether the model was moved to the GPU before loading: otherwise there is one copy at a time.
fn is_on_gpu<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    load: &CallFact<'t, 'a>,
) -> bool {
    let loads = loads_of(checked, facts, load);
    // What is saved again was trained here.
    if loads.is_empty() {
        return true;
    }
    let receivers = loads.iter().filter_map(|call| checked.file.key(call.call.method()?.0));
    let given = loads.iter().flat_map(|call| &call.call.args).filter_map(|arg| checked.file.key(arg));
    let mut models = receivers.chain(given.filter(|key| checked.file.is_module_name(key)));
    models.any(|model| {
        let place = (facts, load.expr.range);
        let others = checked.facts.iter().filter(|of| of.id != facts.id);
        is_moved(checked, facts, model, place)
            || has_run(checked, facts, model, load.expr.range)
            || !is_bound(checked, facts, model, load.expr.range)
                && !is_moved_after(checked, facts, model, load.expr.range)
                && others.into_iter().any(|of| is_moved(checked, of, model, place))
    })
}

/// Returns whether the function itself makes the model.
fn is_bound<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    model: &str,
    load: SourceRange,
) -> bool {
    let mut bound = facts.emptied.iter();
    bound.any(|(name, at)| *name == model && at.end <= load.start && !checked.are_exclusive(facts, *at, load))
}

/// Returns whether the function moves the model after it was loaded: before, it was not there yet.
fn is_moved_after(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    model: &str,
    load: SourceRange,
) -> bool {
    facts.calls.iter().filter(|call| call.method_is("cuda") || call.method_is("to")).any(|call| {
        let base = call.call.method().map(|(base, _)| checked.file.text(base.range));
        call.expr.range.end > load.end && base.is_some_and(|base| base.starts_with(model))
    })
}

/// Returns whether a model ran in this function before the load, by itself or in a function it is given to.
fn has_run(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    model: &str,
    load: SourceRange,
) -> bool {
    let bound = facts.emptied.iter().filter(|(name, at)| *name == model && at.end <= load.start);
    let since = bound.map(|(_, at)| at.start).max().unwrap_or(0);
    let gives = |call: &CallFact<'_, '_>| {
        does_work(checked, call) && call.call.args.iter().any(|arg| checked.file.key(arg) == Some(model))
    };
    let is_before =
        |at: SourceRange| at.start >= since && at.end < load.start && !checked.are_exclusive(facts, at, load);
    facts.forwards.iter().any(|(name, node, _)| *name == model && is_before(facts.node(*node).range))
        || facts.calls.iter().any(|call| is_before(call.expr.range) && gives(call))
}

/// Returns whether a function moves a model to the GPU before it is loaded, there or in a function that it
/// calls.
fn is_moved<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    of: &FunctionFacts<'t, 'a>,
    model: &str,
    (facts, load): (&FunctionFacts<'t, 'a>, SourceRange),
) -> bool {
    let is_here = of.id == facts.id;
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    // `self.to(device)` moves all parts of a module.
    let is_model =
        |key: &str| last(key) == last(model) || !is_here && key == "self" && model.starts_with("self");
    // A name that is bound again is another model.
    let rebound = of.emptied.iter().filter(|(name, at)| {
        is_here && *name == model && at.end <= load.start && !checked.are_exclusive(facts, *at, load)
    });
    let since = rebound.map(|(_, at)| at.start).max().unwrap_or(0);
    of.calls.iter().filter(|call| call.method_is("cuda") || call.method_is("to")).any(|call| {
        let at = call.expr.range;
        let is_before = match is_here {
            true => at.start < load.start && at.start >= since && !checked.are_exclusive(facts, at, load),
            false => at.start < load.start || of.local_calls.iter().any(|call| call.callee == facts.id),
        };
        let base = call.call.method().and_then(|(base, _)| checked.file.key(base));
        // `model.cuda()`, or `model = Net().cuda()`.
        let assigned = || {
            let mut bound = of.emptied.iter();
            bound.any(|(name, bound)| is_model(name) && bound.contains(at) && bound.end == at.end)
        };
        is_before && (base.is_some_and(is_model) || assigned())
    })
}

/// Returns whether it is the state of a scheduler or scaler, which is a handful of numbers.
fn is_scheduler(checked: &Checked<'_, '_, '_>, call: &CallFact<'_, '_>) -> bool {
    let receiver =
        call.call.method().map_or("", |(base, _)| checked.file.text(base.range)).to_ascii_lowercase();
    receiver.contains("sched") || receiver.contains("scaler")
}

/// Returns whether the program uses a GPU at all: the file says so, or the device comes from elsewhere.
fn uses_gpu(checked: &Checked<'_, '_, '_>) -> bool {
    let has_device = || ["device", "gpu"].iter().any(|word| checked.file.source.contains(word));
    checked.file.knows_cuda() || checked.imports.know_cuda() && has_device()
}

/// Adds `map_location="cpu"`. Unsafe: `load_state_dict` of a module copies to where its parameters are, but a
/// custom one may keep the tensors that it is given.
fn fix(checked: &Checked<'_, '_, '_>, call: SourceRange) -> Fix {
    let before_bracket = SourceRange { start: call.end - 1, end: call.end - 1 };
    // `torch.load(path, )` already has its comma.
    let inside = checked.file.text(SourceRange { start: call.start, end: call.end - 1 });
    let comma = if inside.trim_end().ends_with(',') { " " } else { ", " };
    let text = format!("{comma}map_location=\"cpu\"");
    let edits = vec![Edit { range: before_bracket, text }];
    Fix { title: "load it on the CPU".to_owned(), applicability: Applicability::Unsafe, edits }
}
