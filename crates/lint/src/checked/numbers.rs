//! Variables from which a function takes only numbers: a graph behind the tensors in them has no effect.

use super::Checked;
use crate::facts::FunctionFacts;
use crate::file::FunctionId;
use crate::names::{binds, has_parameter};
use crate::torch::{self, Makes};
use crate::tree::{Body, Expr, ExprKind, Literal, SourceRange, Stmt, StmtKind, walk};

/// Builtins that turn anything into a number.
const TO_NUMBER: &[&str] = &["float", "int", "bool", "len"];
/// Methods that turn a tensor into numbers.
const TO_NUMBER_METHODS: &[&str] = &["item", "tolist"];
/// Builtins and methods that compute with tensors and keep nothing.
const ARITHMETIC: &[&str] = &["sum", "min", "max", "abs"];
const ARITHMETIC_METHODS: &[&str] = &["mean", "sum", "min", "max", "detach", "cpu", "float"];
/// Functions that access variables other than by name.
const REFLECTION: &[&str] = &["locals", "globals", "vars", "eval", "exec"];

impl<'t, 'a> Checked<'_, 't, 'a> {
    /// Returns whether adding `.detach()` to what is put into a variable of the function cannot change the
    /// program's behaviour: it is certainly a tensor, and the function takes only numbers out of the
    /// variable.
    pub(crate) fn detaches_safely(&self, facts: &FunctionFacts<'t, 'a>, expr: &Expr<'a>, into: &str) -> bool {
        let body = self.file.body_of(facts.id);
        let text = self.file.text(self.file.functions[facts.id.0].range);
        let is_private = facts.id != FunctionId::MODULE
            && !into.is_empty()
            && !into.contains('.')
            && !REFLECTION.iter().any(|name| text.contains(name));
        let is_parameter = self.file.functions[facts.id.0]
            .function
            .is_some_and(|function| function.parameters.iter().any(|parameter| parameter.name == into));
        is_private
            && !is_parameter
            && self.is_tensor(facts, expr)
            && body.iter().all(|stmt| self.gives_numbers(stmt, into))
    }

    /// Returns whether an expression is a loss computed by a function of PyTorch itself.
    fn is_tensor(&self, facts: &FunctionFacts<'t, 'a>, expr: &Expr<'a>) -> bool {
        let is_loss = |value: &Expr<'a>| self.is_loss_of_torch(facts, value);
        let ExprKind::Name(name) = expr.kind else { return is_loss(expr) };
        let mut assigned = 0;
        let mut others = false;
        walk(self.file.body_of(facts.id), &mut |stmt| match &stmt.kind {
            StmtKind::Assign { targets, value }
                if targets.iter().all(|target| matches!(target.kind, ExprKind::Name(_))) =>
            {
                if targets.iter().any(|target| matches!(target.kind, ExprKind::Name(found) if found == name))
                {
                    assigned += 1;
                    others |= !is_loss(value);
                }
            }
            _ => others |= binds(stmt, name) || has_parameter(stmt, name),
        });
        let is_parameter = self.file.functions[facts.id.0]
            .function
            .is_some_and(|function| function.parameters.iter().any(|parameter| parameter.name == name));
        assigned > 0 && !others && !is_parameter
    }

    fn is_loss_of_torch(&self, facts: &FunctionFacts<'t, 'a>, expr: &Expr<'a>) -> bool {
        let Some(call) = expr.as_call() else { return false };
        let Some(written) = self.file.key(&call.callee) else { return false };
        let Some(path) = self.file.path(&call.callee) else { return false };
        let first = written.split('.').next().unwrap_or(written);
        let module = path.strip_suffix(&written[first.len()..]).unwrap_or(&path);
        torch::makes(&path) == Makes::Loss && self.file.resolves(first, module, facts.id)
    }

    /// Returns whether a statement, including everything in it, puts tensors into the variable and takes only
    /// numbers out of it.
    fn gives_numbers(&self, stmt: &Stmt<'a>, name: &str) -> bool {
        let is_it = |expr: &Expr<'a>| matches!(expr.kind, ExprKind::Name(found) if found == name);
        let numbers = |expr: &Expr<'a>| self.takes_numbers(expr, name, false);
        let bodies = |stmt: &Stmt<'a>| -> bool {
            stmt.bodies()
                .into_iter()
                .all(|body: &Body<'a>| body.iter().all(|stmt| self.gives_numbers(stmt, name)))
        };
        let itself = match &stmt.kind {
            // It begins empty, or as a number.
            StmtKind::Assign { targets, value } if targets.iter().any(is_it) => {
                targets.len() == 1 && is_empty(value)
            }
            StmtKind::Augment { target, value, .. } if is_it(target) => numbers(value),
            StmtKind::Global(names) => !names.contains(&name),
            _ => !binds(stmt, name) && stmt.expressions().into_iter().all(numbers),
        };
        itself && bodies(stmt)
    }

    /// Returns whether an expression takes only numbers out of the variable; `is_number` if the enclosing
    /// expression turns it into a number.
    fn takes_numbers(&self, expr: &Expr<'a>, name: &str, is_number: bool) -> bool {
        let goes_on = |inner: &Expr<'a>| self.takes_numbers(inner, name, is_number);
        let ends = |inner: &Expr<'a>| self.takes_numbers(inner, name, false);
        match &expr.kind {
            ExprKind::Name(found) => *found != name || is_number,
            ExprKind::Binary(_, sides) => sides.iter().all(goes_on),
            ExprKind::Sign(of) => goes_on(of),
            ExprKind::Subscript(base, index) => goes_on(base) && ends(index),
            ExprKind::Call(call) => {
                let args = || call.args.iter().chain(call.keywords.iter().map(|keyword| &keyword.value));
                if let Some((base, method)) = call.method() {
                    let is_it = matches!(base.kind, ExprKind::Name(found) if found == name);
                    return match method {
                        "append" | "clear" if is_it => args().all(ends),
                        _ if TO_NUMBER_METHODS.contains(&method) => {
                            self.takes_numbers(base, name, true) && args().all(ends)
                        }
                        _ if ARITHMETIC_METHODS.contains(&method) => goes_on(base) && args().all(ends),
                        _ => ends(base) && args().all(ends),
                    };
                }
                let callee = match call.callee.kind {
                    ExprKind::Name(callee) if self.is_builtin(callee) => callee,
                    _ => return ends(&call.callee) && args().all(ends),
                };
                match callee {
                    _ if TO_NUMBER.contains(&callee) => args().all(|arg| self.takes_numbers(arg, name, true)),
                    _ if ARITHMETIC.contains(&callee) => args().all(goes_on),
                    _ => args().all(ends),
                }
            }
            // `sum(loss.item() for loss in losses)`
            ExprKind::Comprehension(of) => match of.generators.as_slice() {
                [one] if matches!(one.iter.kind, ExprKind::Name(found) if found == name) => {
                    let ExprKind::Name(item) = one.target.kind else { return false };
                    item != name
                        && of
                            .elements
                            .iter()
                            .chain(&one.conditions)
                            .all(|part| ends(part) && self.takes_numbers(part, item, false))
                }
                _ => expr.children().into_iter().all(ends),
            },
            ExprKind::Lambda(lambda) => ends(&lambda.body) && expr.children().into_iter().all(ends),
            ExprKind::Other => false,
            _ => expr.children().into_iter().all(ends),
        }
    }

    /// Returns whether the file does not define a name, so that it is Python's own.
    fn is_builtin(&self, name: &str) -> bool {
        let whole = SourceRange { start: 0, end: self.file.source.len() as u32 };
        let mut is_bound = self.file.text(whole).contains("import *");
        walk(self.file.body, &mut |stmt| is_bound |= binds(stmt, name) || has_parameter(stmt, name));
        !is_bound
    }
}

/// Matches `[]`, `list()`, `0` and `0.0`.
fn is_empty(value: &Expr<'_>) -> bool {
    match &value.kind {
        ExprKind::Sequence(_, items) => items.is_empty(),
        ExprKind::Literal(Literal::Number(_)) => true,
        ExprKind::Call(call) => {
            matches!(call.callee.kind, ExprKind::Name("list"))
                && call.args.is_empty()
                && call.keywords.is_empty()
        }
        _ => false,
    }
}
