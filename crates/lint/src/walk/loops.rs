//! Loops: what they go through, and what is new on every turn.

use super::{Walk, counts};
use crate::facts::{Graph, Loop, LoopId, NodeId, Origin, Value};
use crate::torch;
use crate::tree::{Expr, ExprKind, Operator, Range, Stmt};

impl<'t, 'a> Walk<'_, 't, 'a> {
    pub(super) fn for_loop(
        &mut self,
        target: &'t Expr<'a>,
        iter: &'t Expr<'a>,
        body: &'t [Stmt<'a>],
        range: Range,
    ) {
        let source = self.iterated(iter);
        let made = Loop {
            parent: self.at.in_loop,
            range,
            iter: Some(iter),
            over_batches: source.batches,
            counts: source.counts,
            targets: Vec::new(),
        };
        self.in_loop(made, |walk| {
            walk.bind_target(target, &source, range);
            walk.body(body);
        });
    }

    /// Binds the variables of a loop or of a comprehension.
    pub(super) fn bind_target(&mut self, target: &'t Expr<'a>, source: &Iterated, range: Range) {
        let mut names = Vec::new();
        target.any(&mut |part| {
            if let ExprKind::Name(name) = part.kind {
                names.push(name);
            }
            false
        });
        for (place, name) in names.iter().enumerate() {
            let value = if source.counter_first && place == 0 {
                Value::Counter
            } else if !source.tensors.is_empty() {
                Value::Tensor(self.derive(source.tensors.clone(), target.range))
            } else if source.batches {
                Value::Tensor(self.add(Origin::Batch, Vec::new(), Graph::No, target.range))
            } else {
                Value::Unknown
            };
            self.facts.emptied.push((name, target.range));
            self.bind(name, value);
        }
        if let Some(LoopId(at)) = self.at.in_loop
            && self.facts.loops[at].range == range
        {
            self.facts.loops[at].targets = names;
        }
    }

    /// What a loop goes through.
    pub(super) fn iterated(&mut self, iter: &'t Expr<'a>) -> Iterated {
        let value = self.eval(iter);
        let mut found =
            Iterated { batches: false, counts: false, counter_first: false, tensors: self.tensors(&value) };
        if let ExprKind::Sequence(..) = iter.kind {
            found.tensors = self.tensors(&value);
            return found;
        }
        let mut open = vec![iter];
        while let Some(at) = open.pop() {
            if let Some(key) = self.file.key(at) {
                found.batches |=
                    torch::reads_as_loader(key) || matches!(self.names.get(key), Some(Value::Loader));
            }
            let Some(call) = at.as_call() else { continue };
            let name = match &call.callee.kind {
                ExprKind::Name(name) | ExprKind::Attribute(_, name) => *name,
                _ => continue,
            };
            match name {
                "range" | "count" | "trange" => (found.counts, found.counter_first) = (true, true),
                "enumerate" => {
                    (found.counts, found.counter_first) = (true, true);
                    open.extend(&call.args);
                }
                _ if name.ends_with("DataLoader") || name.ends_with("loader") => found.batches = true,
                // `log_every(loader, 10)`, `tqdm(loader)`, `islice(loader, n)`
                _ => open.extend(&call.args),
            }
        }
        found.counts |= found.batches;
        found
    }

    /// A condition that is true on some turns only, by counting.
    pub(super) fn counts_turns(&self, test: &Expr<'a>) -> bool {
        let of_loops = |name: &str| {
            let mut around = self.facts.around(self.at.in_loop);
            around.any(|at| self.facts.loops[at.0].counts && self.facts.loops[at.0].targets.contains(&name))
        };
        test.any(&mut |part| matches!(part.kind, ExprKind::Binary(Operator::Modulo, _)))
            || test.any(&mut |part| matches!(&part.kind, ExprKind::Compare(sides) if sides.iter().any(|side| counts(side, &of_loops))))
    }

    /// Whether a key is another one on every turn.
    pub(super) fn is_new_key(&self, index: &Expr<'a>) -> bool {
        let is_new = |name: &str| {
            let counted = self.facts.around(self.at.in_loop).any(|at| {
                let around = &self.facts.loops[at.0];
                around.counts && around.targets.contains(&name)
            });
            counted
                || matches!(self.names.get(name), Some(Value::Tensor(node)) if self.facts.node(*node).origin == Origin::Batch)
                || matches!(self.names.get(name), Some(Value::Counter))
        };
        counts(index, &is_new)
    }
}

/// What a loop goes through.
pub(super) struct Iterated {
    pub(super) batches: bool,
    pub(super) counts: bool,
    /// The first variable is a number that counts.
    pub(super) counter_first: bool,
    pub(super) tensors: Vec<NodeId>,
}
