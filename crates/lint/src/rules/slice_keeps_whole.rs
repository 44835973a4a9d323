use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{Facts, Graph, NodeId, Value};
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM106",
    name: "slice-keeps-whole",
    says: "A slice is kept, and with it the whole tensor that it is cut from.",
    severity: Severity::Medium,
    why: "Indexing with numbers and slices gives a view: it shares the memory of the tensor that it comes from, all of which stays as
long as the view does. `hidden[:, 0]` keeps every token to hold one.",
    costs: "The whole tensor instead of the slice, every step (measured: `out[0]` keeps 5 KiB of 5 KiB, `.clone()` of it 0.04).",
    bad: "
with torch.no_grad():
    for batch in loader:
        features.append(model(**batch).last_hidden_state[:, 0])
",
    good: "
with torch.no_grad():
    for batch in loader:
        features.append(model(**batch).last_hidden_state[:, 0].clone())
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in &facts.kept {
            let Value::Tensor(node) = kept.value else { continue };
            let of = facts.node(node);
            let in_script = checked.file.class_of(facts.id).is_none();
            let over_batches = facts.around(kept.at.in_loop).any(|at| facts.loops[at.0].over_batches);
            // What is older than this turn would be there anyway.
            let is_new = kept.at.in_loop.is_some_and(|at| facts.loops[at.0].range.contains(facts.node(whole(facts, node)).range));
            if is_new && !kept.at.now_and_then && of.part && (in_script || over_batches) && of.graph == Graph::No && !of.on_host && checked.grows(facts, kept) {
                let message = format!("{} keeps a view, and so the whole tensor that it is cut from, on every step", store(kept));
                found.push(
                    RULE.at(Severity::Medium, kept.place(), message)
                        .advise("keep `.clone()` or `.cpu()` of it")
                        .about(checked.behind(facts, kept, node)),
                );
            }
        }
    }
}

/// The tensor that a view is cut from.
fn whole(facts: &Facts<'_, '_>, view: NodeId) -> NodeId {
    let mut at = view;
    while let (true, Some(parent)) = (facts.node(at).part, facts.node(at).parents.first()) {
        at = *parent;
    }
    at
}
