use super::empty_cache_in_loop::on_every_step;
use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM402",
    name: "collect-in-loop",
    summary: "`gc.collect()` is called in every step.",
    severity: RuleSeverity::Low,
    why: "Tensors are freed with their last reference; the garbage collector is only needed for reference
cycles. If it frees something in every step, there is a cycle to find (`oomph holders` names it); if not, it
walks through all objects for nothing.",
    costs: "No memory. Time: a walk through every object of the process in every step.",
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
        if call.is("gc.collect") && on_every_step(checked, facts, call) {
            found.push(
                RULE.at(
                    RuleSeverity::Low,
                    call.expr.range,
                    "the garbage collector walks through every object in every step: it only frees \
                     reference cycles, and tensors are freed without it"
                        .to_owned(),
                )
                .advise("remove it; if memory then grows, there is a cycle: `oomph holders` names it"),
            );
        }
    }
}
