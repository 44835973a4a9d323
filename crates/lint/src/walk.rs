//! Walk through a function in execution order that follows tensors through its variables.
//!
//! Loops are walked once: what one iteration passes to the next is known at their end. Branches are walked
//! separately and merged. Everything unknown is [`AbstractValue::Unknown`], about which no rule reports
//! anything.

mod calls;
mod carries;
mod exprs;
mod locals;
mod loops;
mod methods;
mod modes;
mod stmts;

use crate::asked::{Asked, AskedImport};
use crate::facts::{
    AbstractValue, At, BackwardCall, Container, ContainerId, FunctionFacts, GradMode, HasGraph, Loop, LoopId,
    NodeId, Returned, TensorNode, TensorOrigin,
};
use crate::file::{ClassKind, FunctionId, PythonFile};
use crate::summary::{DefinitionKind, FunctionSummary, Imports, Mentioned, turns_gradients_off};
use crate::torch;
use crate::tree::{Expr, ExprKind, Literal, SourceRange};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// Functions with more tensors are generated code, which is skipped.
const MAX_TENSORS: usize = 2_000;

/// Walks through every function of a file.
pub(crate) fn walk<'t, 'a>(
    file: &PythonFile<'t, 'a>,
    imports: &Imports,
) -> (Vec<FunctionFacts<'t, 'a>>, Vec<AskedImport>, Mentioned) {
    let known = Known {
        file,
        imports,
        facts: RefCell::new(FxHashMap::default()),
        globals: RefCell::default(),
        detaching: RefCell::default(),
        asked: RefCell::default(),
        mentioned: RefCell::default(),
    };
    for id in 0..file.functions.len() {
        known.ask(FunctionId(id));
    }
    let mut asked = known.asked.into_inner();
    let mut facts: Vec<FunctionFacts<'t, 'a>> = known.facts.into_inner().into_values().flatten().collect();
    facts.sort_by_key(|facts| facts.id);
    facts.iter_mut().filter(|facts| facts.nodes.len() > MAX_TENSORS).for_each(FunctionFacts::forget);
    // Objects and decorators matter where steps are: in training and evaluation.
    if !facts.iter().any(has_steps) {
        asked.retain(|_, reason| reason.calls.is_some());
    }
    let asked = asked.into_iter().map(|(path, reason)| AskedImport { path, reason });
    (facts, asked.collect(), known.mentioned.into_inner())
}

fn has_steps(facts: &FunctionFacts<'_, '_>) -> bool {
    !facts.backwards.is_empty()
        || !facts.evaluating.is_empty()
        || facts.loops.iter().any(|found| found.over_batches)
        || facts.forwards.iter().any(|(_, _, at)| at.in_loop.is_some())
}

/// Facts known so far. A function that is being walked through has an entry without facts.
struct Known<'w, 't, 'a> {
    file: &'w PythonFile<'t, 'a>,
    imports: &'w Imports,
    facts: RefCell<FxHashMap<FunctionId, Option<FunctionFacts<'t, 'a>>>>,
    /// Names of the module, also while it is being walked through.
    globals: RefCell<FxHashMap<&'a str, AbstractValue<'a>>>,
    /// What `forward` returns of the models of the module, by name, if a part of it has no graph.
    detaching: RefCell<FxHashMap<&'a str, Vec<bool>>>,
    /// Imports that are not known, and might make a difference.
    asked: RefCell<Asked>,
    /// Functions for evaluation that are mentioned, by name, and whether gradients are off wherever they are.
    mentioned: RefCell<Mentioned>,
}

impl<'t, 'a> Known<'_, 't, 'a> {
    /// Walks through a function, unless that is done or in progress.
    fn ask(&self, id: FunctionId) {
        if self.facts.borrow().contains_key(&id) {
            return;
        }
        self.facts.borrow_mut().insert(id, None);
        let facts = FunctionWalk::new(self, id).run();
        self.facts.borrow_mut().insert(id, Some(facts));
    }

    fn summary(&self, id: FunctionId) -> Option<FunctionSummary> {
        self.ask(id);
        let facts = self.facts.borrow();
        facts.get(&id)?.as_ref().map(|facts| FunctionSummary::of(self.file, facts))
    }

    /// Returns whether a decorator of this file runs what it decorates without gradients.
    fn is_off_under(&self, decorator: FunctionId) -> bool {
        let inside = (0..self.file.functions.len()).map(FunctionId);
        for id in inside.filter(|id| self.file.functions[id.0].parent == decorator) {
            self.ask(id);
        }
        let facts = self.facts.borrow();
        turns_gradients_off(self.file, decorator, facts.values().flatten())
    }

    /// Returns whether a decorator of another file does.
    fn is_off_under_import(&self, path: &str) -> bool {
        match self.imports.get(path) {
            Some(DefinitionKind::Function(summary)) => summary.turns_gradients_off,
            Some(DefinitionKind::Class(_)) => false,
            None => {
                self.asked.borrow_mut().entry(path.to_owned()).or_default();
                false
            }
        }
    }
}

struct FunctionWalk<'w, 't, 'a> {
    known: &'w Known<'w, 't, 'a>,
    file: &'w PythonFile<'t, 'a>,
    facts: FunctionFacts<'t, 'a>,
    at: At,
    returns: Vec<Returned>,
    names: FxHashMap<&'a str, AbstractValue<'a>>,
    /// Names that `backward()` is called on somewhere in the function: whatever they are, they have a graph.
    losses: Vec<&'a str>,
}

impl<'w, 't, 'a> FunctionWalk<'w, 't, 'a> {
    fn new(known: &'w Known<'w, 't, 'a>, id: FunctionId) -> FunctionWalk<'w, 't, 'a> {
        let file = known.file;
        let mode = mode_of(known, id);
        let facts = FunctionFacts {
            id,
            nodes: Vec::new(),
            loops: Vec::new(),
            containers: Vec::new(),
            calls: Vec::new(),
            local_calls: Vec::new(),
            kept: Vec::new(),
            carried: Vec::new(),
            backwards: Vec::new(),
            written: Vec::new(),
            emptied: Vec::new(),
            evaluating: Vec::new(),
            forwards: Vec::new(),
            helped: Vec::new(),
            returned: Returned::Unknown,
            names: FxHashMap::default(),
            detaching: FxHashMap::default(),
            mode,
        };
        let at = At { in_loop: None, mode, sometimes: false, now_and_then: false, in_handler: false };
        FunctionWalk {
            known,
            file,
            facts,
            at,
            returns: Vec::new(),
            names: FxHashMap::default(),
            losses: losses(file, id),
        }
    }

    fn run(mut self) -> FunctionFacts<'t, 'a> {
        if let Some(function) = self.file.functions[self.facts.id.0].function {
            for (place, parameter) in function.parameters.iter().enumerate() {
                let value = self.parameter(place, parameter.name, parameter.annotation.as_ref());
                self.names.insert(parameter.name, value);
            }
        }
        let body = self.file.body_of(self.facts.id);
        self.body(body);
        self.mark_scalars();
        self.facts.returned = self.returned();
        self.facts.names = std::mem::take(&mut self.names);
        self.facts
    }

    /// Marks what has to be a single number because `backward()` is called on it without gradients, with what
    /// that was computed from and what was computed from it by arithmetic.
    fn mark_scalars(&mut self) {
        let without_gradients = |backward: &&BackwardCall<'_, '_>| {
            let is_method = backward.call.method().is_some_and(|(_, name)| name == "backward");
            !backward.is_grad() && is_method && backward.call.args.is_empty()
        };
        let roots = self.facts.backwards.iter().filter(without_gradients);
        let mut open: Vec<NodeId> = roots.flat_map(|backward| backward.nodes.iter().copied()).collect();
        while let Some(at) = open.pop() {
            let node = &mut self.facts.nodes[at.0];
            if !std::mem::replace(&mut node.scalar, true) && node.elementwise {
                open.extend(&node.parents);
            }
        }
        for at in 0..self.facts.nodes.len() {
            let node = &self.facts.nodes[at];
            let is_scalar =
                node.elementwise && node.parents.iter().all(|parent| self.facts.node(*parent).scalar);
            self.facts.nodes[at].scalar |= is_scalar;
        }
    }

    fn parameter(
        &mut self,
        place: usize,
        name: &'a str,
        annotation: Option<&'t Expr<'a>>,
    ) -> AbstractValue<'a> {
        if name == "self" || name == "cls" {
            return AbstractValue::Outer(name);
        }
        // `Model: nn.Module` is called to make one.
        let is_class = name.starts_with(|letter: char| letter.is_ascii_uppercase())
            && name.contains(|letter: char| letter.is_ascii_lowercase());
        let annotated = annotation.filter(|_| !is_class).and_then(|of| self.file.path(of));
        if let Some(path) = annotated {
            match torch::kind_of_base(&path) {
                Some(kind) if kind.is_module() => return AbstractValue::Model,
                _ if path.starts_with("torch.optim.") => return AbstractValue::Optimizer,
                _ if path.ends_with("DataLoader") => return AbstractValue::Loader,
                _ => {}
            }
        }
        if self.file.is_module_name(name) {
            return AbstractValue::Model;
        }
        if torch::reads_as_loss_function(name) && !name.ends_with("loss") {
            return AbstractValue::LossFunction;
        }
        if torch::reads_as_loader(name) {
            return AbstractValue::Loader;
        }
        let node =
            self.add(TensorOrigin::Parameter(place), Vec::new(), HasGraph::Unknown, SourceRange::default());
        AbstractValue::Tensor(node)
    }

    /// Adds a tensor.
    fn add(
        &mut self,
        origin: TensorOrigin,
        parents: Vec<NodeId>,
        graph: HasGraph,
        range: SourceRange,
    ) -> NodeId {
        let id = NodeId(self.facts.nodes.len());
        let on_host = parents.iter().any(|parent| self.facts.node(*parent).on_host);
        let on_device = !on_host && parents.iter().any(|parent| self.facts.node(*parent).on_device);
        let freed = !parents.is_empty() && parents.iter().all(|parent| self.facts.node(*parent).freed);
        let node = TensorNode {
            origin,
            parents,
            graph,
            scalar: false,
            elementwise: false,
            part: false,
            item: false,
            from_unknown: false,
            mixed: false,
            on_host,
            on_device,
            freed,
            range,
        };
        self.facts.nodes.push(node);
        id
    }

    /// Adds a tensor computed from others: it has a graph if one of them has and gradients are on.
    fn derive(&mut self, parents: Vec<NodeId>, range: SourceRange) -> NodeId {
        let graph = parents.iter().map(|parent| self.facts.node(*parent).graph).max().unwrap_or(HasGraph::No);
        let graph = match self.at.mode {
            GradMode::On => graph,
            GradMode::Off => HasGraph::No,
            GradMode::Unknown => graph.min(HasGraph::Unknown),
        };
        self.add(TensorOrigin::Derived, parents, graph, range)
    }

    fn container(&mut self, name: &'a str, bounded: bool, range: SourceRange) -> ContainerId {
        let node = self.add(TensorOrigin::Collected, Vec::new(), HasGraph::No, range);
        let id = ContainerId(self.facts.containers.len());
        self.facts.containers.push(Container {
            name,
            made_in: self.at.in_loop,
            bounded,
            node,
            items: FxHashMap::default(),
        });
        id
    }

    /// Returns the tensors of a value.
    fn tensors(&self, value: &AbstractValue<'a>) -> Vec<NodeId> {
        match value {
            AbstractValue::Tensor(node) => vec![*node],
            AbstractValue::Container(id) => vec![self.facts.containers[id.0].node],
            AbstractValue::Tuple(items) => items.iter().flat_map(|item| self.tensors(item)).collect(),
            AbstractValue::Closure(nodes) | AbstractValue::Instance(_, nodes) => nodes.clone(),
            _ => Vec::new(),
        }
    }

    /// Resolves a name: here, in the enclosing function, in the module, by import or definition.
    fn name(&self, name: &'a str) -> AbstractValue<'a> {
        if let Some(value) = self.names.get(name) {
            return value.clone();
        }
        if self.facts.id != FunctionId::MODULE
            && let Some(value) = self.outer(name)
        {
            return value;
        }
        self.defined(name)
    }

    fn defined(&self, name: &'a str) -> AbstractValue<'a> {
        if let Some(function) = self.file.function_named(name) {
            return AbstractValue::Function(function);
        }
        if let Some(class) = self.file.class_named(name) {
            return AbstractValue::Class(class);
        }
        if self.file.is_module_name(name) {
            return AbstractValue::Model;
        }
        AbstractValue::Outer(name)
    }

    /// Resolves a name in the enclosing function, or in the module.
    fn outer(&self, name: &'a str) -> Option<AbstractValue<'a>> {
        let facts = self.known.facts.borrow();
        let mut at = self.file.functions[self.facts.id.0].parent;
        while at != FunctionId::MODULE {
            if let Some(Some(facts)) = facts.get(&at)
                && let Some(value) = facts.names.get(name)
            {
                return Some(from_outside(value, name));
            }
            at = self.file.functions[at.0].parent;
        }
        self.known.globals.borrow().get(name).map(|value| from_outside(value, name))
    }

    /// Returns what `__init__` put into an attribute of the object.
    fn made_by_init(&mut self, key: &'a str) -> Option<AbstractValue<'a>> {
        if !key.starts_with("self.") || self.file.name_of(self.facts.id) == "__init__" {
            return None;
        }
        let init = self.file.method(self.class_id()?, "__init__")?;
        self.known.ask(init);
        let (value, node) = {
            let known = self.known.facts.borrow();
            let facts = known.get(&init)?.as_ref()?;
            let value = facts.names.get(key)?.clone();
            let node = match value {
                AbstractValue::Tensor(node) => Some(facts.node(node).clone()),
                _ => None,
            };
            (value, node)
        };
        match (node, value) {
            // A tensor of the object: what other methods do with it is unknown here.
            (Some(node), _) if node.origin == TensorOrigin::Fresh => {
                let id = self.add(TensorOrigin::Fresh, Vec::new(), node.graph, node.range);
                self.facts.nodes[id.0].on_device = node.on_device;
                self.names.insert(key, AbstractValue::Tensor(id));
                Some(AbstractValue::Tensor(id))
            }
            (
                None,
                value @ (AbstractValue::Model
                | AbstractValue::LossFunction
                | AbstractValue::Optimizer
                | AbstractValue::Loader
                | AbstractValue::Meter
                | AbstractValue::Imported(..)
                | AbstractValue::Instance(..)),
            ) => Some(from_outside(&value, key)),
            _ => None,
        }
    }

    /// Notes whether gradients are off where a function for evaluation is mentioned, called or not.
    fn mention(&self, name: &str) {
        if self.file.is_evaluation(name) || self.file.is_from_star(name) {
            let is_off = self.at.mode == GradMode::Off;
            let mut mentioned = self.known.mentioned.borrow_mut();
            mentioned.entry(name.to_owned()).and_modify(|all| *all &= is_off).or_insert(is_off);
        }
    }

    fn bind(&mut self, name: &'a str, value: AbstractValue<'a>) {
        let value = match value {
            AbstractValue::Unknown => self.by_use(name),
            known => known,
        };
        if self.facts.id == FunctionId::MODULE {
            self.known.globals.borrow_mut().insert(name, value.clone());
        }
        if let AbstractValue::Container(id) | AbstractValue::Imported(_, Some(id)) = &value {
            let container = &mut self.facts.containers[id.0];
            if container.name.is_empty() {
                container.name = name;
            }
        }
        self.names.insert(name, value);
    }

    /// Infers the value of a name from how it is used.
    fn by_use(&mut self, name: &'a str) -> AbstractValue<'a> {
        if self.losses.contains(&name) {
            let graph = match self.at.mode {
                GradMode::On => HasGraph::Yes,
                GradMode::Off => HasGraph::No,
                GradMode::Unknown => HasGraph::Unknown,
            };
            let node = self.add(TensorOrigin::Forward, Vec::new(), graph, SourceRange::default());
            self.facts.nodes[node.0].scalar = true;
            return AbstractValue::Tensor(node);
        }
        if self.file.is_module_name(name) { AbstractValue::Model } else { AbstractValue::Unknown }
    }

    fn returned(&self) -> Returned {
        // `return None` in addition to a tensor, or an unknown value, does not change the result.
        let mut returns =
            self.returns.iter().filter(|returned| !matches!(returned, Returned::Plain | Returned::Unknown));
        match returns.next() {
            None if self.returns.contains(&Returned::Unknown) => Returned::Unknown,
            None => Returned::Plain,
            Some(first) if returns.all(|other| other == first) => first.clone(),
            Some(_) => Returned::Unknown,
        }
    }

    /// Converts a value to what a caller gets.
    fn to_return(&self, value: &AbstractValue<'a>) -> Returned {
        match value {
            AbstractValue::Plain => Returned::Plain,
            AbstractValue::Model => Returned::Model,
            AbstractValue::Tuple(items) => {
                Returned::Tuple(items.iter().map(|item| self.to_return(item)).collect())
            }
            AbstractValue::Tensor(id) => {
                let node = self.facts.node(*id);
                let place = |node: NodeId| match self.facts.node(node).origin {
                    TensorOrigin::Parameter(place) => Some(place),
                    _ => None,
                };
                let mut parameters: Vec<usize> =
                    self.facts.ancestors(*id).into_iter().filter_map(place).collect();
                parameters.sort_unstable();
                let touched =
                    |on: &NodeId| self.facts.comes_from(*on, *id) || self.facts.comes_from(*id, *on);
                let freed = self
                    .facts
                    .backwards
                    .iter()
                    .any(|backward| !backward.retains && backward.nodes.iter().any(touched));
                Returned::Tensor {
                    graph: node.graph,
                    freed: freed || node.freed,
                    scalar: node.scalar,
                    on_device: node.on_device,
                    parameters,
                }
            }
            _ => Returned::Unknown,
        }
    }

    /// Walks through `body` as the body of a loop.
    fn in_loop(&mut self, made: Loop<'t, 'a>, body: impl FnOnce(&mut Self)) {
        let outside = self.at;
        self.at.in_loop = Some(LoopId(self.facts.loops.len()));
        (self.at.sometimes, self.at.now_and_then) = (false, false);
        self.facts.loops.push(made);
        body(self);
        self.at = outside;
    }
}

/// Returns the names that a function calls `backward()` on, or passes to another `backward`.
fn losses<'a>(file: &PythonFile<'_, 'a>, id: FunctionId) -> Vec<&'a str> {
    let mut found = Vec::new();
    if !file.mentions("backward") && !file.mentions("manual_backward") {
        return found;
    }
    crate::tree::walk(file.body_of(id), &mut |stmt| {
        for expr in stmt.expressions() {
            expr.any(&mut |part| {
                let Some((call, (base, name))) = part.as_call().and_then(|call| Some((call, call.method()?)))
                else {
                    return false;
                };
                if matches!(name, "backward" | "manual_backward") {
                    // `accelerator.backward(loss)` is about its argument, `loss.backward()` about its
                    // receiver.
                    let first = call.args.first().and_then(|arg| file.key(arg));
                    found.extend(first.or_else(|| file.key(base)));
                }
                false
            });
        }
    });
    found
}

/// Converts a value of another function: its tensors and containers are known by name only.
fn from_outside<'a>(value: &AbstractValue<'a>, name: &'a str) -> AbstractValue<'a> {
    match value {
        AbstractValue::Tensor(_)
        | AbstractValue::Container(_)
        | AbstractValue::Tuple(_)
        | AbstractValue::Closure(_) => AbstractValue::Outer(name),
        AbstractValue::Instance(class, _) => AbstractValue::Instance(*class, Vec::new()),
        AbstractValue::Imported(class, _) => AbstractValue::Imported(class.clone(), None),
        other => other.clone(),
    }
}

/// Returns whether gradients are on at the start of a function.
fn mode_of(known: &Known<'_, '_, '_>, id: FunctionId) -> GradMode {
    let file = known.file;
    let defined = &file.functions[id.0];
    let Some(function) = defined.function else { return GradMode::On };
    for decorator in &function.decorators {
        let callee = decorator.as_call().map_or(decorator, |call| &call.callee);
        if let Some(path) = file.path(callee)
            && let Some(on) = torch::grad_mode(&path)
        {
            let turned_off =
                decorator.as_call().is_some_and(|call| call.args.iter().any(|arg| arg.is(Literal::False)));
            return if on || turned_off { GradMode::On } else { GradMode::Off };
        }
        let is_off = match (file.path(callee), file.key(callee).and_then(|name| file.function_named(name))) {
            (Some(path), _) => known.is_off_under_import(&path),
            (None, Some(decorator)) => decorator != id && known.is_off_under(decorator),
            (None, None) => false,
        };
        if is_off {
            return GradMode::Off;
        }
        // A custom decorator of the project may do the same.
        let name = file.text(callee.range).to_ascii_lowercase();
        if name.contains("grad") || name.contains("inference") {
            return GradMode::Unknown;
        }
    }
    // Hugging Face's pipelines call these methods without gradients.
    let in_pipeline = file.class_of(id).is_some_and(|class| {
        class.class.bases.iter().any(|base| file.text(base.range).ends_with("Pipeline"))
    });
    if in_pipeline {
        return GradMode::Off;
    }
    let in_lightning = file.class_of(id).is_some_and(|class| {
        // Lightning calls these methods of callbacks as well, with itself as the first argument.
        let is_callback = class.class.bases.iter().any(|base| file.text(base.range).ends_with("Callback"))
            && function.parameters.iter().any(|parameter| parameter.name == "pl_module");
        class.kind == ClassKind::Lightning || is_callback
    });
    // Its methods by name, where the base class is in another file.
    let is_step = matches!(function.name, "validation_step" | "test_step" | "predict_step")
        && file.class_of(id).is_some_and(|class| !class.class.bases.is_empty());
    if is_step {
        return GradMode::Off;
    }
    if in_lightning
        && ["validation", "test", "predict", "on_validation", "on_test"]
            .iter()
            .any(|start| function.name.starts_with(start))
    {
        return GradMode::Off;
    }
    // A nested function runs when it is called: only a mode common to both is known.
    match defined.parent {
        FunctionId::MODULE => GradMode::On,
        parent => mode_of(known, parent),
    }
}

/// Returns whether an expression is new in every iteration of a loop that counts.
fn counts(expr: &Expr<'_>, names: &dyn Fn(&str) -> bool) -> bool {
    expr.any(&mut |part| matches!(part.kind, ExprKind::Name(name) if names(name)))
}
