use crate::checked::Checked;
use crate::facts::{Facts, NodeId};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Edit, Fix, Rule, Severity};
use crate::torch;

pub(super) const RULE: Rule = Rule {
    code: "OOM301",
    name: "evaluation-with-gradients",
    says: "An evaluation or inference loop runs with gradients on.",
    severity: Severity::Medium,
    why: "With gradients on, every forward pass saves its activations for a `backward()` that never comes. They are freed when the
variables are assigned again, which is after the next forward pass: two sets are in memory at a time.",
    costs: "No growth; a higher peak: 3478 KiB with gradients, 1936 under `no_grad` (measured on a test net).",
    bad: "
def evaluate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct
",
    good: "
@torch.no_grad()
def evaluate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, model, node) in passes(checked) {
        let named = torch::reads_as_evaluation(checked.file.name_of(facts.id)) || loop_is_evaluation(checked, facts, node);
        if named && checked.last_mode(facts, model, facts.node(node).range.start) != Some(true) {
            let message = format!("`{model}` runs with gradients on, and no `backward()` follows: each batch's activations are kept while the next ones are computed, which raises the peak");
            found.push(
                RULE.at(Severity::Medium, facts.node(node).range, message)
                    .advise("run the loop under `torch.no_grad()` or `torch.inference_mode()`")
                    .fix(decorate(checked, facts)),
            );
        }
    }
}

fn loop_is_evaluation(checked: &Checked<'_, '_, '_>, facts: &Facts<'_, '_>, node: NodeId) -> bool {
    let range = facts.node(node).range;
    let around = facts.loops.iter().filter(|found| found.range.contains(range));
    around.into_iter().any(|found| found.over_batches && found.iter.is_some_and(|iter| torch::reads_as_evaluation(checked.file.text(iter.range))))
}

/// Forward passes in a loop over batches, with gradients on, that nobody differentiates: the first of each loop.
pub(super) fn passes<'x, 't, 'a>(checked: &'x Checked<'_, 't, 'a>) -> Vec<(&'x Facts<'t, 'a>, &'a str, NodeId)> {
    let mut found = Vec::new();
    for facts in &checked.facts {
        let mut seen = Vec::new();
        for (model, node, at) in &facts.forwards {
            let Some(batches) = facts.around(at.in_loop).find(|at| facts.loops[at.0].over_batches) else { continue };
            let range = facts.loops[batches.0].range;
            let differentiates = facts.backwards.iter().any(|backward| range.contains(backward.range)) || uses_gradients(checked, range);
            if model.is_empty() || differentiates || !checked.records(facts, *at) || seen.contains(&batches) {
                continue;
            }
            // Gradients of the inputs are asked for, or the result goes to something that differentiates.
            let is_root = facts.backwards.iter().any(|backward| backward.nodes.iter().any(|root| facts.comes_from(*root, *node)));
            if is_root || freezes(checked, model) {
                continue;
            }
            seen.push(batches);
            found.push((facts, *model, *node));
        }
    }
    found
}

/// What only makes sense with gradients on, in the text of a loop.
fn uses_gradients(checked: &Checked<'_, '_, '_>, range: crate::tree::Range) -> bool {
    let text = checked.file.text(range);
    ["backward", "autograd", "requires_grad", ".grad", "optimizer", "optim.", "attack", "enable_grad", ".step(", "jacobian", "vjp", "explain", "saliency", "train_"].iter().any(|part| text.contains(part))
}

/// Parameters that need no gradients record nothing.
fn freezes(checked: &Checked<'_, '_, '_>, model: &str) -> bool {
    let _ = model;
    checked.file.source.contains("requires_grad = False") || checked.file.source.contains("requires_grad_(False)")
}

/// `@torch.no_grad()` on the function, if all of it is evaluation.
pub(super) fn decorate(checked: &Checked<'_, '_, '_>, facts: &Facts<'_, '_>) -> Option<Fix> {
    let function = checked.file.functions[facts.id.0].function?;
    let torch = checked.file.imported_as("torch")?;
    let range = checked.file.functions[facts.id.0].range;
    if facts.id == FunctionId::MODULE || uses_gradients(checked, range) || !facts.backwards.is_empty() || checked.file.text(range).contains("yield") {
        return None;
    }
    let start = function.starts;
    let before = checked.file.text(crate::tree::Range { start: 0, end: start.start });
    let indent: String = before.rsplit('\n').next().unwrap_or("").to_owned();
    if !indent.chars().all(char::is_whitespace) {
        return None;
    }
    let text = format!("@{torch}.no_grad()\n{indent}");
    Some(Fix { title: "run the function without gradients".to_owned(), edits: vec![Edit { range: start, text }] })
}
