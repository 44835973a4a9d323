use crate::checked::Checked;
use crate::facts::{BackwardCall, Carry, FunctionFacts, HasGraph, NodeId, TensorOrigin};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::SourceRange;

pub(super) const RULE: Rule = Rule {
    code: "OOM201",
    name: "retain-graph-in-loop",
    summary: "`retain_graph=True` on the only `backward()` of a step.",
    severity: RuleSeverity::Medium,
    why: "The flag is for a second `backward()` through the same graph. Without one it only keeps the graph
until the variable is reassigned, so that it overlaps with the forward pass of the next step. By itself it
does not leak; together with a kept loss or a running sum it does, which is reported there.",
    costs: "A higher peak: two graphs at once (measured: 4129 instead of 3356 KiB).",
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
            let retains =
                backward.call.keyword("retain_graph").filter(|keyword| crate::file::is_true(&keyword.value));
            let (Some(flag), Some(inner)) = (retains, backward.at.in_loop) else { continue };
            let range = facts.loops[inner.0].range;
            // A second pass through the same forward pass needs it, wherever it is; so does a graph older
            // than this iteration.
            let needed = facts
                .backwards
                .iter()
                .any(|other| other.range != backward.range && meets(facts, backward, other));
            let is_new = |node: &NodeId| {
                let made = facts.node(*node).range;
                range.contains(made) && innermost(facts, made) == Some(range)
            };
            let is_fresh = !backward.nodes.is_empty() && backward.nodes.iter().all(is_new);
            // A state carried from step to step also needs it, and is reported separately.
            let carries = facts
                .carried
                .iter()
                .any(|carried| carried.how == Carry::State && facts.is_inside(carried.at.in_loop, inner));
            // `for loss in (first, second)`: both may go back through one graph.
            let root = backward.call.method().and_then(|(base, _)| checked.file.key(base));
            let is_of_loop = root.is_some_and(|root| facts.loops[inner.0].targets.contains(&root));
            let shares = is_of_loop || uses_older_graph(checked, facts, range);
            if !needed && is_fresh && !shares && !carries && !checked.file.source.contains("autograd.grad(") {
                let message = "no second `backward()` needs the graph: it stays until the next step has \
                               built its own, so two are in memory at the peak"
                    .to_owned();
                found.push(RULE.at(RuleSeverity::Medium, flag.range, message).advise(
                    "remove `retain_graph=True`; if `backward()` then fails, something carries a graph \
                     from step to step: detach that",
                ));
            }
        }
    }
}

/// Returns whether a loop uses the result of a forward pass before it, which each iteration goes back
/// through: one trunk with a loss for each of several tasks.
fn uses_older_graph(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    inside: SourceRange,
) -> bool {
    let used = checked.file.text(inside);
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let made = facts.forwards.iter().map(|(_, result, _)| facts.node(*result).range);
    made.filter(|at| at.end <= inside.start).any(|at| {
        let before = &checked.file.source[..at.start as usize];
        let line = before.rsplit('\n').next().unwrap_or_default();
        let Some((target, _)) = line.split_once(" = ") else { return false };
        let target = target.trim();
        target.chars().all(is_word) && used.split(|letter| !is_word(letter)).any(|word| word == target)
    })
}

/// Returns whether two passes may run through the same graph. One that nothing is known about may; one that
/// was computed from something unknown may share it with the other pass of the same loop.
fn meets(facts: &FunctionFacts<'_, '_>, one: &BackwardCall<'_, '_>, other: &BackwardCall<'_, '_>) -> bool {
    let graph = |of: &BackwardCall<'_, '_>| -> Vec<NodeId> {
        let nodes = of.nodes.iter().flat_map(|root| facts.in_graph(*root));
        nodes.filter(|at| facts.node(*at).graph != HasGraph::No).collect()
    };
    // A loss that is known only by its `backward()` has no position.
    let is_unknown = |nodes: &[NodeId]| {
        nodes.is_empty()
            || nodes.iter().any(|at| {
                let node = facts.node(*at);
                node.origin == TensorOrigin::Forward && node.range == SourceRange::default()
            })
    };
    let is_open = |of: &BackwardCall<'_, '_>| {
        of.nodes.iter().flat_map(|root| facts.in_graph(*root)).any(|at| facts.node(at).from_unknown)
    };
    let in_one_loop = one.at.in_loop == other.at.in_loop;
    let (first, second) = (graph(one), graph(other));
    // Two forward passes of one input are two graphs.
    let forwards = |nodes: &[NodeId]| -> Vec<NodeId> {
        let is_forward = |at: &&NodeId| facts.forwards.iter().any(|(_, result, _)| result == *at);
        nodes.iter().filter(is_forward).copied().collect()
    };
    let shares = || match (forwards(&first), forwards(&second)) {
        (one, other) if !one.is_empty() && !other.is_empty() => one.iter().any(|at| other.contains(at)),
        _ => first.iter().any(|at| second.contains(at)),
    };
    if in_one_loop && (is_open(one) || is_open(other)) {
        return true;
    }
    match (is_unknown(&first), is_unknown(&second)) {
        (false, false) => shares(),
        (_, true) if is_open(other) => in_one_loop,
        _ => true,
    }
}

/// Returns the innermost loop around a position.
fn innermost(facts: &FunctionFacts<'_, '_>, at: SourceRange) -> Option<SourceRange> {
    facts
        .loops
        .iter()
        .map(|found| found.range)
        .filter(|range| range.contains(at))
        .min_by_key(|range| range.end - range.start)
}
