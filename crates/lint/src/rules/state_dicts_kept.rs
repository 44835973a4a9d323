use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::Value;
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM114",
    name: "state-dicts-kept",
    says: "Copies of the model's state pile up on the GPU, or entries that all show the same weights.",
    severity: Severity::High,
    why: "`copy.deepcopy(model.state_dict())` is a second model on the same device; in a list there is one for each epoch. Without the
copy nothing is stored at all: `state_dict()` shows the live parameters, so every entry of the list is the last state.",
    costs: "A copy: one model for each (1552 of 1552 KiB measured). Without a copy: no memory, but every entry is the same weights.
One copy that is overwritten (`best = deepcopy(…)`) is a fixed amount and is not reported.",
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
        for kept in facts.kept.iter().filter(|kept| kept.at.in_loop.is_some() && !kept.store.name().is_empty() && checked.severity_of_growth(facts, kept) == Severity::High && checked.grows(facts, kept)) {
            let (severity, message, advice) = match &kept.value {
                Value::StateCopy => (
                    Severity::High,
                    format!("{} keeps a copy of the whole model on its device for every turn of the loop", store(kept)),
                    "copy to the host: `{name: value.cpu().clone() for name, value in model.state_dict().items()}`",
                ),
                Value::StateDict => (
                    Severity::Low,
                    format!("every entry of {} shows the live weights: this stores nothing and costs no memory, but all entries are the last state", store(kept)),
                    "copy what is to be kept: `{name: value.cpu().clone() for name, value in model.state_dict().items()}`",
                ),
                _ => continue,
            };
            found.push(RULE.at(severity, kept.expr.range, message).advise(advice));
        }
    }
}
