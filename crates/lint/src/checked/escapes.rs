//! Whether a tensor may leave its function with its graph, by the names that it is assigned to.

use super::Checked;
use crate::facts::{AbstractValue, FunctionFacts, NodeId};
use crate::torch::{self, Gives, Makes};
use crate::tree::{CallExpr, Expr, ExprKind, SourceRange, StmtKind, walk};
use rustc_hash::FxHashSet;

impl<'t, 'a> Checked<'_, 't, 'a> {
    /// Returns whether the result of a forward pass, or something computed from it, may be returned or put
    /// into an attribute. Everything that a call is given together with it counts as computed from it.
    pub(crate) fn escapes(&self, facts: &FunctionFacts<'t, 'a>, pass: NodeId) -> bool {
        let mut flow =
            Flow { checked: self, facts, pass: facts.node(pass).range, names: FxHashSet::default() };
        let mut escapes = false;
        loop {
            let before = flow.names.len();
            walk(self.file.body_of(facts.id), &mut |stmt| {
                for expr in stmt.expressions() {
                    flow.note_calls(expr);
                    escapes |= expr.any(&mut |part| match &part.kind {
                        ExprKind::Yield(of) => of.iter().any(|of| flow.carries(of)),
                        ExprKind::Lambda(lambda) => flow.carries(&lambda.body),
                        _ => false,
                    });
                }
                match &stmt.kind {
                    StmtKind::Assign { targets, value } if flow.carries(value) => {
                        escapes |= targets.iter().any(|target| flow.assign(target));
                    }
                    StmtKind::Augment { target, value, .. } if flow.carries(value) => {
                        escapes |= flow.assign(target);
                    }
                    StmtKind::For { target, iter, .. } if flow.carries(iter) => {
                        escapes |= flow.assign(target);
                    }
                    StmtKind::With { items, .. } => {
                        for (manager, name) in items {
                            if let Some(name) = name.as_ref().filter(|_| flow.carries(manager)) {
                                escapes |= flow.assign(name);
                            }
                        }
                    }
                    StmtKind::Return(Some(value)) => escapes |= flow.carries(value),
                    _ => {}
                }
            });
            if escapes || flow.names.len() == before {
                return escapes;
            }
        }
    }
}

struct Flow<'x, 'f, 't, 'a> {
    checked: &'x Checked<'f, 't, 'a>,
    facts: &'x FunctionFacts<'t, 'a>,
    /// The forward pass.
    pass: SourceRange,
    /// Variables that may hold something with its graph.
    names: FxHashSet<&'a str>,
}

impl<'a> Flow<'_, '_, '_, 'a> {
    /// Returns whether the value of an expression may have the graph of the forward pass.
    fn carries(&self, expr: &Expr<'a>) -> bool {
        if expr.range == self.pass {
            return true;
        }
        match &expr.kind {
            ExprKind::Name(name) => self.names.contains(name),
            ExprKind::Attribute(_, name) if ends_graph(torch::attribute(name)) => false,
            ExprKind::Call(call) if self.returns_plain(call) => false,
            ExprKind::Compare(_) | ExprKind::Format(_) | ExprKind::Not(_) => false,
            ExprKind::Comprehension(of) => {
                let iters = of.generators.iter().any(|generator| self.carries(&generator.iter));
                iters || of.elements.iter().any(|element| self.carries(element))
            }
            _ => expr.children().into_iter().any(|child| self.carries(child)),
        }
    }

    /// Returns whether a call gives nothing with a graph, whatever it is given.
    fn returns_plain(&self, call: &CallExpr<'a>) -> bool {
        if let Some(path) = self.checked.file.path(&call.callee) {
            return torch::makes(&path) == Makes::Plain;
        }
        match &call.callee.kind {
            ExprKind::Attribute(_, method) => {
                let has_arguments = !call.args.is_empty() || !call.keywords.is_empty();
                ends_graph(torch::gives(method, has_arguments))
            }
            ExprKind::Name(name) => {
                matches!(*name, "int" | "float" | "len" | "bool" | "str" | "print" | "isinstance")
            }
            _ => false,
        }
    }

    /// Records that a variable holds it; returns whether what it is assigned to outlives the function.
    fn assign(&mut self, target: &Expr<'a>) -> bool {
        match &target.kind {
            ExprKind::Name(name) => {
                // A number or a tensor of integers, according to the walk through the function.
                if self.facts.names.get(name) != Some(&AbstractValue::Plain) {
                    self.names.insert(name);
                }
                false
            }
            ExprKind::Sequence(_, items) => {
                items.iter().fold(false, |escapes, item| self.assign(item) | escapes)
            }
            ExprKind::Through(inner) => self.assign(inner),
            ExprKind::Subscript(base, _) => self.assign(base),
            _ => true,
        }
    }

    /// Records the variables that a call may put it into: `results.append(out)`.
    fn note_calls(&mut self, expr: &Expr<'a>) {
        let mut given = Vec::new();
        expr.any(&mut |part| {
            let Some(call) = part.as_call() else { return false };
            let arguments = || call.args.iter().chain(call.keywords.iter().map(|of| &of.value));
            let is_torch =
                self.checked.file.path(&call.callee).is_some_and(|path| path.starts_with("torch."));
            if !is_torch && !self.returns_plain(call) && arguments().any(|arg| self.carries(arg)) {
                let base = call.method().map(|(base, _)| base);
                given.extend(arguments().chain(base).filter_map(|of| self.root(of)));
            }
            false
        });
        for name in given {
            if self.facts.names.get(name) != Some(&AbstractValue::Plain) {
                self.names.insert(name);
            }
        }
    }

    /// Returns the variable behind `results`, `results[0]` or `self.results`.
    fn root(&self, expr: &Expr<'a>) -> Option<&'a str> {
        match &expr.kind {
            ExprKind::Name(name) => Some(name),
            ExprKind::Attribute(base, _) | ExprKind::Subscript(base, _) => self.root(base),
            _ => None,
        }
    }
}

fn ends_graph(gives: Gives) -> bool {
    matches!(gives, Gives::Plain | Gives::Detached)
}
