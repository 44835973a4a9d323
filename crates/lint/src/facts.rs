//! What is known of a function after walking through it: tensors and what they come from, loops, calls, what is kept where.

use crate::file::{ClassId, FunctionId};
use crate::tree::{Call, Expr, Range};
use rustc_hash::FxHashMap;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct NodeId(pub(crate) usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct LoopId(pub(crate) usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ContainerId(pub(crate) usize);

/// What an expression is, as far as that can be told.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value<'a> {
    Unknown,
    /// Numbers, text, arrays, tensors of integers: nothing with a graph.
    Plain,
    /// An imported module, class or function.
    Path(String),
    Tensor(NodeId),
    Tuple(Vec<Value<'a>>),
    Container(ContainerId),
    Function(FunctionId),
    Class(ClassId),
    /// An object of the file's own class, with the tensors that it was made with.
    Instance(ClassId, Vec<NodeId>),
    /// A generator of the file that holds tensors while it is suspended.
    Generator(FunctionId),
    Model,
    LossFunction,
    Optimizer,
    Loader,
    Checkpoint,
    /// `model.parameters()`
    Parameters,
    /// `model.state_dict()`
    StateDict,
    /// A copy of it, on the same device.
    StateCopy,
    /// `p.grad` of a parameter.
    Gradient,
    /// A caught exception.
    Exception,
    /// A lambda or the like that holds these tensors.
    Closure(Vec<NodeId>),
    /// An `AverageMeter`, of which everybody's copy sums up what `update` is given.
    Meter,
    /// `range`, `enumerate(loader)`: something new on every turn.
    Counter,
    /// An attribute or a variable from outside of the function.
    Outer(&'a str),
}

/// Whether a tensor has a graph behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Graph {
    No,
    Unknown,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// An argument of the function.
    Parameter(usize),
    /// From the loader.
    Batch,
    Fresh,
    /// What a model has given back.
    Forward,
    Derived,
    /// One of several.
    Choice,
    Detached,
    /// What was put into a container.
    Collected,
}

/// A tensor, and what it was computed from.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) parents: Vec<NodeId>,
    pub(crate) graph: Graph,
    /// A single number.
    pub(crate) scalar: bool,
    /// Shares the memory of something larger.
    pub(crate) part: bool,
    pub(crate) on_host: bool,
    /// On a GPU for sure: made there, moved there, or computed from such.
    pub(crate) on_device: bool,
    /// On some paths it is something else: a number, an array.
    pub(crate) mixed: bool,
    /// `backward()` has run through it in a function that was called.
    pub(crate) freed: bool,
    pub(crate) range: Range,
}

/// Whether gradients are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    On,
    Off,
    Unknown,
}

pub(crate) struct Loop<'t, 'a> {
    pub(crate) parent: Option<LoopId>,
    pub(crate) range: Range,
    /// `None` for `while`.
    pub(crate) iter: Option<&'t Expr<'a>>,
    /// Goes through batches.
    pub(crate) over_batches: bool,
    /// The variables are new on every turn, without end in sight: `range`, `enumerate`, a loader.
    pub(crate) counts: bool,
    pub(crate) targets: Vec<&'a str>,
}

/// Where something was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub(crate) in_loop: Option<LoopId>,
    pub(crate) mode: Mode,
    /// Inside an `if` of that loop.
    pub(crate) sometimes: bool,
    /// Inside an `if` whose condition counts: `if step % 100 == 0`.
    pub(crate) now_and_then: bool,
    pub(crate) in_handler: bool,
}

pub(crate) struct CallFact<'t, 'a> {
    pub(crate) expr: &'t Expr<'a>,
    pub(crate) call: &'t Call<'a>,
    pub(crate) path: Option<String>,
    pub(crate) receiver: Value<'a>,
    pub(crate) args: Vec<Value<'a>>,
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

/// Something that holds what is put into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Store<'a> {
    /// A variable of the function, made in this loop.
    Local { id: ContainerId, name: &'a str },
    /// `self.x`, a global, a variable of the function around.
    Outside { name: &'a str },
}

impl<'a> Store<'a> {
    pub(crate) fn name(&self) -> &'a str {
        match self {
            Store::Local { name, .. } | Store::Outside { name } => name,
        }
    }
}

/// A container that was made in the function.
pub(crate) struct Container<'a> {
    pub(crate) name: &'a str,
    pub(crate) made_in: Option<LoopId>,
    /// `deque(maxlen=…)`
    pub(crate) bounded: bool,
    /// What was put into it, as one node of the graph.
    pub(crate) node: NodeId,
}

/// A value is put into a store.
pub(crate) struct Kept<'t, 'a> {
    pub(crate) store: Store<'a>,
    pub(crate) value: Value<'a>,
    /// The expression that is kept.
    pub(crate) expr: &'t Expr<'a>,
    /// The whole expression or statement that keeps it.
    pub(crate) range: Range,
    pub(crate) at: At,
    /// The line of the function that keeps it, if it is kept by a call: `meter.update(loss)`.
    pub(crate) through: Option<Range>,
    /// It is added to a sum there, not put into a list.
    pub(crate) summed: bool,
}

impl Kept<'_, '_> {
    /// The line to speak about: the one that keeps it.
    pub(crate) fn place(&self) -> Range {
        self.through.unwrap_or(self.expr.range)
    }
}

/// A variable that takes something of itself into the next turn: `total += loss`, `out, h = rnn(x, h)`.
pub(crate) struct Carried<'t, 'a> {
    pub(crate) name: &'a str,
    pub(crate) node: NodeId,
    /// What is new in it, as it is written.
    pub(crate) added: Option<&'t Expr<'a>>,
    pub(crate) range: Range,
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

pub(crate) struct Backward<'t, 'a> {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) retains: bool,
    pub(crate) call: &'t Call<'a>,
    pub(crate) range: Range,
    pub(crate) at: At,
}

impl Backward<'_, '_> {
    /// `torch.autograd.grad`, which stores nothing in the parameters.
    pub(crate) fn is_grad(&self) -> bool {
        self.call.method().is_none_or(|(_, name)| name == "grad")
    }
}

/// `values[t] = critic(x)` into a tensor.
pub(crate) struct Written {
    pub(crate) into: NodeId,
    pub(crate) value: NodeId,
    pub(crate) range: Range,
    pub(crate) at: At,
}

/// What a function gives back.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Returned {
    Unknown,
    Plain,
    Tensor { graph: Graph, freed: bool, scalar: bool, on_device: bool, parameters: Vec<usize> },
    Tuple(Vec<Returned>),
    Model,
}

/// A call of a function of the file.
pub(crate) struct LocalCall {
    pub(crate) callee: FunctionId,
    pub(crate) mode: Mode,
    pub(crate) in_loop: Option<LoopId>,
    /// The call; `None` where it is only a guess that it is this function which is called.
    pub(crate) range: Option<Range>,
}

/// All of a function.
pub(crate) struct Facts<'t, 'a> {
    pub(crate) id: FunctionId,
    pub(crate) nodes: Vec<Node>,
    pub(crate) loops: Vec<Loop<'t, 'a>>,
    pub(crate) containers: Vec<Container<'a>>,
    pub(crate) calls: Vec<CallFact<'t, 'a>>,
    pub(crate) local_calls: Vec<LocalCall>,
    pub(crate) kept: Vec<Kept<'t, 'a>>,
    pub(crate) carried: Vec<Carried<'t, 'a>>,
    pub(crate) backwards: Vec<Backward<'t, 'a>>,
    pub(crate) written: Vec<Written>,
    /// Where a store is emptied, cut or made anew, by its name.
    pub(crate) emptied: Vec<(&'a str, Range)>,
    /// Where a model is put into evaluation (true) or training mode, by its name.
    pub(crate) evaluating: Vec<(&'a str, u32, bool)>,
    /// The forward passes: the model as it is written, its result, where.
    pub(crate) forwards: Vec<(&'a str, NodeId, At)>,
    pub(crate) returned: Returned,
    /// What names stand for at the end.
    pub(crate) names: FxHashMap<&'a str, Value<'a>>,
    /// Gradients when the function starts, as its decorators say.
    pub(crate) mode: Mode,
}

impl<'t, 'a> Facts<'t, 'a> {
    /// Keeps nothing that a rule could speak of.
    pub(crate) fn forget(&mut self) {
        self.kept.clear();
        self.carried.clear();
        self.written.clear();
        self.forwards.clear();
        self.backwards.clear();
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Whether the graph behind `of` has `from` in it, or `of` is it.
    pub(crate) fn comes_from(&self, of: NodeId, from: NodeId) -> bool {
        self.in_graph(of).contains(&from)
    }

    /// What `backward()` on this tensor runs through: what was detached on the way, or computed without gradients, ends it.
    pub(crate) fn in_graph(&self, of: NodeId) -> Vec<NodeId> {
        self.reach(of, |node| node.graph != Graph::No)
    }

    /// Everything that a tensor was computed from, with itself.
    pub(crate) fn ancestors(&self, of: NodeId) -> Vec<NodeId> {
        self.reach(of, |_| true)
    }

    fn reach(&self, of: NodeId, goes_on: impl Fn(&Node) -> bool) -> Vec<NodeId> {
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

    /// The loops around, from the inside out.
    pub(crate) fn around(&self, inner: Option<LoopId>) -> impl Iterator<Item = LoopId> + '_ {
        std::iter::successors(inner, |at| self.loops[at.0].parent)
    }

    pub(crate) fn is_inside(&self, inner: Option<LoopId>, outer: LoopId) -> bool {
        self.around(inner).any(|at| at == outer)
    }

    /// Whether `backward()` is called on each turn of this loop, not in a loop inside it.
    pub(crate) fn has_backward(&self, in_loop: LoopId) -> bool {
        self.backwards.iter().any(|backward| backward.at.in_loop == Some(in_loop))
    }
}
