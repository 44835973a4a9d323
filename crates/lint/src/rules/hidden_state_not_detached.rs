use crate::checked::Checked;
use crate::facts::{Carried, Carry, FunctionFacts, HasGraph, Returned};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::torch;
use crate::tree::SourceRange;

pub(super) const RULE: Rule = Rule {
    code: "OOM108",
    name: "hidden-state-not-detached",
    summary: "A hidden state is carried from step to step with its graph.",
    severity: RuleSeverity::High,
    why: "A state that is fed back has every previous step in its graph. With a plain `backward()` the
second step raises \"Trying to backward through the graph a second time\"; with `retain_graph=True`, the
usual wrong fix, it runs, and every step keeps the graphs of all previous steps and walks through them
again. In generation with gradients on, nothing raises: each token adds its graph.",
    costs: "All activations of a step, every step, and each `backward()` takes longer than the previous one
(measured: 1024 KiB per step).",
    bad: "
for x, y in loader:
    out, hidden = model(x, hidden)
    loss = criterion(out, y)
    loss.backward(retain_graph=True)
    optimizer.step()
",
    good: "
for x, y in loader:
    hidden = hidden.detach()
    out, hidden = model(x, hidden)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for state in facts.carried.iter().filter(|carried| carried.how == Carry::State) {
            // Transformer-XL and similar models return their memory detached.
            if state.name.starts_with("mem") {
                continue;
            }
            let Some(inner) = state.at.in_loop else { continue };
            if runs_layers(facts, state) {
                continue;
            }
            if facts.node(state.node).graph != HasGraph::Yes || !checked.records(facts, state.at) {
                continue;
            }
            let retains = facts.around(Some(inner)).any(|at| {
                let range = facts.loops[at.0].range;
                let again = |(name, place): &(&str, SourceRange)| {
                    *name == state.name && *place != state.range && range.contains(*place)
                };
                let retains = facts
                    .backwards
                    .iter()
                    .any(|backward| backward.at.in_loop == Some(at) && backward.retains);
                retains && !facts.emptied.iter().any(again)
            });
            let message = if retains {
                format!(
                    "`{}` carries the graph of every step into the next, and `retain_graph=True` keeps all \
                     of them: the activations of every step stay on the GPU, and each `backward()` is \
                     slower than the previous one",
                    state.name
                )
            } else if generates(checked, facts, state) {
                format!(
                    "`{}` carries the graph of every step into the next: gradients are on, so the \
                     activations of every step stay on the GPU",
                    state.name
                )
            } else {
                continue;
            };
            let advice = if retains {
                "detach it at the start of each step, and remove `retain_graph=True`"
            } else {
                "generate under `torch.no_grad()`"
            };
            // Who gets the result may differentiate it after all.
            let is_certain = retains
                || facts.returned == Returned::Plain
                || checked.is_in_evaluation_mode(facts, state.node)
                || !checked.trains() && !has_graph(facts);
            let severity = if is_certain { RuleSeverity::High } else { RuleSeverity::Medium };
            found.push(
                RULE.at(severity, state.range, message)
                    .advise(advice)
                    .about(checked.computed(facts, state.node)),
            );
        }
    }
}

/// Matches `for layer in layers: x = layer(x)`, which is one forward pass.
fn runs_layers(facts: &FunctionFacts<'_, '_>, state: &Carried<'_, '_>) -> bool {
    let targets = state.at.in_loop.map(|at| &facts.loops[at.0].targets);
    let ancestors = facts.ancestors(state.node);
    let mut passes = facts
        .forwards
        .iter()
        .filter(|(_, pass, at)| at.in_loop == state.at.in_loop && ancestors.contains(pass));
    passes.any(|(model, ..)| targets.is_some_and(|targets| targets.contains(model)))
}

/// Returns whether a state is carried through a generation or an evaluation, after which `backward()` is
/// never called.
fn generates<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    state: &Carried<'t, 'a>,
) -> bool {
    const WORDS: &[&str] = &["sample", "generate", "translate", "beam", "rollout"];
    let name = checked.file.name_of(facts.id);
    let named = torch::reads_as_evaluation(name) || name.split('_').any(|word| WORDS.contains(&word));
    let range = checked.file.functions[facts.id.0].range;
    let differentiates = !facts.backwards.is_empty() || checked.calls_backward(facts, range);
    if differentiates
        || state.at.now_and_then
        || facts.around(state.at.in_loop).any(|at| facts.has_backward(at))
    {
        return false;
    }
    // A method of the model may be a part of its forward pass.
    let in_module = checked.file.class_of(facts.id).is_some_and(|class| class.kind.is_module());
    if in_module && facts.returned != Returned::Plain {
        return false;
    }
    let is_named = named && !checked.is_test(facts.id) && (!has_graph(facts) || !checked.trains());
    is_named || checked.evaluates(facts, state.node, state.at, "") && !has_graph(facts)
}

/// Returns whether a caller gets something with a graph.
fn has_graph(facts: &FunctionFacts<'_, '_>) -> bool {
    fn certainly(returned: &Returned) -> bool {
        match returned {
            Returned::Tensor { graph, .. } => *graph == HasGraph::Yes,
            Returned::Tuple(items) => items.iter().any(certainly),
            Returned::Unknown | Returned::Plain | Returned::Model => false,
        }
    }
    certainly(&facts.returned)
}
