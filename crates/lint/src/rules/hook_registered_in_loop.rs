use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM117",
    name: "hook-registered-in-loop",
    summary: "A hook is registered again in every step.",
    severity: RuleSeverity::Low,
    why: "Each registration adds one more hook, and none is removed: step 1000 runs a thousand of them.
Tensors accumulate only if each hook keeps its own.",
    costs: "Growing time on every forward pass; host memory. GPU memory only if each hook keeps its own
tensor (measured with one slot per hook: no growth).",
    bad: "
for x, y in loader:
    model.layer4.register_forward_hook(save)
    criterion(model(x), y).backward()
",
    good: "
handle = model.layer4.register_forward_hook(save)
for x, y in loader:
    criterion(model(x), y).backward()
handle.remove()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, call) in checked.calls() {
        let Some((_, name)) = call.call.method() else { continue };
        if !matches!(
            name,
            "register_forward_hook" | "register_forward_pre_hook" | "register_full_backward_hook"
        ) || call.at.sometimes
        {
            continue;
        }
        let Some(inner) = call.at.in_loop else { continue };
        let of = &facts.loops[inner.0];
        let removes = facts.calls.iter().any(|other| other.method_is("remove"));
        if !removes && (of.over_batches || facts.has_backward(inner)) {
            found.push(
                RULE.at(
                    RuleSeverity::Low,
                    call.expr.range,
                    "one more hook is registered in every step and none is removed: each step runs all of \
                     them"
                        .to_owned(),
                )
                .advise("register it once before the loop, and `remove()` it afterwards"),
            );
        }
    }
}
