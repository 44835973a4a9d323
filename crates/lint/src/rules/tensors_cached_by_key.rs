use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, TensorStore};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{ExprKind, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM123",
    name: "tensors-cached-by-key",
    summary: "A dictionary caches a GPU tensor for every key it is asked for, without a limit.",
    severity: RuleSeverity::Medium,
    why: "`if key not in cache: cache[key] = …` keeps one tensor per key. That is a fixed amount for a
handful of sizes; for a time, a random number or the shape of every image it grows as long as new keys
appear.",
    costs: "One tensor per new key, until the object with the dictionary is freed.",
    bad: "
class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}
    def at(self, t):
        if t not in self.cache:
            self.cache[t] = torch.sin(torch.arange(512, device='cuda') * t)
        return self.cache[t]
",
    good: "
class Embedding(nn.Module):
    def at(self, t):
        return torch.sin(torch.arange(512, device='cuda') * t)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        walk(checked.file.body_of(facts.id), &mut |stmt| {
            let StmtKind::Assign { targets, value } = &stmt.kind else { return };
            for target in targets {
                let ExprKind::Subscript(base, index) = &target.kind else { continue };
                let (Some(name), ExprKind::Name(key)) = (checked.file.key(base), &index.kind) else {
                    continue;
                };
                let is_own = name.starts_with("self.") && !checked.is_emptied_anywhere(name, facts, None);
                let function = checked.file.functions[facts.id.0].function;
                let is_argument = function.is_some_and(|function| {
                    function.parameters.iter().any(|parameter| parameter.name == *key)
                });
                let node = facts.kept.iter().find(|kept| kept.expr.range == value.range).and_then(|kept| {
                    match (&kept.value, &kept.store) {
                        (AbstractValue::Tensor(node), TensorStore::Outside { .. }) => Some((*node, kept)),
                        _ => None,
                    }
                });
                let Some((node, kept)) = node else { continue };
                // These have few values.
                const FEW: &[&str] = &["device", "dtype", "layer", "rank", "name", "stage", "level"];
                if key.split('_').any(|word| FEW.contains(&word)) {
                    continue;
                }
                if is_own && is_argument && facts.node(node).on_device && checked.makes_list(facts.id, name) {
                    let message = format!(
                        "{} keeps a GPU tensor for every `{key}` that was ever requested, without a limit",
                        store(kept)
                    );
                    found.push(
                        RULE.at(RuleSeverity::Medium, stmt.range, message)
                            .advise(
                                "recompute it, or keep a limited number (`functools.lru_cache(maxsize=…)` \
                                 on a function)",
                            )
                            .about(checked.computed(facts, node)),
                    );
                }
            }
        });
    }
}
