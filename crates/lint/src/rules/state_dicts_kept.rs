use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, FunctionFacts, KeptValue};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, Literal};

pub(super) const RULE: Rule = Rule {
    code: "OOM114",
    name: "state-dicts-kept",
    summary: "Copies of the model's state accumulate on the GPU, or entries that all show the same weights.",
    severity: RuleSeverity::High,
    why: "`copy.deepcopy(model.state_dict())` is a second model on the same device; a list of them holds one
per epoch. Without the copy nothing is stored at all: `state_dict()` refers to the live parameters, so every
entry of the list shows the last state.",
    costs: "With a copy: one model each (1552 of 1552 KiB measured). Without a copy: no memory, but every
entry shows the same weights. A single copy that is overwritten (`best = deepcopy(…)`) is a fixed amount and
is not reported.",
    bad: "
for epoch in range(100):
    train(model)
    snapshots.append(copy.deepcopy(model.state_dict()))
",
    good: "
for epoch in range(100):
    train(model)
    snapshots.append({name: value.cpu().clone() for name, value in model.state_dict().items()})
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in facts.kept.iter().filter(|kept| {
            kept.at.in_loop.is_some()
                && !kept.store.name().is_empty()
                && checked.severity_of_growth(facts, kept) == RuleSeverity::High
                && checked.grows(facts, kept)
        }) {
            let (severity, message, advice) = match &kept.value {
                _ if is_on_host(checked, kept.expr) => continue,
                value if *value == AbstractValue::StateCopy || copies_state(checked, kept.expr) => (
                    severity_of_copies(facts, kept),
                    format!(
                        "{} keeps a copy of the whole model on its device for every iteration of the loop",
                        store(kept)
                    ),
                    "copy to the CPU: `{name: value.cpu().clone() for name, value in \
                     model.state_dict().items()}`",
                ),
                AbstractValue::StateDict => (
                    RuleSeverity::Low,
                    format!(
                        "every entry of {} shows the live weights: this stores nothing and costs no \
                         memory, but all entries are the last state",
                        store(kept)
                    ),
                    "copy what you want to keep: `{name: value.cpu().clone() for name, value in \
                     model.state_dict().items()}`",
                ),
                _ => continue,
            };
            found.push(RULE.at(severity, kept.expr.range, message).advise(advice));
        }
    }
}

/// Returns whether what is kept is copied to host memory first.
fn is_on_host(checked: &Checked<'_, '_, '_>, kept: &Expr<'_>) -> bool {
    let text = checked.file.text(kept.range);
    [".cpu(", "\"cpu\"", "'cpu'"].iter().any(|part| text.contains(part))
}

/// Matches `copy.deepcopy(model)`, `deepcopy(optimizer.state_dict())`, `{k: v.clone() for k, v in
/// model.state_dict().items()}`, `[p.detach().clone() for p in model.parameters()]`, and what has them in it.
fn copies_state(checked: &Checked<'_, '_, '_>, kept: &Expr<'_>) -> bool {
    let text = |expr: &Expr<'_>| checked.file.text(expr.range);
    kept.any(&mut |part| match &part.kind {
        ExprKind::Call(call) => {
            let is_copy = checked.file.path(&call.callee).is_some_and(|path| path == "copy.deepcopy");
            is_copy
                && call.args.first().is_some_and(|of| {
                    let is_model = checked.file.key(of).is_some_and(|key| checked.file.is_module_name(key));
                    is_model || text(of).ends_with(".state_dict()")
                })
        }
        ExprKind::Comprehension(of) => {
            let is_over = |iter: &Expr<'_>| {
                [".state_dict()", ".parameters()", ".named_parameters()"]
                    .iter()
                    .any(|end| text(iter).contains(end))
            };
            of.generators.iter().any(|generator| is_over(&generator.iter))
                && of.elements.last().is_some_and(|element| text(element).ends_with(".clone()"))
        }
        _ => false,
    })
}

/// Returns the severity: a loop that is written to run a few times keeps a few copies.
fn severity_of_copies(facts: &FunctionFacts<'_, '_>, kept: &KeptValue<'_, '_>) -> RuleSeverity {
    const FEW: u32 = 10;
    let is_short = |iter: &Expr<'_>| match &iter.kind {
        ExprKind::Sequence(..) => true,
        ExprKind::Call(call) => match (&call.callee.kind, &call.args[..]) {
            (ExprKind::Name("range"), [Expr { kind: ExprKind::Literal(Literal::Number(number)), .. }]) => {
                number.parse::<u32>().is_ok_and(|times| times <= FEW)
            }
            _ => false,
        },
        _ => false,
    };
    let mut loops = facts.around(kept.at.in_loop).map(|at| facts.loops[at.0].iter);
    let is_few = loops.all(|iter| iter.is_some_and(is_short));
    if is_few { RuleSeverity::Medium } else { RuleSeverity::High }
}
