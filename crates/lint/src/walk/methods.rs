//! Methods of tensors, models and containers.

use super::FunctionWalk;
use super::locals::KeptBy;
use crate::facts::{AbstractValue, HasGraph, KeptValue, LocalCall, NodeId, TensorOrigin, TensorStore};
use crate::file::{ClassId, FunctionId};
use crate::torch;
use crate::tree::{CallExpr, Expr, ExprKind, Literal};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    #[allow(clippy::too_many_arguments)] // the parts of one call
    pub(super) fn method(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        base: &'t Expr<'a>,
        method: &'a str,
        receiver: &AbstractValue<'a>,
        args: &[AbstractValue<'a>],
        all: &[AbstractValue<'a>],
    ) -> Option<AbstractValue<'a>> {
        if let Some(value) = self.stores(expr, call, base, method, receiver, args) {
            return Some(value);
        }
        self.note_callees(method, receiver);
        match receiver {
            AbstractValue::Tensor(node) => self.tensor_method(expr, call, *node, method, all),
            AbstractValue::Model | AbstractValue::LossFunction => {
                if matches!(method, "eval" | "train")
                    && let Some(key) = self.file.key(base)
                {
                    self.note_mode(key, expr, call, method);
                }
                let known = self.method_of_model(expr, base, method, receiver, all);
                known.or_else(|| {
                    self.module_method(method).map(|function| self.local(expr, call, function, 1, args, all))
                })
            }
            AbstractValue::Meter if method == "update" => {
                let has_tensors = args.first().is_some_and(|value| !self.tensors(value).is_empty());
                if let (true, Some(name)) = (has_tensors, self.file.key(base)) {
                    let (store, value) = (TensorStore::Outside { name }, args[0].clone());
                    let (expr, range, at) = (&call.args[0], expr.range, self.at);
                    self.facts.kept.push(KeptValue {
                        store,
                        value,
                        expr,
                        range,
                        at,
                        through: None,
                        summed: true,
                    });
                }
                Some(AbstractValue::Plain)
            }
            // Numbers and arrays give numbers and arrays.
            AbstractValue::Plain => Some(AbstractValue::Plain),
            AbstractValue::Gradient
            | AbstractValue::StateDict
            | AbstractValue::StateCopy
            | AbstractValue::Checkpoint(_) => Some(method_of_state(method, receiver)),
            AbstractValue::Container(id) => match method {
                "items" | "values" | "copy" | "get" => {
                    let node = self.facts.containers[id.0].node;
                    Some(if self.facts.node(node).parents.is_empty() {
                        AbstractValue::Unknown
                    } else {
                        AbstractValue::Tensor(self.derive(vec![node], expr.range))
                    })
                }
                _ => Some(AbstractValue::Unknown),
            },
            AbstractValue::Instance(class, _) => self
                .file
                .method(*class, method)
                .map(|function| self.local(expr, call, function, 1, args, all)),
            AbstractValue::Imported(class, id) => {
                let summary = class.methods.get(method)?;
                let name = self.file.key(base)?;
                let store = match id {
                    Some(id) => TensorStore::Local { id: *id, name },
                    None => TensorStore::Outside { name },
                };
                Some(self.apply(expr, call, summary, 1, (args, all), KeptBy::Other(store)))
            }
            AbstractValue::Outer("self") => {
                let class = self.class_id()?;
                let is_module = self.file.classes[class.0].kind.is_module();
                if is_module && matches!(method, "eval" | "train") {
                    self.note_mode("self", expr, call, method);
                }
                self.file.method(class, method).map(|function| self.local(expr, call, function, 1, args, all))
            }
            // Whatever it is, these give numbers.
            AbstractValue::Unknown
                if matches!(method, "item" | "tolist" | "numel" | "dim" | "size" | "numpy") =>
            {
                Some(AbstractValue::Plain)
            }
            _ => None,
        }
    }

    /// Records `model.eval()` or `model.train()`.
    fn note_mode(&mut self, model: &'a str, expr: &Expr<'a>, call: &CallExpr<'a>, method: &str) {
        // `model.train(False)` is `eval()`.
        let evaluates = method == "eval" || call.args.first().is_some_and(|arg| arg.is(Literal::False));
        self.facts.evaluating.push((model, expr.range.start, evaluates));
    }

    /// Handles a method of a tensor.
    fn tensor_method(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        node: NodeId,
        method: &'a str,
        all: &[AbstractValue<'a>],
    ) -> Option<AbstractValue<'a>> {
        let has_arguments = !call.args.is_empty() || !call.keywords.is_empty();
        let to_host =
            method == "to" && call.argument("device", 0).is_some_and(|arg| arg.text() == Some("cpu"));
        let gives = if to_host { torch::Gives::OnHost } else { torch::gives(method, has_arguments) };
        if gives == torch::Gives::Unknown && matches!(method, "values" | "items") {
            // The dictionary that a model returned, as a whole.
            return Some(AbstractValue::Tensor(node));
        }
        if gives == torch::Gives::Unknown {
            // For an argument or a batch it may be a method of something else.
            let origin = self.facts.node(node).origin;
            let is_tensor =
                matches!(origin, TensorOrigin::Fresh | TensorOrigin::Derived | TensorOrigin::Detached);
            return is_tensor.then(|| self.part_of(node, torch::Gives::Derived, method, expr.range));
        }
        if torch::has_indices(method) && has_arguments {
            let values = self.part_of(node, gives, method, expr.range);
            return Some(AbstractValue::Tuple(vec![values, AbstractValue::Plain]));
        }
        let mut value = self.part_of(node, gives, method, expr.range);
        if let (AbstractValue::Tensor(made), "to") = (&value, method)
            && call.argument("device", 0).is_some_and(|device| self.is_gpu(device))
        {
            self.facts.nodes[made.0].on_device = true;
        }
        // `a.add(b)` has both behind it.
        let others: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        if let AbstractValue::Tensor(made) = &mut value
            && gives == torch::Gives::Derived
        {
            let graph =
                others.iter().map(|other| self.facts.node(*other).graph).max().unwrap_or(HasGraph::No);
            let node = &mut self.facts.nodes[made.0];
            node.parents.extend(others);
            node.graph = node.graph.max(graph);
        }
        Some(value)
    }

    /// Records the possible callees of a method of an unknown object, by its name.
    fn note_callees(&mut self, method: &str, receiver: &AbstractValue<'a>) {
        let is_unknown = match receiver {
            AbstractValue::Tensor(node) => {
                matches!(self.facts.node(*node).origin, TensorOrigin::Parameter(_))
            }
            AbstractValue::Unknown | AbstractValue::Outer(_) => true,
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

    /// Returns the method of this name, if exactly one module of the file has it.
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
        model: &AbstractValue<'a>,
        all: &[AbstractValue<'a>],
    ) -> Option<AbstractValue<'a>> {
        Some(match method {
            "to" | "cuda" | "eval" | "train" | "half" | "float" | "bfloat16" | "double" | "cpu"
            | "requires_grad_" => model.clone(),
            "parameters" | "named_parameters" => AbstractValue::Parameters,
            // That of a copy is not the live weights.
            "state_dict" => {
                let of = self.file.text(base.range);
                if !of.contains("deepcopy(") {
                    AbstractValue::StateDict
                } else if of.contains(".cpu()") {
                    AbstractValue::Unknown
                } else {
                    AbstractValue::StateCopy
                }
            }
            "forward" | "__call__" => self.forward(expr, base, all),
            // Hugging Face's `generate` runs without gradients.
            "generate" => {
                AbstractValue::Tensor(self.add(TensorOrigin::Forward, Vec::new(), HasGraph::No, expr.range))
            }
            _ => return None,
        })
    }

    /// Handles methods that put something into a container, or take it out.
    pub(super) fn stores(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        base: &'t Expr<'a>,
        method: &str,
        receiver: &AbstractValue<'a>,
        args: &[AbstractValue<'a>],
    ) -> Option<AbstractValue<'a>> {
        // Only containers have `append`.
        let may_be_container = match receiver {
            AbstractValue::Container(_) | AbstractValue::Outer(_) | AbstractValue::Unknown => true,
            AbstractValue::Tensor(node) => {
                matches!(self.facts.node(*node).origin, TensorOrigin::Parameter(_))
            }
            _ => false,
        };
        if !method.starts_with("append") && !may_be_container {
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
                // A list takes one item; what another file's class does with several is unknown.
                let is_add = matches!(method, "append" | "appendleft" | "add" | "extend");
                if is_add && (call.args.len() > 1 || !call.keywords.is_empty())
                    || self.is_of_unknown_class(key, receiver)
                {
                    return None;
                }
                // `neighbors.insert(source, target)` is not that of a list.
                if place == 1 && matches!(args.first(), Some(AbstractValue::Tensor(_))) {
                    return None;
                }
                let value = args.get(place)?.clone();
                let outer = match owner {
                    Some(owner) if !std::ptr::eq(owner, base) => self.eval(owner),
                    _ => receiver.clone(),
                };
                let store = self.store(&outer, key);
                self.keep(store, value, &call.args[place], expr.range);
                Some(AbstractValue::Plain)
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

impl<'a> FunctionWalk<'_, '_, 'a> {
    /// Returns whether a variable was last assigned an object of a class that is not known, and whose name
    /// says nothing of a container.
    fn is_of_unknown_class(&self, key: &str, value: &AbstractValue<'a>) -> bool {
        const CONTAINERS: &[&str] = &[
            "List", "Queue", "Deque", "Buffer", "Dict", "Set", "Stack", "Cache", "History", "Memory",
            "Replay",
        ];
        let class = self.last_assigned(key).and_then(|made| made.split_once('(')).map(|(callee, _)| callee);
        let class = class.and_then(|callee| callee.rsplit('.').next());
        matches!(value, AbstractValue::Unknown)
            && class.is_some_and(|class| {
                class.starts_with(|letter: char| letter.is_ascii_uppercase())
                    && !CONTAINERS.iter().any(|word| class.contains(word))
            })
    }
}

/// Handles a method of a gradient, a state dict or a checkpoint.
fn method_of_state<'a>(method: &str, receiver: &AbstractValue<'a>) -> AbstractValue<'a> {
    match (receiver, method) {
        (AbstractValue::Gradient, "clone" | "detach" | "data")
        | (AbstractValue::StateDict, "items" | "values")
        | (AbstractValue::Checkpoint(_), "get" | "pop" | "items" | "values" | "copy") => receiver.clone(),
        (AbstractValue::Gradient, _) => AbstractValue::Plain,
        _ => AbstractValue::Unknown,
    }
}

/// Returns `history` of `history[epoch]["loss"]`.
fn unindexed<'t, 'a>(expr: &'t Expr<'a>) -> &'t Expr<'a> {
    let mut at = expr;
    while let ExprKind::Subscript(base, _) = &at.kind {
        at = base;
    }
    at
}
