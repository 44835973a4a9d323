//! File with all facts about its functions, and the questions that several rules ask.

mod detach;
mod escapes;
mod growth;
mod numbers;
mod purpose;

use crate::facts::{
    AbstractValue, At, CallFact, Carried, FunctionFacts, GradMode, HasGraph, KeptValue, NodeId, TensorOrigin,
    TensorStore,
};
use crate::file::{ClassKind, FunctionId, PythonFile};
use crate::summary::Imports;
use crate::tree::{ExprKind, SourceRange};

/// File with the facts about its functions.
pub(crate) struct Checked<'f, 't, 'a> {
    pub(crate) file: &'f PythonFile<'t, 'a>,
    pub(crate) facts: Vec<FunctionFacts<'t, 'a>>,
    /// What is known about its imports.
    pub(crate) imports: &'f Imports,
    /// Functions that run without gradients, because all their callers in the file do.
    off: Vec<bool>,
    /// Functions that call `backward()` once per call, themselves or through others.
    steps: Vec<bool>,
    /// Functions that the file calls, and does not only pass on.
    called: Vec<bool>,
}

/// What happens to the graph behind a tensor that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GraphOutcome {
    /// `backward()` runs through everything that is kept, as intended.
    Consumed,
    /// `backward()` frees what it ran through: the tensor itself and its nodes stay.
    Freed,
    /// `backward()` does not reach it: the branch of the forward pass behind it stays.
    Branch,
    /// `backward(retain_graph=True)` runs through it and frees nothing.
    Retained,
    /// Nothing ever frees it.
    Kept,
    /// It has no graph, or that is unknown.
    Unknown,
}

impl<'f, 't, 'a> Checked<'f, 't, 'a> {
    pub(crate) fn new(
        file: &'f PythonFile<'t, 'a>,
        facts: Vec<FunctionFacts<'t, 'a>>,
        imports: &'f Imports,
    ) -> Checked<'f, 't, 'a> {
        let ids = (0..file.functions.len()).map(FunctionId);
        let used = ids.map(|id| imports.are_off_in(file.name_of(id))).collect();
        let off = without_gradients(&facts, used);
        let steps = with_backward(&facts, file.functions.len());
        let mut called = vec![false; file.functions.len()];
        for call in facts.iter().flat_map(|of| &of.local_calls).filter(|call| call.range.is_some()) {
            called[call.callee.0] = true;
        }
        Checked { file, facts, imports, off, steps, called }
    }

    /// Iterates over every call of the file, with its function.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&FunctionFacts<'t, 'a>, &CallFact<'t, 'a>)> {
        self.facts.iter().flat_map(|facts| facts.calls.iter().map(move |call| (facts, call)))
    }

    /// Returns whether gradients are recorded at a position.
    pub(crate) fn records(&self, facts: &FunctionFacts<'t, 'a>, at: At) -> bool {
        at.mode == GradMode::On && !self.is_off(facts)
    }

    /// Returns whether all callers of a function turned gradients off.
    pub(crate) fn is_off(&self, facts: &FunctionFacts<'t, 'a>) -> bool {
        self.off[facts.id.0] || self.file.gradients_are_off()
    }

    /// Returns what happens to the graph of a tensor that is kept as a part of `whole` (a list, a sum).
    pub(crate) fn graph_outcome(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        node: NodeId,
        whole: Option<NodeId>,
        at: At,
    ) -> GraphOutcome {
        let roots = || {
            facts
                .backwards
                .iter()
                .flat_map(|backward| backward.nodes.iter().map(move |root| (*root, backward)))
        };
        if let Some(whole) = whole
            && roots().any(|(root, _)| facts.comes_from(root, whole))
        {
            return GraphOutcome::Consumed;
        }
        let of = facts.node(node);
        if of.graph != HasGraph::Yes || !self.records(facts, at) {
            return GraphOutcome::Unknown;
        }
        // Lightning calls `backward()` on the return value of a training step.
        let in_lightning =
            self.is_in(facts.id, ClassKind::Lightning) && self.file.name_of(facts.id) == "training_step";
        if of.freed || in_lightning {
            return GraphOutcome::Freed;
        }
        // Taking an item out saves nothing: what counts is what it was taken out of.
        let whole = facts.whole(node);
        let through: Vec<_> = roots()
            .filter(|(root, _)| facts.comes_from(*root, whole) || facts.comes_from(node, *root))
            .collect();
        if !through.is_empty() {
            return if through.iter().any(|(_, backward)| !backward.retains) {
                GraphOutcome::Freed
            } else {
                GraphOutcome::Retained
            };
        }
        // A number computed from numbers that `backward()` runs through saved numbers only.
        if roots().any(|(root, _)| is_computed_from(facts, node, root)) {
            return GraphOutcome::Freed;
        }
        let forwards: Vec<NodeId> = facts
            .in_graph(node)
            .into_iter()
            .filter(|at| {
                facts.node(*at).origin == TensorOrigin::Forward && facts.node(*at).graph == HasGraph::Yes
            })
            .collect();
        let meets = |root: NodeId| forwards.iter().any(|forward| facts.comes_from(root, *forward));
        // Another return value of the call that returned the loss is most likely a part of it.
        let from_same_call = |root: NodeId| {
            facts.ancestors(node).iter().any(|at| facts.node(*at).range == facts.node(root).range)
        };
        if roots().any(|(root, _)| from_same_call(root)) {
            return GraphOutcome::Freed;
        }
        if roots().any(|(root, _)| meets(root)) {
            return GraphOutcome::Branch;
        }
        GraphOutcome::Kept
    }

    /// Returns what happens to the graph of a tensor that is put into a store.
    pub(crate) fn graph_outcome_of_kept(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        kept: &KeptValue<'t, 'a>,
        node: NodeId,
    ) -> GraphOutcome {
        let whole = match &kept.store {
            TensorStore::Local { id, .. } => Some(facts.containers[id.0].node),
            TensorStore::Outside { .. } => None,
        };
        // Each item was computed from the previous ones: whoever differentiates the last needs them all.
        if self.is_chain(facts, kept, node) && self.trains() || !self.is_new(facts, kept.at, node) {
            return GraphOutcome::Unknown;
        }
        match self.graph_outcome(facts, node, whole, kept.at) {
            // Other code may take it from there to `backward()`.
            GraphOutcome::Kept | GraphOutcome::Branch
                if whole.is_none() && kept.through.is_none() && self.is_read_elsewhere(facts, kept) =>
            {
                GraphOutcome::Unknown
            }
            graph_outcome => graph_outcome,
        }
    }

    /// Returns whether the forward pass behind a tensor reads the list that the tensor is put into.
    fn is_chain(&self, facts: &FunctionFacts<'t, 'a>, kept: &KeptValue<'t, 'a>, node: NodeId) -> bool {
        let ancestors = facts.ancestors(node);
        let passes = facts.forwards.iter().filter(|(_, result, _)| ancestors.contains(result));
        let mut ranges = passes.map(|(_, result, _)| facts.node(*result).range);
        ranges.any(|range| {
            let call = facts.calls.iter().find(|call| call.expr.range == range);
            call.is_some_and(|call| {
                call.call.args.iter().any(|arg| arg.reads_key(self.file.source, kept.store.name()))
            })
        })
    }

    /// Returns whether the forward pass behind a tensor belongs to the current iteration: an older one exists
    /// once, however often it is kept.
    pub(crate) fn is_new(&self, facts: &FunctionFacts<'t, 'a>, at: At, node: NodeId) -> bool {
        let Some(at) = at.in_loop else { return true };
        let range = facts.loops[at.0].range;
        let in_graph = facts.in_graph(node);
        let mut forwards = in_graph
            .iter()
            .map(|at| facts.node(*at))
            .filter(|node| node.origin == TensorOrigin::Forward)
            .peekable();
        // A loss that is known only by its `backward()` has no position.
        forwards.peek().is_none()
            || forwards.any(|node| node.range == SourceRange::default() || range.contains(node.range))
    }

    /// Returns whether a store outside of the function is used in a file that also calls `backward()`.
    fn is_read_elsewhere(&self, facts: &FunctionFacts<'t, 'a>, kept: &KeptValue<'t, 'a>) -> bool {
        if !self.file.mentions("backward") {
            return false;
        }
        let attribute = kept.store.name().rsplit('.').next().unwrap_or("");
        let range = self.file.functions[facts.id.0].range;
        let mentions = self.file.text(SourceRange { start: 0, end: range.start }).matches(attribute).count()
            + self
                .file
                .text(SourceRange { start: range.end, end: self.file.source.len() as u32 })
                .matches(attribute)
                .count();
        // The first mention creates it: `self.losses = []`.
        mentions > 1
    }

    /// Returns the tensor of a value, or the tensors in it.
    pub(crate) fn node_of(&self, facts: &FunctionFacts<'t, 'a>, value: &AbstractValue<'a>) -> Option<NodeId> {
        match value {
            AbstractValue::Tensor(node) => Some(*node),
            AbstractValue::Container(id) => Some(facts.containers[id.0].node),
            AbstractValue::Instance(_, nodes) => {
                nodes.iter().copied().max_by_key(|node| facts.node(*node).graph)
            }
            AbstractValue::Tuple(items) => items
                .iter()
                .filter_map(|item| self.node_of(facts, item))
                .max_by_key(|node| facts.node(*node).graph),
            _ => None,
        }
    }

    /// Returns the lines that computed what is kept.
    pub(crate) fn computed(&self, facts: &FunctionFacts<'t, 'a>, node: NodeId) -> Vec<SourceRange> {
        let mut ranges: Vec<SourceRange> = facts
            .ancestors(node)
            .into_iter()
            .map(|at| facts.node(at))
            .filter(|node| matches!(node.origin, TensorOrigin::Forward | TensorOrigin::Derived))
            .map(|node| node.range)
            .collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }

    /// Returns the lines that computed what is put into a store, with the call that puts it there.
    pub(crate) fn behind(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        kept: &KeptValue<'t, 'a>,
        node: NodeId,
    ) -> Vec<SourceRange> {
        let mut ranges = self.computed(facts, node);
        ranges.extend(kept.through.map(|_| kept.range));
        ranges
    }

    /// Returns whether a function is a method of a class of this kind.
    pub(crate) fn is_in(&self, id: FunctionId, kind: ClassKind) -> bool {
        self.file.class_of(id).is_some_and(|class| class.kind == kind)
    }
}

/// Returns whether a number was computed only from numbers that are in the graph of `root`.
fn is_computed_from(facts: &FunctionFacts<'_, '_>, node: NodeId, root: NodeId) -> bool {
    let of_root = facts.in_graph(root);
    let (mut open, mut seen) = (vec![node], vec![false; facts.nodes.len()]);
    while let Some(at) = open.pop() {
        let of = facts.node(at);
        if std::mem::replace(&mut seen[at.0], true) || of.graph == HasGraph::No {
            continue;
        }
        let is_leaf = !of.parents.iter().any(|parent| facts.node(*parent).graph != HasGraph::No);
        if !of.scalar || is_leaf && !of_root.contains(&at) {
            return false;
        }
        if !of_root.contains(&at) {
            open.extend(&of.parents);
        }
    }
    true
}

/// Iterates over sums: `total` of `total += loss`. One over a list written there has a handful of terms.
pub(crate) fn sums<'x, 't, 'a>(
    facts: &'x FunctionFacts<'t, 'a>,
) -> impl Iterator<Item = &'x Carried<'t, 'a>> {
    let is_short = |carried: &&Carried<'t, 'a>| {
        let iter = carried.at.in_loop.and_then(|at| facts.loops[at.0].iter);
        iter.is_some_and(|iter| matches!(iter.kind, ExprKind::Sequence(..)))
    };
    let sums = facts.carried.iter().filter(|carried| carried.how == crate::facts::Carry::Sum);
    sums.filter(move |carried| !is_short(carried))
}

/// Finds the functions of the file that are called only with gradients off; `used` are those that the whole
/// project uses so.
fn without_gradients(facts: &[FunctionFacts<'_, '_>], used: Vec<bool>) -> Vec<bool> {
    let mut off = used.clone();
    // A function without gradients also covers those that only it calls.
    for _ in 0..4 {
        let mut called = vec![(false, true); used.len()];
        for of in facts {
            for call in &of.local_calls {
                let (seen, all) = &mut called[call.callee.0];
                *seen = true;
                *all &= call.mode != GradMode::On || off[of.id.0];
            }
        }
        let next: Vec<bool> =
            called.iter().zip(&used).map(|((seen, all), used)| *seen && *all || *used).collect();
        if next == off {
            break;
        }
        off = next;
    }
    off
}

/// Finds the functions that call `backward()` outside of their own loops, directly or through a function of
/// the file.
fn with_backward(facts: &[FunctionFacts<'_, '_>], functions: usize) -> Vec<bool> {
    let mut steps = vec![false; functions];
    for of in facts {
        steps[of.id.0] =
            of.backwards.iter().any(|backward| backward.at.in_loop.is_none() && !backward.is_grad());
    }
    loop {
        let calls = |of: &&FunctionFacts<'_, '_>| {
            let mut calls = of.local_calls.iter().filter(|call| call.range.is_some());
            !steps[of.id.0] && calls.any(|call| call.in_loop.is_none() && steps[call.callee.0])
        };
        let more: Vec<usize> = facts.iter().filter(calls).map(|of| of.id.0).collect();
        if more.is_empty() {
            return steps;
        }
        more.into_iter().for_each(|id| steps[id] = true);
    }
}
