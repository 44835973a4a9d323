use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{Graph, Value};
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM111",
    name: "closure-keeps-graph",
    says: "A callback for later is kept, and with it a tensor and its graph.",
    severity: Severity::High,
    why: "A lambda holds the variables that it uses (or its default arguments) until it is gone. A list of callbacks that is filled in
the training loop holds one tensor, with the graph behind it, for each of them.",
    costs: "Before `backward()` or without it: the activations of a step for every callback. After it: the tensor itself.",
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
            let Value::Closure(nodes) = &kept.value else { continue };
            let Some(node) = nodes.iter().find(|node| facts.node(**node).graph == Graph::Yes) else { continue };
            if checked.grows(facts, kept) && checked.records(facts, kept.at) {
                let message = format!("{} keeps a callback that holds a tensor with its graph, on every step", store(kept));
                found.push(
                    RULE.at(Severity::High, kept.place(), message)
                        .advise("take the number out first (`.item()`), and let the callback hold that")
                        .about(checked.behind(facts, kept, *node)),
                );
            }
        }
    }
}
