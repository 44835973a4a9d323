use crate::checked::Checked;
use crate::edit::{Applicability, Edit, Fix};
use crate::facts::{AbstractValue, FunctionFacts, HasGraph, LoopId, NodeId, Returned};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::torch;
use crate::tree::{ExprKind, SourceRange, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM301",
    name: "evaluation-with-gradients",
    summary: "An evaluation or inference loop runs with gradients on.",
    severity: RuleSeverity::Medium,
    why: "With gradients on, every forward pass saves its activations for a `backward()` that never comes.
They are freed when the variables are reassigned, after the next forward pass, so two sets are in memory at
once.",
    costs: "No growth, but a higher peak: 3478 KiB with gradients, 1936 KiB under `no_grad` (measured on a
test net).",
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
        let named = torch::reads_as_evaluation(checked.file.name_of(facts.id))
            || loop_is_evaluation(checked, facts, node)
            || only_infers(checked, facts, node);
        if named && checked.last_mode(facts, model, facts.node(node).range.start) != Some(true) {
            let message = format!(
                "`{model}` runs with gradients on, and no `backward()` follows: the activations of each \
                 batch are kept while the next ones are computed, which raises the peak"
            );
            found.push(
                RULE.at(RuleSeverity::Medium, facts.node(node).range, message)
                    .advise("run the loop under `torch.no_grad()` or `torch.inference_mode()`")
                    .fix(decorate(checked, facts)),
            );
        }
    }
}

fn loop_is_evaluation(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, node: NodeId) -> bool {
    let range = facts.node(node).range;
    let around = facts.loops.iter().filter(|found| found.range.contains(range));
    around.into_iter().any(|found| {
        found.over_batches
            && found.iter.is_some_and(|iter| torch::reads_as_evaluation(checked.file.text(iter.range)))
    })
}

/// Returns the forward passes with gradients on that are never differentiated: the first of each loop over
/// batches, and of each function that put the model into evaluation mode before.
pub(super) fn passes<'x, 't, 'a>(
    checked: &'x Checked<'_, 't, 'a>,
) -> Vec<(&'x FunctionFacts<'t, 'a>, &'a str, NodeId)> {
    let mut found = Vec::new();
    if model_differentiates(checked) || freezes(checked) {
        return found;
    }
    for facts in &checked.facts {
        let mut seen = Vec::new();
        let passes = facts.forwards.iter().map(|(model, node, at)| (model, node, at, None));
        let helped = facts.helped.iter().map(|(model, node, at, helper)| (model, node, at, Some(*helper)));
        for (model, node, at, helper) in passes.chain(helped) {
            let batches = facts.around(at.in_loop).find(|at| facts.loops[at.0].over_batches);
            let position = facts.node(*node).range;
            let evaluates = checked.last_mode(facts, model, position.start) == Some(true);
            let part = match batches {
                Some(batches) => facts.loops[batches.0].range,
                // A helper outside of such a loop is most likely a part of a larger step.
                None if helper.is_some() => continue,
                // From `eval()` to the end of the function.
                // Whoever calls it decides about gradients.
                None if matches!(checked.file.name_of(facts.id), "forward" | "__call__" | "__init__") => {
                    continue;
                }
                None if evaluates && (facts.id != FunctionId::MODULE || at.in_loop.is_some())
                    || is_evaluation_step(checked, facts)
                    || only_infers(checked, facts, *node) =>
                {
                    SourceRange {
                        start: start_of_evaluation(facts, model, position),
                        end: checked.file.functions[facts.id.0].range.end,
                    }
                }
                None => continue,
            };
            let differentiates = facts.backwards.iter().any(|backward| part.contains(backward.range))
                || uses_gradients(checked, part)
                || helper.is_some_and(|id| uses_gradients(checked, checked.file.functions[id.0].range))
                || checked.calls_backward(facts, part);
            if model.is_empty() || differentiates || !checked.records(facts, *at) || seen.contains(&batches) {
                continue;
            }
            let is_root = facts
                .backwards
                .iter()
                .any(|backward| backward.nodes.iter().any(|root| facts.comes_from(*root, *node)));
            if is_root
                || checked.gives_loss_away(facts, *node)
                || gives_back(checked, facts, *node)
                || batches.is_none() && is_dropped(checked, facts, *node)
                || checked.file.is_frozen(model)
                || checked.is_test(facts.id)
            {
                continue;
            }
            seen.push(batches);
            found.push((facts, *model, *node));
        }
    }
    found
}

/// Returns where the evaluation of a pass starts: at the last `eval()` before it, or else with the outermost
/// loop around it.
fn start_of_evaluation(facts: &FunctionFacts<'_, '_>, model: &str, pass: SourceRange) -> u32 {
    let modes = facts.evaluating.iter().filter(|(name, at, _)| *name == model && *at < pass.start);
    let around = facts.loops.iter().filter(|found| found.range.contains(pass));
    let outermost = around.map(|found| found.range.start).min();
    modes.map(|(_, at, _)| *at).max().or(outermost).unwrap_or(pass.start)
}

/// Returns whether a pass is in a loop of a script that makes the model itself and trains nothing.
fn only_infers(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, node: NodeId) -> bool {
    let range = facts.node(node).range;
    let mut loops = (0..facts.loops.len()).map(LoopId);
    let uses_gpu = ["cuda", "device"].iter().any(|word| checked.file.source.contains(word));
    uses_gpu
        && !checked.may_train()
        && loops.any(|id| facts.loops[id.0].range.contains(range) && checked.infers(facts, id))
        // A script without functions may also be the demonstration of a model; those load no weights.
        && (facts.id != FunctionId::MODULE || checked.file.mentions("load_state_dict"))
        && checked.is_own_model(facts, node)
        && facts.returned == Returned::Plain
        && !reads_as_training(checked.file.name_of(facts.id))
        && !yields(checked, facts)
}

/// Returns whether a function is named for training: `train_epoch`, `learn`, `update`.
fn reads_as_training(name: &str) -> bool {
    let mut words = name.split('_');
    words.any(|word| matches!(word, "train" | "training" | "learn" | "update" | "optimize" | "step"))
}

/// Returns whether a function is a generator: whoever reads it may differentiate what it gives.
fn yields(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>) -> bool {
    let mut yields = false;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        for expr in stmt.expressions() {
            yields |= expr.any(&mut |part| matches!(&part.kind, ExprKind::Yield(_)));
        }
    });
    yields
}

/// Returns whether a function is named for evaluation (`_eval_step`, `validate`) and returns nothing with a
/// graph.
fn is_evaluation_step(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>) -> bool {
    let name = checked.file.name_of(facts.id);
    let is_named = ["eval", "valid"].iter().any(|word| name.split('_').any(|part| part.starts_with(word)));
    is_named && facts.returned == Returned::Plain
}

/// Returns whether a result is unused: `model(dummy)` or `_ = model(dummy)`, a trial run.
fn is_dropped(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, node: NodeId) -> bool {
    let range = facts.node(node).range;
    let mut dropped = false;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        dropped |= match &stmt.kind {
            StmtKind::Expr(_) => stmt.range == range,
            StmtKind::Assign { targets, value } => {
                value.range == range
                    && targets.iter().all(|target| matches!(target.kind, ExprKind::Name("_")))
            }
            _ => false,
        }
    });
    dropped
}

/// Returns whether a caller gets the result with its graph, and may differentiate it.
fn gives_back(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, node: NodeId) -> bool {
    fn has_graph(returned: &Returned, is_unknown: &dyn Fn() -> bool) -> bool {
        match returned {
            Returned::Tensor { graph, .. } => *graph != HasGraph::No,
            Returned::Tuple(items) => items.iter().any(|item| has_graph(item, is_unknown)),
            Returned::Unknown => is_unknown(),
            Returned::Plain | Returned::Model => false,
        }
    }
    let in_loop =
        facts.loops.iter().any(|found| found.over_batches && found.range.contains(facts.node(node).range));
    !in_loop && has_graph(&facts.returned, &|| checked.escapes(facts, node))
}

/// Returns whether the text of a loop contains something that only makes sense with gradients on.
fn uses_gradients(checked: &Checked<'_, '_, '_>, range: SourceRange) -> bool {
    const WORDS: &[&str] = &[
        "backward",
        "autograd.grad",
        "requires_grad_(",
        "requires_grad = True",
        "requires_grad=True",
        ".grad",
        "optimizer",
        "optim.",
        "attack",
        "adversary",
        ".perturb(",
        "enable_grad",
        "jacobian",
        "vjp",
        "explain",
        "saliency",
    ];
    let text = checked.file.text(range);
    // `env.step(action)` is a step of an environment.
    let mut steps = text.match_indices(".step(").map(|(at, _)| &text[..at]);
    WORDS.iter().any(|part| text.contains(part))
        || steps.any(|before| !before.ends_with("env") && !before.ends_with("envs"))
}

/// Returns whether the `forward` of a model computes derivatives, such as forces from an energy.
fn model_differentiates(checked: &Checked<'_, '_, '_>) -> bool {
    let is_forward = |facts: &&FunctionFacts<'_, '_>| {
        checked.file.name_of(facts.id) == "forward"
            && checked.file.class_of(facts.id).is_some_and(|class| class.kind.is_module())
    };
    checked.imports.differentiate()
        || checked.facts.iter().filter(is_forward).any(|facts| checked.differentiates(facts))
}

/// Returns whether the file freezes parameters, which then record nothing.
fn freezes(checked: &Checked<'_, '_, '_>) -> bool {
    checked.file.source.contains("requires_grad = False")
        || checked.file.source.contains("requires_grad_(False)")
}

/// Adds `@torch.no_grad()` to the function, if all of it is evaluation. Unsafe: code in other files,
/// including the model, may need gradients inside of the function, or those of its result.
pub(super) fn decorate(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>) -> Option<Fix> {
    let function = checked.file.functions[facts.id.0].function?;
    let range = checked.file.functions[facts.id.0].range;
    // A call only creates a coroutine or a generator, which runs after gradients are on again.
    let runs_later = function.is_async || checked.file.text(range).contains("yield");
    // TorchScript compiles the source, and does not support this decorator.
    let is_compiled =
        function.decorators.iter().any(|decorator| checked.file.text(decorator.range).contains("jit"));
    let differentiates =
        uses_gradients(checked, range) || !facts.backwards.is_empty() || checked.calls_backward(facts, range);
    // What is given the model may need gradients: an attack, an explanation.
    let gives_model_away = facts.calls.iter().any(|call| {
        checked.is_foreign(call) && call.args.iter().any(|arg| matches!(arg, AbstractValue::Model))
    });
    if facts.id == FunctionId::MODULE || runs_later || is_compiled || differentiates || gives_model_away {
        return None;
    }
    let torch = checked.file.name_for("torch", facts.id)?;
    let start = function.starts;
    let before = checked.file.text(SourceRange { start: 0, end: start.start });
    let indent: String = before.rsplit('\n').next().unwrap_or("").to_owned();
    if !indent.chars().all(char::is_whitespace) {
        return None;
    }
    let text = format!("@{torch}.no_grad()\n{indent}");
    let edits = vec![Edit { range: start, text }];
    Some(Fix {
        title: "run the function without gradients".to_owned(),
        applicability: Applicability::Unsafe,
        edits,
    })
}
