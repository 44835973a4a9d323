use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, HasGraph};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM111",
    name: "closure-keeps-graph",
    summary: "A callback is stored, and with it a tensor and its graph.",
    severity: RuleSeverity::High,
    why: "A lambda holds the variables it uses (or its default arguments) as long as it exists. A list of
callbacks filled in the training loop holds one tensor, with the graph behind it, per callback.",
    costs: "Before or without `backward()`: the activations of a step for every callback. After it: the
tensor itself.",
    bad: "
for x, y in loader:
    loss = criterion(model(x), y)
    callbacks.append(lambda loss=loss: log(loss))
",
    good: "
for x, y in loader:
    loss = criterion(model(x), y)
    value = loss.item()
    callbacks.append(lambda value=value: log(value))
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in &facts.kept {
            let AbstractValue::Closure(nodes) = &kept.value else { continue };
            let Some(node) = nodes.iter().find(|node| facts.node(**node).graph == HasGraph::Yes) else {
                continue;
            };
            if checked.grows(facts, kept) && checked.records(facts, kept.at) {
                let message = format!(
                    "{} keeps a callback that holds a tensor with its graph, in every step",
                    store(kept)
                );
                found.push(
                    RULE.at(RuleSeverity::High, kept.place(), message)
                        .advise("extract the number first (`.item()`), and let the callback hold that")
                        .about(checked.behind(facts, kept, *node)),
                );
            }
        }
    }
}
