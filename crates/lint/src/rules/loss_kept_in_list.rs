use crate::checked::{Checked, Fate};
use crate::facts::Kept;
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM101",
    name: "loss-kept-in-list",
    says: "A loss is put into a list, dictionary or other store with the graph behind it.",
    severity: Severity::High,
    why: "A loss holds the autograd graph that computed it. What that costs depends on `backward()`: it frees everything that
autograd has saved along the way that it runs. After it, a kept loss holds a number and the nodes of the graph in host memory.
Without it (a validation loop with gradients on, `retain_graph=True`), a kept loss holds all activations of its forward pass.",
    costs: "Without `backward()`: all saved activations, every step (902 of 900 KiB in a test net). With it, before or after the line:
512 bytes of GPU memory a step (one block for a number), and about 1 KB of host memory for every node of the graph.",
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
            let (severity, message) = match checked.fate_of_kept(facts, kept, node) {
                Fate::Freed => (Severity::Low, after_backward(kept)),
                Fate::Retained => (Severity::High, retained(kept)),
                Fate::Kept if checked.is_private(facts, kept) || checked.evaluates(facts, node, kept.at, kept.store.name()) => (Severity::High, no_backward(kept)),
                _ => continue,
            };
            let advice = match severity {
                Severity::High => "keep `.item()`, or compute it under `torch.no_grad()`",
                _ => "keep `.detach()` (the GPU does not wait) or `.item()` (it does)",
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

fn after_backward(kept: &Kept<'_, '_>) -> String {
    format!(
        "{} keeps each loss with its graph: `backward()` frees the activations, so 512 bytes of GPU memory a step stay, and the graph's nodes in host memory",
        store(kept)
    )
}

fn retained(kept: &Kept<'_, '_>) -> String {
    format!("{} keeps each loss, and `retain_graph=True` keeps its graph: all activations of every step stay on the GPU", store(kept))
}

fn no_backward(kept: &Kept<'_, '_>) -> String {
    format!("{} keeps each loss, and no `backward()` frees its graph: all activations of every batch stay on the GPU", store(kept))
}

/// The store as the messages name it.
pub(super) fn store(kept: &Kept<'_, '_>) -> String {
    match kept.store.name() {
        "" => "the list".to_owned(),
        name => format!("`{name}`"),
    }
}
