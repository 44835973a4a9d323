use super::evaluation_with_gradients::{decorate, passes};
use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM302",
    name: "eval-mistaken-for-no-grad",
    summary: "`model.eval()` is called, but gradients stay on.",
    severity: RuleSeverity::Medium,
    why: "`eval()` switches dropout and batch normalization to evaluation mode. It does not affect autograd:
every forward pass still saves its activations.",
    costs: "No growth unless outputs are kept, but a higher peak: 3478 KiB with gradients, 1936 KiB under
`no_grad` (measured on a test net).",
    bad: "
model.eval()
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
",
    good: "
model.eval()
with torch.no_grad():
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, model, node) in passes(checked) {
        if checked.last_mode(facts, model, facts.node(node).range.start) == Some(true) {
            let message = format!(
                "`{model}` is in evaluation mode, but gradients are on: `eval()` does not turn them off, \
                 and the saved activations of every batch raise the peak"
            );
            found.push(
                RULE.at(RuleSeverity::Medium, facts.node(node).range, message)
                    .advise("run the loop under `torch.no_grad()` or `torch.inference_mode()`")
                    .fix(decorate(checked, facts)),
            );
        }
    }
}
