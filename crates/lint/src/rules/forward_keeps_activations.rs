use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, TensorStore};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM120",
    name: "forward-keeps-activations",
    summary: "`forward` appends its activations to a list of the module on every call.",
    severity: RuleSeverity::High,
    why: "A list on `self` lives as long as the model. If `forward` appends to it and nothing empties it, it
holds the activations of every step and, with gradients on, the graph behind them.",
    costs: "The activation, every step, detached or not; with gradients on and no `backward()`, also the
graph behind it.",
    bad: "
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.cache = nn.Linear(8, 8), []
    def forward(self, x):
        h = torch.relu(self.fc(x))
        self.cache.append(h)
        return h
",
    good: "
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.last = nn.Linear(8, 8), None
    def forward(self, x):
        h = torch.relu(self.fc(x))
        self.last = h.detach()
        return h
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        let in_module = checked.file.class_of(facts.id).is_some_and(|class| class.kind.is_module());
        if !in_module || checked.file.name_of(facts.id) != "forward" {
            continue;
        }
        for kept in facts.kept.iter().filter(|kept| kept.through.is_none()) {
            let (TensorStore::Outside { name }, AbstractValue::Tensor(node)) = (&kept.store, &kept.value)
            else {
                continue;
            };
            let is_own =
                name.starts_with("self.") && !checked.is_emptied_anywhere(name, facts, kept.at.in_loop);
            let text = checked.file.text(kept.expr.range);
            let is_small = facts.node(*node).scalar
                || facts.node(*node).on_host
                || text.contains(".item(")
                || text.contains(".shape")
                || text.contains(".mean(");
            if is_own
                && !is_small
                && !is_given_out(checked, facts.id, name)
                && checked.makes_list(facts.id, name)
            {
                let message = format!(
                    "{} grows on every forward pass: the activations of every step stay on the GPU",
                    store(kept)
                );
                found.push(
                    RULE.at(RuleSeverity::High, kept.place(), message)
                        .advise("keep only the last one, or empty the list in each step"),
                );
            }
        }
    }
}

/// Returns whether a method returns the list to callers: a recorder, which keeps it on purpose.
fn is_given_out(checked: &Checked<'_, '_, '_>, method: FunctionId, name: &str) -> bool {
    let Some(class) = checked.file.class_of(method) else { return false };
    let mut given = false;
    walk(&class.class.body, &mut |stmt| {
        given |= matches!(&stmt.kind, StmtKind::Return(Some(value)) if checked.file.key(value) == Some(name));
    });
    given
}
