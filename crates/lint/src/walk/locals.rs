//! Calls of functions of the project, of this file or another, by what is known about them.

use super::FunctionWalk;
use crate::facts::{
    AbstractValue, BackwardCall, GradMode, HasGraph, KeptValue, LocalCall, NodeId, Returned, TensorOrigin,
    TensorStore,
};
use crate::file::FunctionId;
use crate::summary::{DefinitionKind, FunctionSummary};
use crate::tree::{self, CallExpr, Expr, ExprKind, SourceRange};

/// What keeps an argument of a call.
pub(super) enum KeptBy<'a> {
    /// Store that a function of this file names.
    Function(FunctionId),
    /// Object or function of another file, as it is called here.
    Other(TensorStore<'a>),
}

impl<'t, 'a> FunctionWalk<'_, 't, 'a> {
    /// Handles a call of a function of the file.
    pub(super) fn local(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        callee: FunctionId,
        skip: usize,
        args: &[AbstractValue<'a>],
        all: &[AbstractValue<'a>],
    ) -> AbstractValue<'a> {
        self.facts.local_calls.push(LocalCall {
            callee,
            mode: self.at.mode,
            in_loop: self.at.in_loop,
            range: Some(expr.range),
        });
        if self.yields_with_tensors(callee) {
            return AbstractValue::Generator(callee);
        }
        let Some(summary) = self.known.summary(callee) else { return AbstractValue::Unknown };
        let value = self.apply(expr, call, &summary, skip, (args, all), KeptBy::Function(callee));
        self.note_helped(call, callee, skip, &value);
        value
    }

    /// Records a call of a function that runs a model and returns the result with its graph.
    fn note_helped(
        &mut self,
        call: &'t CallExpr<'a>,
        callee: FunctionId,
        skip: usize,
        value: &AbstractValue<'a>,
    ) {
        let mut results = self.tensors(value).into_iter();
        let Some(result) = results.find(|node| self.facts.node(*node).graph == HasGraph::Yes) else { return };
        let Some(function) = self.file.functions[callee.0].function else { return };
        let models: Vec<&'a str> = {
            let known = self.known.facts.borrow();
            let Some(facts) = known.get(&callee).and_then(Option::as_ref) else { return };
            let passes = facts.forwards.iter().filter(|(_, _, at)| at.mode == GradMode::On);
            let helped = facts.helped.iter().filter(|(_, _, at, _)| at.mode == GradMode::On);
            passes.map(|(model, ..)| *model).chain(helped.map(|(model, ..)| *model)).collect()
        };
        let is_own = call.method().is_some_and(|(base, _)| self.file.key(base) == Some("self"));
        let argument = |model: &&'a str| {
            if is_own && model.starts_with("self.") {
                return Some(*model);
            }
            let place = function.parameters.iter().position(|of| of.name == *model)?;
            self.file.key(call.argument(model, place.checked_sub(skip)?)?)
        };
        let model = models.iter().find_map(argument);
        let at = self.at;
        self.facts.helped.extend(model.map(|model| (model, result, at, callee)));
    }

    /// Returns what an import of the project means, or notes that it is asked for.
    pub(super) fn definition(
        &self,
        path: &str,
        call: &CallExpr<'a>,
        all: &[AbstractValue<'a>],
    ) -> Option<&DefinitionKind> {
        let known = self.known.imports.get(path);
        let is_class = path.rsplit('.').next().is_some_and(|name| name.starts_with(char::is_uppercase));
        let matters = |value: &AbstractValue<'a>| match value {
            AbstractValue::Model | AbstractValue::Optimizer | AbstractValue::Imported(..) => true,
            AbstractValue::Tensor(node) => self.facts.node(*node).graph == HasGraph::Yes,
            _ => false,
        };
        // Layers of a module are modules: what they are made of makes no difference here.
        let makes_layers = || {
            self.file.name_of(self.facts.id) == "__init__"
                && self.file.class_of(self.facts.id).is_some_and(|class| class.kind.is_module())
        };
        if known.is_none() {
            if all.iter().any(matters) {
                self.ask_for_call(path, call, all);
            } else if is_class && !makes_layers() {
                self.known.asked.borrow_mut().entry(path.to_owned()).or_default().is_class = true;
            }
        }
        known
    }

    /// Notes that an import is asked for, because of the arguments of a call of it.
    fn ask_for_call(&self, path: &str, call: &CallExpr<'a>, all: &[AbstractValue<'a>]) {
        let mut asked = self.known.asked.borrow_mut();
        let given = asked.entry(path.to_owned()).or_default().calls.get_or_insert_default();
        for (at, value) in all.iter().enumerate() {
            if self.tensors(value).is_empty() && !matches!(value, AbstractValue::Instance(..)) {
                continue;
            }
            match at.checked_sub(call.args.len()) {
                None => given.places.push(at),
                Some(keyword) => given.keywords.extend(call.keywords[keyword].name.map(str::to_owned)),
            }
        }
    }

    /// Handles a call of a function or class of another file.
    pub(super) fn of_package(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        definition: &DefinitionKind,
        args: &[AbstractValue<'a>],
        all: &[AbstractValue<'a>],
    ) -> AbstractValue<'a> {
        match definition {
            DefinitionKind::Class(class) if class.is_module => AbstractValue::Model,
            DefinitionKind::Class(class) => {
                let id = self.container("", false, expr.range);
                AbstractValue::Imported(class.clone(), Some(id))
            }
            DefinitionKind::Function(summary) => {
                let name = self.file.key(&call.callee).unwrap_or("");
                let store = TensorStore::Outside { name };
                self.apply(expr, call, summary, 0, (args, all), KeptBy::Other(store))
            }
        }
    }

    /// Applies what is known about a function to a call of it; `skip` is 1 for methods, whose first parameter
    /// is not in the call. `given` is the arguments by position, and all of them.
    pub(super) fn apply(
        &mut self,
        expr: &'t Expr<'a>,
        call: &'t CallExpr<'a>,
        summary: &FunctionSummary,
        skip: usize,
        (args, all): (&[AbstractValue<'a>], &[AbstractValue<'a>]),
        kept_by: KeptBy<'a>,
    ) -> AbstractValue<'a> {
        let argument = |place: usize| -> Option<(&'t Expr<'a>, &AbstractValue<'a>)> {
            let at = place.checked_sub(skip)?;
            if let Some(value) = args.get(at) {
                return Some((&call.args[at], value));
            }
            let name = summary.parameters.get(place)?;
            let at = call.keywords.iter().position(|keyword| keyword.name == Some(name))?;
            Some((&call.keywords[at].value, all.get(args.len() + at)?))
        };
        for keeps in &summary.keeps {
            let Some((argument, value)) = argument(keeps.parameter) else { continue };
            if self.tensors(value).is_empty() && !matches!(value, AbstractValue::Instance(..)) {
                continue;
            }
            let (store, through) = match &kept_by {
                // The name belongs to the callee: it is looked up in its text, which lives as long as the
                // file.
                KeptBy::Function(callee) => {
                    (TensorStore::Outside { name: self.name_in(*callee, &keeps.name) }, keeps.place)
                }
                KeptBy::Other(store) => (store.clone(), expr.range),
            };
            self.facts.kept.push(KeptValue {
                store,
                value: value.clone(),
                expr: argument,
                range: expr.range,
                at: self.at,
                through: Some(through),
                summed: keeps.summed,
            });
        }
        let roots: Vec<NodeId> = summary
            .backwards
            .iter()
            .filter_map(|place| argument(*place))
            .flat_map(|(_, value)| self.tensors(value))
            .collect();
        if !roots.is_empty() {
            self.facts.backwards.push(BackwardCall {
                nodes: roots,
                retains: false,
                call,
                range: expr.range,
                at: self.at,
            });
        }
        self.given_back(&summary.returned, &|place| argument(place).map(|(_, value)| value), expr.range)
    }

    /// Returns whether a function is a generator with tensors in its variables.
    pub(super) fn yields_with_tensors(&self, callee: FunctionId) -> bool {
        let text = self.file.text(self.file.functions[callee.0].range);
        if memchr::memmem::find(text.as_bytes(), b"yield").is_none() {
            return false;
        }
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
            let on_device = |value: &AbstractValue<'a>| match value {
                AbstractValue::Tensor(node) => facts.node(*node).on_device,
                _ => false,
            };
            facts.names.values().any(on_device)
        })
    }

    pub(super) fn name_in(&self, callee: FunctionId, name: &str) -> &'a str {
        let text = self.file.text(self.file.functions[callee.0].range);
        text.find(name).map_or("", |at| &text[at..at + name.len()])
    }

    pub(super) fn given_back<'v>(
        &mut self,
        returned: &Returned,
        argument: &dyn Fn(usize) -> Option<&'v AbstractValue<'a>>,
        range: SourceRange,
    ) -> AbstractValue<'a>
    where
        'a: 'v,
    {
        match returned {
            Returned::Unknown => AbstractValue::Unknown,
            Returned::Plain => AbstractValue::Plain,
            Returned::Model => AbstractValue::Model,
            Returned::Tuple(items) => AbstractValue::Tuple(
                items.iter().map(|item| self.given_back(item, argument, range)).collect(),
            ),
            Returned::Tensor { graph, freed, scalar, on_device, parameters } => {
                let parents: Vec<NodeId> = parameters
                    .iter()
                    .filter_map(|place| argument(*place))
                    .flat_map(|value| self.tensors(value))
                    .collect();
                let own = match (self.at.mode, graph) {
                    (GradMode::Off, _) => HasGraph::No,
                    (GradMode::Unknown, graph) => (*graph).min(HasGraph::Unknown),
                    // An argument is unknown in the callee but known here.
                    (GradMode::On, HasGraph::Unknown) => parents
                        .iter()
                        .map(|parent| self.facts.node(*parent).graph)
                        .max()
                        .unwrap_or(HasGraph::Unknown),
                    (GradMode::On, graph) => *graph,
                };
                let node = self.add(TensorOrigin::Forward, parents, own, range);
                let made = &mut self.facts.nodes[node.0];
                (made.freed, made.scalar, made.on_device) = (*freed, *scalar, made.on_device || *on_device);
                AbstractValue::Tensor(node)
            }
        }
    }
}
