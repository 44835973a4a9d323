use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule, Severity};
use crate::tree::{Expr, ExprKind};

pub(super) const RULE: Rule = Rule {
    code: "OOM602",
    name: "optimizer-in-loop",
    says: "The optimizer is made anew in the training loop.",
    severity: Severity::Low,
    why: "The one before it is freed, with its state: this does not leak. But momentum and moving averages start from nothing each time,
so Adam is not Adam any more. It is a mistake in training, not in memory.",
    costs: "No memory (measured: 0, with and without a scheduler). The optimizer's state is allocated again each time.",
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
        let is_optimizer = call.path.as_deref().is_some_and(|path| crate::torch::makes(path) == crate::torch::Makes::Optimizer);
        let Some(inner) = call.at.in_loop.filter(|_| is_optimizer && !call.at.sometimes) else { continue };
        let range = facts.loops[inner.0].range;
        // What is optimised must be older than the loop: a model for each fold has an optimizer for each fold.
        let made_here = |expr: &Expr<'_>| expr.any(&mut |part| matches!(part.kind, ExprKind::Name(name) if facts.emptied.iter().any(|(bound, at)| *bound == name && range.contains(*at))));
        let of_the_loop = call.call.args.iter().chain(call.call.keywords.iter().filter(|keyword| keyword.name == Some("params")).map(|keyword| &keyword.value)).any(made_here);
        let names_model = call.call.args.first().is_some_and(|arg| arg.any(&mut |part| part.as_call().is_some_and(|call| call.method().is_some_and(|(_, name)| name == "parameters"))));
        if facts.has_backward(inner) && names_model && !of_the_loop {
            found.push(
                RULE.at(Severity::Low, call.expr.range, "a new optimizer on every step: nothing leaks (the old one is freed), but its momentum and averages are lost each time".to_owned())
                    .advise("make it once, before the loop"),
            );
        }
    }
}
