//! Calls of functions of the file itself, by what is known about them.

use super::{FunctionWalk, Keeps};
use crate::facts::{
    AbstractValue, BackwardCall, GradMode, HasGraph, KeptValue, LocalCall, NodeId, Returned, TensorOrigin,
    TensorStore,
};
use crate::file::FunctionId;
use crate::tree::{self, CallExpr, Expr, ExprKind, SourceRange};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    /// Handles a call of a function of the file.
    pub(super) fn local(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        callee: FunctionId,
        skip: usize,
        args: &[AbstractValue<'a>],
    ) -> AbstractValue<'a> {
        self.facts.local_calls.push(LocalCall {
            callee,
            mode: self.at.mode,
            in_loop: self.at.in_loop,
            range: Some(expr.range),
        });
        if self.yields_with_tensors(callee) {
            return AbstractValue::Generator(callee);
        }
        let Some(summary) = self.known.summary(callee) else { return AbstractValue::Unknown };
        let argument = |place: usize| -> Option<(usize, &AbstractValue<'a>)> {
            let place = place.checked_sub(skip)?;
            args.get(place).map(|value| (place, value))
        };
        for Keeps { parameter: place, summed, name, place: keeps_at } in &summary.keeps {
            let Some((place, value)) = argument(*place) else { continue };
            if !self.tensors(value).is_empty() || matches!(value, AbstractValue::Instance(..)) {
                // The name belongs to the callee: it is looked up in its text, which lives as long as the
                // file.
                let name = self.name_in(callee, name);
                self.facts.kept.push(KeptValue {
                    store: TensorStore::Outside { name },
                    value: value.clone(),
                    expr: &call.args[place],
                    range: expr.range,
                    at: self.at,
                    through: Some(*keeps_at),
                    summed: *summed,
                });
            }
        }
        let roots: Vec<NodeId> = summary
            .backwards
            .iter()
            .filter_map(|place| argument(*place))
            .flat_map(|(_, value)| self.tensors(value))
            .collect();
        if !roots.is_empty() {
            self.facts.backwards.push(BackwardCall {
                nodes: roots,
                retains: false,
                call,
                range: expr.range,
                at: self.at,
            });
        }
        self.given_back(&summary.returned, &argument, expr.range)
    }

    /// Returns whether a function is a generator with tensors in its variables.
    pub(super) fn yields_with_tensors(&self, callee: FunctionId) -> bool {
        let mut yields = false;
        tree::walk(self.file.body_of(callee), &mut |stmt| {
            for expr in stmt.expressions() {
                yields = yields || expr.any(&mut |part| matches!(part.kind, ExprKind::Yield(_)));
            }
        });
        if !yields {
            return false;
        }
        self.known.ask(callee);
        let known = self.known.facts.borrow();
        let facts = known.get(&callee).and_then(Option::as_ref);
        facts.is_some_and(|facts| {
            let on_device = |value: &AbstractValue<'a>| match value {
                AbstractValue::Tensor(node) => facts.node(*node).on_device,
                _ => false,
            };
            facts.names.values().any(on_device)
        })
    }

    pub(super) fn name_in(&self, callee: FunctionId, name: &str) -> &'a str {
        let text = self.file.text(self.file.functions[callee.0].range);
        text.find(name).map_or("", |at| &text[at..at + name.len()])
    }

    pub(super) fn given_back<'v>(
        &mut self,
        returned: &Returned,
        argument: &dyn Fn(usize) -> Option<(usize, &'v AbstractValue<'a>)>,
        range: SourceRange,
    ) -> AbstractValue<'a>
    where
        'a: 'v,
    {
        match returned {
            Returned::Unknown => AbstractValue::Unknown,
            Returned::Plain => AbstractValue::Plain,
            Returned::Model => AbstractValue::Model,
            Returned::Tuple(items) => AbstractValue::Tuple(
                items.iter().map(|item| self.given_back(item, argument, range)).collect(),
            ),
            Returned::Tensor { graph, freed, scalar, on_device, parameters } => {
                let parents: Vec<NodeId> = parameters
                    .iter()
                    .filter_map(|place| argument(*place))
                    .flat_map(|(_, value)| self.tensors(value))
                    .collect();
                let own = match (self.at.mode, graph) {
                    (GradMode::Off, _) => HasGraph::No,
                    (GradMode::Unknown, graph) => (*graph).min(HasGraph::Unknown),
                    // An argument is unknown in the callee but known here.
                    (GradMode::On, HasGraph::Unknown) => parents
                        .iter()
                        .map(|parent| self.facts.node(*parent).graph)
                        .max()
                        .unwrap_or(HasGraph::Unknown),
                    (GradMode::On, graph) => *graph,
                };
                let node = self.add(TensorOrigin::Forward, parents, own, range);
                let made = &mut self.facts.nodes[node.0];
                (made.freed, made.scalar, made.on_device) = (*freed, *scalar, made.on_device || *on_device);
                AbstractValue::Tensor(node)
            }
        }
    }
}
