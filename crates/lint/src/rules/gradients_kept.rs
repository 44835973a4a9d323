use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, FunctionFacts, KeptValue, TensorStore};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::ExprKind;

pub(super) const RULE: Rule = Rule {
    code: "OOM115",
    name: "gradients-kept",
    summary: "The gradients of every step are kept.",
    severity: RuleSeverity::High,
    why: "`zero_grad()` drops the gradients, it does not overwrite them: a list that holds them keeps those
of each step. (With `set_to_none=False` they are overwritten instead, and all entries of the list are the
same zeros.)",
    costs: "One model per step (1552 of 1552 KiB measured).",
    bad: "
for x, y in loader:
    criterion(model(x), y).backward()
    grads.append([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
",
    good: "
for x, y in loader:
    criterion(model(x), y).backward()
    norms.append(sum(p.grad.norm() for p in model.parameters()).item())
    optimizer.step()
    optimizer.zero_grad()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in &facts.kept {
            let steps = checked.is_training(facts, kept.at);
            if steps
                && !checked.is_test(facts.id)
                && is_gradients(kept)
                && of_parameters(checked, facts, kept)
                && !is_of_one_step(facts, kept)
                && checked.grows(facts, kept)
            {
                let message = format!(
                    "{} keeps the gradients of every step: one model's worth of GPU memory per step",
                    store(kept)
                );
                found.push(
                    RULE.at(RuleSeverity::High, kept.expr.range, message)
                        .advise("keep norms or other numbers, or `.cpu()` copies of what you need"),
                );
            }
        }
    }
}

/// Returns whether the list holds the gradients of one step: it is created in each, or by a function that
/// does not go through the batches itself.
fn is_of_one_step(facts: &FunctionFacts<'_, '_>, kept: &KeptValue<'_, '_>) -> bool {
    let TensorStore::Local { id, .. } = &kept.store else { return false };
    let over_batches = facts.around(kept.at.in_loop).any(|at| facts.loops[at.0].over_batches);
    facts.containers[id.0].made_in.is_some() || facts.id != FunctionId::MODULE && !over_batches
}

/// Matches `p.grad`, `p.grad.clone()`, `[p.grad for p in …]`.
fn is_gradients(kept: &KeptValue<'_, '_>) -> bool {
    if kept.value == AbstractValue::Gradient {
        return true;
    }
    let ExprKind::Comprehension(of) = &kept.expr.kind else { return false };
    of.elements.last().is_some_and(|element| {
        let mut at = element;
        loop {
            match &at.kind {
                ExprKind::Attribute(_, "grad") => return true,
                ExprKind::Call(call) => match call.method() {
                    Some((base, "clone" | "detach")) => at = base,
                    _ => return false,
                },
                ExprKind::Attribute(base, "data") => at = base,
                _ => return false,
            }
        }
    })
}

/// Returns whether these are gradients of all parameters; some methods keep the gradient of an input on
/// purpose.
fn of_parameters<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    kept: &KeptValue<'t, 'a>,
) -> bool {
    let around = facts.around(kept.at.in_loop).filter_map(|at| facts.loops[at.0].iter);
    let over = around.into_iter().any(|iter| checked.file.text(iter.range).contains("parameters("));
    // `[p.grad for p in model.parameters()]`, here or on a previous line.
    over || facts
        .loops
        .iter()
        .any(|of| of.iter.is_some_and(|iter| checked.file.text(iter.range).contains("parameters(")))
}
