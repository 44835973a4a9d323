use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{Facts, Kept, Value};
use crate::rule::{Diagnostic, Rule, Severity};
use crate::tree::ExprKind;

pub(super) const RULE: Rule = Rule {
    code: "OOM115",
    name: "gradients-kept",
    says: "The gradients of every step are kept.",
    severity: Severity::High,
    why: "`zero_grad()` lets go of the gradients, it does not overwrite them: a list that holds them keeps each step's. (With
`set_to_none=False` they are overwritten instead, and all entries of the list are the same zeros.)",
    costs: "One model a step (1552 of 1552 KiB measured).",
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
            if steps && !checked.is_test(facts.id) && is_gradients(kept) && of_parameters(checked, facts, kept) && checked.grows(facts, kept) {
                let message = format!("{} keeps the gradients of every step: one model's worth of GPU memory a step", store(kept));
                found.push(RULE.at(Severity::High, kept.expr.range, message).advise("keep norms or other numbers, or `.cpu()` of what you need"));
            }
        }
    }
}

/// `p.grad`, `p.grad.clone()`, `[p.grad for p in …]`
fn is_gradients(kept: &Kept<'_, '_>) -> bool {
    if kept.value == Value::Gradient {
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

/// Gradients of parameters, all of them; the gradient of an input is what some methods are about.
fn of_parameters<'t, 'a>(checked: &Checked<'_, 't, 'a>, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>) -> bool {
    let around = facts.around(kept.at.in_loop).filter_map(|at| facts.loops[at.0].iter);
    let over = around.into_iter().any(|iter| checked.file.text(iter.range).contains("parameters("));
    // `[p.grad for p in model.parameters()]`, here or a line before.
    over || facts.loops.iter().any(|of| of.iter.is_some_and(|iter| checked.file.text(iter.range).contains("parameters(")))
}
