//! `with` statements and their effect on gradients.

use super::FunctionWalk;
use crate::facts::{AbstractValue, GradMode};
use crate::torch;
use crate::tree::{Expr, ExprKind, Literal, Stmt};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    pub(super) fn with(&mut self, items: &'t [(Expr<'a>, Option<Expr<'a>>)], body: &'t [Stmt<'a>]) {
        let outside = self.at.mode;
        for (manager, name) in items {
            let value = self.eval(manager);
            if let Some(mode) = self.mode_under(manager) {
                self.at.mode = mode;
            }
            if let Some(name) = name.as_ref().and_then(|name| self.file.key(name)) {
                // `with amp.scale_loss(loss, optimizer) as scaled`.
                let tensors = manager.as_call().map_or_else(Vec::new, |call| {
                    let args: Vec<_> = call.args.iter().filter_map(|arg| self.file.key(arg)).collect();
                    args.into_iter()
                        .filter_map(|key| self.names.get(key).cloned())
                        .flat_map(|of| self.tensors(&of))
                        .collect()
                });
                let value = if tensors.is_empty() {
                    value
                } else {
                    AbstractValue::Tensor(self.derive(tensors, manager.range))
                };
                self.bind(name, value);
            }
        }
        self.body(body);
        self.at.mode = outside;
    }

    /// Returns the effect of a `with` on gradients.
    pub(super) fn mode_under(&self, manager: &Expr<'a>) -> Option<GradMode> {
        let callee = manager.as_call().map_or(manager, |call| &call.callee);
        if let Some(path) = self.file.path(callee) {
            if let Some(on) = torch::grad_mode(&path) {
                let has_arguments =
                    manager.as_call().is_some_and(|call| !call.args.is_empty() || !call.keywords.is_empty());
                return Some(if has_arguments {
                    GradMode::Unknown
                } else if on {
                    GradMode::On
                } else {
                    GradMode::Off
                });
            }
            if path.ends_with("set_grad_enabled") {
                let argument = manager.as_call().and_then(|call| call.argument("mode", 0))?;
                return Some(match argument.kind {
                    ExprKind::Literal(Literal::True) => GradMode::On,
                    ExprKind::Literal(Literal::False) => GradMode::Off,
                    _ => GradMode::Unknown,
                });
            }
        }
        let written = self.file.text(manager.range).to_ascii_lowercase();
        if written.contains("no_grad") || written.contains("inference_mode") {
            // `no_grad() if evaluating else nullcontext()`, or a custom manager of the project.
            return Some(GradMode::Unknown);
        }
        let is_generic =
            ["grad", "inference", "ctx", "context", "eval"].iter().any(|part| written.contains(part));
        is_generic.then_some(GradMode::Unknown)
    }
}
