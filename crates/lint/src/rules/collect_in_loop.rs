use super::empty_cache_in_loop::on_every_step;
use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM402",
    name: "collect-in-loop",
    says: "`gc.collect()` is called on every step.",
    severity: Severity::Low,
    why: "Tensors are freed when their last reference goes; the collector is only for reference cycles. If it frees something on every
step, there is a cycle to find (`oomph holders` names it); if not, it walks through all objects for nothing.",
    costs: "No memory. Time: a walk through every object of the process, on every step.",
    bad: "
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
    gc.collect()
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
        if call.is("gc.collect") && on_every_step(facts, call) {
            found.push(
                RULE.at(Severity::Low, call.expr.range, "the collector walks through every object on every step: it frees reference cycles only, and tensors are freed without it".to_owned())
                    .advise("drop it; if memory then grows there is a cycle: `oomph holders` names it"),
            );
        }
    }
}
