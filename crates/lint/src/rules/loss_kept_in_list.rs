use crate::checked::{Checked, GraphOutcome};
use crate::facts::KeptValue;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM101",
    name: "loss-kept-in-list",
    summary: "A loss is stored in a list, dictionary or other container with its graph.",
    severity: RuleSeverity::High,
    why: "A loss holds the autograd graph that computed it. The cost depends on `backward()`, which frees
everything that autograd saved along its way. After it, a stored loss holds a number and the nodes of the
graph in host memory. Without it (a validation loop with gradients on, `retain_graph=True`), a stored loss
holds all activations of its forward pass.",
    costs: "Without `backward()`: all saved activations, every step (902 KiB per step measured; the
activations of the model are 900 KiB). With it, before or after the line: 512 bytes of GPU memory per step
(one block for a number), and about 1 KB of host memory per graph node.",
    bad: "
for x, y in val_loader:
    loss = criterion(model(x), y)
    losses.append(loss)
",
    good: "
for x, y in val_loader:
    with torch.no_grad():
        loss = criterion(model(x), y)
    losses.append(loss)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in facts.kept.iter().filter(|kept| !kept.summed) {
            let Some(node) = checked.node_of(facts, &kept.value) else { continue };
            if !facts.node(node).scalar || !checked.grows(facts, kept) {
                continue;
            }
            let per_epoch = kept.at.in_loop.is_some_and(|at| checked.is_epoch_loop(facts, at));
            let grows = if per_epoch { RuleSeverity::Medium } else { RuleSeverity::High };
            let (severity, message) = match checked.graph_outcome_of_kept(facts, kept, node) {
                GraphOutcome::Freed => (RuleSeverity::Low, after_backward(kept)),
                GraphOutcome::Retained => (grows, retained(kept)),
                GraphOutcome::Kept
                    if checked.is_private(facts, kept)
                        || checked.evaluates(facts, node, kept.at, kept.store.name()) =>
                {
                    (grows, no_backward(kept))
                }
                _ => continue,
            };
            let advice = match severity {
                RuleSeverity::Low => "keep `.detach()` (no synchronization) or `.item()` (waits for the GPU)",
                _ => "keep `.item()`, or compute it under `torch.no_grad()`",
            };
            found.push(
                RULE.at(severity, kept.place(), message)
                    .advise(advice)
                    .about(checked.behind(facts, kept, node))
                    .fix(checked.detach_kept(facts, kept)),
            );
        }
    }
}

fn after_backward(kept: &KeptValue<'_, '_>) -> String {
    format!(
        "{} keeps each loss with its graph: `backward()` frees the activations, so 512 bytes of GPU memory \
         per step stay, and the graph's nodes in host memory",
        store(kept)
    )
}

fn retained(kept: &KeptValue<'_, '_>) -> String {
    format!(
        "{} keeps each loss, and `retain_graph=True` keeps its graph: all activations of every step stay \
         on the GPU",
        store(kept)
    )
}

fn no_backward(kept: &KeptValue<'_, '_>) -> String {
    format!(
        "{} keeps each loss, and no `backward()` frees its graph: all activations of every batch stay on \
         the GPU",
        store(kept)
    )
}

/// Formats the name of the store for messages.
pub(super) fn store(kept: &KeptValue<'_, '_>) -> String {
    match kept.store.name() {
        "" => "the list".to_owned(),
        name => format!("`{name}`"),
    }
}
