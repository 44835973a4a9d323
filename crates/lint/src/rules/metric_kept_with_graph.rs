use super::loss_kept_in_list::store;
use crate::checked::{Checked, GraphOutcome, sums};
use crate::edit::Fix;
use crate::facts::{FunctionFacts, NodeId};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::SourceRange;

pub(super) const RULE: Rule = Rule {
    code: "OOM104",
    name: "metric-kept-with-graph",
    summary: "A metric that is not part of the loss is kept with its own branch of the graph.",
    severity: RuleSeverity::High,
    why: "`loss.backward()` frees what it runs through. A second number computed from the same output (an
error in other units, an auxiliary value) is on its own branch of the forward pass, which no `backward()`
reaches.",
    costs: "What the operations of that branch saved, every step: three outputs for a mean squared error,
one for a softmax; all activations if the metric has its own forward pass (measured).",
    bad: "
for x, y in loader:
    out = model(x)
    loss = criterion(out, y)
    error = (out - y).abs().mean()
    loss.backward()
    errors.append(error)
",
    good: "
for x, y in loader:
    out = model(x)
    loss = criterion(out, y)
    error = (out - y).abs().mean()
    loss.backward()
    errors.append(error.item())
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in &facts.kept {
            let Some(node) = checked.node_of(facts, &kept.value) else { continue };
            let grows = checked.grows(facts, kept) || kept.summed && kept.at.in_loop.is_some();
            if grows && checked.graph_outcome_of_kept(facts, kept, node) == GraphOutcome::Branch {
                let per_epoch = kept.at.in_loop.is_some_and(|at| checked.is_epoch_loop(facts, at));
                let severity = match per_epoch && facts.node(node).scalar {
                    true => RuleSeverity::Low,
                    false => RuleSeverity::High,
                };
                let fix = checked.detach_kept(facts, kept);
                say(checked, facts, node, (severity, kept.expr.range), &store(kept), fix, found);
            }
        }
        for sum in sums(facts) {
            let is_root = facts
                .backwards
                .iter()
                .any(|backward| backward.nodes.iter().any(|root| facts.comes_from(*root, sum.node)));
            let is_step = sum.at.in_loop.is_some_and(|at| checked.is_step_loop(facts, at));
            if is_step
                && !is_root
                && !checked.is_emptied(facts, sum.name, sum.at.in_loop)
                && checked.graph_outcome(facts, sum.node, None, sum.at) == GraphOutcome::Branch
            {
                let fix = sum.added.and_then(|added| checked.detach(facts, sum.node, added, sum.name));
                let place = (RuleSeverity::High, sum.range);
                say(checked, facts, sum.node, place, &format!("`{}`", sum.name), fix, found);
            }
        }
    }
}

fn say<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    node: NodeId,
    (severity, range): (RuleSeverity, SourceRange),
    store: &str,
    fix: Option<Fix>,
    found: &mut Vec<Diagnostic>,
) {
    let often = if severity == RuleSeverity::High { "step" } else { "epoch" };
    let message = format!(
        "{store} keeps a value that `backward()` does not reach: what its own operations saved stays on \
         the GPU, every {often}"
    );
    found.push(
        RULE.at(severity, range, message)
            .advise("keep `.item()` or `.detach()` of it, or compute it under `torch.no_grad()`")
            .about(checked.computed(facts, node))
            .fix(fix),
    );
}
