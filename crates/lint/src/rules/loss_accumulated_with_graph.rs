use crate::checked::{Checked, GraphOutcome, sums};
use crate::edit::Fix;
use crate::facts::{At, FunctionFacts, NodeId};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::SourceRange;

pub(super) const RULE: Rule = Rule {
    code: "OOM103",
    name: "loss-accumulated-with-graph",
    summary: "A running sum or average of losses keeps the graph of every step.",
    severity: RuleSeverity::High,
    why: "`total += loss` makes `total` depend on every previous loss, so none of their graphs can be freed.
If `backward()` runs through each loss, its activations are freed anyway and only the nodes stay, in host
memory: the popular warning about this line concerns RAM and time, rarely GPU memory. In a validation loop
with gradients on, nothing is freed.",
    costs: "With `backward()` on each loss: nothing on the GPU (measured on an H200: flat), about 1 KB of
host memory per graph node and step. Without it, or with `retain_graph=True`: all saved activations, every
step.",
    bad: "
for x, y in val_loader:
    val_loss += criterion(model(x), y)
",
    good: "
for x, y in val_loader:
    with torch.no_grad():
        val_loss += criterion(model(x), y)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for sum in sums(facts) {
            let is_step = match sum.at.in_loop {
                // One that starts again in every step is the sum of a single step.
                Some(inner) => facts.around(Some(inner)).any(|at| {
                    checked.is_step_loop(facts, at) && !checked.is_emptied(facts, sum.name, Some(at))
                }),
                None => checked.is_step_function(facts.id),
            };
            if !is_step || checked.is_emptied(facts, sum.name, sum.at.in_loop) {
                continue;
            }
            let fix = sum.added.and_then(|added| checked.detach(facts, sum.node, added, sum.name));
            judge(
                checked,
                facts,
                Sum { node: sum.node, name: sum.name, at: sum.at, range: sum.range, fix, elsewhere: false },
                found,
            );
        }
        for kept in facts.kept.iter().filter(|kept| kept.summed && kept.at.in_loop.is_some()) {
            if let Some(node) = checked.node_of(facts, &kept.value) {
                let fix = checked.detach_kept(facts, kept);
                judge(
                    checked,
                    facts,
                    Sum {
                        node,
                        name: kept.store.name(),
                        at: kept.at,
                        range: kept.through.unwrap_or(kept.range),
                        fix,
                        elsewhere: true,
                    },
                    found,
                );
            }
        }
    }
}

struct Sum<'s> {
    node: NodeId,
    name: &'s str,
    at: At,
    range: SourceRange,
    fix: Option<Fix>,
    /// Whether the sum is in an object that is given the parts.
    elsewhere: bool,
}

fn judge<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    sum: Sum<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let graph_outcome = graph_outcome(checked, facts, &sum);
    let Sum { node, name, at, range, fix, .. } = sum;
    let (severity, message, advice) = match graph_outcome {
        GraphOutcome::Freed => (
            RuleSeverity::Low,
            format!(
                "`{name}` has the graph nodes of every step behind it: host memory and time grow, GPU \
                 memory does not (`backward()` frees the activations)"
            ),
            "add `.detach()` (no synchronization) or `.item()` (waits for the GPU)",
        ),
        GraphOutcome::Retained => (
            RuleSeverity::High,
            format!(
                "`{name}` has every step behind it, and `retain_graph=True` keeps their graphs: all \
                 activations of every step stay on the GPU"
            ),
            "add `.detach()`, and remove `retain_graph=True` if it was only there to silence the error",
        ),
        GraphOutcome::Kept if checked.evaluates(facts, node, at, name) => (
            RuleSeverity::High,
            format!(
                "`{name}` has the graph of every batch behind it: gradients are on and no `backward()` \
                 frees it, so all activations stay on the GPU"
            ),
            "run the loop under `torch.no_grad()`, or add `.item()`",
        ),
        _ => return,
    };
    found
        .push(RULE.at(severity, range, message).advise(advice).about(checked.computed(facts, node)).fix(fix));
}

/// Returns what happens to the graph: a sum that `backward()` is called on is intended; otherwise its parts
/// decide.
fn graph_outcome<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    sum: &Sum<'_>,
) -> GraphOutcome {
    let roots = || facts.backwards.iter().flat_map(|backward| &backward.nodes);
    // A sum in a callee is known here by the part that it is given.
    let is_root = !sum.elsewhere && roots().any(|root| facts.comes_from(*root, sum.node));
    if is_root {
        return GraphOutcome::Consumed;
    }
    match checked.graph_outcome(facts, sum.node, None, sum.at) {
        // The parts of one forward pass before the loop: its activations exist once.
        GraphOutcome::Retained | GraphOutcome::Kept if !checked.is_new(facts, sum.at, sum.node) => {
            GraphOutcome::Unknown
        }
        graph_outcome => graph_outcome,
    }
}
