//! Statements.

use super::FunctionWalk;
use crate::facts::{
    AbstractValue, At, Carried, Carry, ContainerId, GradMode, HasGraph, KeptValue, Loop, NodeId, Returned,
    TensorNode, TensorOrigin, TensorStore, TensorWrite,
};
use crate::file::FunctionId;
use crate::summary::DefinitionKind;
use crate::tree::{Body, Expr, ExprKind, Handler, SourceRange, Stmt, StmtKind};
use rustc_hash::FxHashMap;

type Names<'a> = FxHashMap<&'a str, AbstractValue<'a>>;

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    /// Walks through a body; returns whether the statement after it is reachable from its end.
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
                    None => Returned::Plain,
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
            StmtKind::Global(names) => {
                names.iter().for_each(|name| self.bind(name, AbstractValue::Outer(name)))
            }
            StmtKind::Computes(values) => values.iter().for_each(|value| drop(self.eval(value))),
            StmtKind::Function(function) => {
                function
                    .parameters
                    .iter()
                    .filter_map(|of| of.default.as_ref())
                    .for_each(|of| drop(self.eval(of)));
                if let Some(id) = self.file.functions.iter().position(|of| of.range == stmt.range) {
                    self.names.insert(function.name, AbstractValue::Function(crate::file::FunctionId(id)));
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
            // A mode set by a call in a branch is unknown after it.
            if self.at.mode != outside.mode {
                self.at.mode = GradMode::Unknown;
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

    /// Merges two possible values.
    pub(super) fn either(&mut self, one: AbstractValue<'a>, other: AbstractValue<'a>) -> AbstractValue<'a> {
        match (&one, &other) {
            _ if one == other => one,
            (AbstractValue::Tensor(a), AbstractValue::Tensor(b)) => {
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
                let node = self.add(TensorOrigin::Choice, vec![*a, *b], graph, range);
                let made = &mut self.facts.nodes[node.0];
                (made.scalar, made.on_host, made.part, made.freed) = (scalar, on_host, part, freed);
                made.on_device = on_device;
                AbstractValue::Tensor(node)
            }
            (AbstractValue::Tensor(node), AbstractValue::Plain)
            | (AbstractValue::Plain, AbstractValue::Tensor(node)) => {
                AbstractValue::Tensor(self.or_plain(*node))
            }
            // On the other path it may be an array, or anything.
            (AbstractValue::Tensor(node), AbstractValue::Unknown)
            | (AbstractValue::Unknown, AbstractValue::Tensor(node)) => {
                let made = self.or_plain(*node);
                let graph = self.facts.node(made).graph;
                self.facts.nodes[made.0].graph = graph.min(HasGraph::Unknown);
                AbstractValue::Tensor(made)
            }
            (AbstractValue::Checkpoint(a), AbstractValue::Checkpoint(b)) => {
                AbstractValue::Checkpoint(a.iter().chain(b).copied().collect())
            }
            (AbstractValue::Checkpoint(_), _) => one,
            (_, AbstractValue::Checkpoint(_)) => other,
            // A container that is recreated in a branch is emptied there.
            (AbstractValue::Container(_), _) => one,
            (_, AbstractValue::Container(_)) => other,
            (AbstractValue::Unknown, _) | (_, AbstractValue::Plain | AbstractValue::Unknown) => one,
            _ => other,
        }
    }

    /// Marks a tensor that is something else on another path.
    fn or_plain(&mut self, node: NodeId) -> NodeId {
        let of = self.facts.node(node).clone();
        let made = self.add(TensorOrigin::Choice, vec![node], of.graph, of.range);
        self.facts.nodes[made.0] =
            TensorNode { origin: TensorOrigin::Choice, parents: vec![node], mixed: true, ..of };
        made
    }

    fn assign(&mut self, targets: &'t [Expr<'a>], value_expr: &'t Expr<'a>, range: SourceRange) {
        let value = self.eval(value_expr);
        for target in targets {
            self.assign_to(target, value.clone(), value_expr, range);
        }
    }

    fn assign_to(
        &mut self,
        target: &'t Expr<'a>,
        value: AbstractValue<'a>,
        value_expr: &'t Expr<'a>,
        range: SourceRange,
    ) {
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
                let value = if self.is_model_of(key, &value) { AbstractValue::Model } else { value };
                // `losses = []`, `losses = losses[-100:]`: the old content is gone.
                if !value_expr.reads_key(self.file.source, key)
                    || matches!(value_expr.kind, ExprKind::Subscript(..))
                {
                    self.facts.emptied.push((key, range));
                }
                if let AbstractValue::Tensor(node) = value
                    && value_expr.reads_key(self.file.source, key)
                {
                    self.note_carry(key, node, value_expr, range);
                }
                if let AbstractValue::Tensor(node) = value
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
                let may_be_model = value == AbstractValue::Unknown && self.file.is_module_name(key);
                if may_be_model {
                    self.note_mode_of(key, value_expr);
                }
                if matches!(value, AbstractValue::Model) {
                    self.note_mode_of(key, value_expr);
                    self.note_detached(key, value_expr);
                }
                self.bind(key, value);
            }
        }
    }

    /// Matches `net = nets[k]`, where `nets` is an argument.
    fn is_model_of(&self, key: &str, value: &AbstractValue<'a>) -> bool {
        let AbstractValue::Tensor(node) = value else { return false };
        let whole = self.facts.node(self.facts.whole(*node));
        self.facts.node(*node).item
            && matches!(whole.origin, TensorOrigin::Parameter(_))
            && self.file.is_module_name(key)
    }

    /// Handles `model = Net().cuda().eval()`.
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

    /// Handles `model = Net()` if `forward` of that class returns a part without its graph.
    fn note_detached(&mut self, key: &'a str, made: &'t Expr<'a>) {
        let mut at = made;
        while let Some(call) = at.as_call() {
            let returned = match self.class_called(&call.callee) {
                Some(returned) => returned,
                None => match call.method() {
                    Some((base, _)) => {
                        at = base;
                        continue;
                    }
                    None => return,
                },
            };
            if let Returned::Tuple(items) = returned {
                let has_none = |item: &Returned| item.is_detached() || *item == Returned::Plain;
                let detached: Vec<bool> = items.iter().map(has_none).collect();
                if detached.contains(&true) {
                    if self.facts.id == FunctionId::MODULE {
                        self.known.detaching.borrow_mut().insert(key, detached.clone());
                    }
                    self.facts.detaching.insert(key, detached);
                }
            }
            return;
        }
    }

    /// Returns what `forward` of a class returns, of this file or another.
    fn class_called(&self, callee: &Expr<'a>) -> Option<Returned> {
        let key = self.file.key(callee)?;
        if let Some(class) = self.file.class_named(key) {
            let forward = self.file.method(class, "forward")?;
            return self.known.summary(forward).map(|summary| summary.returned);
        }
        match self.known.imports.get(&self.file.path(callee)?)? {
            DefinitionKind::Class(class) => class.methods.get("forward").map(|of| of.returned.clone()),
            DefinitionKind::Function(_) => None,
        }
    }

    /// Handles `d[k] = v`.
    fn assign_item(
        &mut self,
        base: &'t Expr<'a>,
        index: &'t Expr<'a>,
        value: AbstractValue<'a>,
        value_expr: &'t Expr<'a>,
        range: SourceRange,
    ) {
        let into = self.eval(base);
        self.eval(index);
        if let (AbstractValue::Tensor(into), AbstractValue::Tensor(value)) = (&into, &value) {
            if self.facts.node(*into).origin != TensorOrigin::Batch
                && !matches!(self.facts.node(*into).origin, TensorOrigin::Parameter(_))
            {
                self.facts.nodes[into.0].parents.push(*value);
                let graph = self.facts.node(*value).graph;
                let node = &mut self.facts.nodes[into.0];
                node.graph = node.graph.max(graph);
                self.facts.written.push(TensorWrite { into: *into, value: *value, range, at: self.at });
            }
            return;
        }
        if let AbstractValue::Container(id) = &into {
            self.note_item(*id, self.file.text(index.range), &value);
        }
        let Some(key) = self.file.key(base) else { return };
        if index.reads_key(self.file.source, key) || self.is_new_key(index) || self.is_parameter(index) {
            let store = self.store(&into, key);
            self.keep(store, value, value_expr, range);
        } else if let AbstractValue::Container(id) = into {
            // The same key again: one value at a time, but what is computed from the container contains it.
            let node = self.facts.containers[id.0].node;
            let parts = self.tensors(&value);
            self.facts.nodes[node.0].parents.extend(parts);
        }
    }

    /// Records an item of a container by its index, unless it is there on some paths only.
    fn note_item(&mut self, id: ContainerId, index: &'a str, value: &AbstractValue<'a>) {
        let items = &mut self.facts.containers[id.0].items;
        match value {
            AbstractValue::Tensor(node) if !self.at.sometimes => drop(items.insert(index, *node)),
            _ => drop(items.remove(index)),
        }
    }

    /// Returns whether an expression is an argument of the function, as it was passed.
    fn is_parameter(&self, expr: &Expr<'a>) -> bool {
        let ExprKind::Name(name) = expr.kind else { return false };
        let Some(AbstractValue::Tensor(node)) = self.names.get(name) else { return false };
        matches!(self.facts.node(*node).origin, TensorOrigin::Parameter(_))
    }

    fn delete(&mut self, target: &'t Expr<'a>, range: SourceRange) {
        if let ExprKind::Subscript(base, _) = &target.kind
            && let Some(key) = self.file.key(base)
        {
            self.facts.emptied.push((key, range));
        } else if let Some(key) = self.file.key(target) {
            self.facts.emptied.push((key, range));
            self.names.remove(key);
        }
    }

    fn handlers(&mut self, handlers: &'t [Handler<'a>], before: Names<'a>) {
        let after = std::mem::take(&mut self.names);
        let outside = self.at;
        for handler in handlers {
            self.names = before.clone();
            self.at.in_handler = true;
            self.at.sometimes = true;
            if let Some(name) = handler.name {
                self.bind(name, AbstractValue::Exception);
            }
            self.body(&handler.body);
            self.at = outside;
        }
        self.names = after;
    }

    /// Returns the store of a value.
    pub(super) fn store(&self, value: &AbstractValue<'a>, key: &'a str) -> TensorStore<'a> {
        match value {
            AbstractValue::Container(id) => TensorStore::Local { id: *id, name: key },
            _ => TensorStore::Outside { name: key },
        }
    }

    /// Records that a value is put into a store.
    pub(super) fn keep(
        &mut self,
        store: TensorStore<'a>,
        value: AbstractValue<'a>,
        expr: &'t Expr<'a>,
        range: SourceRange,
    ) {
        if let TensorStore::Local { id, .. } = &store {
            self.note_item(*id, "-1", &value);
            let node = self.facts.containers[id.0].node;
            let parts = self.tensors(&value);
            let graph = parts.iter().map(|part| self.facts.node(*part).graph).max().unwrap_or(HasGraph::No);
            let collected = &mut self.facts.nodes[node.0];
            collected.parents.extend(parts);
            collected.graph = collected.graph.max(graph);
        }
        let at = self.at;
        self.facts.kept.push(KeptValue { store, value, expr, range, at, through: None, summed: false });
    }
}

fn ends(body: &[Stmt<'_>]) -> bool {
    matches!(
        body.last().map(|stmt| &stmt.kind),
        Some(StmtKind::Return(_) | StmtKind::Raise(_) | StmtKind::Continue | StmtKind::Break)
    )
}
