use crate::checked::Checked;
use crate::facts::{Backward, Carry, Facts, Graph, NodeId};
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM201",
    name: "retain-graph-in-loop",
    says: "`retain_graph=True` on the only `backward()` of a step.",
    severity: Severity::Medium,
    why: "The flag is for a second `backward()` through the same graph. Where there is none it only keeps the graph until the variable
is assigned again, so that the forward pass of the next step runs beside it. By itself it does not leak; together with a kept loss or a
running sum it does, and that is reported there.",
    costs: "A higher peak: two graphs at a time (measured: 4129 against 3356 KiB).",
    bad: "
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
",
    good: "
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for backward in facts.backwards.iter().filter(|backward| !backward.is_grad()) {
            let retains = backward.call.keyword("retain_graph").filter(|keyword| crate::file::is_true(&keyword.value));
            let (Some(flag), Some(inner)) = (retains, backward.at.in_loop) else { continue };
            let range = facts.loops[inner.0].range;
            // A second pass through the same forward pass needs it, wherever it is; so does a graph that is older than this turn.
            let needed = facts.backwards.iter().any(|other| other.range != backward.range && meets(facts, backward, other));
            let is_new = |node: &NodeId| {
                let made = facts.node(*node).range;
                range.contains(made) && innermost(facts, made) == Some(range)
            };
            let is_fresh = !backward.nodes.is_empty() && backward.nodes.iter().all(is_new);
            // A state that goes from step to step needs it too, and is reported for itself.
            let carries = facts.carried.iter().any(|carried| carried.how == Carry::State && facts.is_inside(carried.at.in_loop, inner));
            if !needed && is_fresh && !carries && !checked.file.source.contains("autograd.grad(") {
                let message = "no second `backward()` needs the graph: it stays until the next step has built its own, so two are in memory at the peak".to_owned();
                found.push(RULE.at(Severity::Medium, flag.range, message).advise("drop `retain_graph=True`; if `backward()` then fails, something keeps a graph from step to step: detach that"));
            }
        }
    }
}

/// Whether two passes may run through the same graph: what is not known may be the same.
fn meets(facts: &Facts<'_, '_>, one: &Backward<'_, '_>, other: &Backward<'_, '_>) -> bool {
    let forwards = |of: &Backward<'_, '_>| -> Vec<NodeId> {
        let ancestors = of.nodes.iter().flat_map(|root| facts.in_graph(*root));
        ancestors.filter(|at| facts.forwards.iter().any(|(_, result, _)| result == at) && facts.node(*at).graph == Graph::Yes).collect()
    };
    let (one, other) = (forwards(one), forwards(other));
    one.is_empty() || other.is_empty() || one.iter().any(|at| other.contains(at))
}

/// The innermost loop around a place.
fn innermost(facts: &Facts<'_, '_>, at: crate::tree::Range) -> Option<crate::tree::Range> {
    facts.loops.iter().map(|found| found.range).filter(|range| range.contains(at)).min_by_key(|range| range.end - range.start)
}
