use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind};

pub(super) const RULE: Rule = Rule {
    code: "OOM602",
    name: "optimizer-in-loop",
    summary: "The optimizer is recreated in the training loop.",
    severity: RuleSeverity::Low,
    why: "The previous one is freed with its state, so this does not leak. But momentum and moving averages
restart from zero each time, so Adam no longer works as Adam. It is a training bug, not a memory bug.",
    costs: "No memory (measured: 0, with and without a scheduler). The optimizer state is allocated again
each time.",
    bad: "
for x, y in loader:
    optimizer = torch.optim.Adam(model.parameters())
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
",
    good: "
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, call) in checked.calls() {
        let is_optimizer = call
            .path
            .as_deref()
            .is_some_and(|path| crate::torch::makes(path) == crate::torch::Makes::Optimizer);
        let Some(inner) = call.at.in_loop.filter(|_| is_optimizer && !call.at.sometimes) else { continue };
        let range = facts.loops[inner.0].range;
        // The optimized parameters must exist before the loop: a model per fold needs an optimizer per fold.
        let made_here = |expr: &Expr<'_>| {
            expr.any(&mut |part| match part.kind {
                ExprKind::Name(name) => {
                    facts.emptied.iter().any(|(bound, at)| *bound == name && range.contains(*at))
                }
                _ => false,
            })
        };
        let of_the_loop = call
            .call
            .args
            .iter()
            .chain(
                call.call
                    .keywords
                    .iter()
                    .filter(|keyword| keyword.name == Some("params"))
                    .map(|keyword| &keyword.value),
            )
            .any(made_here);
        let names_model = call.call.args.first().is_some_and(|arg| {
            arg.any(&mut |part| {
                part.as_call().is_some_and(|call| call.method().is_some_and(|(_, name)| name == "parameters"))
            })
        });
        let is_step = facts.has_backward(inner) || checked.calls_step(facts, inner);
        if is_step && names_model && !of_the_loop {
            found.push(
                RULE.at(
                    RuleSeverity::Low,
                    call.expr.range,
                    "a new optimizer in every step: nothing leaks (the old one is freed), but its momentum \
                     and averages are lost each time"
                        .to_owned(),
                )
                .advise("create it once, before the loop"),
            );
        }
    }
}
