use crate::checked::Checked;
use crate::edit::{Applicability, Edit, Fix};
use crate::facts::{AbstractValue, CallFact, FunctionFacts};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, SourceRange, StmtKind, walk};

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
            (false, Use::Direct) if !is_on_gpu(checked, facts, call) => continue,
            (false, Use::Direct) => (
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
    /// `checkpoint = torch.load(path)`, which exists until the end.
    Stays,
}

/// Returns how the checkpoint is used: only those that are loaded into a model matter.
fn use_of(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    load: &CallFact<'_, '_>,
) -> Option<Use> {
    let loads: Vec<&CallFact<'_, '_>> = facts
        .calls
        .iter()
        .filter(|call| call.method_is("load_state_dict") && !is_scheduler(checked, call))
        .collect();
    let is_argument = |expr: &Expr<'_>| expr.range.contains(load.expr.range);
    if loads.iter().any(|call| call.call.args.first().is_some_and(is_argument)) {
        return Some(Use::Direct);
    }
    let (name, _) = facts.emptied.iter().find(|(_, at)| {
        let text = checked.file.text(*at);
        at.contains(load.expr.range) && text.contains('=') && at.end == load.expr.range.end
    })?;
    let loaded = loads.iter().any(|call| {
        matches!(call.args.first(), Some(AbstractValue::Checkpoint))
            && call.call.args.first().is_some_and(|arg| arg.reads_key(checked.file.source, name))
    });
    let deleted =
        facts.emptied.iter().any(|(other, at)| other == name && checked.file.text(*at).starts_with("del"));
    // In a separate function it is freed when that returns.
    let is_short = facts.backwards.is_empty()
        && facts.id != crate::file::FunctionId::MODULE
        && !facts.loops.iter().any(|found| found.counts);
    (loaded && !deleted).then_some(if is_short { Use::Direct } else { Use::Stays })
}

/// Returns whether the model was moved to the GPU before loading: otherwise there is one copy at a time.
fn is_on_gpu(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, load: &CallFact<'_, '_>) -> bool {
    let into = facts.calls.iter().find(|call| {
        call.method_is("load_state_dict")
            && call.expr.range.start <= load.expr.range.start
            && call.expr.range.end >= load.expr.range.end
    });
    let model = into
        .and_then(|call| checked.file.key(call.call.method()?.0))
        .map(|key| key.rsplit('.').next().unwrap_or(key));
    let Some(model) = model else { return false };
    checked.facts.iter().any(|of| {
        of.calls.iter().any(|call| {
            let moves = (call.method_is("cuda") || call.method_is("to"))
                && call.expr.range.start < load.expr.range.start;
            let is_model = |key: &str| key.rsplit('.').next() == Some(model);
            let base = call.call.method().and_then(|(base, _)| checked.file.key(base));
            // `model.cuda()`, or `model = Net().cuda()`.
            let assigned = || {
                of.emptied.iter().any(|(name, at)| {
                    is_model(name) && at.contains(call.expr.range) && at.end == call.expr.range.end
                })
            };
            moves && (base.is_some_and(is_model) || assigned())
        })
    })
}

/// Returns whether it is the state of a scheduler or scaler, which is a handful of numbers.
fn is_scheduler(checked: &Checked<'_, '_, '_>, call: &CallFact<'_, '_>) -> bool {
    let receiver =
        call.call.method().map_or("", |(base, _)| checked.file.text(base.range)).to_ascii_lowercase();
    receiver.contains("sched") || receiver.contains("scaler")
}

/// Returns whether the program uses a GPU at all.
fn uses_gpu(checked: &Checked<'_, '_, '_>) -> bool {
    checked.file.knows_cuda()
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
