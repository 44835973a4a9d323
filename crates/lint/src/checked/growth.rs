//! Whether what is kept accumulates.

use super::Checked;
use crate::facts::{AbstractValue, FunctionFacts, KeptValue, LoopId, TensorStore};
use crate::file::FunctionId;
use crate::severity::RuleSeverity;

impl<'t, 'a> Checked<'_, 't, 'a> {
    /// Returns whether what is put into the store stays there, iteration after iteration.
    pub(crate) fn grows(&self, facts: &FunctionFacts<'t, 'a>, kept: &KeptValue<'t, 'a>) -> bool {
        let name = kept.store.name();
        match &kept.store {
            TensorStore::Local { id, .. } => {
                let container = &facts.containers[id.0];
                let around: Vec<LoopId> =
                    facts.around(kept.at.in_loop).take_while(|at| Some(*at) != container.made_in).collect();
                !container.bounded
                    && !self.is_emptied(facts, container.name, kept.at.in_loop)
                    && !self.is_emptied(facts, name, kept.at.in_loop)
                    && around.iter().any(|at| {
                        // A list that is created in every iteration of an outer loop must grow over batches
                        // to count.
                        let counts = container.made_in.is_none()
                            || facts.loops[at.0].over_batches
                            || facts.has_backward(*at);
                        counts && self.is_step_loop(facts, *at)
                    })
            }
            TensorStore::Outside { .. } => {
                let is_step = facts.around(kept.at.in_loop).any(|at| self.is_step_loop(facts, at))
                    || kept.at.in_loop.is_none() && self.is_step_function(facts.id);
                let is_emptied = self.is_emptied_anywhere(name, facts, kept.at.in_loop);
                is_step && !is_emptied && !name.is_empty()
            }
        }
    }

    /// Returns the severity: a list recreated for every epoch is a fixed amount in the end; any other grows
    /// as long as the program runs.
    pub(crate) fn severity_of_growth(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        kept: &KeptValue<'t, 'a>,
    ) -> RuleSeverity {
        match &kept.store {
            TensorStore::Local { id, .. } if facts.containers[id.0].made_in.is_some() => RuleSeverity::Medium,
            // The same holds for one that is freed with its function, after one pass over the batches.
            TensorStore::Local { .. }
                if facts.id != FunctionId::MODULE && facts.around(kept.at.in_loop).count() == 1 =>
            {
                RuleSeverity::Medium
            }
            _ => RuleSeverity::High,
        }
    }

    /// Returns whether a store is emptied or truncated in the iterations of this loop.
    pub(crate) fn is_emptied(
        &self,
        facts: &FunctionFacts<'t, 'a>,
        name: &str,
        in_loop: Option<LoopId>,
    ) -> bool {
        let Some(in_loop) = in_loop else { return false };
        let range = facts.loops[in_loop.0].range;
        !name.is_empty() && facts.emptied.iter().any(|(emptied, at)| *emptied == name && range.contains(*at))
    }

    /// Returns whether an attribute or global is emptied anywhere except where it is created.
    pub(crate) fn is_emptied_anywhere(
        &self,
        name: &str,
        here: &FunctionFacts<'t, 'a>,
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
            // `self.x` of another class is a different attribute; `model.x` may be this one.
            let same = |emptied: &str| {
                let is_own = |key: &str| key.strip_prefix("self.").is_some_and(|rest| !rest.contains('.'));
                let of_self = is_own(emptied) && is_own(name);
                emptied.rsplit('.').next() == Some(last) && (!of_self || class(facts.id) == class(here.id))
            };
            !makes && facts.emptied.iter().any(|(emptied, _)| same(emptied))
        })
    }

    /// Returns whether the object's `__init__` makes this attribute an empty list or dictionary.
    pub(crate) fn makes_list(&self, method: FunctionId, name: &str) -> bool {
        self.facts.iter().any(|facts| {
            let class = |id: FunctionId| self.file.class_of(id).map(|class| class.class.name);
            let grows = match facts.names.get(name) {
                Some(AbstractValue::Container(id)) => !facts.containers[id.0].bounded,
                _ => false,
            };
            grows && self.file.name_of(facts.id) == "__init__" && class(facts.id) == class(method)
        })
    }
}
