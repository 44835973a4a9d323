//! Calls: of models, of PyTorch, of methods, of functions of the file.

use super::{Keeps, Walk};
use crate::facts::{
    Backward, CallFact, Graph, Kept, LocalCall, Mode, NodeId, Origin, Returned, Store, Value,
};
use crate::file::{ClassId, FunctionId, is_true};
use crate::torch::{self, Makes};
use crate::tree::{self, Call, Expr, ExprKind, Literal, Range};

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
        if let Some(value) = self.backward(expr, call, &receiver, &all) {
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
        receiver: &Value<'a>,
        all: &[Value<'a>],
    ) -> Option<Value<'a>> {
        let (_, name) = call.method()?;
        if !matches!(name, "backward" | "manual_backward") {
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
        Some(Value::Plain)
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

    #[allow(clippy::too_many_arguments)] // the parts of one call
    fn method(
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

    /// The method of this name, if just one module of the file has it.
    fn module_method(&self, name: &str) -> Option<FunctionId> {
        let classes = self.file.classes.iter().enumerate().filter(|(_, class)| class.kind.is_module());
        let mut found = classes.filter_map(|(id, _)| self.file.method(ClassId(id), name));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn method_of_model(
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
    fn stores(
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
    fn forward(&mut self, expr: &'t Expr<'a>, model: &'t Expr<'a>, all: &[Value<'a>]) -> Value<'a> {
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

    /// A function of the file.
    fn local(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t Call<'a>,
        callee: FunctionId,
        skip: usize,
        args: &[Value<'a>],
    ) -> Value<'a> {
        self.facts.local_calls.push(LocalCall { callee, mode: self.at.mode, in_loop: self.at.in_loop });
        if self.yields_with_tensors(callee) {
            return Value::Generator(callee);
        }
        let Some(summary) = self.known.summary(callee) else { return Value::Unknown };
        let argument = |place: usize| -> Option<(usize, &Value<'a>)> {
            let place = place.checked_sub(skip)?;
            args.get(place).map(|value| (place, value))
        };
        for Keeps { parameter: place, summed, name, place: keeps_at } in &summary.keeps {
            let Some((place, value)) = argument(*place) else { continue };
            if matches!(value, Value::Tensor(_) | Value::Closure(_) | Value::Instance(..)) {
                // The name is the callee's: it is looked up in its text, which lives as long as the file.
                let name = self.name_in(callee, name);
                self.facts.kept.push(Kept {
                    store: Store::Outside { name },
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
            self.facts.backwards.push(Backward {
                nodes: roots,
                retains: false,
                call,
                range: expr.range,
                at: self.at,
            });
        }
        self.given_back(&summary.returned, &argument, expr.range)
    }

    /// Whether a function is a generator that has tensors in its variables.
    fn yields_with_tensors(&self, callee: FunctionId) -> bool {
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
            let on_device =
                |value: &Value<'a>| matches!(value, Value::Tensor(node) if facts.node(*node).on_device);
            facts.names.values().any(on_device)
        })
    }

    /// `"cuda"`, `"cuda:0"`, or a variable that is called a device in a file that knows of CUDA.
    fn is_gpu(&self, device: &Expr<'a>) -> bool {
        match device.text() {
            Some(text) => text.starts_with("cuda"),
            None => {
                let named = self.file.key(device).is_some_and(|key| key.rsplit('.').next() == Some("device"));
                named && self.file.knows_cuda()
            }
        }
    }

    fn name_in(&self, callee: FunctionId, name: &str) -> &'a str {
        let text = self.file.text(self.file.functions[callee.0].range);
        text.find(name).map_or("", |at| &text[at..at + name.len()])
    }

    fn given_back<'v>(
        &mut self,
        returned: &Returned,
        argument: &dyn Fn(usize) -> Option<(usize, &'v Value<'a>)>,
        range: Range,
    ) -> Value<'a>
    where
        'a: 'v,
    {
        match returned {
            Returned::Unknown => Value::Unknown,
            Returned::Plain => Value::Plain,
            Returned::Model => Value::Model,
            Returned::Tuple(items) => {
                Value::Tuple(items.iter().map(|item| self.given_back(item, argument, range)).collect())
            }
            Returned::Tensor { graph, freed, scalar, on_device, parameters } => {
                let parents: Vec<NodeId> = parameters
                    .iter()
                    .filter_map(|place| argument(*place))
                    .flat_map(|(_, value)| self.tensors(value))
                    .collect();
                let own = match (self.at.mode, graph) {
                    (Mode::Off, _) => Graph::No,
                    (Mode::Unknown, graph) => (*graph).min(Graph::Unknown),
                    // Of an argument nothing is known in the callee; here it is.
                    (Mode::On, Graph::Unknown) => parents
                        .iter()
                        .map(|parent| self.facts.node(*parent).graph)
                        .max()
                        .unwrap_or(Graph::Unknown),
                    (Mode::On, graph) => *graph,
                };
                let node = self.add(Origin::Forward, parents, own, range);
                let made = &mut self.facts.nodes[node.0];
                (made.freed, made.scalar, made.on_device) = (*freed, *scalar, made.on_device || *on_device);
                Value::Tensor(node)
            }
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
