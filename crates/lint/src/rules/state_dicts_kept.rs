use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::AbstractValue;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

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
                AbstractValue::StateCopy => (
                    RuleSeverity::High,
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
