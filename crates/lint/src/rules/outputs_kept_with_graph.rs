use super::loss_kept_in_list::store;
use crate::checked::{Checked, GraphOutcome};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM102",
    name: "outputs-kept-with-graph",
    summary: "Outputs of a model are kept while gradients are recorded.",
    severity: RuleSeverity::High,
    why: "With gradients on, an output holds every activation that `backward()` would need. `model.eval()`
does not change that: it switches dropout and batch normalization, not autograd. A list of these outputs is
a list of complete forward passes.",
    costs: "Without `backward()`: all saved activations of every batch (171 MiB per step for ResNet-18 at
batch 8, measured on an H200). After `backward()`: the output itself, every step, and the graph's nodes in
host memory.",
    bad: "
model.eval()
for x in loader:
    results.append(model(x))
",
    good: "
model.eval()
with torch.inference_mode():
    for x in loader:
        results.append(model(x).cpu())
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in facts.kept.iter().filter(|kept| !kept.summed) {
            let Some(node) = checked.node_of(facts, &kept.value) else { continue };
            if facts.node(node).scalar || !checked.grows(facts, kept) {
                continue;
            }
            let graph_outcome = checked.graph_outcome_of_kept(facts, kept, node);
            let (severity, message, advice) = match graph_outcome {
                GraphOutcome::Freed if !facts.node(node).on_host => (
                    checked.severity_of_growth(facts, kept),
                    format!(
                        "{} keeps this on the GPU in every step, with the graph's nodes in host memory \
                         (`backward()` frees the rest)",
                        store(kept)
                    ),
                    "keep `.detach().cpu()`, or only the numbers that you need",
                ),
                GraphOutcome::Retained => (
                    RuleSeverity::High,
                    format!(
                        "{} keeps this, and `retain_graph=True` keeps the graph behind it: all activations \
                         of every step stay on the GPU",
                        store(kept)
                    ),
                    "remove `retain_graph=True`, and keep `.detach().cpu()`",
                ),
                GraphOutcome::Kept
                    if checked.is_private(facts, kept)
                        || checked.evaluates(facts, node, kept.at, kept.store.name()) =>
                {
                    (
                        RuleSeverity::High,
                        format!(
                            "{} keeps the graph behind every output: gradients are on and no `backward()` \
                             frees it, so all activations of every batch stay on the GPU",
                            store(kept)
                        ),
                        "run the loop under `torch.inference_mode()` (or `torch.no_grad()`), and keep \
                         `.cpu()` copies of what you need",
                    )
                }
                _ => continue,
            };
            found.push(
                RULE.at(severity, kept.place(), message)
                    .advise(advice)
                    .about(checked.behind(facts, kept, node)),
            );
        }
    }
}
