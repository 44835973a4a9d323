//! Purpose of a loop or function: training, or evaluation, after which `backward()` is never called.

use super::Checked;
use crate::facts::{
    AbstractValue, At, CallFact, FunctionFacts, HasGraph, KeptValue, LoopId, NodeId, Returned, TensorStore,
};
use crate::file::FunctionId;
use crate::torch;
use crate::tree::{ExprKind, SourceRange, StmtKind, walk};

impl<'t, 'a> Checked<'_, 't, 'a> {
    /// Returns whether the iterations of a loop are steps: over batches, with a `backward()`, or the
    /// outermost one that counts and runs a model.
    pub(crate) fn is_step_loop(&self, facts: &FunctionFacts<'t, 'a>, id: LoopId) -> bool {
        let of = &facts.loops[id.0];
        if of.over_batches || facts.has_backward(id) || self.calls_step(facts, id) {
            return true;
        }
        let inside_a_step =
            facts.around(of.parent).any(|at| facts.loops[at.0].over_batches || facts.has_backward(at));
        (of.counts || self.infers(facts, id)) && !inside_a_step
    }

    /// Returns whether each iteration of a loop calls a function of the file that calls `backward()`.
    pub(crate) fn calls_step(&self, facts: &FunctionFacts<'t, 'a>, id: LoopId) -> bool {
        let mut calls = facts.local_calls.iter().filter(|call| call.in_loop == Some(id));
        calls.any(|call| call.range.is_some() && self.steps[call.callee.0])
    }

    /// Returns whether a loop runs once per epoch: another one in it goes through the steps.
    pub(crate) fn is_epoch_loop(&self, facts: &FunctionFacts<'t, 'a>, id: LoopId) -> bool {
        let is_step = |id: LoopId| {
            facts.loops[id.0].over_batches || facts.has_backward(id) || self.calls_step(facts, id)
        };
        let mut inner = (0..facts.loops.len()).map(LoopId).filter(|at| facts.loops[at.0].parent == Some(id));
        !is_step(id) && inner.any(is_step)
    }

    /// Returns whether two positions of a function are in different branches of an `if`.
    pub(crate) fn are_exclusive(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        a: SourceRange,
        b: SourceRange,
    ) -> bool {
        let mut exclusive = false;
        walk(self.file.body_of(facts.id), &mut |stmt| {
            let StmtKind::If(branches) = &stmt.kind else { return };
            let branch = |at: SourceRange| {
                branches.iter().position(|(_, body)| body.iter().any(|stmt| stmt.range.contains(at)))
            };
            exclusive |= stmt.range.contains(a)
                && stmt.range.contains(b)
                && matches!((branch(a), branch(b)), (Some(a), Some(b)) if a != b);
        });
        exclusive
    }

    /// Returns whether a function computes derivatives, itself or through another one.
    pub(crate) fn differentiates(&self, facts: &FunctionFacts<'t, 'a>) -> bool {
        const NAMES: &[&str] = &["grad", "enable_grad", "jacobian", "jacrev", "vjp"];
        let range = self.file.functions[facts.id.0].range;
        let calls = || {
            let text = self.file.text(range);
            NAMES.iter().any(|name| text.contains(&format!("{name}(")))
        };
        NAMES.iter().any(|name| self.file.mentions(name)) && calls()
            || !facts.backwards.is_empty()
            || self.calls_backward(facts, range)
    }

    /// Returns whether a function of the file that is called in this part of the function, directly or
    /// indirectly, differentiates.
    pub(crate) fn calls_backward(&self, facts: &FunctionFacts<'t, 'a>, part: SourceRange) -> bool {
        let called = |facts: &FunctionFacts<'t, 'a>, part: SourceRange| -> Vec<FunctionId> {
            let calls = facts.local_calls.iter();
            let calls = calls.filter(|call| call.range.is_some_and(|range| part.contains(range)));
            calls.map(|call| call.callee).collect()
        };
        let (mut open, mut seen) = (called(facts, part), vec![false; self.file.functions.len()]);
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut seen[id.0], true) {
                continue;
            }
            let range = self.file.functions[id.0].range;
            // Nested functions count as well.
            let inside =
                |facts: &&FunctionFacts<'t, 'a>| range.contains(self.file.functions[facts.id.0].range);
            for facts in self.facts.iter().filter(inside) {
                if !facts.backwards.is_empty() {
                    return true;
                }
                open.extend(called(facts, range));
            }
        }
        false
    }

    /// Returns whether a loop belongs to a program without training and runs one model on one input after
    /// another.
    pub(crate) fn infers(&self, facts: &FunctionFacts<'t, 'a>, id: LoopId) -> bool {
        let in_module = self.file.class_of(facts.id).is_some_and(|class| class.kind.is_module());
        let targets = &facts.loops[id.0].targets;
        // `for model in ensemble` does not count.
        let runs =
            facts.forwards.iter().any(|(model, _, at)| at.in_loop == Some(id) && !targets.contains(model));
        runs && !in_module && !self.trains()
    }

    /// Returns whether a function is called once per step: by a loop of the file, or by a trainer.
    pub(crate) fn is_step_function(&self, id: FunctionId) -> bool {
        let name = self.file.name_of(id);
        let by_name = matches!(
            name,
            "training_step" | "train_step" | "training_step_end" | "on_train_batch_end" | "on_after_backward"
        );
        by_name || self.updates_once(id) || self.is_called_by_step(id, &mut Vec::new())
    }

    /// Returns whether a method is one step of a training loop elsewhere: it resets the gradients, calls
    /// `backward()` and updates the parameters, each once.
    fn updates_once(&self, id: FunctionId) -> bool {
        let calls = |facts: &FunctionFacts<'t, 'a>, method: &str| {
            facts.calls.iter().any(|call| call.at.in_loop.is_none() && call.method_is(method))
        };
        let mut all = self.facts.iter().filter(|facts| facts.id == id);
        self.file.functions[id.0].class.is_some()
            && all.any(|facts| facts.loops.is_empty() && calls(facts, "zero_grad") && calls(facts, "step"))
            && self.steps[id.0]
    }

    fn is_called_by_step(&self, id: FunctionId, seen: &mut Vec<FunctionId>) -> bool {
        seen.push(id);
        self.facts.iter().any(|facts| {
            let mut calls = facts.local_calls.iter().filter(|call| call.callee == id);
            calls.any(|call| match call.in_loop {
                Some(at) => self.is_step_loop(facts, at),
                // A part of a step that another method does.
                None => {
                    call.range.is_some()
                        && facts.id != FunctionId::MODULE
                        && !seen.contains(&facts.id)
                        && self.is_called_by_step(facts.id, seen)
                }
            })
        })
    }

    /// Returns whether a function is a unit test, not an evaluation of a model.
    pub(crate) fn is_test(&self, id: FunctionId) -> bool {
        let has_assertion = || self.file.text(self.file.functions[id.0].range).contains("assert");
        let has_framework = || {
            ["import pytest", "import unittest", "import nose"]
                .iter()
                .any(|word| self.file.source.contains(word))
        };
        self.file.name_of(id).starts_with("test") && (has_assertion() || has_framework())
    }

    /// Returns whether what was computed there is for evaluation: `backward()` is never called on it.
    pub(crate) fn evaluates(&self, facts: &FunctionFacts<'t, 'a>, node: NodeId, at: At, store: &str) -> bool {
        let in_module = self.file.class_of(facts.id).is_some_and(|class| class.kind.is_module());
        let over_batches = facts.around(at.in_loop).any(|at| facts.loops[at.0].over_batches);
        if in_module && !over_batches
            || self.is_test(facts.id)
            || self.returns_parts(facts, at)
            || self.is_frozen(facts, node)
        {
            return false;
        }
        if facts.around(at.in_loop).any(|at| facts.has_backward(at)) && !self.reads_evaluation_loop(facts, at)
        {
            return false;
        }
        self.reads_evaluation_loop(facts, at)
            || torch::reads_as_evaluation(store) && !store.contains("pred")
            || torch::reads_as_evaluation(self.file.name_of(facts.id))
                && (over_batches || !torch::reads_as_inference(self.file.name_of(facts.id)))
            || self.is_in_evaluation_mode(facts, node)
            || !self.trains()
                && (!self.may_train() || torch::reads_as_inference(self.file.name_of(facts.id)))
                && self.is_own_model(facts, node)
                && !self.is_passed_on(facts, store)
    }

    /// Returns whether a model behind a tensor is frozen: its forward pass may record nothing.
    fn is_frozen(&self, facts: &FunctionFacts<'t, 'a>, node: NodeId) -> bool {
        let ancestors = facts.ancestors(node);
        let mut passes = facts.forwards.iter().filter(|(_, result, _)| ancestors.contains(result));
        passes.any(|(model, _, _)| self.file.is_frozen(model))
    }

    /// Returns whether the innermost loop only counts, over the parts of one input, and a method returns
    /// something: what it computes, with its graph, which code elsewhere may train.
    fn returns_parts(&self, facts: &FunctionFacts<'t, 'a>, at: At) -> bool {
        let iter = at.in_loop.and_then(|at| facts.loops[at.0].iter);
        let counts = iter
            .and_then(|iter| iter.as_call())
            .is_some_and(|call| self.file.text(call.callee.range) == "range");
        counts && facts.returned != Returned::Plain && self.file.class_of(facts.id).is_some()
    }

    /// Returns whether a variable is given to a function that may call `backward()` on it.
    fn is_passed_on(&self, facts: &FunctionFacts<'t, 'a>, name: &str) -> bool {
        const HARMLESS: &[&str] =
            &["len", "sum", "print", "min", "max", "float", "str", "round", "enumerate"];
        facts.calls.iter().filter(|call| call.path.is_none()).any(|call| {
            let keywords = call.call.keywords.iter().map(|keyword| &keyword.value);
            let is_given =
                call.call.args.iter().chain(keywords).any(|arg| arg.reads_key(self.file.source, name));
            is_given && !HARMLESS.contains(&self.file.text(call.call.callee.range))
        })
    }

    /// Returns whether the model was created in this function, by its object or by the script, so that no
    /// other code can train it.
    pub(crate) fn is_own_model(&self, facts: &FunctionFacts<'t, 'a>, node: NodeId) -> bool {
        // A base class of another file may train it.
        if self.file.class_of(facts.id).is_some_and(|class| self.file.has_unknown_base(class)) {
            return false;
        }
        let ancestors = facts.ancestors(node);
        let mut passes = facts.forwards.iter().filter(|(_, result, _)| ancestors.contains(result));
        passes.any(|(model, result, _)| {
            let position = facts.node(*result).range.start;
            let makes = |of: &FunctionFacts<'t, 'a>, before: u32| {
                of.emptied
                    .iter()
                    .any(|(name, at)| name == model && at.start < before && makes_model(self.file.text(*at)))
            };
            let elsewhere = self
                .facts
                .iter()
                .filter(|other| other.id == FunctionId::MODULE || self.is_init_of(other.id, facts.id));
            makes(facts, position)
                || elsewhere.into_iter().any(|other| other.id != facts.id && makes(other, u32::MAX))
        })
    }

    /// Returns whether a function is the `__init__` of the class that a method belongs to, if that class is
    /// not a module.
    pub(super) fn is_init_of(&self, init: FunctionId, method: FunctionId) -> bool {
        let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
        let runs = self.file.class_of(method).is_some_and(|class| class.kind.is_module());
        !runs
            && self.file.name_of(init) == "__init__"
            && class(method).is_some()
            && class(init) == class(method)
    }

    pub(super) fn reads_evaluation_loop(&self, facts: &FunctionFacts<'t, 'a>, at: At) -> bool {
        let iters = facts.around(at.in_loop).filter_map(|at| facts.loops[at.0].iter);
        let innermost = iters.into_iter().next();
        innermost.is_some_and(|iter| torch::reads_as_evaluation(self.file.text(iter.range)))
    }

    /// Returns whether a list is filled in a training loop and is visible to this function only: if
    /// `backward()` does not run through its graphs here, it never will.
    pub(crate) fn is_private(&self, facts: &FunctionFacts<'t, 'a>, kept: &KeptValue<'t, 'a>) -> bool {
        const PLAIN: &[&str] =
            &["len", "sum", "print", "min", "max", "enumerate", "zip", "float", "list", "sorted", "str"];
        let TensorStore::Local { name, .. } = kept.store else { return false };
        // What an object of another file does with it is unknown.
        if kept.through.is_some() {
            return false;
        }
        let trains = self.is_training(facts, kept.at);
        let given =
            |call: &CallFact<'t, 'a>| call.call.args.iter().any(|arg| self.file.key(arg) == Some(name));
        let plain = |call: &CallFact<'t, 'a>| {
            call.path.is_some() || PLAIN.contains(&self.file.text(call.call.callee.range))
        };
        let escapes = facts.calls.iter().any(|call| given(call) && !plain(call));
        let mut returned = false;
        walk(self.file.body_of(facts.id), &mut |stmt| {
            if let StmtKind::Return(Some(value)) = &stmt.kind {
                returned |= value.reads_key(self.file.source, name);
            }
        });
        trains && !escapes && !returned && !name.is_empty()
    }

    /// Returns whether a position is in a training loop, or in the function that does one step of it.
    pub(crate) fn is_training(&self, facts: &FunctionFacts<'t, 'a>, at: At) -> bool {
        facts.around(at.in_loop).any(|at| facts.has_backward(at))
            || at.in_loop.is_none() && !facts.backwards.is_empty() && self.is_step_function(facts.id)
    }

    /// Returns whether anything in the file is related to training.
    pub(crate) fn trains(&self) -> bool {
        ["backward", "manual_backward", "fit", "zero_grad", "autograd", "training_step"]
            .iter()
            .any(|name| self.file.mentions(name))
    }

    /// Returns whether the file trains, or makes an optimizer with which another file may.
    pub(crate) fn may_train(&self) -> bool {
        self.trains()
            || ["optim", "optimizer"].iter().any(|name| self.file.mentions(name))
            || self.file.imports_from("torch.optim")
    }

    /// Returns whether something that was computed from a forward pass goes to where `backward()` may be
    /// called on it: a loss is given to a function of another file or a base class, and its result is unused.
    pub(crate) fn gives_loss_away(&self, facts: &FunctionFacts<'t, 'a>, pass: NodeId) -> bool {
        let is_loss = |value: &AbstractValue<'a>| match value {
            AbstractValue::Tensor(node) => {
                let of = facts.node(*node);
                of.scalar && of.graph != HasGraph::No && facts.comes_from(*node, pass)
            }
            _ => false,
        };
        let mut gives = false;
        walk(self.file.body_of(facts.id), &mut |stmt| {
            let StmtKind::Expr(expr) = &stmt.kind else { return };
            let call = facts.calls.iter().find(|call| call.expr.range == expr.range);
            gives |= call.is_some_and(|call| self.is_foreign(call) && call.args.iter().any(is_loss));
        });
        gives
    }

    /// Returns whether a call is of a function that neither the file nor a library that is known defines.
    pub(crate) fn is_foreign(&self, call: &CallFact<'t, 'a>) -> bool {
        const KNOWN: &[&str] =
            &["torch", "torchvision", "numpy", "math", "sys", "os", "json", "wandb", "tqdm", "builtins"];
        const METHODS: &[&str] =
            &["append", "extend", "add", "update", "put", "log", "write", "info", "print"];
        let mut names = (0..self.file.functions.len()).map(|id| self.file.name_of(FunctionId(id)));
        match (&call.path, &call.call.callee.kind) {
            (Some(path), _) => {
                !KNOWN.contains(&path.split('.').next().unwrap_or("")) && self.imports.get(path).is_none()
            }
            (None, ExprKind::Attribute(base, method)) => {
                let is_own = self.file.key(base) == Some("self");
                is_own && !METHODS.contains(method) && !names.any(|name| name == *method)
            }
            (None, ExprKind::Name(name)) => self.file.is_from_star(name),
            _ => false,
        }
    }

    /// Returns whether the last mode set on the model before it was `eval()`.
    pub(crate) fn is_in_evaluation_mode(&self, facts: &FunctionFacts<'t, 'a>, node: NodeId) -> bool {
        let ancestors = facts.ancestors(node);
        let passes = facts.forwards.iter().filter(|(_, result, _)| ancestors.contains(result));
        passes.into_iter().any(|(model, result, _)| {
            let position = facts.node(*result).range.start;
            self.last_mode(facts, model, position) == Some(true)
        })
    }

    /// Returns the mode that a model was last put into, in the function or else in the module.
    pub(crate) fn last_mode(&self, facts: &FunctionFacts<'t, 'a>, model: &str, before: u32) -> Option<bool> {
        let last = |of: &FunctionFacts<'t, 'a>, before: u32| {
            let said = of.evaluating.iter().filter(|(name, at, _)| *name == model && *at < before);
            said.max_by_key(|(_, at, _)| *at).map(|(_, _, evaluates)| *evaluates)
        };
        let around = |facts: &FunctionFacts<'t, 'a>| {
            let parent = self.file.functions[facts.id.0].parent;
            // One that is passed on may be called in another mode.
            if parent == FunctionId::MODULE || !self.called[facts.id.0] {
                return None;
            }
            let outer = self.facts.iter().find(|of| of.id == parent)?;
            last(outer, self.file.functions[facts.id.0].range.start)
        };
        last(facts, before).or_else(|| around(facts)).or_else(|| {
            // In a file that also trains, a function may be called in either mode.
            if self.trains() {
                return None;
            }
            let is_attribute = model.starts_with("self.");
            let same_class = |other: &&FunctionFacts<'t, 'a>| {
                let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
                is_attribute && class(facts.id).is_some() && class(facts.id) == class(other.id)
            };
            let others =
                self.facts.iter().filter(|other| other.id != facts.id && !other.evaluating.is_empty());
            let others =
                others.filter(|other| same_class(other) || other.id == FunctionId::MODULE && !is_attribute);
            others.filter_map(|other| last(other, u32::MAX)).next_back()
        })
    }
}

/// Matches `Net(…)`, `AutoModel.from_pretrained(…)`, `timm.create_model(…)`; not `model.to(device)`.
fn makes_model(assignment: &str) -> bool {
    let by_name = ["from_pretrained(", "create_model(", "models.", "hub.load("]
        .iter()
        .any(|call| assignment.contains(call));
    let mut calls = assignment.match_indices('(').map(|(at, _)| &assignment[..at]);
    let is_class = |before: &str| {
        let name =
            before.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or("");
        name.starts_with(|letter: char| letter.is_ascii_uppercase())
    };
    by_name || calls.any(is_class)
}
