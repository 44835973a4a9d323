//! What one iteration of a loop passes to the next: sums, averages, hidden states.

use super::FunctionWalk;
use crate::facts::{AbstractValue, Carried, Carry, HasGraph, NodeId};
use crate::tree::{Expr, ExprKind, Operator, SourceRange};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    pub(super) fn note_carry(&mut self, key: &'a str, node: NodeId, value: &'t Expr<'a>, range: SourceRange) {
        let outlives = self.outlives_turn(key);
        if !outlives {
            return;
        }
        let through_model = value.as_call().is_some_and(|call| {
            let is_model = self.is_model(&call.callee);
            is_model
                && call
                    .args
                    .iter()
                    .chain(call.keywords.iter().map(|of| &of.value))
                    .any(|arg| arg.reads_key(self.file.source, key))
        });
        let how = match &value.kind {
            _ if through_model => Carry::State,
            ExprKind::Binary(..) => Carry::Sum,
            ExprKind::Call(call)
                if self.file.path(&call.callee).is_some_and(|path| {
                    matches!(path.as_str(), "torch.cat" | "torch.add" | "torch.stack")
                }) =>
            {
                Carry::Sum
            }
            ExprKind::Call(call)
                if call.method().is_some_and(|(_, method)| matches!(method, "add" | "add_")) =>
            {
                Carry::Sum
            }
            _ => return,
        };
        let added = self.added(key, value);
        let at = self.at;
        self.facts.carried.push(Carried { name: key, node, added, range, how, at });
    }

    /// Matches `past = out.past_key_values` if `out` was computed with the `past` of the previous iteration.
    pub(super) fn is_fed_back(&self, key: &'a str, node: NodeId) -> bool {
        if self.at.in_loop.is_none() || !self.bound_before(key) {
            return false;
        }
        let ancestors = self.facts.ancestors(node);
        let passes = self
            .facts
            .forwards
            .iter()
            .filter(|(_, result, at)| at.in_loop == self.at.in_loop && ancestors.contains(result));
        let mut passes = passes.map(|(_, result, _)| self.facts.node(*result).range);
        passes.any(|pass| {
            // What the iteration itself assigned before is not that of the previous one.
            let range = self.facts.loops[self.at.in_loop.map_or(0, |at| at.0)].range;
            let mut bound = self.facts.emptied.iter().filter(|(name, _)| *name == key);
            if bound.any(|(_, at)| range.contains(*at) && at.end <= pass.start) {
                return false;
            }
            let call = self.facts.calls.iter().find(|call| call.expr.range == pass);
            call.is_some_and(|call| {
                let given =
                    call.call.args.iter().chain(call.call.keywords.iter().map(|keyword| &keyword.value));
                given.into_iter().any(|arg| arg.reads_key(self.file.source, key))
            })
        })
    }

    /// Returns whether a variable has a value from before the loop: the current assignment, which is recorded
    /// already, does not count.
    pub(super) fn bound_before(&self, key: &str) -> bool {
        let Some(inner) = self.at.in_loop else { return false };
        let range = self.facts.loops[inner.0].range;
        let bound: Vec<&SourceRange> =
            self.facts.emptied.iter().filter(|(name, _)| *name == key).map(|(_, at)| at).collect();
        bound.iter().any(|at| !range.contains(**at))
            && bound.iter().filter(|at| range.contains(***at)).count() <= 1
    }

    /// Returns whether a name got its value before the iteration began.
    pub(super) fn outlives_turn(&self, key: &'a str) -> bool {
        if key.contains('.') {
            return true;
        }
        match self.names.get(key) {
            Some(AbstractValue::Outer(_)) => true,
            Some(_) => self.bound_outside(key),
            None => false,
        }
    }

    /// Returns whether a variable was last bound outside of the loop that is being walked through.
    pub(super) fn bound_outside(&self, key: &'a str) -> bool {
        let Some(inner) = self.at.in_loop else { return false };
        let range = self.facts.loops[inner.0].range;
        let last = self.facts.emptied.iter().rev().find(|(name, _)| *name == key);
        last.is_none_or(|(_, at)| !range.contains(*at))
    }

    /// Returns the new part of `old * 0.9 + loss`.
    pub(super) fn added(&self, key: &str, value: &'t Expr<'a>) -> Option<&'t Expr<'a>> {
        let ExprKind::Binary(_, sides) = &value.kind else { return None };
        let reads = |side: &Expr<'a>| side.reads_key(self.file.source, key);
        match (reads(&sides[0]), reads(&sides[1])) {
            (true, false) => Some(&sides[1]),
            (false, true) => Some(&sides[0]),
            _ => None,
        }
    }

    pub(super) fn augment(
        &mut self,
        target: &'t Expr<'a>,
        operator: Operator,
        value_expr: &'t Expr<'a>,
        range: SourceRange,
    ) {
        let value = self.eval(value_expr);
        if let ExprKind::Subscript(base, index) = &target.kind {
            self.eval(index);
            let Some(key) = self.file.key(base) else { return };
            // `stats["loss"] += loss` is a sum; `feats[name] += [x]` is a list.
            if let AbstractValue::Tensor(node) = value
                && self.outlives_turn(key)
                && operator == Operator::Add
            {
                let mut sum = node;
                if let AbstractValue::Container(id) = self.eval(base) {
                    sum = self.facts.containers[id.0].node;
                    let graph = self.facts.node(node).graph;
                    let collected = &mut self.facts.nodes[sum.0];
                    collected.parents.push(node);
                    collected.graph = collected.graph.max(graph);
                }
                let at = self.at;
                let added = Some(value_expr);
                self.facts.carried.push(Carried { name: key, node: sum, added, range, how: Carry::Sum, at });
            }
            return;
        }
        let Some(key) = self.file.key(target) else { return };
        let old = self.eval(target);
        match (&old, &value) {
            // `losses += [loss]`.
            (AbstractValue::Container(_) | AbstractValue::Outer(_), AbstractValue::Container(id)) => {
                let items = self.facts.containers[id.0].node;
                let store = self.store(&old, key);
                let inner = match &value_expr.kind {
                    ExprKind::Sequence(_, parts) if parts.len() == 1 => &parts[0],
                    _ => value_expr,
                };
                self.keep(store, AbstractValue::Tensor(items), inner, range);
            }
            // `outputs += model(x)` appends each row.
            (AbstractValue::Container(_), AbstractValue::Tensor(_)) => {
                let store = self.store(&old, key);
                self.keep(store, value, value_expr, range);
            }
            (_, AbstractValue::Tensor(node)) => {
                let mut parents = vec![*node];
                parents.extend(self.tensors(&old));
                let outlives = self.outlives_turn(key);
                let sum = self.derive(parents, range);
                let was = self.facts.node(*node);
                let (scalar, on_host) = (was.scalar, was.on_host);
                (self.facts.nodes[sum.0].scalar, self.facts.nodes[sum.0].on_host) = (scalar, on_host);
                self.facts.nodes[sum.0].elementwise = true;
                if outlives && self.facts.node(sum).graph != HasGraph::No && operator != Operator::Modulo {
                    let at = self.at;
                    self.facts.carried.push(Carried {
                        name: key,
                        node: sum,
                        added: Some(value_expr),
                        range,
                        how: Carry::Sum,
                        at,
                    });
                }
                self.bind(key, AbstractValue::Tensor(sum));
            }
            (AbstractValue::Plain, AbstractValue::Plain) => {}
            (AbstractValue::Tensor(node), _) => {
                let same = self.derive(vec![*node], range);
                self.bind(key, AbstractValue::Tensor(same));
            }
            _ => {}
        }
    }
}
