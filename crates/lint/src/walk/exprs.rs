//! Expressions, without calls.

use super::FunctionWalk;
use crate::facts::{AbstractValue, HasGraph, KeptValue, Loop, NodeId, TensorStore};
use crate::torch::{self, Gives};
use crate::tree::{Expr, ExprKind, Literal, Produces, Sequence, SourceRange};

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    pub(super) fn eval(&mut self, expr: &'t Expr<'a>) -> AbstractValue<'a> {
        match &expr.kind {
            ExprKind::Name(name) => {
                if !self.file.is_from_star(name) {
                    self.mention(name);
                }
                self.name(name)
            }
            ExprKind::Attribute(base, name) => self.attribute(expr, base, name, None),
            ExprKind::Call(call) => self.call(expr, call),
            ExprKind::Subscript(base, index) => self.subscript(expr, base, index),
            ExprKind::Sequence(Sequence::Tuple, items) => {
                AbstractValue::Tuple(items.iter().map(|item| self.eval(item)).collect())
            }
            ExprKind::Sequence(_, items) => {
                let values: Vec<AbstractValue<'a>> = items.iter().map(|item| self.eval(item)).collect();
                self.collection(values, expr.range)
            }
            ExprKind::Dict(items) => {
                let mut values = Vec::new();
                for (key, value) in items {
                    key.iter().for_each(|key| drop(self.eval(key)));
                    values.push(self.eval(value));
                }
                self.collection(values, expr.range)
            }
            ExprKind::Comprehension(_) => self.comprehension(expr),
            ExprKind::Binary(_, sides) => {
                let values = [self.eval(&sides[0]), self.eval(&sides[1])];
                self.arithmetic(&values, expr.range)
            }
            ExprKind::Sign(of) => {
                let value = self.eval(of);
                self.arithmetic(std::slice::from_ref(&value), expr.range)
            }
            ExprKind::Conditional(parts) => {
                self.eval(&parts[0]);
                let (yes, no) = (self.eval(&parts[1]), self.eval(&parts[2]));
                self.either(yes, no)
            }
            ExprKind::Either(items) => {
                let mut values: Vec<AbstractValue<'a>> = items.iter().map(|item| self.eval(item)).collect();
                let last = values.pop().unwrap_or(AbstractValue::Unknown);
                values.into_iter().fold(last, |one, other| self.either(other, one))
            }
            ExprKind::Walrus(sides) => {
                let value = self.eval(&sides[1]);
                if let Some(key) = self.file.key(&sides[0]) {
                    self.bind(key, value.clone());
                }
                value
            }
            ExprKind::Through(of) => self.eval(of),
            ExprKind::Yield(of) => {
                of.iter().for_each(|of| drop(self.eval(of)));
                AbstractValue::Unknown
            }
            ExprKind::Not(of) => {
                self.eval(of);
                AbstractValue::Plain
            }
            ExprKind::Compare(items) | ExprKind::Format(items) => {
                items.iter().for_each(|item| drop(self.eval(item)));
                AbstractValue::Plain
            }
            ExprKind::Lambda(lambda) => {
                lambda
                    .parameters
                    .iter()
                    .filter_map(|of| of.default.as_ref())
                    .for_each(|of| drop(self.eval(of)));
                AbstractValue::Closure(self.captured(expr))
            }
            ExprKind::Literal(_) | ExprKind::Slice => AbstractValue::Plain,
            ExprKind::Other => AbstractValue::Unknown,
        }
    }

    /// Returns the tensors that a lambda captures.
    pub(super) fn captured(&self, lambda: &Expr<'a>) -> Vec<NodeId> {
        let mut found = Vec::new();
        lambda.any(&mut |part| {
            if let ExprKind::Name(name) = part.kind
                && let Some(AbstractValue::Tensor(node)) = self.names.get(name)
            {
                found.push(*node);
            }
            false
        });
        found
    }

    fn collection(&mut self, values: Vec<AbstractValue<'a>>, range: SourceRange) -> AbstractValue<'a> {
        let id = self.container("", false, range);
        let node = self.facts.containers[id.0].node;
        let parts: Vec<NodeId> = values.iter().flat_map(|value| self.tensors(value)).collect();
        let graph = parts.iter().map(|part| self.facts.node(*part).graph).max().unwrap_or(HasGraph::No);
        let scalar = !parts.is_empty() && parts.iter().all(|part| self.facts.node(*part).scalar);
        let collected = &mut self.facts.nodes[node.0];
        (collected.parents, collected.graph, collected.scalar) = (parts, graph, scalar);
        AbstractValue::Container(id)
    }

    fn arithmetic(&mut self, values: &[AbstractValue<'a>], range: SourceRange) -> AbstractValue<'a> {
        let parts: Vec<NodeId> = values.iter().flat_map(|value| self.tensors(value)).collect();
        if parts.is_empty() {
            let plain =
                values.iter().all(|value| matches!(value, AbstractValue::Plain | AbstractValue::Counter));
            return if plain { AbstractValue::Plain } else { AbstractValue::Unknown };
        }
        let scalar = parts.iter().all(|part| self.facts.node(*part).scalar);
        let node = self.derive(parts, range);
        self.facts.nodes[node.0].scalar = scalar;
        self.facts.nodes[node.0].elementwise = true;
        self.facts.nodes[node.0].from_unknown =
            values.iter().any(|value| matches!(value, AbstractValue::Unknown | AbstractValue::Outer(_)));
        AbstractValue::Tensor(node)
    }

    /// Handles an attribute; `known` is the value of its base, if that was evaluated already.
    pub(super) fn attribute(
        &mut self,
        expr: &'t Expr<'a>,
        base: &'t Expr<'a>,
        name: &'a str,
        known: Option<AbstractValue<'a>>,
    ) -> AbstractValue<'a> {
        if !self.file.is_from_star(name) {
            self.mention(name);
        }
        // `self.model` as bound in this function, or as used.
        if let Some(key) = self.file.key(expr) {
            if let Some(value) = self.names.get(key) {
                return value.clone();
            }
            if let Some(path) = self.file.path(expr) {
                return AbstractValue::Path(path);
            }
            if let Some(value) = self.made_by_init(key) {
                return value;
            }
        }
        let value = known.unwrap_or_else(|| self.eval(base));
        if name == "grad" {
            return AbstractValue::Gradient;
        }
        if let AbstractValue::Tensor(node) = value {
            let gives = torch::attribute(name);
            let value = self.part_of(node, gives, name, expr.range);
            if let (AbstractValue::Tensor(made), Gives::Derived) = (&value, gives) {
                self.facts.nodes[made.0].item = true;
            }
            return value;
        }
        if value == AbstractValue::Model && torch::names_submodule(name) {
            return AbstractValue::Model;
        }
        let Some(key) = self.file.key(expr) else { return AbstractValue::Unknown };
        if self.file.is_module_name(key) {
            return AbstractValue::Model;
        }
        if torch::reads_as_loss_function(key) && !key.ends_with("loss") {
            return AbstractValue::LossFunction;
        }
        if let Some(method) = key.strip_prefix("self.")
            && let Some(class) = self.class_id()
            && let Some(function) = self.file.method(class, method)
        {
            return AbstractValue::Function(function);
        }
        AbstractValue::Outer(key)
    }

    pub(super) fn class_id(&self) -> Option<crate::file::ClassId> {
        let class = self.file.class_of(self.facts.id)?;
        self.file.classes.iter().position(|other| std::ptr::eq(other, class)).map(crate::file::ClassId)
    }

    /// Handles a method or attribute of a tensor.
    pub(super) fn part_of(
        &mut self,
        node: NodeId,
        gives: Gives,
        name: &str,
        range: SourceRange,
    ) -> AbstractValue<'a> {
        let of = self.facts.node(node).clone();
        let made = match gives {
            Gives::Plain => return AbstractValue::Plain,
            Gives::Unknown => return AbstractValue::Unknown,
            Gives::Detached => {
                let made = self.add(crate::facts::TensorOrigin::Detached, vec![node], HasGraph::No, range);
                (self.facts.nodes[made.0].scalar, self.facts.nodes[made.0].part) = (of.scalar, of.part);
                made
            }
            Gives::View | Gives::Derived | Gives::Scalar | Gives::OnHost => {
                let made = self.derive(vec![node], range);
                let keeps_size = !matches!(gives, Gives::Derived) || name == "clone" || of.scalar;
                self.facts.nodes[made.0].scalar =
                    gives == Gives::Scalar || keeps_size && of.scalar || name == "loss";
                self.facts.nodes[made.0].part = gives == Gives::View && of.part;
                self.facts.nodes[made.0].on_host = of.on_host || gives == Gives::OnHost;
                self.facts.nodes[made.0].on_device =
                    gives != Gives::OnHost && (of.on_device || name == "cuda");
                made
            }
        };
        AbstractValue::Tensor(made)
    }

    /// Returns what a variable was last assigned, as written.
    pub(super) fn last_assigned(&self, name: &str) -> Option<&'a str> {
        let (_, at) = self.facts.emptied.iter().rev().find(|(bound, _)| *bound == name)?;
        self.file.text(*at).split_once('=').map(|(_, value)| value.trim())
    }

    /// Returns whether a variable was last assigned a number of Python: `int(scores.argmax())`.
    fn is_number(&self, name: &str) -> bool {
        self.last_assigned(name).is_some_and(|value| {
            value.starts_with("int(") || value.starts_with("len(") || value.ends_with(".item()")
        })
    }

    fn subscript(
        &mut self,
        expr: &'t Expr<'a>,
        base: &'t Expr<'a>,
        index: &'t Expr<'a>,
    ) -> AbstractValue<'a> {
        let value = self.eval(base);
        let at = self.eval(index);
        match &value {
            AbstractValue::Tensor(node) => {
                let node = *node;
                // `out["loss"]`, `losses["box"]`
                let of_losses = self.file.key(base).is_some_and(|key| key.contains("loss"));
                let is_loss = index.text().is_some_and(|text| of_losses || text.contains("loss"));
                let made = self.derive(vec![node], expr.range);
                // Several indices slice a tensor; a single index may also select from a tuple.
                let cuts = match &index.kind {
                    ExprKind::Sequence(Sequence::Tuple, parts) => {
                        parts.iter().all(|part| {
                            matches!(part.kind, ExprKind::Slice | ExprKind::Literal(_) | ExprKind::Sign(_))
                        }) && parts.iter().any(|part| {
                            matches!(part.kind, ExprKind::Literal(Literal::Number(_)) | ExprKind::Sign(_))
                        })
                    }
                    // `batch[i]`; a mask or a tensor of indices makes a copy.
                    ExprKind::Name(name) => {
                        at == AbstractValue::Counter || at == AbstractValue::Plain && self.is_number(name)
                    }
                    _ => false,
                };
                self.facts.nodes[made.0].part = cuts;
                self.facts.nodes[made.0].item = true;
                self.facts.nodes[made.0].scalar = is_loss || self.facts.node(node).scalar;
                AbstractValue::Tensor(made)
            }
            AbstractValue::Container(id) => {
                let container = &self.facts.containers[id.0];
                if let Some(item) = container.items.get(self.file.text(index.range)) {
                    return AbstractValue::Tensor(*item);
                }
                let node = container.node;
                if self.facts.node(node).parents.is_empty() {
                    return AbstractValue::Unknown;
                }
                AbstractValue::Tensor(self.derive(vec![node], expr.range))
            }
            AbstractValue::Tuple(items) => match &index.kind {
                ExprKind::Literal(Literal::Number(number)) => number
                    .parse::<usize>()
                    .ok()
                    .and_then(|place| items.get(place).cloned())
                    .unwrap_or(AbstractValue::Unknown),
                _ => AbstractValue::Unknown,
            },
            AbstractValue::Checkpoint(loads) => AbstractValue::Checkpoint(loads.clone()),
            // `features[:11]` of a model is a model.
            AbstractValue::Model => AbstractValue::Model,
            _ => AbstractValue::Unknown,
        }
    }

    /// Returns one of the elements that a value is unpacked into.
    pub(super) fn element(
        &mut self,
        value: &AbstractValue<'a>,
        place: usize,
        of: usize,
        range: SourceRange,
    ) -> AbstractValue<'a> {
        match value {
            AbstractValue::Tuple(items) if items.len() == of => items[place].clone(),
            AbstractValue::Tensor(node) => {
                let node = *node;
                let made = self.derive(vec![node], range);
                // A loss function that returns more than the loss: the rest may be numbers.
                if self.facts.node(node).scalar && place > 0 {
                    let graph = self.facts.node(made).graph;
                    self.facts.nodes[made.0].graph = graph.min(HasGraph::Unknown);
                }
                AbstractValue::Tensor(made)
            }
            AbstractValue::Container(id) => {
                let node = self.facts.containers[id.0].node;
                AbstractValue::Tensor(self.derive(vec![node], range))
            }
            _ => AbstractValue::Unknown,
        }
    }

    /// Handles a comprehension: a loop that puts everything into a list; a generator only passes it on.
    fn comprehension(&mut self, expr: &'t Expr<'a>) -> AbstractValue<'a> {
        let ExprKind::Comprehension(of) = &expr.kind else { return AbstractValue::Unknown };
        let result = self.container("", false, expr.range);
        let names = self.names.clone();
        let outside = self.at;
        for generator in &of.generators {
            let source = self.iterated(&generator.iter);
            let id = crate::facts::LoopId(self.facts.loops.len());
            self.facts.loops.push(Loop {
                parent: self.at.in_loop,
                range: expr.range,
                iter: Some(&generator.iter),
                over_batches: source.batches,
                counts: source.counts,
                targets: Vec::new(),
            });
            self.at.in_loop = Some(id);
            self.bind_target(&generator.target, &source, expr.range);
            generator.conditions.iter().for_each(|condition| drop(self.eval(condition)));
        }
        let mut kept = Vec::new();
        for element in &of.elements {
            let value = self.eval(element);
            kept.push((value, element));
        }
        let at = self.at;
        self.at = outside;
        self.names = names;
        let node = self.facts.containers[result.0].node;
        let is_gradients = matches!(kept.last(), Some((AbstractValue::Gradient, _)));
        for (value, element) in kept {
            let parts = self.tensors(&value);
            let graph = parts.iter().map(|part| self.facts.node(*part).graph).max().unwrap_or(HasGraph::No);
            self.facts.nodes[node.0].parents.extend(parts);
            self.facts.nodes[node.0].graph = self.facts.nodes[node.0].graph.max(graph);
            if of.kind == Produces::Collection {
                let store = TensorStore::Local { id: result, name: "" };
                self.facts.kept.push(KeptValue {
                    store,
                    value,
                    expr: element,
                    range: element.range,
                    at,
                    through: None,
                    summed: false,
                });
            }
        }
        let parts = &self.facts.nodes[node.0].parents;
        let scalar = !parts.is_empty() && parts.iter().all(|part| self.facts.node(*part).scalar);
        self.facts.nodes[node.0].scalar = scalar;
        // A list of gradients counts as a gradient.
        if is_gradients { AbstractValue::Gradient } else { AbstractValue::Container(result) }
    }
}
