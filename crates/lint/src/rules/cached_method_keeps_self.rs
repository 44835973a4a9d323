use super::unbounded_tensor_cache::cache_of;
use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM109",
    name: "cached-method-keeps-self",
    summary: "A cached method keeps every instance of a module alive.",
    severity: RuleSeverity::Medium,
    why: "`functools.lru_cache` on a method is one cache for the class, and `self` is part of every key. A
model whose method was called once stays in it with all its parameters, even after `del model` and
`gc.collect()`.",
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
        let (Some(function), Some(class)) = (defined.function, defined.class) else { continue };
        let takes_self = function.parameters.first().is_some_and(|first| first.name == "self");
        // A module holds tensors; any other class does if the method returns one.
        let annotated =
            function.returns.as_ref().is_some_and(|of| checked.file.text(of.range).ends_with("Tensor"));
        let holds = checked.file.classes[class.0].kind.is_module() || annotated;
        if !takes_self || !holds {
            continue;
        }
        if let Some((decorator, _)) = cache_of(checked, function) {
            let message = "the cache belongs to the class and has `self` in its keys: it keeps as many \
                           instances alive, with all their tensors, as it has entries"
                .to_owned();
            found.push(
                RULE.at(RuleSeverity::Medium, decorator, message).advise(
                    "cache a static method, keep the result on the instance, or `register_buffer` it",
                ),
            );
        }
    }
}
