use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, FunctionFacts, HasGraph, NodeId};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM106",
    name: "slice-keeps-whole",
    summary: "A slice is kept, and with it the whole tensor it was taken from.",
    severity: RuleSeverity::Medium,
    why: "Indexing with numbers and slices returns a view: it shares the memory of the original tensor, all
of which stays allocated as long as the view exists. `hidden[:, 0]` keeps every token to hold one.",
    costs: "The whole tensor instead of the slice, every step (measured: `out[0]` keeps 5 KiB of 5 KiB, its
`.clone()` 0.04 KiB).",
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
            let AbstractValue::Tensor(node) = kept.value else { continue };
            let of = facts.node(node);
            let in_script = checked.file.class_of(facts.id).is_none();
            let over_batches = facts.around(kept.at.in_loop).any(|at| facts.loops[at.0].over_batches);
            // A tensor older than this iteration would exist anyway.
            let is_new = kept
                .at
                .in_loop
                .is_some_and(|at| facts.loops[at.0].range.contains(facts.node(whole(facts, node)).range));
            if is_new
                && !kept.at.now_and_then
                && of.part
                && (in_script || over_batches)
                && of.graph == HasGraph::No
                && !of.on_host
                && checked.grows(facts, kept)
            {
                let message = format!(
                    "{} keeps a view, and with it the whole tensor it was taken from, in every step",
                    store(kept)
                );
                found.push(
                    RULE.at(RuleSeverity::Medium, kept.place(), message)
                        .advise("keep its `.clone()` or `.cpu()` copy")
                        .about(checked.behind(facts, kept, node)),
                );
            }
        }
    }
}

/// Returns the tensor that a view was taken from.
fn whole(facts: &FunctionFacts<'_, '_>, view: NodeId) -> NodeId {
    let mut at = view;
    while let (true, Some(parent)) = (facts.node(at).part, facts.node(at).parents.first()) {
        at = *parent;
    }
    at
}
