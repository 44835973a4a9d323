//! Calls: of models, of PyTorch, of methods, of functions of the file.

use super::Walk;
use crate::facts::{Backward, CallFact, Graph, Mode, NodeId, Origin, Value};
use crate::file::is_true;
use crate::torch::{self, Makes};
use crate::tree::{Call, Expr, ExprKind, Literal};

impl<'t, 'a> Walk<'_, 't, 'a> {
    pub(super) fn call(&mut self, expr: &'t Expr<'a>, call: &'t Call<'a>) -> Value<'a> {
        let receiver = match &call.callee.kind {
            ExprKind::Attribute(base, _) => self.eval(base),
            _ => Value::Unknown,
        };
        let args: Vec<Value<'a>> = call.args.iter().map(|arg| self.eval(arg)).collect();
        let keywords: Vec<Value<'a>> =
            call.keywords.iter().map(|keyword| self.eval(&keyword.value)).collect();
        let path = match &receiver {
            // A variable that happens to have the name of an import is the variable.
            Value::Tensor(_) | Value::Container(_) => None,
            _ => self.path(&call.callee),
        };
        let fact = CallFact {
            expr,
            call,
            path: path.clone(),
            receiver: receiver.clone(),
            args: args.clone(),
            at: self.at,
        };
        self.facts.calls.push(fact);
        let all: Vec<Value<'a>> = args.iter().chain(&keywords).cloned().collect();
        if let Some(value) = self.backward(expr, call, path.as_deref(), &receiver, &all) {
            return value;
        }
        if let Some(path) = &path {
            return self.imported(expr, call, path, &args, &all);
        }
        if let Some((base, method)) = call.method() {
            let value = self.method(expr, call, base, method, &receiver, &args, &all);
            if let Some(value) = value {
                return value;
            }
        } else if let ExprKind::Name(name) = call.callee.kind
            && !self.names.contains_key(name)
            && let Some(value) = self.builtin(expr, call, name, &args, &all)
        {
            return value;
        }
        let callee = self.eval(&call.callee);
        self.called(expr, call, &callee, &args, &all)
    }

    /// What is called by its import, unless a variable has taken the name since.
    fn path(&self, callee: &Expr<'a>) -> Option<String> {
        let key = self.file.key(callee)?;
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        match self.names.get(first).cloned().or_else(|| self.outer(first)) {
            None => self.file.path(callee),
            Some(Value::Path(path)) if rest.is_empty() => Some(path),
            Some(Value::Path(path)) => Some(format!("{path}.{rest}")),
            Some(_) => None,
        }
    }

    /// `loss.backward()`, `accelerator.backward(loss)`, `torch.autograd.backward(loss)`
    fn backward(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        path: Option<&str>,
        receiver: &Value<'a>,
        all: &[Value<'a>],
    ) -> Option<Value<'a>> {
        let is_grad = path == Some("torch.autograd.grad");
        let is_backward =
            call.method().is_some_and(|(_, name)| matches!(name, "backward" | "manual_backward"));
        if !is_grad && !is_backward {
            return None;
        }
        // Gradients that are given to `loss.backward(gradient)` are no roots.
        let mut nodes = self.tensors(receiver);
        if nodes.is_empty() {
            nodes = all.iter().flat_map(|value| self.tensors(value)).collect();
        }
        let retains = call.keyword("retain_graph").is_some_and(|keyword| !keyword.value.is(Literal::False))
            || call.keyword("create_graph").is_some_and(|keyword| is_true(&keyword.value));
        self.facts.backwards.push(Backward { nodes, retains, call, range: expr.range, at: self.at });
        // What `grad` gives back has a graph only where it is told to make one.
        Some(if is_grad { Value::Unknown } else { Value::Plain })
    }

    fn imported(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        path: &str,
        args: &[Value<'a>],
        all: &[Value<'a>],
    ) -> Value<'a> {
        if path.ends_with("set_grad_enabled") && call.args.first().is_some_and(|arg| arg.is(Literal::False)) {
            self.at.mode = Mode::Off;
        }
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        match torch::makes(path) {
            Makes::Model => Value::Model,
            Makes::LossFunction => Value::LossFunction,
            // Called, it does what the function of its kind does.
            Makes::Pure => Value::Path("torch.nn.functional.relu".to_owned()),
            Makes::Optimizer => Value::Optimizer,
            Makes::Loader => Value::Loader,
            Makes::Checkpoint => Value::Checkpoint,
            Makes::Same => match args.first() {
                Some(Value::StateDict) if path == "copy.deepcopy" => Value::StateCopy,
                Some(value) => value.clone(),
                None => Value::Unknown,
            },
            Makes::Fresh => {
                let device = call.keyword("device").is_some_and(|keyword| self.is_gpu(&keyword.value));
                let graph = if call.keyword("requires_grad").is_some_and(|keyword| is_true(&keyword.value)) {
                    Graph::Unknown
                } else {
                    Graph::No
                };
                let node = self.add(Origin::Fresh, Vec::new(), graph, expr.range);
                self.facts.nodes[node.0].on_device = device;
                Value::Tensor(node)
            }
            Makes::Plain => Value::Plain,
            Makes::Derived if parts.is_empty() => Value::Unknown,
            Makes::Derived => {
                let values = Value::Tensor(self.derive(parts, expr.range));
                let name = path.rsplit('.').next().unwrap_or(path);
                if torch::has_indices(name) && all.len() > 1 {
                    Value::Tuple(vec![values, Value::Plain])
                } else {
                    values
                }
            }
            Makes::Loss => {
                let whole =
                    call.keyword("reduction").is_some_and(|keyword| keyword.value.text() == Some("none"));
                let node = self.derive(parts, expr.range);
                self.facts.nodes[node.0].scalar = !whole;
                Value::Tensor(node)
            }
            Makes::Unknown => {
                if path.ends_with(".deque")
                    || path.ends_with("defaultdict")
                    || path.ends_with("OrderedDict")
                    || path.ends_with(".Counter")
                {
                    let bounded = call.argument("maxlen", 1).is_some() && path.ends_with("deque");
                    return Value::Container(self.container("", bounded, expr.range));
                }
                if path.ends_with("AverageMeter") {
                    return Value::Meter;
                }
                if path == "functools.partial" {
                    return Value::Closure(parts);
                }
                self.unknown(expr, path, parts)
            }
        }
    }

    /// A function that is not known: what it is given may go anywhere.
    fn unknown(&mut self, expr: &'t Expr<'a>, name: &str, parts: Vec<NodeId>) -> Value<'a> {
        if parts.is_empty() {
            return Value::Unknown;
        }
        if torch::reads_as_loss_function(name) {
            let node = self.derive(parts, expr.range);
            self.facts.nodes[node.0].scalar = true;
            return Value::Tensor(node);
        }
        Value::Unknown
    }

    fn builtin(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        name: &str,
        args: &[Value<'a>],
        all: &[Value<'a>],
    ) -> Option<Value<'a>> {
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        Some(match name {
            "float" | "int" | "str" | "len" | "print" | "bool" | "repr" | "round" | "isinstance" | "type"
            | "hasattr" | "format" | "id" | "any" | "all" | "range" | "super" => Value::Plain,
            "list" | "dict" | "set" | "tuple" | "sorted" | "reversed" | "zip" | "map" | "filter"
            | "enumerate" | "iter" | "deque" | "defaultdict" => {
                if let (Some(Value::Parameters), "list" | "tuple" | "iter") = (args.first(), name) {
                    return Some(Value::Parameters);
                }
                let bounded = name == "deque" && call.argument("maxlen", 1).is_some();
                let id = self.container("", bounded, expr.range);
                let node = self.facts.containers[id.0].node;
                self.facts.nodes[node.0].graph =
                    parts.iter().map(|part| self.facts.node(*part).graph).max().unwrap_or(Graph::No);
                self.facts.nodes[node.0].parents = parts;
                Value::Container(id)
            }
            "sum" | "max" | "min" | "abs" | "next" => match (parts.is_empty(), args.first()) {
                (false, _) => {
                    let scalar = parts.iter().all(|part| self.facts.node(*part).scalar);
                    let node = self.derive(parts, expr.range);
                    self.facts.nodes[node.0].scalar = scalar;
                    Value::Tensor(node)
                }
                (true, Some(Value::Loader)) if name == "next" => {
                    Value::Tensor(self.add(Origin::Batch, Vec::new(), Graph::No, expr.range))
                }
                _ => Value::Unknown,
            },
            "getattr" => Value::Unknown,
            _ => return None,
        })
    }

    /// What is called is known by its value.
    fn called(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        callee: &Value<'a>,
        args: &[Value<'a>],
        all: &[Value<'a>],
    ) -> Value<'a> {
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        match callee {
            Value::Model => self.forward(expr, &call.callee, all),
            // `self(x)` in a module.
            Value::Outer("self")
                if self.file.class_of(self.facts.id).is_some_and(|class| class.kind.is_module()) =>
            {
                self.forward(expr, &call.callee, all)
            }
            Value::LossFunction => {
                let node = self.derive(parts, expr.range);
                self.facts.nodes[node.0].scalar = true;
                Value::Tensor(node)
            }
            Value::Function(function) => {
                let skip =
                    usize::from(call.method().is_some() && self.file.functions[function.0].class.is_some());
                self.local(expr, call, *function, skip, args)
            }
            Value::Class(class) => {
                if self.file.classes[class.0].kind.is_module() {
                    Value::Model
                } else {
                    Value::Instance(*class, parts)
                }
            }
            _ => {
                let name = self.file.text(call.callee.range);
                self.unknown(expr, name, parts)
            }
        }
    }

    /// Whether what is called is a model.
    pub(super) fn is_model(&self, callee: &Expr<'a>) -> bool {
        let Some(key) = self.file.key(callee) else { return false };
        match self.names.get(key) {
            Some(value) => *value == Value::Model,
            None => {
                self.file.is_module_name(key) || self.known.globals.borrow().get(key) == Some(&Value::Model)
            }
        }
    }

    /// A forward pass.
    pub(super) fn forward(
        &mut self,
        expr: &'t Expr<'a>,
        model: &'t Expr<'a>,
        all: &[Value<'a>],
    ) -> Value<'a> {
        // What is called without arguments is no model, whatever its name.
        if all.is_empty() {
            return Value::Unknown;
        }
        let parts: Vec<NodeId> = all.iter().flat_map(|value| self.tensors(value)).collect();
        let graph = match self.at.mode {
            Mode::On => Graph::Yes,
            Mode::Off => Graph::No,
            Mode::Unknown => Graph::Unknown,
        };
        let node = self.add(Origin::Forward, parts, graph, expr.range);
        let on_device = self.file.knows_cuda();
        let made = &mut self.facts.nodes[node.0];
        (made.on_host, made.freed, made.on_device) = (false, false, on_device);
        let name = self.file.key(model).unwrap_or("");
        self.facts.forwards.push((name, node, self.at));
        Value::Tensor(node)
    }

    /// `"cuda"`, `"cuda:0"`, or a variable that is called a device in a file that knows of CUDA.
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
