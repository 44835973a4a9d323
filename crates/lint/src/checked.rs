//! A file with all that was found out, and the questions that several rules ask.

mod detach;
mod growth;
mod numbers;
mod purpose;

use crate::facts::{At, CallFact, Carried, Facts, Graph, Kept, Mode, NodeId, Origin, Store, Value};
use crate::file::{ClassKind, File, FunctionId};
use crate::tree::Range;

pub(crate) struct Checked<'f, 't, 'a> {
    pub(crate) file: &'f File<'t, 'a>,
    pub(crate) facts: Vec<Facts<'t, 'a>>,
    /// Functions that run without gradients, because all their callers in the file do.
    off: Vec<bool>,
}

/// What becomes of the graph behind a tensor that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// `backward()` runs through what is kept, all of it: that is what it is kept for.
    Consumed,
    /// `backward()` frees what it ran through: the tensor itself and its nodes stay.
    Freed,
    /// `backward()` runs beside it: what hangs off the forward pass on this side stays.
    Branch,
    /// `backward(retain_graph=True)` runs through it and frees nothing.
    Retained,
    /// Nothing ever frees it.
    Kept,
    /// It has no graph, or that cannot be told.
    Unknown,
}

impl<'f, 't, 'a> Checked<'f, 't, 'a> {
    pub(crate) fn new(file: &'f File<'t, 'a>, facts: Vec<Facts<'t, 'a>>) -> Checked<'f, 't, 'a> {
        let off = without_gradients(&facts, file.functions.len());
        Checked { file, facts, off }
    }

    /// Every call of the file, with its function.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&Facts<'t, 'a>, &CallFact<'t, 'a>)> {
        self.facts.iter().flat_map(|facts| facts.calls.iter().map(move |call| (facts, call)))
    }

    /// Whether gradients are recorded there.
    pub(crate) fn records(&self, facts: &Facts<'t, 'a>, at: At) -> bool {
        at.mode == Mode::On && !self.is_off(facts)
    }

    /// Whether all callers of a function have turned gradients off.
    pub(crate) fn is_off(&self, facts: &Facts<'t, 'a>) -> bool {
        self.off[facts.id.0] || self.file.gradients_are_off()
    }

    /// What happens to the graph of a tensor, if it is kept as a part of `whole` (a list, a sum).
    pub(crate) fn fate(&self, facts: &Facts<'t, 'a>, node: NodeId, whole: Option<NodeId>, at: At) -> Fate {
        let roots = || {
            facts
                .backwards
                .iter()
                .flat_map(|backward| backward.nodes.iter().map(move |root| (*root, backward)))
        };
        if let Some(whole) = whole
            && roots().any(|(root, _)| facts.comes_from(root, whole))
        {
            return Fate::Consumed;
        }
        let of = facts.node(node);
        if of.graph != Graph::Yes || !self.records(facts, at) {
            return Fate::Unknown;
        }
        // Lightning calls `backward()` on what a training step gives back.
        let in_lightning =
            self.is_in(facts.id, ClassKind::Lightning) && self.file.name_of(facts.id) == "training_step";
        if of.freed || in_lightning {
            return Fate::Freed;
        }
        let through: Vec<_> = roots()
            .filter(|(root, _)| facts.comes_from(*root, node) || facts.comes_from(node, *root))
            .collect();
        if !through.is_empty() {
            return if through.iter().any(|(_, backward)| !backward.retains) {
                Fate::Freed
            } else {
                Fate::Retained
            };
        }
        let forwards: Vec<NodeId> = facts
            .in_graph(node)
            .into_iter()
            .filter(|at| facts.node(*at).origin == Origin::Forward && facts.node(*at).graph == Graph::Yes)
            .collect();
        let meets = |root: NodeId| forwards.iter().any(|forward| facts.comes_from(root, *forward));
        // What one call gives back beside the loss is most likely a part of it.
        let beside = |root: NodeId| {
            facts.ancestors(node).iter().any(|at| facts.node(*at).range == facts.node(root).range)
        };
        if roots().any(|(root, _)| beside(root)) {
            return Fate::Freed;
        }
        if roots().any(|(root, _)| meets(root)) {
            return Fate::Branch;
        }
        Fate::Kept
    }

    /// The same for what is put into a store.
    pub(crate) fn fate_of_kept(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>, node: NodeId) -> Fate {
        let whole = match &kept.store {
            Store::Local { id, .. } => Some(facts.containers[id.0].node),
            Store::Outside { .. } => None,
        };
        if !self.is_new(facts, kept, node) {
            return Fate::Unknown;
        }
        match self.fate(facts, node, whole, kept.at) {
            // Somebody else may take it from there to `backward()`.
            Fate::Kept | Fate::Branch
                if whole.is_none() && kept.through.is_none() && self.is_read_elsewhere(facts, kept) =>
            {
                Fate::Unknown
            }
            fate => fate,
        }
    }

    /// Whether the forward pass behind a tensor is one of this turn: what is older is there once, however often it is kept.
    fn is_new(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>, node: NodeId) -> bool {
        let Some(at) = kept.at.in_loop else { return true };
        let range = facts.loops[at.0].range;
        let in_graph = facts.in_graph(node);
        let mut forwards = in_graph
            .iter()
            .map(|at| facts.node(*at))
            .filter(|node| node.origin == Origin::Forward)
            .peekable();
        // A loss that is known by its `backward()` alone has no place.
        forwards.peek().is_none()
            || forwards.any(|node| node.range == Range::default() || range.contains(node.range))
    }

    /// Whether a store outside of the function is used in a file that also calls `backward()`.
    fn is_read_elsewhere(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>) -> bool {
        if !self.file.mentions("backward") {
            return false;
        }
        let attribute = kept.store.name().rsplit('.').next().unwrap_or("");
        let range = self.file.functions[facts.id.0].range;
        let mentions = self.file.text(Range { start: 0, end: range.start }).matches(attribute).count()
            + self
                .file
                .text(Range { start: range.end, end: self.file.source.len() as u32 })
                .matches(attribute)
                .count();
        // One mention makes it: `self.losses = []`.
        mentions > 1
    }

    /// The tensor that a value is, or the tensors that it has in it.
    pub(crate) fn node_of(&self, facts: &Facts<'t, 'a>, value: &Value<'a>) -> Option<NodeId> {
        match value {
            Value::Tensor(node) => Some(*node),
            Value::Container(id) => Some(facts.containers[id.0].node),
            Value::Instance(_, nodes) => nodes.iter().copied().max_by_key(|node| facts.node(*node).graph),
            Value::Tuple(items) => items
                .iter()
                .filter_map(|item| self.node_of(facts, item))
                .max_by_key(|node| facts.node(*node).graph),
            _ => None,
        }
    }

    /// The lines that computed what is kept.
    pub(crate) fn computed(&self, facts: &Facts<'t, 'a>, node: NodeId) -> Vec<Range> {
        let mut ranges: Vec<Range> = facts
            .ancestors(node)
            .into_iter()
            .map(|at| facts.node(at))
            .filter(|node| matches!(node.origin, Origin::Forward | Origin::Derived))
            .map(|node| node.range)
            .collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }

    /// The same for what is put into a store, with the call that does it.
    pub(crate) fn behind(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>, node: NodeId) -> Vec<Range> {
        let mut ranges = self.computed(facts, node);
        ranges.extend(kept.through.map(|_| kept.range));
        ranges
    }

    /// Whether a function is a method of such a class.
    pub(crate) fn is_in(&self, id: FunctionId, kind: ClassKind) -> bool {
        self.file.class_of(id).is_some_and(|class| class.kind == kind)
    }
}

/// `total` of `total += loss`, as the rules name it.
pub(crate) fn sums<'x, 't, 'a>(facts: &'x Facts<'t, 'a>) -> impl Iterator<Item = &'x Carried<'t, 'a>> {
    facts.carried.iter().filter(|carried| carried.how == crate::facts::Carry::Sum)
}

/// Functions of the file that are only called where gradients are off.
fn without_gradients(facts: &[Facts<'_, '_>], functions: usize) -> Vec<bool> {
    let mut off = vec![false; functions];
    // A function that is off makes those off that only it calls.
    for _ in 0..4 {
        let mut called = vec![(false, true); functions];
        for of in facts {
            for call in &of.local_calls {
                let (seen, all) = &mut called[call.callee.0];
                *seen = true;
                *all &= call.mode != Mode::On || off[of.id.0];
            }
        }
        let next: Vec<bool> = called.iter().map(|(seen, all)| *seen && *all).collect();
        if next == off {
            break;
        }
        off = next;
    }
    off
}
