use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, FunctionFacts};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::SourceRange;

pub(super) const RULE: Rule = Rule {
    code: "OOM112",
    name: "exception-kept",
    summary: "A caught exception is stored, and with it every variable of the code that failed.",
    severity: RuleSeverity::High,
    why: "An exception holds its traceback, the traceback holds the frames of the failed functions, and a
frame holds its local variables: inputs, outputs, the graph of the failed forward pass.",
    costs: "All local tensors of the failed frames, for each stored exception (measured: 256 KiB each in a
test, the activations of eight layers in a recorded program). `except E as e:` alone keeps nothing: Python
deletes the name at the end of the block.",
    bad: "
for batch in loader:
    try:
        loss = model(batch)
    except RuntimeError as error:
        failures.append(error)
",
    good: "
for batch in loader:
    try:
        loss = model(batch)
    except RuntimeError as error:
        failures.append(str(error))
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in &facts.kept {
            let holds = match &kept.value {
                AbstractValue::Exception => true,
                AbstractValue::Tuple(items) => items.contains(&AbstractValue::Exception),
                _ => false,
            };
            if holds
                && kept.at.in_loop.is_some()
                && checked.grows(facts, kept)
                && computes(checked, facts, kept.range)
            {
                let message = format!(
                    "{} keeps the exception, its traceback and so every local variable of the code \
                     that failed: their tensors stay on the GPU",
                    store(kept)
                );
                found.push(
                    RULE.at(RuleSeverity::High, kept.expr.range, message)
                        .advise("keep `str(error)`, or `error.with_traceback(None)`"),
                );
            }
        }
    }
}

/// Returns whether tensors are computed in the code that may fail: a model is run in the loop, here or in a
/// called function.
fn computes(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, at: SourceRange) -> bool {
    let inner = facts
        .loops
        .iter()
        .filter(|found| found.range.contains(at))
        .min_by_key(|found| found.range.end - found.range.start);
    let Some(inner) = inner else { return false };
    let runs_here = facts.forwards.iter().any(|(_, node, _)| inner.range.contains(facts.node(*node).range));
    let callees: Vec<_> = facts.local_calls.iter().map(|call| call.callee).collect();
    runs_here || checked.facts.iter().any(|other| callees.contains(&other.id) && !other.forwards.is_empty())
}
