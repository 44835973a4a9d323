use crate::checked::Checked;
use crate::facts::{FunctionFacts, HasGraph, NodeId, TensorOrigin};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM205",
    name: "outputs-written-with-graph",
    summary: "A rollout or an evaluation writes outputs of a model into a tensor while gradients are on.",
    severity: RuleSeverity::High,
    why: "Autograd records a write into a slice of a tensor: after `values[t] = critic(obs)` the graph of
the tensor contains the forward pass of step `t` and of every previous step.",
    costs: "The activations of every step of the rollout (measured: 128 KiB per step through a small net).",
    bad: "
for t in range(steps):
    values[t] = critic(obs)
    obs, reward, done, info = env.step(action)
",
    good: "
for t in range(steps):
    with torch.no_grad():
        values[t] = critic(obs)
    obs, reward, done, info = env.step(action)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for written in &facts.written {
            let Some(inner) = written.at.in_loop else { continue };
            let has_forward = facts
                .ancestors(written.value)
                .iter()
                .any(|at| facts.node(*at).origin == TensorOrigin::Forward);
            if facts.node(written.value).graph != HasGraph::Yes
                || !has_forward
                || !checked.records(facts, written.at)
            {
                continue;
            }
            // A loop that steps an environment collects experience; any other may be part of the model.
            let range = facts.loops[inner.0].range;
            let rolls_out = facts.calls.iter().any(|call| {
                range.contains(call.expr.range)
                    && call.call.method().is_some_and(|(base, name)| {
                        name == "step" && checked.file.text(base.range).to_ascii_lowercase().contains("env")
                    })
            });
            let evaluates = checked.evaluates(facts, written.value, written.at, "");
            if (rolls_out || evaluates)
                && !facts.has_backward(inner)
                && !is_differentiated(facts, written.into)
            {
                found.push(
                    RULE.at(
                        RuleSeverity::High,
                        written.range,
                        "autograd records the write: the tensor holds the forward pass of every step"
                            .to_owned(),
                    )
                    .advise("run the loop under `torch.no_grad()`")
                    .about(checked.computed(facts, written.value)),
                );
            }
        }
    }
}

/// Returns whether `backward()` runs through what was written: then the graph is intended.
fn is_differentiated(facts: &FunctionFacts<'_, '_>, into: NodeId) -> bool {
    facts.backwards.iter().any(|backward| backward.nodes.iter().any(|root| facts.comes_from(*root, into)))
}
