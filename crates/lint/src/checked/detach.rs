//! The fix that most rules have: `.detach()`.

use super::Checked;
use crate::edit::{Applicability, Edit, Fix};
use crate::facts::{AbstractValue, FunctionFacts, KeptValue, NodeId, TensorStore};
use crate::tree::{Expr, ExprKind, SourceRange};

impl<'t, 'a> Checked<'_, 't, 'a> {
    /// Adds `.detach()` to what is kept, if that is a tensor and not a container of tensors.
    pub(crate) fn detach_kept(&self, facts: &FunctionFacts<'t, 'a>, kept: &KeptValue<'t, 'a>) -> Option<Fix> {
        match kept.value {
            AbstractValue::Tensor(node) => {
                let into = match kept.store {
                    TensorStore::Local { name, .. } if kept.through.is_none() => name,
                    _ => "",
                };
                self.detach(facts, node, kept.expr, into)
            }
            _ => None,
        }
    }

    /// Adds `.detach()` to an expression that is put into the variable `into` of the function.
    pub(crate) fn detach(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        node: NodeId,
        expr: &Expr<'a>,
        into: &str,
    ) -> Option<Fix> {
        // Lists, tuples and numbers have no `detach()`.
        let is_display =
            matches!(expr.kind, ExprKind::Sequence(..) | ExprKind::Dict(_) | ExprKind::Comprehension(_));
        if is_display || facts.ancestors(node).iter().any(|at| facts.node(*at).mixed) {
            return None;
        }
        let applicability = match self.detaches_safely(facts, expr, into) {
            true => Applicability::Safe,
            false => Applicability::Unsafe,
        };
        Some(Fix { title: "detach it".to_owned(), applicability, edits: self.detached(expr) })
    }

    fn detached(&self, expr: &Expr<'a>) -> Vec<Edit> {
        let is_whole = matches!(
            expr.kind,
            ExprKind::Name(_) | ExprKind::Attribute(..) | ExprKind::Call(_) | ExprKind::Subscript(..)
        );
        let behind = |text: &str| Edit { range: expr.range.after(), text: text.to_owned() };
        if is_whole || self.is_parenthesized(expr.range) {
            let range = if is_whole {
                expr.range.after()
            } else {
                SourceRange { start: expr.range.end + 1, end: expr.range.end + 1 }
            };
            return vec![Edit { range, text: ".detach()".to_owned() }];
        }
        let open = Edit { range: expr.range.before(), text: "(".to_owned() };
        vec![open, behind(").detach()")]
    }

    pub(super) fn is_parenthesized(&self, range: SourceRange) -> bool {
        let bytes = self.file.source.as_bytes();
        let before = (range.start as usize).checked_sub(1).and_then(|at| bytes.get(at));
        // The bracket of a call does not belong to the expression itself.
        let opens = before == Some(&b'(')
            && !(range.start as usize)
                .checked_sub(2)
                .and_then(|at| bytes.get(at))
                .is_some_and(|letter| letter.is_ascii_alphanumeric() || b"_)]".contains(letter));
        opens && bytes.get(range.end as usize) == Some(&b')')
    }
}
