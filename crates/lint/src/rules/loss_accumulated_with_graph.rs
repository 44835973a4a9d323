use crate::checked::{Checked, Fate, sums};
use crate::facts::{At, Facts, NodeId};
use crate::rule::{Diagnostic, Fix, Rule, Severity};
use crate::tree::Range;

pub(super) const RULE: Rule = Rule {
    code: "OOM103",
    name: "loss-accumulated-with-graph",
    says: "A running sum or average of losses keeps the graph of every step.",
    severity: Severity::High,
    why: "`total += loss` makes `total` a result of every loss before it, so none of their graphs can go. Where `backward()` runs
through each loss, its activations are freed all the same and only the nodes stay, in host memory: the popular warning about this
line is about RAM and time, seldom about GPU memory. In a validation loop with gradients on nothing is freed.",
    costs: "With `backward()` on each loss: nothing on the GPU (measured on an H200: flat), about 1 KB of host memory for every node of
the graph and step. Without it, or with `retain_graph=True`: all saved activations, every step.",
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
                Some(inner) => facts.around(Some(inner)).any(|at| checked.is_step_loop(facts, at)),
                None => checked.is_step_function(facts.id),
            };
            if !is_step || checked.is_emptied(facts, sum.name, sum.at.in_loop) {
                continue;
            }
            let fix = sum.added.and_then(|added| checked.detach(facts, sum.node, added, sum.name));
            judge(checked, facts, Sum { node: sum.node, name: sum.name, at: sum.at, range: sum.range, fix, elsewhere: false }, found);
        }
        for kept in facts.kept.iter().filter(|kept| kept.summed && kept.at.in_loop.is_some()) {
            if let Some(node) = checked.node_of(facts, &kept.value) {
                let fix = checked.detach_kept(facts, kept);
                judge(checked, facts, Sum { node, name: kept.store.name(), at: kept.at, range: kept.through.unwrap_or(kept.range), fix, elsewhere: true }, found);
            }
        }
    }
}

struct Sum<'s> {
    node: NodeId,
    name: &'s str,
    at: At,
    range: Range,
    fix: Option<Fix>,
    /// In an object that is given the parts.
    elsewhere: bool,
}

fn judge<'t, 'a>(checked: &Checked<'_, 't, 'a>, facts: &Facts<'t, 'a>, sum: Sum<'_>, found: &mut Vec<Diagnostic>) {
    let fate = fate(checked, facts, &sum);
    let Sum { node, name, at, range, fix, .. } = sum;
    let (severity, message, advice) = match fate {
        Fate::Freed => (
            Severity::Low,
            format!("`{name}` has the graph nodes of every step behind it: host memory and time grow, GPU memory does not (`backward()` frees the activations)"),
            "add `.detach()` (the GPU does not wait) or `.item()` (it does)",
        ),
        Fate::Retained => (
            Severity::High,
            format!("`{name}` has every step behind it, and `retain_graph=True` keeps their graphs: all activations of every step stay on the GPU"),
            "add `.detach()`, and drop `retain_graph=True` if it was only there to silence the error",
        ),
        Fate::Kept if checked.evaluates(facts, node, at, name) => (
            Severity::High,
            format!("`{name}` has the graph of every batch behind it: gradients are on and no `backward()` frees it, so all activations stay on the GPU"),
            "run the loop under `torch.no_grad()`, or add `.item()`",
        ),
        _ => return,
    };
    found.push(RULE.at(severity, range, message).advise(advice).about(checked.computed(facts, node)).fix(fix));
}

/// A sum that `backward()` is called on is what it is for; else what counts is what becomes of its parts.
fn fate<'t, 'a>(checked: &Checked<'_, 't, 'a>, facts: &Facts<'t, 'a>, sum: &Sum<'_>) -> Fate {
    let roots = || facts.backwards.iter().flat_map(|backward| &backward.nodes);
    // What a callee sums up is known here by the part that it is given.
    let is_root = !sum.elsewhere && roots().any(|root| facts.comes_from(*root, sum.node));
    if is_root { Fate::Consumed } else { checked.fate(facts, sum.node, None, sum.at) }
}
