//! Walks through a function in the order in which it runs, and follows tensors through its variables.
//!
//! Loops are walked once: what a turn hands to the next is seen at their end. Branches are walked apart and put together.
//! Whatever is not understood is [`Value::Unknown`], of which no rule says anything.

mod calls;
mod carries;
mod exprs;
mod locals;
mod loops;
mod methods;
mod modes;
mod stmts;

use crate::facts::{
    At, Container, ContainerId, Facts, Graph, Loop, LoopId, Mode, Node, NodeId, Origin, Returned, Store,
    Value,
};
use crate::file::{ClassKind, File, FunctionId};
use crate::torch;
use crate::tree::{Expr, ExprKind, Literal, Range};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// A function with more tensors is generated code: nobody wrote it, and nobody will read about it.
const MOST_TENSORS: usize = 2_000;

/// Every function of a file, walked through.
pub(crate) fn walk<'t, 'a>(file: &File<'t, 'a>) -> Vec<Facts<'t, 'a>> {
    let known = Known { file, facts: RefCell::new(FxHashMap::default()), globals: RefCell::default() };
    for id in 0..file.functions.len() {
        known.ask(FunctionId(id));
    }
    let mut facts: Vec<Facts<'t, 'a>> = known.facts.into_inner().into_values().flatten().collect();
    facts.sort_by_key(|facts| facts.id);
    facts.iter_mut().filter(|facts| facts.nodes.len() > MOST_TENSORS).for_each(Facts::forget);
    facts
}

/// What was found out so far. A function that is being walked through has an entry without facts.
struct Known<'w, 't, 'a> {
    file: &'w File<'t, 'a>,
    facts: RefCell<FxHashMap<FunctionId, Option<Facts<'t, 'a>>>>,
    /// The names of the module, also while it is being walked through.
    globals: RefCell<FxHashMap<&'a str, Value<'a>>>,
}

/// A parameter that a function keeps.
struct Keeps {
    parameter: usize,
    summed: bool,
    name: String,
    place: Range,
}

/// What a caller has to know of a function.
struct Summary {
    returned: Returned,
    /// Parameters that are kept.
    keeps: Vec<Keeps>,
    /// Parameters that `backward()` is called on.
    backwards: Vec<usize>,
}

impl<'t, 'a> Known<'_, 't, 'a> {
    /// Walks through a function, unless that was done or is under way.
    fn ask(&self, id: FunctionId) {
        if self.facts.borrow().contains_key(&id) {
            return;
        }
        self.facts.borrow_mut().insert(id, None);
        let facts = Walk::new(self, id).run();
        self.facts.borrow_mut().insert(id, Some(facts));
    }

    fn summary(&self, id: FunctionId) -> Option<Summary> {
        self.ask(id);
        let facts = self.facts.borrow();
        let facts = facts.get(&id)?.as_ref()?;
        let parameter = |node: NodeId| match facts.node(node).origin {
            Origin::Parameter(place) => Some(place),
            _ => None,
        };
        let sources =
            |node: NodeId| facts.ancestors(node).into_iter().filter_map(parameter).collect::<Vec<_>>();
        let graph = |node: NodeId| facts.node(node).graph != Graph::No;
        let kept = facts.kept.iter().filter_map(|kept| match (&kept.store, &kept.value) {
            (Store::Outside { name }, Value::Tensor(node)) if graph(*node) => {
                Some((*node, kept.summed, *name, kept.place()))
            }
            _ => None,
        });
        let summed = facts.carried.iter().filter(|carried| carried.name.contains('.') && graph(carried.node));
        let summed = summed.map(|carried| (carried.node, true, carried.name, carried.range));
        let keeps = kept.chain(summed).flat_map(|(node, summed, name, place)| {
            let parameters = sources(node).into_iter();
            parameters.map(move |parameter| Keeps { parameter, summed, name: name.to_owned(), place })
        });
        let backwards = facts
            .backwards
            .iter()
            .filter(|backward| backward.at.in_loop.is_none())
            .flat_map(|backward| &backward.nodes)
            .flat_map(|node| sources(*node));
        Some(Summary {
            returned: facts.returned.clone(),
            keeps: keeps.collect(),
            backwards: backwards.collect(),
        })
    }
}

struct Walk<'w, 't, 'a> {
    known: &'w Known<'w, 't, 'a>,
    file: &'w File<'t, 'a>,
    facts: Facts<'t, 'a>,
    at: At,
    returns: Vec<Returned>,
    names: FxHashMap<&'a str, Value<'a>>,
    /// Names that `backward()` is called on somewhere in the function: whatever they are, they have a graph.
    losses: Vec<&'a str>,
}

impl<'w, 't, 'a> Walk<'w, 't, 'a> {
    fn new(known: &'w Known<'w, 't, 'a>, id: FunctionId) -> Walk<'w, 't, 'a> {
        let file = known.file;
        let mode = mode_of(file, id);
        let facts = Facts {
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
            returned: Returned::Unknown,
            names: FxHashMap::default(),
            mode,
        };
        let at = At { in_loop: None, mode, sometimes: false, now_and_then: false, in_handler: false };
        Walk {
            known,
            file,
            facts,
            at,
            returns: Vec::new(),
            names: FxHashMap::default(),
            losses: losses(file, id),
        }
    }

    fn run(mut self) -> Facts<'t, 'a> {
        if let Some(function) = self.file.functions[self.facts.id.0].function {
            for (place, parameter) in function.parameters.iter().enumerate() {
                let value = self.parameter(place, parameter.name, parameter.annotation.as_ref());
                self.names.insert(parameter.name, value);
            }
        }
        let body = self.file.body_of(self.facts.id);
        self.body(body);
        self.facts.returned = self.returned();
        self.facts.names = std::mem::take(&mut self.names);
        self.facts
    }

    fn parameter(&mut self, place: usize, name: &'a str, annotation: Option<&'t Expr<'a>>) -> Value<'a> {
        if name == "self" || name == "cls" {
            return Value::Outer(name);
        }
        let annotated = annotation.and_then(|of| self.file.path(of));
        if let Some(path) = annotated {
            match torch::kind_of_base(&path) {
                Some(kind) if kind.is_module() => return Value::Model,
                _ if path.starts_with("torch.optim.") => return Value::Optimizer,
                _ if path.ends_with("DataLoader") => return Value::Loader,
                _ => {}
            }
        }
        if self.file.is_module_name(name) {
            return Value::Model;
        }
        if torch::reads_as_loss_function(name) && !name.ends_with("loss") {
            return Value::LossFunction;
        }
        if torch::reads_as_loader(name) {
            return Value::Loader;
        }
        let node = self.add(Origin::Parameter(place), Vec::new(), Graph::Unknown, Range::default());
        Value::Tensor(node)
    }

    /// A new tensor.
    fn add(&mut self, origin: Origin, parents: Vec<NodeId>, graph: Graph, range: Range) -> NodeId {
        let id = NodeId(self.facts.nodes.len());
        let on_host = parents.iter().any(|parent| self.facts.node(*parent).on_host);
        let on_device = !on_host && parents.iter().any(|parent| self.facts.node(*parent).on_device);
        let freed = !parents.is_empty() && parents.iter().all(|parent| self.facts.node(*parent).freed);
        let node = Node {
            origin,
            parents,
            graph,
            scalar: false,
            part: false,
            mixed: false,
            on_host,
            on_device,
            freed,
            range,
        };
        self.facts.nodes.push(node);
        id
    }

    /// A tensor computed from others: it has a graph if one of them has and gradients are on.
    fn derive(&mut self, parents: Vec<NodeId>, range: Range) -> NodeId {
        let graph = parents.iter().map(|parent| self.facts.node(*parent).graph).max().unwrap_or(Graph::No);
        let graph = match self.at.mode {
            Mode::On => graph,
            Mode::Off => Graph::No,
            Mode::Unknown => graph.min(Graph::Unknown),
        };
        self.add(Origin::Derived, parents, graph, range)
    }

    fn container(&mut self, name: &'a str, bounded: bool, range: Range) -> ContainerId {
        let node = self.add(Origin::Collected, Vec::new(), Graph::No, range);
        let id = ContainerId(self.facts.containers.len());
        self.facts.containers.push(Container { name, made_in: self.at.in_loop, bounded, node });
        id
    }

    /// The tensors that a value is or has in it.
    fn tensors(&self, value: &Value<'a>) -> Vec<NodeId> {
        match value {
            Value::Tensor(node) => vec![*node],
            Value::Container(id) => vec![self.facts.containers[id.0].node],
            Value::Tuple(items) => items.iter().flat_map(|item| self.tensors(item)).collect(),
            Value::Closure(nodes) | Value::Instance(_, nodes) => nodes.clone(),
            _ => Vec::new(),
        }
    }

    /// What a name stands for: here, in the function around, in the module, by import or definition.
    fn name(&self, name: &'a str) -> Value<'a> {
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

    fn defined(&self, name: &'a str) -> Value<'a> {
        if let Some(function) = self.file.function_named(name) {
            return Value::Function(function);
        }
        if let Some(class) = self.file.class_named(name) {
            return Value::Class(class);
        }
        if self.file.is_module_name(name) {
            return Value::Model;
        }
        Value::Outer(name)
    }

    /// A name of the function around, or of the module.
    fn outer(&self, name: &'a str) -> Option<Value<'a>> {
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

    /// What `__init__` has put into an attribute of the object.
    fn made_by_init(&mut self, key: &'a str) -> Option<Value<'a>> {
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
                Value::Tensor(node) => Some(facts.node(node).clone()),
                _ => None,
            };
            (value, node)
        };
        match (node, value) {
            // A tensor of the object: what becomes of it elsewhere is not known here.
            (Some(node), _) if node.origin == Origin::Fresh => {
                let id = self.add(Origin::Fresh, Vec::new(), node.graph, node.range);
                self.facts.nodes[id.0].on_device = node.on_device;
                self.names.insert(key, Value::Tensor(id));
                Some(Value::Tensor(id))
            }
            (
                None,
                value @ (Value::Model
                | Value::LossFunction
                | Value::Optimizer
                | Value::Loader
                | Value::Meter
                | Value::Instance(..)),
            ) => Some(from_outside(&value, key)),
            _ => None,
        }
    }

    fn bind(&mut self, name: &'a str, value: Value<'a>) {
        let value = match value {
            Value::Unknown => self.by_use(name),
            known => known,
        };
        if self.facts.id == FunctionId::MODULE {
            self.known.globals.borrow_mut().insert(name, value.clone());
        }
        if let Value::Container(id) = &value {
            let container = &mut self.facts.containers[id.0];
            if container.name.is_empty() {
                container.name = name;
            }
        }
        self.names.insert(name, value);
    }

    /// What a name must stand for, by what is done with it.
    fn by_use(&mut self, name: &'a str) -> Value<'a> {
        if self.losses.contains(&name) {
            let graph = match self.at.mode {
                Mode::On => Graph::Yes,
                Mode::Off => Graph::No,
                Mode::Unknown => Graph::Unknown,
            };
            let node = self.add(Origin::Forward, Vec::new(), graph, Range::default());
            self.facts.nodes[node.0].scalar = true;
            return Value::Tensor(node);
        }
        if self.file.is_module_name(name) { Value::Model } else { Value::Unknown }
    }

    fn returned(&self) -> Returned {
        // `return None` beside a tensor, or what is not known, does not make it something else.
        let mut returns =
            self.returns.iter().filter(|returned| !matches!(returned, Returned::Plain | Returned::Unknown));
        match returns.next() {
            None if self.returns.contains(&Returned::Unknown) => Returned::Unknown,
            None => Returned::Plain,
            Some(first) if returns.all(|other| other == first) => first.clone(),
            Some(_) => Returned::Unknown,
        }
    }

    /// What a caller gets.
    fn to_return(&self, value: &Value<'a>) -> Returned {
        match value {
            Value::Plain => Returned::Plain,
            Value::Model => Returned::Model,
            Value::Tuple(items) => Returned::Tuple(items.iter().map(|item| self.to_return(item)).collect()),
            Value::Tensor(id) => {
                let node = self.facts.node(*id);
                let place = |node: NodeId| match self.facts.node(node).origin {
                    Origin::Parameter(place) => Some(place),
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

    /// In a loop of its own.
    fn in_loop(&mut self, made: Loop<'t, 'a>, body: impl FnOnce(&mut Self)) {
        let outside = self.at;
        self.at.in_loop = Some(LoopId(self.facts.loops.len()));
        (self.at.sometimes, self.at.now_and_then) = (false, false);
        self.facts.loops.push(made);
        body(self);
        self.at = outside;
    }
}

/// The names that a function calls `backward()` on, or hands to somebody's `backward`.
fn losses<'a>(file: &File<'_, 'a>, id: FunctionId) -> Vec<&'a str> {
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
                    // `accelerator.backward(loss)` says something of its argument, `loss.backward()` of what it is called on.
                    let first = call.args.first().and_then(|arg| file.key(arg));
                    found.extend(first.or_else(|| file.key(base)));
                }
                false
            });
        }
    });
    found
}

/// A value of another function: its tensors and containers are known by name only.
fn from_outside<'a>(value: &Value<'a>, name: &'a str) -> Value<'a> {
    match value {
        Value::Tensor(_) | Value::Container(_) | Value::Tuple(_) | Value::Closure(_) => Value::Outer(name),
        Value::Instance(class, _) => Value::Instance(*class, Vec::new()),
        other => other.clone(),
    }
}

/// Gradients at the start of a function.
fn mode_of(file: &File<'_, '_>, id: FunctionId) -> Mode {
    let defined = &file.functions[id.0];
    let Some(function) = defined.function else { return Mode::On };
    for decorator in &function.decorators {
        let callee = decorator.as_call().map_or(decorator, |call| &call.callee);
        if let Some(path) = file.path(callee)
            && let Some(on) = torch::grad_mode(&path)
        {
            let turned_off =
                decorator.as_call().is_some_and(|call| call.args.iter().any(|arg| arg.is(Literal::False)));
            return if on || turned_off { Mode::On } else { Mode::Off };
        }
        // A decorator of the project's own may do the same.
        let name = file.text(callee.range).to_ascii_lowercase();
        if name.contains("grad") || name.contains("inference") {
            return Mode::Unknown;
        }
    }
    // What Hugging Face's pipelines call, they call without gradients.
    let in_pipeline = file.class_of(id).is_some_and(|class| {
        class.class.bases.iter().any(|base| file.text(base.range).ends_with("Pipeline"))
    });
    if in_pipeline {
        return Mode::Off;
    }
    let in_lightning = file.class_of(id).is_some_and(|class| class.kind == ClassKind::Lightning);
    if in_lightning
        && ["validation", "test", "predict", "on_validation", "on_test"]
            .iter()
            .any(|start| function.name.starts_with(start))
    {
        return Mode::Off;
    }
    // A function inside another runs when it is called: what is known is only what was said for both.
    match defined.parent {
        FunctionId::MODULE => Mode::On,
        parent => mode_of(file, parent),
    }
}

/// Whether an expression is new on every turn of a loop that counts.
fn counts(expr: &Expr<'_>, names: &dyn Fn(&str) -> bool) -> bool {
    expr.any(&mut |part| matches!(part.kind, ExprKind::Name(name) if names(name)))
}
