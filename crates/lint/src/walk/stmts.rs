//! Statements.

use super::{Walk, counts};
use crate::facts::{
    At, Carried, Carry, Graph, Kept, Loop, LoopId, Mode, NodeId, Origin, Store, Value, Written,
};
use crate::torch;
use crate::tree::{Body, Expr, ExprKind, Handler, Literal, Operator, Range, Stmt, StmtKind};
use rustc_hash::FxHashMap;

type Names<'a> = FxHashMap<&'a str, Value<'a>>;

impl<'t, 'a> Walk<'_, 't, 'a> {
    /// Walks through a body; says whether what stands behind it is reached from its end.
    pub(super) fn body(&mut self, body: &'t [Stmt<'a>]) -> bool {
        let mut goes_on = true;
        for stmt in body {
            goes_on &= self.stmt(stmt);
        }
        goes_on
    }

    fn stmt(&mut self, stmt: &'t Stmt<'a>) -> bool {
        match &stmt.kind {
            StmtKind::Expr(expr) => drop(self.eval(expr)),
            StmtKind::Assign { targets, value } => self.assign(targets, value, stmt.range),
            StmtKind::Augment { target, operator, value } => {
                self.augment(target, *operator, value, stmt.range)
            }
            StmtKind::Return(value) => {
                let returned = match value {
                    Some(value) => {
                        let value = self.eval(value);
                        self.to_return(&value)
                    }
                    None => crate::facts::Returned::Plain,
                };
                self.returns.push(returned);
                return false;
            }
            StmtKind::Raise(values) => {
                values.iter().for_each(|value| drop(self.eval(value)));
                return false;
            }
            StmtKind::Break | StmtKind::Continue => return false,
            StmtKind::Delete(targets) => targets.iter().for_each(|target| self.delete(target, stmt.range)),
            StmtKind::If(branches) => return self.branches(branches),
            StmtKind::For { target, iter, body, otherwise } => {
                self.for_loop(target, iter, body, stmt.range);
                self.body(otherwise);
            }
            StmtKind::While { test, body, otherwise } => {
                let made = Loop {
                    parent: self.at.in_loop,
                    range: stmt.range,
                    iter: None,
                    over_batches: false,
                    counts: true,
                    targets: Vec::new(),
                };
                self.in_loop(made, |walk| {
                    walk.eval(test);
                    walk.body(body);
                });
                self.body(otherwise);
            }
            StmtKind::With { items, body } => self.with(items, body),
            StmtKind::Try { body, handlers, otherwise, finally } => {
                let before = self.names.clone();
                let goes_on = self.body(body) & self.body(otherwise);
                self.handlers(handlers, before);
                self.body(finally);
                return goes_on || handlers.iter().any(|handler| !ends(&handler.body));
            }
            StmtKind::Global(names) => names.iter().for_each(|name| self.bind(name, Value::Outer(name))),
            StmtKind::Computes(values) => values.iter().for_each(|value| drop(self.eval(value))),
            StmtKind::Function(function) => {
                function
                    .parameters
                    .iter()
                    .filter_map(|of| of.default.as_ref())
                    .for_each(|of| drop(self.eval(of)));
                if let Some(id) = self.file.functions.iter().position(|of| of.range == stmt.range) {
                    self.names.insert(function.name, Value::Function(crate::file::FunctionId(id)));
                }
            }
            StmtKind::Class(_) | StmtKind::Import(_) | StmtKind::Nothing => {}
        }
        true
    }

    fn branches(&mut self, branches: &'t [(Option<Expr<'a>>, Body<'a>)]) -> bool {
        let outside = self.at;
        let mut ends: Vec<Names<'a>> = Vec::new();
        for (test, body) in branches {
            if let Some(test) = test {
                self.eval(test);
                self.at.now_and_then |= self.counts_turns(test);
            }
            self.at.sometimes = true;
            let before = self.names.clone();
            let goes_on = self.body(body);
            let after = std::mem::replace(&mut self.names, before);
            if goes_on {
                ends.push(after);
            }
            // A mode that a branch sets with a call stays unknown behind it.
            if self.at.mode != outside.mode {
                self.at.mode = Mode::Unknown;
            }
            self.at = At { mode: self.at.mode, ..outside };
        }
        let has_otherwise = branches.last().is_some_and(|(test, _)| test.is_none());
        if !has_otherwise {
            ends.push(self.names.clone());
        }
        let goes_on = !ends.is_empty();
        let mut ends = ends.into_iter();
        if let Some(first) = ends.next() {
            self.names = ends.fold(first, |one, other| self.either_names(one, other));
        }
        goes_on
    }

    /// A condition that is true on some turns only, by counting.
    fn counts_turns(&self, test: &Expr<'a>) -> bool {
        let of_loops = |name: &str| {
            let mut around = self.facts.around(self.at.in_loop);
            around.any(|at| self.facts.loops[at.0].counts && self.facts.loops[at.0].targets.contains(&name))
        };
        test.any(&mut |part| matches!(part.kind, ExprKind::Binary(Operator::Modulo, _)))
            || test.any(&mut |part| matches!(&part.kind, ExprKind::Compare(sides) if sides.iter().any(|side| counts(side, &of_loops))))
    }

    fn either_names(&mut self, mut one: Names<'a>, other: Names<'a>) -> Names<'a> {
        for (name, value) in other {
            match one.get(name) {
                None => drop(one.insert(name, value)),
                Some(found) if *found == value => {}
                Some(found) => {
                    let both = self.either(found.clone(), value);
                    one.insert(name, both);
                }
            }
        }
        one
    }

    /// One of two values.
    pub(super) fn either(&mut self, one: Value<'a>, other: Value<'a>) -> Value<'a> {
        match (&one, &other) {
            _ if one == other => one,
            (Value::Tensor(a), Value::Tensor(b)) => {
                let (first, second) = (self.facts.node(*a), self.facts.node(*b));
                let graph = first.graph.min(second.graph);
                let on_device = first.on_device && second.on_device;
                let (scalar, on_host, part) = (
                    first.scalar || second.scalar,
                    first.on_host || second.on_host,
                    first.part && second.part,
                );
                let freed = first.freed || second.freed;
                let range = second.range;
                let node = self.add(Origin::Choice, vec![*a, *b], graph, range);
                let made = &mut self.facts.nodes[node.0];
                (made.scalar, made.on_host, made.part, made.freed) = (scalar, on_host, part, freed);
                made.on_device = on_device;
                Value::Tensor(node)
            }
            (Value::Tensor(_), Value::Plain) => one,
            (Value::Plain, Value::Tensor(_)) => other,
            // A container that is made anew in a branch is emptied there.
            (Value::Container(_), _) => one,
            (_, Value::Container(_)) => other,
            (Value::Unknown, _) | (_, Value::Plain | Value::Unknown) => one,
            _ => other,
        }
    }

    fn assign(&mut self, targets: &'t [Expr<'a>], value_expr: &'t Expr<'a>, range: Range) {
        let value = self.eval(value_expr);
        for target in targets {
            self.assign_to(target, value.clone(), value_expr, range);
        }
    }

    fn assign_to(&mut self, target: &'t Expr<'a>, value: Value<'a>, value_expr: &'t Expr<'a>, range: Range) {
        match &target.kind {
            ExprKind::Sequence(_, items) => {
                for (place, item) in items.iter().enumerate() {
                    let part = self.element(&value, place, items.len(), value_expr.range);
                    self.assign_to(item, part, value_expr, range);
                }
            }
            ExprKind::Through(inner) => self.assign_to(inner, value, value_expr, range),
            ExprKind::Subscript(base, index) => self.assign_item(base, index, value, value_expr, range),
            _ => {
                let Some(key) = self.file.key(target) else { return };
                // `losses = []`, `losses = losses[-100:]`: what was there is gone.
                if !value_expr.reads_key(self.file.source, key)
                    || matches!(value_expr.kind, ExprKind::Subscript(..))
                {
                    self.facts.emptied.push((key, range));
                }
                if let Value::Tensor(node) = value
                    && value_expr.reads_key(self.file.source, key)
                {
                    self.note_carry(key, node, value_expr, range);
                }
                if let Value::Tensor(node) = value
                    && self.is_fed_back(key, node)
                {
                    let at = self.at;
                    self.facts.carried.push(Carried {
                        name: key,
                        node,
                        added: None,
                        range,
                        how: Carry::State,
                        at,
                    });
                }
                if matches!(value, Value::Model) {
                    self.note_mode_of(key, value_expr);
                }
                self.bind(key, value);
            }
        }
    }

    /// `model = Net().cuda().eval()`
    fn note_mode_of(&mut self, key: &'a str, made: &'t Expr<'a>) {
        let mut at = made;
        while let Some(call) = at.as_call()
            && let Some((base, method)) = call.method()
        {
            if matches!(method, "eval" | "train") {
                self.facts.evaluating.push((key, made.range.start, method == "eval"));
                return;
            }
            at = base;
        }
    }

    fn note_carry(&mut self, key: &'a str, node: NodeId, value: &'t Expr<'a>, range: Range) {
        let outlives = self.outlives_turn(key);
        if !outlives {
            return;
        }
        let through_model = value.as_call().is_some_and(|call| {
            let is_model = self.is_model(&call.callee);
            is_model
                && call
                    .args
                    .iter()
                    .chain(call.keywords.iter().map(|of| &of.value))
                    .any(|arg| arg.reads_key(self.file.source, key))
        });
        let how = match &value.kind {
            _ if through_model => Carry::State,
            ExprKind::Binary(..) => Carry::Sum,
            ExprKind::Call(call)
                if self.file.path(&call.callee).is_some_and(|path| {
                    matches!(path.as_str(), "torch.cat" | "torch.add" | "torch.stack")
                }) =>
            {
                Carry::Sum
            }
            ExprKind::Call(call)
                if call.method().is_some_and(|(_, method)| matches!(method, "add" | "add_")) =>
            {
                Carry::Sum
            }
            _ => return,
        };
        let added = self.added(key, value);
        let at = self.at;
        self.facts.carried.push(Carried { name: key, node, added, range, how, at });
    }

    /// `past = out.past_key_values`, where `out` was computed with the `past` of the turn before.
    fn is_fed_back(&self, key: &'a str, node: NodeId) -> bool {
        if self.at.in_loop.is_none() || !self.bound_before(key) {
            return false;
        }
        let ancestors = self.facts.ancestors(node);
        let passes = self
            .facts
            .forwards
            .iter()
            .filter(|(_, result, at)| at.in_loop == self.at.in_loop && ancestors.contains(result));
        let mut passes = passes.map(|(_, result, _)| self.facts.node(*result).range);
        passes.any(|pass| {
            let call = self.facts.calls.iter().find(|call| call.expr.range == pass);
            call.is_some_and(|call| {
                let given =
                    call.call.args.iter().chain(call.call.keywords.iter().map(|keyword| &keyword.value));
                given.into_iter().any(|arg| arg.reads_key(self.file.source, key))
            })
        })
    }

    /// Whether a variable has a value from before the loop: this assignment, which is noted already, does not count.
    fn bound_before(&self, key: &str) -> bool {
        let Some(inner) = self.at.in_loop else { return false };
        let range = self.facts.loops[inner.0].range;
        let bound: Vec<&Range> =
            self.facts.emptied.iter().filter(|(name, _)| *name == key).map(|(_, at)| at).collect();
        bound.iter().any(|at| !range.contains(**at))
            && bound.iter().filter(|at| range.contains(***at)).count() <= 1
    }

    /// Whether a name had its value before the turn began.
    fn outlives_turn(&self, key: &'a str) -> bool {
        if key.contains('.') {
            return true;
        }
        match self.names.get(key) {
            Some(Value::Outer(_)) => true,
            Some(_) => self.bound_outside(key),
            None => false,
        }
    }

    /// Whether a variable was last bound outside of the loop that is being walked through.
    fn bound_outside(&self, key: &'a str) -> bool {
        let Some(inner) = self.at.in_loop else { return false };
        let range = self.facts.loops[inner.0].range;
        let last = self.facts.emptied.iter().rev().find(|(name, _)| *name == key);
        last.is_none_or(|(_, at)| !range.contains(*at))
    }

    /// The part of `old * 0.9 + loss` that is not old.
    fn added(&self, key: &str, value: &'t Expr<'a>) -> Option<&'t Expr<'a>> {
        let ExprKind::Binary(_, sides) = &value.kind else { return None };
        let reads = |side: &Expr<'a>| side.reads_key(self.file.source, key);
        match (reads(&sides[0]), reads(&sides[1])) {
            (true, false) => Some(&sides[1]),
            (false, true) => Some(&sides[0]),
            _ => None,
        }
    }

    fn augment(&mut self, target: &'t Expr<'a>, operator: Operator, value_expr: &'t Expr<'a>, range: Range) {
        let value = self.eval(value_expr);
        if let ExprKind::Subscript(base, index) = &target.kind {
            self.eval(index);
            let Some(key) = self.file.key(base) else { return };
            // `stats["loss"] += loss` is a sum; `feats[name] += [x]` is a list.
            if let Value::Tensor(node) = value
                && self.outlives_turn(key)
                && operator == Operator::Add
            {
                let mut sum = node;
                if let Value::Container(id) = self.eval(base) {
                    sum = self.facts.containers[id.0].node;
                    let graph = self.facts.node(node).graph;
                    let collected = &mut self.facts.nodes[sum.0];
                    collected.parents.push(node);
                    collected.graph = collected.graph.max(graph);
                }
                let at = self.at;
                let added = Some(value_expr);
                self.facts.carried.push(Carried { name: key, node: sum, added, range, how: Carry::Sum, at });
            }
            return;
        }
        let Some(key) = self.file.key(target) else { return };
        let old = self.eval(target);
        match (&old, &value) {
            // `losses += [loss]`
            (Value::Container(_) | Value::Outer(_), Value::Container(id)) => {
                let items = self.facts.containers[id.0].node;
                let store = self.store(&old, key);
                let inner = match &value_expr.kind {
                    ExprKind::Sequence(_, parts) if parts.len() == 1 => &parts[0],
                    _ => value_expr,
                };
                self.keep(store, Value::Tensor(items), inner, range);
            }
            (_, Value::Tensor(node)) => {
                let mut parents = vec![*node];
                parents.extend(self.tensors(&old));
                let outlives = self.outlives_turn(key);
                let sum = self.derive(parents, range);
                let was = self.facts.node(*node);
                let (scalar, on_host) = (was.scalar, was.on_host);
                (self.facts.nodes[sum.0].scalar, self.facts.nodes[sum.0].on_host) = (scalar, on_host);
                if outlives && self.facts.node(sum).graph != Graph::No && operator != Operator::Modulo {
                    let at = self.at;
                    self.facts.carried.push(Carried {
                        name: key,
                        node: sum,
                        added: Some(value_expr),
                        range,
                        how: Carry::Sum,
                        at,
                    });
                }
                self.bind(key, Value::Tensor(sum));
            }
            (Value::Plain, Value::Plain) => {}
            (Value::Tensor(node), _) => {
                let same = self.derive(vec![*node], range);
                self.bind(key, Value::Tensor(same));
            }
            _ => {}
        }
    }

    /// `d[k] = v`
    fn assign_item(
        &mut self,
        base: &'t Expr<'a>,
        index: &'t Expr<'a>,
        value: Value<'a>,
        value_expr: &'t Expr<'a>,
        range: Range,
    ) {
        let into = self.eval(base);
        self.eval(index);
        if let (Value::Tensor(into), Value::Tensor(value)) = (&into, &value) {
            if self.facts.node(*into).origin != Origin::Batch
                && !matches!(self.facts.node(*into).origin, Origin::Parameter(_))
            {
                self.facts.nodes[into.0].parents.push(*value);
                let graph = self.facts.node(*value).graph;
                let node = &mut self.facts.nodes[into.0];
                node.graph = node.graph.max(graph);
                self.facts.written.push(Written { into: *into, value: *value, range, at: self.at });
            }
            return;
        }
        let Some(key) = self.file.key(base) else { return };
        if index.reads_key(self.file.source, key) || self.is_new_key(index) || self.is_parameter(index) {
            let store = self.store(&into, key);
            self.keep(store, value, value_expr, range);
        } else if let Value::Container(id) = into {
            // The same key again: one value at a time, but what is computed from the container has it.
            let node = self.facts.containers[id.0].node;
            let parts = self.tensors(&value);
            self.facts.nodes[node.0].parents.extend(parts);
        }
    }

    /// Whether an expression is an argument of the function, as it was given.
    fn is_parameter(&self, expr: &Expr<'a>) -> bool {
        let ExprKind::Name(name) = expr.kind else { return false };
        let Some(Value::Tensor(node)) = self.names.get(name) else { return false };
        matches!(self.facts.node(*node).origin, Origin::Parameter(_))
    }

    /// Whether a key is another one on every turn.
    fn is_new_key(&self, index: &Expr<'a>) -> bool {
        let is_new = |name: &str| {
            let counted = self.facts.around(self.at.in_loop).any(|at| {
                let around = &self.facts.loops[at.0];
                around.counts && around.targets.contains(&name)
            });
            counted
                || matches!(self.names.get(name), Some(Value::Tensor(node)) if self.facts.node(*node).origin == Origin::Batch)
                || matches!(self.names.get(name), Some(Value::Counter))
        };
        counts(index, &is_new)
    }

    fn delete(&mut self, target: &'t Expr<'a>, range: Range) {
        if let ExprKind::Subscript(base, _) = &target.kind
            && let Some(key) = self.file.key(base)
        {
            self.facts.emptied.push((key, range));
        } else if let Some(key) = self.file.key(target) {
            self.facts.emptied.push((key, range));
            self.names.remove(key);
        }
    }

    fn for_loop(&mut self, target: &'t Expr<'a>, iter: &'t Expr<'a>, body: &'t [Stmt<'a>], range: Range) {
        let source = self.iterated(iter);
        let made = Loop {
            parent: self.at.in_loop,
            range,
            iter: Some(iter),
            over_batches: source.batches,
            counts: source.counts,
            targets: Vec::new(),
        };
        self.in_loop(made, |walk| {
            walk.bind_target(target, &source, range);
            walk.body(body);
        });
    }

    /// Binds the variables of a loop or of a comprehension.
    pub(super) fn bind_target(&mut self, target: &'t Expr<'a>, source: &Iterated, range: Range) {
        let mut names = Vec::new();
        target.any(&mut |part| {
            if let ExprKind::Name(name) = part.kind {
                names.push(name);
            }
            false
        });
        for (place, name) in names.iter().enumerate() {
            let value = if source.counter_first && place == 0 {
                Value::Counter
            } else if !source.tensors.is_empty() {
                Value::Tensor(self.derive(source.tensors.clone(), target.range))
            } else if source.batches {
                Value::Tensor(self.add(Origin::Batch, Vec::new(), Graph::No, target.range))
            } else {
                Value::Unknown
            };
            self.facts.emptied.push((name, target.range));
            self.bind(name, value);
        }
        if let Some(LoopId(at)) = self.at.in_loop
            && self.facts.loops[at].range == range
        {
            self.facts.loops[at].targets = names;
        }
    }

    /// What a loop goes through.
    pub(super) fn iterated(&mut self, iter: &'t Expr<'a>) -> Iterated {
        let value = self.eval(iter);
        let mut found =
            Iterated { batches: false, counts: false, counter_first: false, tensors: self.tensors(&value) };
        if let ExprKind::Sequence(..) = iter.kind {
            found.tensors = self.tensors(&value);
            return found;
        }
        let mut open = vec![iter];
        while let Some(at) = open.pop() {
            if let Some(key) = self.file.key(at) {
                found.batches |=
                    torch::reads_as_loader(key) || matches!(self.names.get(key), Some(Value::Loader));
            }
            let Some(call) = at.as_call() else { continue };
            let name = match &call.callee.kind {
                ExprKind::Name(name) | ExprKind::Attribute(_, name) => *name,
                _ => continue,
            };
            match name {
                "range" | "count" | "trange" => (found.counts, found.counter_first) = (true, true),
                "enumerate" => {
                    (found.counts, found.counter_first) = (true, true);
                    open.extend(&call.args);
                }
                _ if name.ends_with("DataLoader") || name.ends_with("loader") => found.batches = true,
                // `log_every(loader, 10)`, `tqdm(loader)`, `islice(loader, n)`
                _ => open.extend(&call.args),
            }
        }
        found.counts |= found.batches;
        found
    }

    fn with(&mut self, items: &'t [(Expr<'a>, Option<Expr<'a>>)], body: &'t [Stmt<'a>]) {
        let outside = self.at.mode;
        for (manager, name) in items {
            let value = self.eval(manager);
            if let Some(mode) = self.mode_under(manager) {
                self.at.mode = mode;
            }
            if let Some(name) = name.as_ref().and_then(|name| self.file.key(name)) {
                // `with amp.scale_loss(loss, optimizer) as scaled`
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
                    Value::Tensor(self.derive(tensors, manager.range))
                };
                self.bind(name, value);
            }
        }
        self.body(body);
        self.at.mode = outside;
    }

    /// What a `with` makes of gradients.
    fn mode_under(&self, manager: &Expr<'a>) -> Option<Mode> {
        let callee = manager.as_call().map_or(manager, |call| &call.callee);
        if let Some(path) = self.file.path(callee) {
            if let Some(on) = torch::grad_mode(&path) {
                let has_arguments =
                    manager.as_call().is_some_and(|call| !call.args.is_empty() || !call.keywords.is_empty());
                return Some(if has_arguments {
                    Mode::Unknown
                } else if on {
                    Mode::On
                } else {
                    Mode::Off
                });
            }
            if path.ends_with("set_grad_enabled") {
                let argument = manager.as_call().and_then(|call| call.argument("mode", 0))?;
                return Some(match argument.kind {
                    ExprKind::Literal(Literal::True) => Mode::On,
                    ExprKind::Literal(Literal::False) => Mode::Off,
                    _ => Mode::Unknown,
                });
            }
        }
        let written = self.file.text(manager.range).to_ascii_lowercase();
        if written.contains("no_grad") || written.contains("inference_mode") {
            // `no_grad() if evaluating else nullcontext()`, or a manager of the project's own
            return Some(Mode::Unknown);
        }
        let is_generic = ["grad", "inference", "ctx", "context"].iter().any(|part| written.contains(part));
        is_generic.then_some(Mode::Unknown)
    }

    fn handlers(&mut self, handlers: &'t [Handler<'a>], before: Names<'a>) {
        let after = std::mem::take(&mut self.names);
        let outside = self.at;
        for handler in handlers {
            self.names = before.clone();
            self.at.in_handler = true;
            self.at.sometimes = true;
            if let Some(name) = handler.name {
                self.bind(name, Value::Exception);
            }
            self.body(&handler.body);
            self.at = outside;
        }
        self.names = after;
    }

    /// The store that a value stands for.
    pub(super) fn store(&self, value: &Value<'a>, key: &'a str) -> Store<'a> {
        match value {
            Value::Container(id) => Store::Local { id: *id, name: key },
            _ => Store::Outside { name: key },
        }
    }

    /// A value is put into a store.
    pub(super) fn keep(&mut self, store: Store<'a>, value: Value<'a>, expr: &'t Expr<'a>, range: Range) {
        if let Store::Local { id, .. } = &store {
            let node = self.facts.containers[id.0].node;
            let parts = self.tensors(&value);
            let graph = parts.iter().map(|part| self.facts.node(*part).graph).max().unwrap_or(Graph::No);
            let collected = &mut self.facts.nodes[node.0];
            collected.parents.extend(parts);
            collected.graph = collected.graph.max(graph);
        }
        let at = self.at;
        self.facts.kept.push(Kept { store, value, expr, range, at, through: None, summed: false });
    }
}

/// What a loop goes through.
pub(super) struct Iterated {
    pub(super) batches: bool,
    pub(super) counts: bool,
    /// The first variable is a number that counts.
    pub(super) counter_first: bool,
    pub(super) tensors: Vec<NodeId>,
}

fn ends(body: &[Stmt<'_>]) -> bool {
    matches!(
        body.last().map(|stmt| &stmt.kind),
        Some(StmtKind::Return(_) | StmtKind::Raise(_) | StmtKind::Continue | StmtKind::Break)
    )
}
