//! Methods: of tensors, models and containers.

use super::Walk;
use crate::facts::{Graph, Kept, LocalCall, NodeId, Origin, Store, Value};
use crate::file::{ClassId, FunctionId};
use crate::torch;
use crate::tree::{Call, Expr, ExprKind, Literal};

impl<'t, 'a> Walk<'_, 't, 'a> {
    #[allow(clippy::too_many_arguments)] // the parts of one call
    pub(super) fn method(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        base: &'t Expr<'a>,
        method: &'a str,
        receiver: &Value<'a>,
        args: &[Value<'a>],
        all: &[Value<'a>],
    ) -> Option<Value<'a>> {
        if let Some(value) = self.stores(expr, call, base, method, receiver, args) {
            return Some(value);
        }
        self.note_callees(method, receiver);
        match receiver {
            Value::Tensor(node) => {
                let has_arguments = !call.args.is_empty() || !call.keywords.is_empty();
                let to_host =
                    method == "to" && call.argument("device", 0).is_some_and(|arg| arg.text() == Some("cpu"));
                let gives = if to_host { torch::Gives::OnHost } else { torch::gives(method, has_arguments) };
                if gives == torch::Gives::Unknown {
                    // Of an argument or a batch it may be a method of something else.
                    let origin = self.facts.node(*node).origin;
                    let is_tensor = matches!(origin, Origin::Fresh | Origin::Derived | Origin::Detached);
                    return is_tensor.then(|| self.part_of(*node, torch::Gives::Derived, method, expr.range));
                }
                if torch::has_indices(method) && has_arguments {
                    let values = self.part_of(*node, gives, method, expr.range);
                    return Some(Value::Tuple(vec![values, Value::Plain]));
                }
                let mut value = self.part_of(*node, gives, method, expr.range);
                if let (Value::Tensor(made), "to") = (&value, method)
                    && call.argument("device", 0).is_some_and(|device| self.is_gpu(device))
                {
                    self.facts.nodes[made.0].on_device = true;
                }
                // `a.add(b)` has both behind it.
                let others: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
                if let Value::Tensor(made) = &mut value
                    && gives == torch::Gives::Derived
                {
                    let graph =
                        others.iter().map(|other| self.facts.node(*other).graph).max().unwrap_or(Graph::No);
                    let node = &mut self.facts.nodes[made.0];
                    node.parents.extend(others);
                    node.graph = node.graph.max(graph);
                }
                Some(value)
            }
            Value::Model | Value::LossFunction => {
                if matches!(method, "eval" | "train")
                    && let Some(key) = self.file.key(base)
                {
                    // `model.train(False)` is `eval()`.
                    let evaluates =
                        method == "eval" || call.args.first().is_some_and(|arg| arg.is(Literal::False));
                    self.facts.evaluating.push((key, expr.range.start, evaluates));
                }
                let known = self.method_of_model(expr, base, method, receiver, all);
                known.or_else(|| {
                    self.module_method(method).map(|function| self.local(expr, call, function, 1, args))
                })
            }
            Value::Meter if method == "update" => {
                if let (Some(Value::Tensor(_)), Some(name)) = (args.first(), self.file.key(base)) {
                    let (store, value) = (Store::Outside { name }, args[0].clone());
                    let (expr, range, at) = (&call.args[0], expr.range, self.at);
                    self.facts.kept.push(Kept { store, value, expr, range, at, through: None, summed: true });
                }
                Some(Value::Plain)
            }
            Value::Gradient => match method {
                "clone" | "detach" | "data" => Some(Value::Gradient),
                _ => Some(Value::Plain),
            },
            Value::StateDict => match method {
                "items" | "values" => Some(Value::StateDict),
                _ => Some(Value::Unknown),
            },
            Value::StateCopy => Some(Value::Unknown),
            Value::Container(id) => match method {
                "items" | "values" | "copy" | "get" => {
                    let node = self.facts.containers[id.0].node;
                    Some(if self.facts.node(node).parents.is_empty() {
                        Value::Unknown
                    } else {
                        Value::Tensor(self.derive(vec![node], expr.range))
                    })
                }
                _ => Some(Value::Unknown),
            },
            Value::Instance(class, _) => {
                self.file.method(*class, method).map(|function| self.local(expr, call, function, 1, args))
            }
            Value::Outer("self") => {
                let class = self.class_id()?;
                self.file.method(class, method).map(|function| self.local(expr, call, function, 1, args))
            }
            _ => None,
        }
    }

    /// Whose method it is cannot be told of what is not known; what can is how those of this name are called.
    fn note_callees(&mut self, method: &str, receiver: &Value<'a>) {
        let is_unknown = match receiver {
            Value::Tensor(node) => matches!(self.facts.node(*node).origin, Origin::Parameter(_)),
            Value::Unknown | Value::Outer(_) => true,
            _ => false,
        };
        if is_unknown {
            let callees = (0..self.file.classes.len()).filter_map(|id| self.file.method(ClassId(id), method));
            let (mode, in_loop) = (self.at.mode, self.at.in_loop);
            self.facts.local_calls.extend(callees.map(|callee| LocalCall {
                callee,
                mode,
                in_loop,
                range: None,
            }));
        }
    }

    /// The method of this name, if just one module of the file has it.
    pub(super) fn module_method(&self, name: &str) -> Option<FunctionId> {
        let classes = self.file.classes.iter().enumerate().filter(|(_, class)| class.kind.is_module());
        let mut found = classes.filter_map(|(id, _)| self.file.method(ClassId(id), name));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    pub(super) fn method_of_model(
        &mut self,
        expr: &'t Expr<'a>,
        base: &'t Expr<'a>,
        method: &str,
        model: &Value<'a>,
        all: &[Value<'a>],
    ) -> Option<Value<'a>> {
        Some(match method {
            "to" | "cuda" | "eval" | "train" | "half" | "float" | "bfloat16" | "double" | "cpu"
            | "requires_grad_" => model.clone(),
            "parameters" | "named_parameters" => Value::Parameters,
            "state_dict" => Value::StateDict,
            "forward" | "__call__" => self.forward(expr, base, all),
            // Hugging Face's generates without gradients.
            "generate" => Value::Tensor(self.add(Origin::Forward, Vec::new(), Graph::No, expr.range)),
            _ => return None,
        })
    }

    /// Methods that put something into a container, or take it out.
    pub(super) fn stores(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        base: &'t Expr<'a>,
        method: &str,
        receiver: &Value<'a>,
        args: &[Value<'a>],
    ) -> Option<Value<'a>> {
        // Nothing but containers has `append`.
        if !method.starts_with("append")
            && !matches!(receiver, Value::Container(_) | Value::Outer(_) | Value::Unknown)
            && !matches!(receiver, Value::Tensor(node) if matches!(self.facts.node(*node).origin, Origin::Parameter(_)))
        {
            return None;
        }
        // `d.setdefault(name, []).append(x)` and `d[name].append(x)` keep in `d`.
        let owner = match &base.kind {
            ExprKind::Call(inner) => {
                inner.method().filter(|(_, name)| *name == "setdefault").map(|(owner, _)| owner)
            }
            ExprKind::Subscript(..) => Some(unindexed(base)),
            _ => Some(base),
        };
        let key = owner.and_then(|owner| self.file.key(owner));
        match method {
            "append" | "appendleft" | "add" | "put" | "put_nowait" | "extend" | "insert" => {
                let key = key?;
                let place = usize::from(method == "insert");
                let value = args.get(place)?.clone();
                let outer = match owner {
                    Some(owner) if !std::ptr::eq(owner, base) => self.eval(owner),
                    _ => receiver.clone(),
                };
                let store = self.store(&outer, key);
                self.keep(store, value, &call.args[place], expr.range);
                Some(Value::Plain)
            }
            "clear" | "pop" | "popleft" | "popitem" | "remove" => {
                if let Some(key) = key {
                    self.facts.emptied.push((key, expr.range));
                }
                None
            }
            _ => None,
        }
    }
}

/// `history` of `history[epoch]["loss"]`.
fn unindexed<'t, 'a>(expr: &'t Expr<'a>) -> &'t Expr<'a> {
    let mut at = expr;
    while let ExprKind::Subscript(base, _) = &at.kind {
        at = base;
    }
    at
}
