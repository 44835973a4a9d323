//! A file with all that was found out, and the questions that several rules ask.

use crate::facts::{At, CallFact, Carried, Facts, Graph, Kept, LoopId, Mode, NodeId, Origin, Store, Value};
use crate::file::{ClassKind, File, FunctionId};
use crate::rule::{Edit, Fix, Severity};
use crate::torch;
use crate::tree::{Expr, ExprKind, Range, StmtKind, walk};

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

    /// Whether what is put into the store stays there, turn after turn.
    pub(crate) fn grows(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>) -> bool {
        let name = kept.store.name();
        match &kept.store {
            Store::Local { id, .. } => {
                let container = &facts.containers[id.0];
                let around: Vec<LoopId> =
                    facts.around(kept.at.in_loop).take_while(|at| Some(*at) != container.made_in).collect();
                !container.bounded
                    && !self.is_emptied(facts, container.name, kept.at.in_loop)
                    && !self.is_emptied(facts, name, kept.at.in_loop)
                    && around.iter().any(|at| self.is_step_loop(facts, *at))
            }
            Store::Outside { .. } => {
                let is_step = facts.around(kept.at.in_loop).any(|at| self.is_step_loop(facts, at))
                    || kept.at.in_loop.is_none() && self.is_step_function(facts.id);
                let is_emptied = self.is_emptied_anywhere(name, facts, kept.at.in_loop);
                is_step && !is_emptied && !name.is_empty()
            }
        }
    }

    /// A list that is made anew for every epoch is a fixed amount in the end; any other grows as long as the program runs.
    pub(crate) fn severity_of_growth(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>) -> Severity {
        match &kept.store {
            Store::Local { id, .. } if facts.containers[id.0].made_in.is_some() => Severity::Medium,
            _ => Severity::High,
        }
    }

    /// Whether a store is emptied or cut on the turns of this loop.
    pub(crate) fn is_emptied(&self, facts: &Facts<'t, 'a>, name: &str, in_loop: Option<LoopId>) -> bool {
        let Some(in_loop) = in_loop else { return false };
        let range = facts.loops[in_loop.0].range;
        !name.is_empty() && facts.emptied.iter().any(|(emptied, at)| *emptied == name && range.contains(*at))
    }

    /// Whether an attribute or global is emptied anywhere but where it is made.
    pub(crate) fn is_emptied_anywhere(
        &self,
        name: &str,
        here: &Facts<'t, 'a>,
        in_loop: Option<LoopId>,
    ) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        if self.is_emptied(here, name, in_loop) {
            return true;
        }
        let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
        self.facts.iter().any(|facts| {
            let makes = facts.id == FunctionId::MODULE
                || matches!(self.file.name_of(facts.id), "__init__" | "setup" | "__post_init__");
            // `self.x` of another class is something else; `model.x` may be this one.
            let same = |emptied: &str| {
                let of_self = emptied.starts_with("self.") && name.starts_with("self.");
                emptied.rsplit('.').next() == Some(last) && (!of_self || class(facts.id) == class(here.id))
            };
            !makes && facts.emptied.iter().any(|(emptied, _)| same(emptied))
        })
    }

    /// Whether the object's `__init__` makes this attribute an empty list or dictionary.
    pub(crate) fn makes_list(&self, method: FunctionId, name: &str) -> bool {
        self.facts.iter().any(|facts| {
            let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
            self.file.name_of(facts.id) == "__init__" && class(facts.id) == class(method)
                && matches!(facts.names.get(name), Some(Value::Container(id)) if !facts.containers[id.0].bounded)
        })
    }

    /// A loop whose turns are steps: over batches, with a `backward()`, or the outermost that counts and runs a model.
    pub(crate) fn is_step_loop(&self, facts: &Facts<'t, 'a>, id: LoopId) -> bool {
        let of = &facts.loops[id.0];
        if of.over_batches || facts.has_backward(id) {
            return true;
        }
        let inside_a_step =
            facts.around(of.parent).any(|at| facts.loops[at.0].over_batches || facts.has_backward(at));
        (of.counts || self.infers(facts, id)) && !inside_a_step
    }

    /// A loop of a program that trains nothing, which runs one model on one thing after another.
    fn infers(&self, facts: &Facts<'t, 'a>, id: LoopId) -> bool {
        let in_module = self.file.class_of(facts.id).is_some_and(|class| class.kind.is_module());
        let targets = &facts.loops[id.0].targets;
        // `for model in ensemble` is not that.
        let runs =
            facts.forwards.iter().any(|(model, _, at)| at.in_loop == Some(id) && !targets.contains(model));
        runs && !in_module && !self.trains()
    }

    /// Functions that are called once a step: by a loop of the file, or by a trainer.
    pub(crate) fn is_step_function(&self, id: FunctionId) -> bool {
        let name = self.file.name_of(id);
        let by_name = matches!(
            name,
            "training_step" | "train_step" | "training_step_end" | "on_train_batch_end" | "on_after_backward"
        );
        by_name
            || self.facts.iter().any(|facts| {
                let mut calls = facts.local_calls.iter().filter(|call| call.callee == id);
                calls.any(|call| call.in_loop.is_some_and(|at| self.is_step_loop(facts, at)))
            })
    }

    /// Whether what was computed there is for evaluation: nobody is going to call `backward()` on it.
    pub(crate) fn evaluates(&self, facts: &Facts<'t, 'a>, node: NodeId, at: At, store: &str) -> bool {
        let in_module = self.file.class_of(facts.id).is_some_and(|class| class.kind.is_module());
        let over_batches = facts.around(at.in_loop).any(|at| facts.loops[at.0].over_batches);
        if in_module && !over_batches {
            return false;
        }
        if facts.around(at.in_loop).any(|at| facts.has_backward(at)) && !self.reads_evaluation_loop(facts, at)
        {
            return false;
        }
        self.reads_evaluation_loop(facts, at)
            || torch::reads_as_evaluation(store)
            || torch::reads_as_evaluation(self.file.name_of(facts.id))
            || self.is_in_evaluation_mode(facts, node)
            || !self.trains() && (over_batches || self.is_own_model(facts, node))
    }

    /// Whether the model was made in this function, by its object or by the script: then nobody else can train it.
    fn is_own_model(&self, facts: &Facts<'t, 'a>, node: NodeId) -> bool {
        let ancestors = facts.ancestors(node);
        let mut passes = facts.forwards.iter().filter(|(_, result, _)| ancestors.contains(result));
        passes.any(|(model, result, _)| {
            let position = facts.node(*result).range.start;
            let makes = |of: &Facts<'t, 'a>, before: u32| {
                of.emptied
                    .iter()
                    .any(|(name, at)| name == model && at.start < before && self.file.text(*at).contains('('))
            };
            let elsewhere = self
                .facts
                .iter()
                .filter(|other| other.id == FunctionId::MODULE || self.is_init_of(other.id, facts.id));
            makes(facts, position)
                || elsewhere.into_iter().any(|other| other.id != facts.id && makes(other, u32::MAX))
        })
    }

    /// Whether a function is the `__init__` of the class, no module itself, that a method belongs to.
    fn is_init_of(&self, init: FunctionId, method: FunctionId) -> bool {
        let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
        let runs = self.file.class_of(method).is_some_and(|class| class.kind.is_module());
        !runs
            && self.file.name_of(init) == "__init__"
            && class(method).is_some()
            && class(init) == class(method)
    }

    fn reads_evaluation_loop(&self, facts: &Facts<'t, 'a>, at: At) -> bool {
        let iters = facts.around(at.in_loop).filter_map(|at| facts.loops[at.0].iter);
        let innermost = iters.into_iter().next();
        innermost.is_some_and(|iter| torch::reads_as_evaluation(self.file.text(iter.range)))
    }

    /// Whether a list is filled in a training loop and nobody but this function has it: whatever `backward()` does not run
    /// through here, it never will.
    pub(crate) fn is_private(&self, facts: &Facts<'t, 'a>, kept: &Kept<'t, 'a>) -> bool {
        const PLAIN: &[&str] =
            &["len", "sum", "print", "min", "max", "enumerate", "zip", "float", "list", "sorted", "str"];
        let Store::Local { name, .. } = kept.store else { return false };
        let trains = self.is_training(facts, kept.at);
        let given =
            |call: &CallFact<'t, 'a>| call.call.args.iter().any(|arg| self.file.key(arg) == Some(name));
        let plain = |call: &CallFact<'t, 'a>| {
            call.path.is_some() || PLAIN.contains(&self.file.text(call.call.callee.range))
        };
        let escapes = facts.calls.iter().any(|call| given(call) && !plain(call));
        let mut returned = false;
        walk(self.file.body_of(facts.id), &mut |stmt| {
            returned |= matches!(&stmt.kind, StmtKind::Return(Some(value)) if value.reads_key(self.file.source, name));
        });
        trains && !escapes && !returned && !name.is_empty()
    }

    /// Whether something stands in a training loop, or in the function that does one step of it.
    pub(crate) fn is_training(&self, facts: &Facts<'t, 'a>, at: At) -> bool {
        facts.around(at.in_loop).any(|at| facts.has_backward(at))
            || at.in_loop.is_none() && !facts.backwards.is_empty() && self.is_step_function(facts.id)
    }

    /// Whether anything in the file has to do with training.
    pub(crate) fn trains(&self) -> bool {
        ["backward", "manual_backward", "fit", "zero_grad", "autograd", "training_step"]
            .iter()
            .any(|name| self.file.mentions(name))
    }

    /// Whether the last that was said of the model in front of it was `eval()`.
    fn is_in_evaluation_mode(&self, facts: &Facts<'t, 'a>, node: NodeId) -> bool {
        let ancestors = facts.ancestors(node);
        let passes = facts.forwards.iter().filter(|(_, result, _)| ancestors.contains(result));
        passes.into_iter().any(|(model, result, _)| {
            let position = facts.node(*result).range.start;
            self.last_mode(facts, model, position) == Some(true)
        })
    }

    /// The mode that a model was put into last, in the function or else in the module.
    pub(crate) fn last_mode(&self, facts: &Facts<'t, 'a>, model: &str, before: u32) -> Option<bool> {
        let last = |of: &Facts<'t, 'a>, before: u32| {
            let said = of.evaluating.iter().filter(|(name, at, _)| *name == model && *at < before);
            said.max_by_key(|(_, at, _)| *at).map(|(_, _, evaluates)| *evaluates)
        };
        last(facts, before).or_else(|| {
            // In a file that also trains, a function may be called in either mode.
            if self.trains() {
                return None;
            }
            let is_attribute = model.starts_with("self.");
            let same_class = |other: &&Facts<'t, 'a>| {
                let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
                is_attribute && class(facts.id).is_some() && class(facts.id) == class(other.id)
            };
            let others = self.facts.iter().filter(|other| other.id != facts.id);
            let others =
                others.filter(|other| same_class(other) || other.id == FunctionId::MODULE && !is_attribute);
            others.filter_map(|other| last(other, u32::MAX)).next_back()
        })
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

    /// `.detach()` behind what is kept, if that is a tensor and nothing that has tensors in it.
    pub(crate) fn detach_kept(&self, kept: &Kept<'t, 'a>) -> Option<Fix> {
        matches!(kept.value, Value::Tensor(_)).then(|| self.detach(kept.expr))
    }

    /// `.detach()` behind an expression.
    pub(crate) fn detach(&self, expr: &Expr<'a>) -> Fix {
        let is_whole = matches!(
            expr.kind,
            ExprKind::Name(_) | ExprKind::Attribute(..) | ExprKind::Call(_) | ExprKind::Subscript(..)
        );
        let title = "detach it".to_owned();
        let behind = |text: &str| Edit { range: expr.range.after(), text: text.to_owned() };
        if is_whole || self.is_parenthesized(expr.range) {
            let range = if is_whole {
                expr.range.after()
            } else {
                Range { start: expr.range.end + 1, end: expr.range.end + 1 }
            };
            return Fix { title, edits: vec![Edit { range, text: ".detach()".to_owned() }] };
        }
        let open = Edit { range: expr.range.before(), text: "(".to_owned() };
        Fix { title, edits: vec![open, behind(").detach()")] }
    }

    fn is_parenthesized(&self, range: Range) -> bool {
        let bytes = self.file.source.as_bytes();
        let before = (range.start as usize).checked_sub(1).and_then(|at| bytes.get(at));
        // The bracket of a call is not the expression's own.
        let opens = before == Some(&b'(')
            && !(range.start as usize)
                .checked_sub(2)
                .and_then(|at| bytes.get(at))
                .is_some_and(|letter| letter.is_ascii_alphanumeric() || b"_)]".contains(letter));
        opens && bytes.get(range.end as usize) == Some(&b')')
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
