use crate::checked::Checked;
use crate::facts::AbstractValue;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM701",
    name: "gradients-never-reset",
    summary: "The gradients are never reset: a training bug, not a leak.",
    severity: RuleSeverity::Low,
    why: "Without `zero_grad()` each `backward()` adds to the gradients of all previous steps. They are
added in place, so memory does not grow, but each step follows the sum of all gradients so far.",
    costs: "No memory (measured on an H200: flat). The training is wrong.",
    bad: "
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
",
    good: "
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    // Code that uses gradients may reset them in its own way.
    if ["zero_grad", "grad", "zero_gradients", "clear_gradients"]
        .iter()
        .any(|name| checked.file.mentions(name))
        || checked.file.source.contains("zero_grads(")
    {
        return;
    }
    for facts in checked.facts.iter().filter(|facts| !checked.is_test(facts.id)) {
        for backward in facts
            .backwards
            .iter()
            .filter(|backward| backward.call.method().is_some_and(|(_, name)| name == "backward"))
        {
            let Some(inner) = backward.at.in_loop else { continue };
            // A distributed pass has its own gradients, which are freed with its context.
            if facts.calls.iter().any(|call| {
                call.expr.range == backward.range && call.is("torch.distributed.autograd.backward")
            }) {
                continue;
            }
            let steps = facts.calls.iter().any(|call| {
                let is_optimizer = call.receiver == AbstractValue::Optimizer
                    || call.call.method().is_some_and(|(base, _)| {
                        checked.file.key(base).is_some_and(|key| key.to_ascii_lowercase().contains("opt"))
                    });
                call.method_is("step") && call.at.in_loop == Some(inner) && is_optimizer
            });
            if steps {
                found.push(
                    RULE.at(
                        RuleSeverity::Low,
                        backward.range,
                        "nothing in this file resets the gradients: each step follows the sum of all \
                         previous gradients. Memory does not grow, but the training is wrong"
                            .to_owned(),
                    )
                    .advise("call `optimizer.zero_grad()` once per step"),
                );
            }
        }
    }
}
