//! Calls of models, of PyTorch, of methods, and of functions of the file.

use super::FunctionWalk;
use crate::facts::{
    AbstractValue, BackwardCall, CallFact, GradMode, HasGraph, LocalCall, NodeId, TensorOrigin,
};
use crate::file::is_true;
use crate::torch::{self, Makes};
use crate::tree::{CallExpr, Expr, ExprKind, Literal};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    pub(super) fn call(&mut self, expr: &'t Expr<'a>, call: &'t CallExpr<'a>) -> AbstractValue<'a> {
        let receiver = match &call.callee.kind {
            ExprKind::Attribute(base, _) => self.eval(base),
            _ => AbstractValue::Unknown,
        };
        let given = call.args.iter().chain(call.keywords.iter().map(|keyword| &keyword.value));
        let all: Vec<AbstractValue<'a>> = given.map(|given| self.eval(given)).collect();
        let args = &all[..call.args.len()];
        let path = match &receiver {
            // A variable with the name of an import is the variable.
            AbstractValue::Tensor(_) | AbstractValue::Container(_) => None,
            _ => self.path(&call.callee),
        };
        let fact = CallFact {
            expr,
            call,
            path: path.clone(),
            receiver: receiver.clone(),
            args: args.to_vec(),
            at: self.at,
        };
        self.facts.calls.push(fact);
        if let ExprKind::Name(name) = &call.callee.kind {
            self.mention(name);
        }
        self.note_wrapped(call, args);
        if let Some(value) = self.backward(expr, call, path.as_deref(), &receiver, &all) {
            return value;
        }
        if let Some(path) = &path {
            return self.imported(expr, call, path, args, &all);
        }
        if let Some((base, method)) = call.method() {
            // `stack.enter_context(torch.no_grad())` holds until the stack is closed.
            if method == "enter_context"
                && let Some(mode) = call.args.first().and_then(|manager| self.mode_under(manager))
            {
                self.at.mode = mode;
            }
            let value = self.method(expr, call, base, method, &receiver, args, &all);
            if let Some(value) = value {
                return value;
            }
        } else if let ExprKind::Name(name) = call.callee.kind
            && !self.names.contains_key(name)
            && let Some(value) = self.builtin(expr, call, name, args, &all)
        {
            return value;
        }
        // The receiver was evaluated above: twice for each call of a chain would be exponential.
        let callee = match &call.callee.kind {
            ExprKind::Attribute(base, name) => self.attribute(&call.callee, base, name, Some(receiver)),
            _ => self.eval(&call.callee),
        };
        match self.called(expr, call, &callee, args, &all) {
            // `state = without_prefix(checkpoint)`.
            AbstractValue::Unknown => {
                let checkpoint = args.iter().find(|arg| matches!(arg, AbstractValue::Checkpoint(_)));
                checkpoint.cloned().unwrap_or(AbstractValue::Unknown)
            }
            value => value,
        }
    }

    /// Handles `torch.no_grad()(evaluate)`: what it returns calls the function without gradients.
    fn note_wrapped(&mut self, call: &CallExpr<'a>, args: &[AbstractValue<'a>]) {
        let manager = call.callee.as_call().and_then(|manager| self.file.path(&manager.callee));
        if manager.and_then(|path| torch::grad_mode(&path)) != Some(false) {
            return;
        }
        for arg in args {
            if let AbstractValue::Function(callee) = arg {
                let in_loop = self.at.in_loop;
                let call = LocalCall { callee: *callee, mode: GradMode::Off, in_loop, range: None };
                self.facts.local_calls.push(call);
            }
        }
    }

    /// Resolves what is called by its import, unless a variable has taken the name since.
    fn path(&self, callee: &Expr<'a>) -> Option<String> {
        let key = self.file.key(callee)?;
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        let path = match self.names.get(first) {
            Some(AbstractValue::Path(path)) => path.clone(),
            Some(_) => return None,
            None => match self.outer(first) {
                None => return self.file.path(callee),
                Some(AbstractValue::Path(path)) => path,
                Some(_) => return None,
            },
        };
        Some(if rest.is_empty() { path } else { format!("{path}.{rest}") })
    }

    /// Handles `loss.backward()`, `accelerator.backward(loss)`, `torch.autograd.backward(loss)`.
    fn backward(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        path: Option<&str>,
        receiver: &AbstractValue<'a>,
        all: &[AbstractValue<'a>],
    ) -> Option<AbstractValue<'a>> {
        let is_grad = path == Some("torch.autograd.grad");
        let is_backward =
            call.method().is_some_and(|(_, name)| matches!(name, "backward" | "manual_backward"));
        if !is_grad && !is_backward {
            return None;
        }
        // Gradients passed to `loss.backward(gradient)` are not roots.
        let mut nodes = self.tensors(receiver);
        if nodes.is_empty() {
            nodes = all.iter().flat_map(|value| self.tensors(value)).collect();
        }
        let retains = call.keyword("retain_graph").is_some_and(|keyword| !keyword.value.is(Literal::False))
            || call.keyword("create_graph").is_some_and(|keyword| is_true(&keyword.value));
        self.facts.backwards.push(BackwardCall { nodes, retains, call, range: expr.range, at: self.at });
        // The result of `grad` has a graph only if it was asked to create one.
        Some(if is_grad { AbstractValue::Unknown } else { AbstractValue::Plain })
    }

    fn imported(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        path: &str,
        args: &[AbstractValue<'a>],
        all: &[AbstractValue<'a>],
    ) -> AbstractValue<'a> {
        if path.ends_with("set_grad_enabled")
            && call.argument("mode", 0).is_some_and(|arg| arg.is(Literal::False))
        {
            self.at.mode = GradMode::Off;
        }
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        match torch::makes(path) {
            Makes::Model => AbstractValue::Model,
            Makes::LossFunction => AbstractValue::LossFunction,
            // A call of it does what the corresponding function does.
            Makes::Pure => AbstractValue::Path("torch.nn.functional.relu".to_owned()),
            Makes::Optimizer => AbstractValue::Optimizer,
            Makes::Loader => AbstractValue::Loader,
            Makes::Checkpoint => AbstractValue::Checkpoint(vec![expr.range]),
            Makes::Same => match args.first() {
                Some(AbstractValue::StateDict) if path == "copy.deepcopy" => AbstractValue::StateCopy,
                Some(value) => value.clone(),
                None => AbstractValue::Unknown,
            },
            Makes::Fresh => {
                let device = call.keyword("device").is_some_and(|keyword| self.is_gpu(&keyword.value));
                let graph = if call.keyword("requires_grad").is_some_and(|keyword| is_true(&keyword.value)) {
                    HasGraph::Unknown
                } else {
                    HasGraph::No
                };
                let node = self.add(TensorOrigin::Fresh, Vec::new(), graph, expr.range);
                self.facts.nodes[node.0].on_device = device;
                AbstractValue::Tensor(node)
            }
            Makes::Plain => AbstractValue::Plain,
            Makes::Derived if parts.is_empty() => AbstractValue::Unknown,
            Makes::Derived => {
                let name = path.rsplit('.').next().unwrap_or(path);
                let scalar = parts.iter().all(|part| self.facts.node(*part).scalar)
                    || all.len() == 1 && torch::reduces(name);
                let node = self.derive(parts, expr.range);
                self.facts.nodes[node.0].scalar = scalar;
                let values = AbstractValue::Tensor(node);
                if torch::has_indices(name) && all.len() > 1 {
                    AbstractValue::Tuple(vec![values, AbstractValue::Plain])
                } else {
                    values
                }
            }
            Makes::Loss => {
                let whole =
                    call.keyword("reduction").is_some_and(|keyword| keyword.value.text() == Some("none"));
                let node = self.derive(parts, expr.range);
                self.facts.nodes[node.0].scalar = !whole;
                AbstractValue::Tensor(node)
            }
            Makes::Unknown => {
                if path.ends_with(".deque")
                    || path.ends_with("defaultdict")
                    || path.ends_with("OrderedDict")
                    || path.ends_with(".Counter")
                {
                    let bounded = call.argument("maxlen", 1).is_some() && path.ends_with("deque");
                    return AbstractValue::Container(self.container("", bounded, expr.range));
                }
                if let Some(definition) = self.definition(path, call, all).cloned() {
                    return self.of_package(expr, call, &definition, args, all);
                }
                if path.ends_with("AverageMeter") {
                    return AbstractValue::Meter;
                }
                if path == "functools.partial" {
                    return AbstractValue::Closure(parts);
                }
                self.unknown(expr, path, parts)
            }
        }
    }

    /// Handles an unknown function: its arguments may go anywhere.
    fn unknown(&mut self, expr: &'t Expr<'a>, name: &str, parts: Vec<NodeId>) -> AbstractValue<'a> {
        if parts.is_empty() {
            return AbstractValue::Unknown;
        }
        if torch::reads_as_loss_function(name) {
            let node = self.derive(parts, expr.range);
            self.facts.nodes[node.0].scalar = true;
            return AbstractValue::Tensor(node);
        }
        // `scaler.scale(loss)` of mixed precision.
        if name.ends_with("scaler.scale") {
            let scalar = parts.iter().all(|part| self.facts.node(*part).scalar);
            let node = self.derive(parts, expr.range);
            (self.facts.nodes[node.0].scalar, self.facts.nodes[node.0].elementwise) = (scalar, true);
            return AbstractValue::Tensor(node);
        }
        AbstractValue::Unknown
    }

    fn builtin(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        name: &str,
        args: &[AbstractValue<'a>],
        all: &[AbstractValue<'a>],
    ) -> Option<AbstractValue<'a>> {
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        Some(match name {
            "float" | "int" | "str" | "len" | "print" | "bool" | "repr" | "round" | "isinstance" | "type"
            | "hasattr" | "format" | "id" | "any" | "all" | "range" => AbstractValue::Plain,
            "super" => AbstractValue::Unknown,
            "list" | "dict" | "set" | "tuple" | "sorted" | "reversed" | "zip" | "map" | "filter"
            | "enumerate" | "iter" | "deque" | "defaultdict" => {
                if let (Some(AbstractValue::Parameters), "list" | "tuple" | "iter") = (args.first(), name) {
                    return Some(AbstractValue::Parameters);
                }
                let bounded = name == "deque" && call.argument("maxlen", 1).is_some();
                let id = self.container("", bounded, expr.range);
                let node = self.facts.containers[id.0].node;
                self.facts.nodes[node.0].graph =
                    parts.iter().map(|part| self.facts.node(*part).graph).max().unwrap_or(HasGraph::No);
                self.facts.nodes[node.0].parents = parts;
                AbstractValue::Container(id)
            }
            "sum" | "max" | "min" | "abs" | "next" => match (parts.is_empty(), args.first()) {
                (false, _) => {
                    let is_number = |part: &NodeId| self.facts.node(*part).scalar;
                    let scalar = parts.iter().all(|part| {
                        let of = self.facts.node(*part);
                        let is_list = of.origin == TensorOrigin::Collected && !of.parents.is_empty();
                        is_number(part) || is_list && of.parents.iter().all(is_number)
                    });
                    let node = self.derive(parts, expr.range);
                    (self.facts.nodes[node.0].scalar, self.facts.nodes[node.0].elementwise) = (scalar, true);
                    AbstractValue::Tensor(node)
                }
                (true, Some(AbstractValue::Loader)) if name == "next" => {
                    AbstractValue::Tensor(self.add(TensorOrigin::Batch, Vec::new(), HasGraph::No, expr.range))
                }
                _ => AbstractValue::Unknown,
            },
            "getattr" => AbstractValue::Unknown,
            _ => return None,
        })
    }

    /// Handles a call by the value of what is called.
    fn called(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        callee: &AbstractValue<'a>,
        args: &[AbstractValue<'a>],
        all: &[AbstractValue<'a>],
    ) -> AbstractValue<'a> {
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        match callee {
            AbstractValue::Model => self.forward(expr, &call.callee, all),
            // `self(x)` in a module.
            AbstractValue::Outer("self")
                if self.file.class_of(self.facts.id).is_some_and(|class| class.kind.is_module()) =>
            {
                self.forward(expr, &call.callee, all)
            }
            AbstractValue::LossFunction => {
                let node = self.derive(parts, expr.range);
                self.facts.nodes[node.0].scalar = true;
                AbstractValue::Tensor(node)
            }
            AbstractValue::Function(function) => {
                let skip =
                    usize::from(call.method().is_some() && self.file.functions[function.0].class.is_some());
                self.local(expr, call, *function, skip, args, all)
            }
            AbstractValue::Class(class) => {
                if self.file.classes[class.0].kind.is_module() {
                    AbstractValue::Model
                } else {
                    AbstractValue::Instance(*class, parts)
                }
            }
            _ => {
                let name = self.file.text(call.callee.range);
                self.unknown(expr, name, parts)
            }
        }
    }

    /// Returns whether what is called is a model.
    pub(super) fn is_model(&self, callee: &Expr<'a>) -> bool {
        let Some(key) = self.file.key(callee) else { return false };
        if key == "self" {
            return self.file.class_of(self.facts.id).is_some_and(|class| class.kind.is_module());
        }
        match self.names.get(key) {
            Some(value) => *value == AbstractValue::Model,
            None => {
                self.file.is_module_name(key)
                    || self.known.globals.borrow().get(key) == Some(&AbstractValue::Model)
            }
        }
    }

    /// Handles a forward pass.
    pub(super) fn forward(
        &mut self,
        expr: &'t Expr<'a>,
        model: &'t Expr<'a>,
        all: &[AbstractValue<'a>],
    ) -> AbstractValue<'a> {
        // A call without arguments is not a model, whatever its name.
        if all.is_empty() {
            return AbstractValue::Unknown;
        }
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        let graph = match self.at.mode {
            // What makes something of text may return text.
            GradMode::On if expr.as_call().is_some_and(takes_text) => HasGraph::Unknown,
            GradMode::On => HasGraph::Yes,
            GradMode::Off => HasGraph::No,
            GradMode::Unknown => HasGraph::Unknown,
        };
        let node = self.add(TensorOrigin::Forward, parts, graph, expr.range);
        let on_device = self.file.knows_cuda();
        let made = &mut self.facts.nodes[node.0];
        (made.on_host, made.freed, made.on_device) = (false, false, on_device);
        let name = self.file.key(model).unwrap_or("");
        self.facts.forwards.push((name, node, self.at));
        let is_global = || !self.names.contains_key(name);
        let of_module = || self.known.detaching.borrow().get(name).filter(|_| is_global()).cloned();
        let Some(detached) = self.facts.detaching.get(name).cloned().or_else(of_module) else {
            return AbstractValue::Tensor(node);
        };
        let items = detached.into_iter().map(|is_detached| {
            let (origin, graph) = match is_detached {
                true => (TensorOrigin::Detached, HasGraph::No),
                false => (TensorOrigin::Derived, graph),
            };
            AbstractValue::Tensor(self.add(origin, vec![node], graph, expr.range))
        });
        AbstractValue::Tuple(items.collect())
    }

    /// Matches `"cuda"`, `"cuda:0"`, or a variable with the name of a device in a file that mentions CUDA.
    pub(super) fn is_gpu(&self, device: &Expr<'a>) -> bool {
        match device.text() {
            Some(text) => text.starts_with("cuda"),
            None => {
                let named = self.file.key(device).is_some_and(|key| key.rsplit('.').next() == Some("device"));
                named && self.file.knows_cuda()
            }
        }
    }
}

/// Returns whether all arguments of a call are text: `model("\n".join(lines))`.
fn takes_text(call: &CallExpr<'_>) -> bool {
    fn is_text(expr: &Expr<'_>) -> bool {
        match &expr.kind {
            ExprKind::Literal(Literal::Text(_)) | ExprKind::Format(_) => true,
            ExprKind::Binary(_, sides) => sides.iter().any(is_text),
            ExprKind::Call(call) => call.method().is_some_and(|(base, _)| is_text(base)),
            _ => false,
        }
    }
    !call.args.is_empty() && call.args.iter().all(is_text)
}
