use super::unbounded_tensor_cache::cache_of;
use crate::checked::Checked;
use crate::facts::{AbstractValue, FunctionFacts};
use crate::file::ClassId;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::torch::MODULE_ONLY_METHODS;
use crate::tree::{ExprKind, Function, Parameter};

pub(super) const RULE: Rule = Rule {
    code: "OOM109",
    name: "cached-method-keeps-self",
    summary: "A cached method or function keeps every module alive that it was called with.",
    severity: RuleSeverity::Medium,
    why: "`functools.lru_cache` on a method is one cache for the class, and `self` is part of every key. A
model whose method was called once stays in it with all its parameters, even after `del model` and
`gc.collect()`. The same holds for a cached function with a module among its arguments.",
    costs: "Every instance whose method was called, up to the size of the cache (128 by default): 256 KiB
per instance measured, which no collection frees. A single model for the whole program costs nothing.",
    bad: "
class Attention(nn.Module):
    @lru_cache()
    def grid(self, height, width):
        return torch.ones(height, width)
",
    good: "
class Attention(nn.Module):
    @staticmethod
    @lru_cache(maxsize=8)
    def grid(height, width):
        return torch.ones(height, width)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        let defined = &checked.file.functions[facts.id.0];
        let Some(function) = defined.function else { continue };
        let Some((decorator, _)) = cache_of(checked, function) else { continue };
        let (message, advice) = match defined.class {
            Some(class) if keeps_self(checked, function, class) => (
                "the cache belongs to the class and has `self` in its keys: it keeps as many instances \
                 alive, with all their tensors, as it has entries"
                    .to_owned(),
                "cache a static method, keep the result on the instance, or `register_buffer` it",
            ),
            _ => {
                let mut parameters = function.parameters.iter();
                let Some(module) = parameters.find(|of| is_module(facts, of)) else { continue };
                let message = format!(
                    "the cache has `{}` in its keys: it keeps as many modules alive, with all their \
                     parameters, as it has entries",
                    module.name
                );
                (message, "keep the result on the module, or in a `weakref.WeakKeyDictionary`")
            }
        };
        found.push(RULE.at(RuleSeverity::Medium, decorator, message).advise(advice));
    }
}

/// Returns whether instances of the class hold tensors: a module does; any other class does if the method
/// returns one.
fn keeps_self(checked: &Checked<'_, '_, '_>, function: &Function<'_>, class: ClassId) -> bool {
    let takes_self = function.parameters.first().is_some_and(|first| first.name == "self");
    let annotated =
        function.returns.as_ref().is_some_and(|of| checked.file.text(of.range).ends_with("Tensor"));
    takes_self && (checked.file.classes[class.0].kind.is_module() || annotated)
}

/// Returns whether a parameter is a module: by its annotation, or because the function uses it as one.
fn is_module(facts: &FunctionFacts<'_, '_>, parameter: &Parameter<'_>) -> bool {
    let is_model = facts.names.get(parameter.name) == Some(&AbstractValue::Model);
    let is_used = || {
        facts.calls.iter().any(|call| {
            call.call.method().is_some_and(|(base, method)| {
                MODULE_ONLY_METHODS.contains(&method)
                    && matches!(base.kind, ExprKind::Name(name) if name == parameter.name)
            })
        })
    };
    is_model && (parameter.annotation.is_some() || is_used())
}
