use crate::checked::Checked;
use crate::facts::{CallFact, FunctionFacts};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::ExprKind;

pub(super) const RULE: Rule = Rule {
    code: "OOM401",
    name: "empty-cache-in-loop",
    summary: "`torch.cuda.empty_cache()` is called in every step.",
    severity: RuleSeverity::Low,
    why: "The cache is memory that PyTorch would reuse for the next tensor. Releasing it frees nothing that
the next step could not have used, and the next step has to request all of it from the driver again. It
helps other processes, and after a phase with other shapes.",
    costs: "No memory. Time: steps of a ResNet-18 take 1.93 × as long (measured on an H200).",
    bad: "
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
    torch.cuda.empty_cache()
",
    good: "
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, call) in checked.calls() {
        if call.is("torch.cuda.empty_cache") && on_every_step(checked, facts, call) {
            found.push(
                RULE.at(
                    RuleSeverity::Low,
                    call.expr.range,
                    "every step releases PyTorch's cache and requests it from the driver again: this frees \
                     no memory for the next step and nearly doubles the time of a short one"
                        .to_owned(),
                )
                .advise("remove it, or call it once after a phase with other shapes"),
            );
        }
    }
}

/// Returns whether a call is made in every iteration of a step loop, not of a loop around it.
pub(super) fn on_every_step<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    call: &CallFact<'t, 'a>,
) -> bool {
    let Some(inner) = call.at.in_loop else { return false };
    // A loop over a few values that are written there is a sweep, whose runs are apart.
    let is_sweep = facts.loops[inner.0].iter.is_some_and(|iter| matches!(iter.kind, ExprKind::Sequence(..)));
    if is_sweep || call.at.now_and_then || call.at.in_handler {
        return false;
    }
    // After an error, the next try needs what is released.
    let text = checked.file.text(facts.loops[inner.0].range);
    if text.contains("OutOfMemory") || text.contains("out of memory") {
        return false;
    }
    let runs_here = facts.forwards.iter().any(|(_, _, at)| at.in_loop == Some(inner));
    facts.has_backward(inner)
        || checked.calls_step(facts, inner)
        || facts.loops[inner.0].over_batches && runs_here
}
