use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, FunctionFacts, HasGraph, KeptValue, TensorStore};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM121",
    name: "device-tensors-kept",
    summary: "A training loop adds GPU tensors to a store that is never emptied.",
    severity: RuleSeverity::High,
    why: "Replay memories, embedding banks, histories: a list or dictionary that only grows holds one more
GPU tensor per step, with or without a graph.",
    costs: "The tensor, every step, until the store is freed.",
    bad: "
for step in range(1000):
    x = torch.randn(1024, 256, device='cuda')
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    memory.append(x)
",
    good: "
memory = collections.deque(maxlen=100)
for step in range(1000):
    x = torch.randn(1024, 256, device='cuda')
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    memory.append(x)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in facts.kept.iter().filter(|kept| !kept.summed) {
            let trains = checked.is_training(facts, kept.at);
            let reported = facts
                .kept
                .iter()
                .any(|other| other.place() == kept.place() && has_graph(checked, facts, other));
            // A value with such a name is most likely a number.
            let text = checked.file.text(kept.expr.range).to_ascii_lowercase();
            let is_number = matches!(kept.value, AbstractValue::Tensor(_))
                && ["loss", "acc", "reward", "err", "norm", "score", "metric"]
                    .iter()
                    .any(|word| text.contains(word));
            if trains
                && !is_number
                && !reported
                && is_on_device(checked, facts, kept)
                && checked.grows(facts, kept)
                && outlives_step(checked, facts, kept)
                && !is_collected(checked, facts, kept)
            {
                let message =
                    format!("{} only grows: it keeps another GPU tensor in every step", store(kept));
                found.push(
                    RULE.at(RuleSeverity::High, kept.place(), message)
                        .advise("keep the last few (`collections.deque(maxlen=…)`), or their `.cpu()` copies")
                        .about(
                            checked
                                .node_of(facts, &kept.value)
                                .map_or_else(Vec::new, |node| checked.behind(facts, kept, node)),
                        ),
                );
            }
        }
    }
}

fn has_graph(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, kept: &KeptValue<'_, '_>) -> bool {
    let nodes = match &kept.value {
        AbstractValue::Tensor(node) => vec![*node],
        _ => Vec::new(),
    };
    nodes.iter().any(|node| facts.node(*node).graph == HasGraph::Yes && checked.records(facts, kept.at))
}

/// Returns whether a tensor without a graph (other rules report those with one), larger than a number, is
/// certainly on the GPU.
fn is_on_device(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    kept: &KeptValue<'_, '_>,
) -> bool {
    let nodes = match &kept.value {
        AbstractValue::Tensor(node) => vec![*node],
        AbstractValue::Instance(_, nodes) => nodes.clone(),
        _ => return false,
    };
    let has_graph =
        |node: &crate::facts::TensorNode| node.graph == HasGraph::Yes && checked.records(facts, kept.at);
    nodes
        .iter()
        .map(|node| facts.node(*node))
        .any(|node| node.on_device && !node.on_host && !node.scalar && !has_graph(node))
}

/// Returns whether the list is older than the training step that adds to it: one created in each step holds
/// the tensors of one.
fn outlives_step(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    kept: &KeptValue<'_, '_>,
) -> bool {
    let TensorStore::Local { id, .. } = &kept.store else { return true };
    let made_in = facts.containers[id.0].made_in;
    let mut since = facts.around(kept.at.in_loop).take_while(|at| Some(*at) != made_in);
    made_in.is_none() || since.any(|at| facts.has_backward(at) || checked.calls_step(facts, at))
}

/// Returns whether the list is joined or returned after the loop: then it was collected on purpose, and is
/// freed with its list.
fn is_collected(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    kept: &KeptValue<'_, '_>,
) -> bool {
    let TensorStore::Local { id, name } = &kept.store else { return false };
    let outermost =
        facts.around(kept.at.in_loop).take_while(|at| Some(*at) != facts.containers[id.0].made_in).last();
    let Some(outermost) = outermost else { return true };
    let end = facts.loops[outermost.0].range.end;
    let behind = crate::tree::SourceRange { start: end, end: checked.file.functions[facts.id.0].range.end };
    let mut used = false;
    crate::tree::walk(checked.file.body_of(facts.id), &mut |stmt| {
        if behind.contains(stmt.range) {
            used |= stmt.expressions().iter().any(|expr| expr.reads_key(checked.file.source, name));
        }
    });
    used
}
