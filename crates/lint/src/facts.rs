//! Facts about a function after walking through it: tensors and what they come from, loops, calls, and what
//! is kept where.

use crate::file::{ClassId, FunctionId};
use crate::summary::ClassSummary;
use crate::tree::{CallExpr, Expr, SourceRange};
use rustc_hash::FxHashMap;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct NodeId(pub(crate) usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct LoopId(pub(crate) usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ContainerId(pub(crate) usize);

/// Value of an expression, as far as it is known.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum AbstractValue<'a> {
    Unknown,
    /// Numbers, text, arrays, tensors of integers: nothing with a graph.
    Plain,
    /// Imported module, class or function.
    Path(String),
    Tensor(NodeId),
    Tuple(Vec<AbstractValue<'a>>),
    Container(ContainerId),
    Function(FunctionId),
    Class(ClassId),
    /// Object of a class of the file, with the tensors that it was created with.
    Instance(ClassId, Vec<NodeId>),
    /// Object of a class of another file; with a container for what it keeps, if it was created here.
    Imported(Arc<ClassSummary>, Option<ContainerId>),
    /// Generator of the file that holds tensors while it is suspended.
    Generator(FunctionId),
    Model,
    LossFunction,
    Optimizer,
    Loader,
    /// Content of files, by the calls of `torch.load` that it may come from.
    Checkpoint(Vec<SourceRange>),
    /// `model.parameters()`.
    Parameters,
    /// `model.state_dict()`.
    StateDict,
    /// Copy of a state dict, on the same device.
    StateCopy,
    /// `p.grad` of a parameter.
    Gradient,
    /// Caught exception.
    Exception,
    /// Lambda or function that holds these tensors.
    Closure(Vec<NodeId>),
    /// `AverageMeter`, which in all common versions sums up what `update` is given.
    Meter,
    /// `range`, `enumerate(loader)`: a new value in every iteration.
    Counter,
    /// Attribute or variable from outside of the function.
    Outer(&'a str),
}

/// Whether a tensor has a graph behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum HasGraph {
    No,
    Unknown,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TensorOrigin {
    /// Argument of the function.
    Parameter(usize),
    /// From the loader.
    Batch,
    Fresh,
    /// Return value of a model.
    Forward,
    Derived,
    /// One of several.
    Choice,
    Detached,
    /// Content of a container.
    Collected,
}

/// Tensor, and what it was computed from.
#[derive(Clone, Debug)]
pub(crate) struct TensorNode {
    pub(crate) origin: TensorOrigin,
    pub(crate) parents: Vec<NodeId>,
    pub(crate) graph: HasGraph,
    /// Whether it is a single number.
    pub(crate) scalar: bool,
    /// Whether it is a single number exactly if all of its parents are: arithmetic.
    pub(crate) elementwise: bool,
    /// Whether it shares the memory of something larger.
    pub(crate) part: bool,
    /// Whether it is an item or attribute of its parent, taken out without computing anything.
    pub(crate) item: bool,
    /// Whether it was also computed from something unknown, which may have a graph.
    pub(crate) from_unknown: bool,
    pub(crate) on_host: bool,
    /// Whether it is certainly on a GPU: created there, moved there, or computed from tensors there.
    pub(crate) on_device: bool,
    /// Whether it is something else on some paths: a number, an array.
    pub(crate) mixed: bool,
    /// Whether `backward()` ran through it in a called function.
    pub(crate) freed: bool,
    pub(crate) range: SourceRange,
}

/// Whether gradients are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GradMode {
    On,
    Off,
    Unknown,
}

pub(crate) struct Loop<'t, 'a> {
    pub(crate) parent: Option<LoopId>,
    pub(crate) range: SourceRange,
    /// `None` for `while`.
    pub(crate) iter: Option<&'t Expr<'a>>,
    /// Whether it iterates over batches.
    pub(crate) over_batches: bool,
    /// Whether the variables are new in every iteration, without a visible end: `range`, `enumerate`, a
    /// loader.
    pub(crate) counts: bool,
    pub(crate) targets: Vec<&'a str>,
}

/// Position of something in the control flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub(crate) in_loop: Option<LoopId>,
    pub(crate) mode: GradMode,
    /// Whether it is inside an `if` of that loop.
    pub(crate) sometimes: bool,
    /// Whether it is inside an `if` whose condition counts: `if step % 100 == 0`.
    pub(crate) now_and_then: bool,
    pub(crate) in_handler: bool,
}

pub(crate) struct CallFact<'t, 'a> {
    pub(crate) expr: &'t Expr<'a>,
    pub(crate) call: &'t CallExpr<'a>,
    pub(crate) path: Option<String>,
    pub(crate) receiver: AbstractValue<'a>,
    pub(crate) args: Vec<AbstractValue<'a>>,
    pub(crate) at: At,
}

impl CallFact<'_, '_> {
    pub(crate) fn is(&self, path: &str) -> bool {
        self.path.as_deref() == Some(path)
    }

    pub(crate) fn method_is(&self, name: &str) -> bool {
        self.call.method().is_some_and(|(_, method)| method == name)
    }
}

/// Something that keeps what is put into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TensorStore<'a> {
    /// Variable of the function, created in this loop.
    Local { id: ContainerId, name: &'a str },
    /// `self.x`, a global, or a variable of the enclosing function.
    Outside { name: &'a str },
}

impl<'a> TensorStore<'a> {
    pub(crate) fn name(&self) -> &'a str {
        match self {
            TensorStore::Local { name, .. } | TensorStore::Outside { name } => name,
        }
    }
}

/// Container created in the function.
pub(crate) struct Container<'a> {
    pub(crate) name: &'a str,
    pub(crate) made_in: Option<LoopId>,
    /// `deque(maxlen=…)`.
    pub(crate) bounded: bool,
    /// Its content, as one node of the graph.
    pub(crate) node: NodeId,
    /// Items by index as written: those assigned to a literal key, and the last one appended as `-1`.
    pub(crate) items: FxHashMap<&'a str, NodeId>,
}

/// Value that is put into a store.
pub(crate) struct KeptValue<'t, 'a> {
    pub(crate) store: TensorStore<'a>,
    pub(crate) value: AbstractValue<'a>,
    /// Expression that is kept.
    pub(crate) expr: &'t Expr<'a>,
    /// Whole expression or statement that keeps it.
    pub(crate) range: SourceRange,
    pub(crate) at: At,
    /// Line of the called function that keeps it, if it is kept by a call: `meter.update(loss)`.
    pub(crate) through: Option<SourceRange>,
    /// Whether it is added to a sum there, not put into a list.
    pub(crate) summed: bool,
}

impl KeptValue<'_, '_> {
    /// Returns the line to report: the one that keeps the value.
    pub(crate) fn place(&self) -> SourceRange {
        self.through.unwrap_or(self.expr.range)
    }
}

/// Variable that carries something of itself into the next iteration: `total += loss`, `out, h = rnn(x, h)`.
pub(crate) struct Carried<'t, 'a> {
    pub(crate) name: &'a str,
    pub(crate) node: NodeId,
    /// The new part, as written.
    pub(crate) added: Option<&'t Expr<'a>>,
    pub(crate) range: SourceRange,
    pub(crate) how: Carry,
    pub(crate) at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carry {
    /// By arithmetic.
    Sum,
    /// Through a model: a hidden state.
    State,
}

pub(crate) struct BackwardCall<'t, 'a> {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) retains: bool,
    pub(crate) call: &'t CallExpr<'a>,
    pub(crate) range: SourceRange,
    pub(crate) at: At,
}

impl BackwardCall<'_, '_> {
    /// Returns whether it is `torch.autograd.grad`, which stores nothing in the parameters.
    pub(crate) fn is_grad(&self) -> bool {
        self.call.method().is_none_or(|(_, name)| name == "grad")
    }
}

/// `values[t] = critic(x)` into a tensor.
pub(crate) struct TensorWrite {
    pub(crate) into: NodeId,
    pub(crate) value: NodeId,
    pub(crate) range: SourceRange,
    pub(crate) at: At,
}

/// Return value of a function.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Returned {
    Unknown,
    Plain,
    Tensor { graph: HasGraph, freed: bool, scalar: bool, on_device: bool, parameters: Vec<usize> },
    Tuple(Vec<Returned>),
    Model,
}

impl Returned {
    /// Returns whether it is tensors without a graph.
    pub(crate) fn is_detached(&self) -> bool {
        match self {
            Returned::Tensor { graph, .. } => *graph == HasGraph::No,
            Returned::Tuple(items) => !items.is_empty() && items.iter().all(Returned::is_detached),
            Returned::Unknown | Returned::Plain | Returned::Model => false,
        }
    }
}

/// Call of a function of the file.
pub(crate) struct LocalCall {
    pub(crate) callee: FunctionId,
    pub(crate) mode: GradMode,
    pub(crate) in_loop: Option<LoopId>,
    /// The call; `None` if it is only a guess that this function is called.
    pub(crate) range: Option<SourceRange>,
}

/// Facts about a function.
pub(crate) struct FunctionFacts<'t, 'a> {
    pub(crate) id: FunctionId,
    pub(crate) nodes: Vec<TensorNode>,
    pub(crate) loops: Vec<Loop<'t, 'a>>,
    pub(crate) containers: Vec<Container<'a>>,
    pub(crate) calls: Vec<CallFact<'t, 'a>>,
    pub(crate) local_calls: Vec<LocalCall>,
    pub(crate) kept: Vec<KeptValue<'t, 'a>>,
    pub(crate) carried: Vec<Carried<'t, 'a>>,
    pub(crate) backwards: Vec<BackwardCall<'t, 'a>>,
    pub(crate) written: Vec<TensorWrite>,
    /// Positions at which a store is emptied, truncated or recreated, by its name.
    pub(crate) emptied: Vec<(&'a str, SourceRange)>,
    /// Positions at which a model is put into evaluation (true) or training mode, by its name.
    pub(crate) evaluating: Vec<(&'a str, u32, bool)>,
    /// Forward passes: the model as written, its result, and the position.
    pub(crate) forwards: Vec<(&'a str, NodeId, At)>,
    /// Calls of functions of the file that return the result of a forward pass, with its graph: the model as
    /// written here, what is returned, the position, and the function.
    pub(crate) helped: Vec<(&'a str, NodeId, At, FunctionId)>,
    pub(crate) returned: Returned,
    /// Values of names at the end.
    pub(crate) names: FxHashMap<&'a str, AbstractValue<'a>>,
    /// What `forward` returns of the models that are made here, by name, if a part of it has no graph.
    pub(crate) detaching: FxHashMap<&'a str, Vec<bool>>,
    /// Whether gradients are on when the function starts, according to its decorators.
    pub(crate) mode: GradMode,
}

impl<'t, 'a> FunctionFacts<'t, 'a> {
    /// Drops everything that a rule could report.
    pub(crate) fn forget(&mut self) {
        self.kept.clear();
        self.carried.clear();
        self.written.clear();
        self.forwards.clear();
        self.helped.clear();
        self.backwards.clear();
    }

    pub(crate) fn node(&self, id: NodeId) -> &TensorNode {
        &self.nodes[id.0]
    }

    /// Returns whether the graph behind `of` contains `from`, or `of` is it.
    pub(crate) fn comes_from(&self, of: NodeId, from: NodeId) -> bool {
        self.in_graph(of).contains(&from)
    }

    /// Returns what `backward()` on this tensor runs through: it ends at what was detached on the way, or
    /// computed without gradients.
    pub(crate) fn in_graph(&self, of: NodeId) -> Vec<NodeId> {
        self.reach(of, |node| node.graph != HasGraph::No)
    }

    /// Returns the tensor, tuple or dictionary that an item was taken out of, or else the tensor itself.
    pub(crate) fn whole(&self, of: NodeId) -> NodeId {
        let mut at = of;
        while self.node(at).item
            && let [parent] = self.node(at).parents[..]
        {
            at = parent;
        }
        at
    }

    /// Returns everything that a tensor was computed from, including itself.
    pub(crate) fn ancestors(&self, of: NodeId) -> Vec<NodeId> {
        self.reach(of, |_| true)
    }

    fn reach(&self, of: NodeId, goes_on: impl Fn(&TensorNode) -> bool) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        let (mut open, mut found) = (vec![of], Vec::new());
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut seen[at.0], true) {
                found.push(at);
                if goes_on(self.node(at)) {
                    open.extend(&self.node(at).parents);
                }
            }
        }
        found
    }

    /// Iterates over the enclosing loops, innermost first.
    pub(crate) fn around(&self, inner: Option<LoopId>) -> impl Iterator<Item = LoopId> + '_ {
        std::iter::successors(inner, |at| self.loops[at.0].parent)
    }

    pub(crate) fn is_inside(&self, inner: Option<LoopId>, outer: LoopId) -> bool {
        self.around(inner).any(|at| at == outer)
    }

    /// Returns whether `backward()` is called in each iteration of this loop, not in a loop inside it.
    pub(crate) fn has_backward(&self, in_loop: LoopId) -> bool {
        self.backwards.iter().any(|backward| backward.at.in_loop == Some(in_loop))
    }
}
