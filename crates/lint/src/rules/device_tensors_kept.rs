use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{Facts, Graph, Kept, Store, Value};
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM121",
    name: "device-tensors-kept",
    says: "A training loop adds tensors on the GPU to a store that nothing ever empties.",
    severity: Severity::High,
    why: "Replay memories, banks of embeddings, histories: a list or dictionary that only grows holds one more tensor on the GPU for
every step, with or without a graph.",
    costs: "The tensor, every step, until the store is gone.",
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
            let told = facts.kept.iter().any(|other| other.place() == kept.place() && has_graph(checked, facts, other));
            // What is called so is a number, in all likelihood.
            let text = checked.file.text(kept.expr.range).to_ascii_lowercase();
            let is_number = matches!(kept.value, Value::Tensor(_)) && ["loss", "acc", "reward", "err", "norm", "score", "metric"].iter().any(|word| text.contains(word));
            if trains && !is_number && !told && is_on_device(checked, facts, kept) && checked.grows(facts, kept) && !is_collected(checked, facts, kept) {
                let message = format!("{} only grows: it keeps another tensor on the GPU on every step", store(kept));
                found.push(
                    RULE.at(Severity::High, kept.place(), message)
                        .advise("keep the last few (`collections.deque(maxlen=…)`), or `.cpu()` of them")
                        .about(checked.node_of(facts, &kept.value).map_or_else(Vec::new, |node| checked.behind(facts, kept, node))),
                );
            }
        }
    }
}

fn has_graph(checked: &Checked<'_, '_, '_>, facts: &Facts<'_, '_>, kept: &Kept<'_, '_>) -> bool {
    let nodes = match &kept.value {
        Value::Tensor(node) => vec![*node],
        _ => Vec::new(),
    };
    nodes.iter().any(|node| facts.node(*node).graph == Graph::Yes && checked.records(facts, kept.at))
}

/// A tensor without a graph (those with one are told about elsewhere), larger than a number, on the GPU for sure.
fn is_on_device(checked: &Checked<'_, '_, '_>, facts: &Facts<'_, '_>, kept: &Kept<'_, '_>) -> bool {
    let nodes = match &kept.value {
        Value::Tensor(node) => vec![*node],
        Value::Instance(_, nodes) => nodes.clone(),
        _ => return false,
    };
    let has_graph = |node: &crate::facts::Node| node.graph == Graph::Yes && checked.records(facts, kept.at);
    nodes.iter().map(|node| facts.node(*node)).any(|node| node.on_device && !node.on_host && !node.scalar && !has_graph(node))
}

/// What is joined or given back behind the loop was collected on purpose, and goes with its list.
fn is_collected(checked: &Checked<'_, '_, '_>, facts: &Facts<'_, '_>, kept: &Kept<'_, '_>) -> bool {
    let Store::Local { id, name } = &kept.store else { return false };
    let outermost = facts.around(kept.at.in_loop).take_while(|at| Some(*at) != facts.containers[id.0].made_in).last();
    let Some(outermost) = outermost else { return true };
    let end = facts.loops[outermost.0].range.end;
    let behind = crate::tree::Range { start: end, end: checked.file.functions[facts.id.0].range.end };
    let mut used = false;
    crate::tree::walk(checked.file.body_of(facts.id), &mut |stmt| {
        if behind.contains(stmt.range) {
            used |= stmt.expressions().iter().any(|expr| expr.reads_key(checked.file.source, name));
        }
    });
    used
}
