//! Loops: what they iterate over, and what is new in every iteration.

use super::{FunctionWalk, counts};
use crate::facts::{AbstractValue, HasGraph, Loop, LoopId, NodeId, TensorOrigin};
use crate::torch;
use crate::tree::{Expr, ExprKind, Operator, SourceRange, Stmt};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    pub(super) fn for_loop(
        &mut self,
        target: &'t Expr<'a>,
        iter: &'t Expr<'a>,
        body: &'t [Stmt<'a>],
        range: SourceRange,
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
    pub(super) fn bind_target(&mut self, target: &'t Expr<'a>, source: &Iterated, range: SourceRange) {
        let mut names = Vec::new();
        target.any(&mut |part| {
            if let ExprKind::Name(name) = part.kind {
                names.push(name);
            }
            false
        });
        for (place, name) in names.iter().enumerate() {
            let value = if source.counter_first && place == 0 {
                AbstractValue::Counter
            } else if self.file.is_switched(name) && !source.batches {
                // `for model in models`, where `models` is an argument.
                AbstractValue::Model
            } else if !source.tensors.is_empty() {
                AbstractValue::Tensor(self.derive(source.tensors.clone(), target.range))
            } else if source.batches {
                AbstractValue::Tensor(self.add(TensorOrigin::Batch, Vec::new(), HasGraph::No, target.range))
            } else {
                AbstractValue::Unknown
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

    /// Returns what a loop iterates over.
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
            // `loaders[name]` is one of them.
            let named = if let ExprKind::Subscript(base, _) = &at.kind { base } else { at };
            if let Some(key) = self.file.key(named) {
                found.batches |=
                    torch::reads_as_loader(key) || matches!(self.names.get(key), Some(AbstractValue::Loader));
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
                // `log_every(loader, 10)`, `tqdm(loader)`, `islice(loader, n)`.
                _ => open.extend(&call.args),
            }
        }
        found.counts |= found.batches;
        found
    }

    /// Returns whether a condition holds in some iterations only, by counting.
    pub(super) fn counts_turns(&self, test: &Expr<'a>) -> bool {
        let of_loops = |name: &str| {
            let mut around = self.facts.around(self.at.in_loop);
            around.any(|at| self.facts.loops[at.0].counts && self.facts.loops[at.0].targets.contains(&name))
        };
        test.any(&mut |part| matches!(part.kind, ExprKind::Binary(Operator::Modulo, _)))
            || test.any(&mut |part| match &part.kind {
                ExprKind::Compare(sides) => sides.iter().any(|side| counts(side, &of_loops)),
                _ => false,
            })
    }

    /// Returns whether a key differs in every iteration.
    pub(super) fn is_new_key(&self, index: &Expr<'a>) -> bool {
        let is_new = |name: &str| {
            let counted = self.facts.around(self.at.in_loop).any(|at| {
                let around = &self.facts.loops[at.0];
                around.counts && around.targets.contains(&name)
            });
            counted
                || match self.names.get(name) {
                    Some(AbstractValue::Tensor(node)) => self.facts.node(*node).origin == TensorOrigin::Batch,
                    Some(AbstractValue::Counter) => true,
                    _ => false,
                }
        };
        counts(index, &is_new)
    }
}

/// What a loop iterates over.
pub(super) struct Iterated {
    pub(super) batches: bool,
    pub(super) counts: bool,
    /// Whether the first variable is a counter.
    pub(super) counter_first: bool,
    pub(super) tensors: Vec<NodeId>,
}
