use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::ExprKind;

pub(super) const RULE: Rule = Rule {
    code: "OOM116",
    name: "parameters-added-in-loop",
    summary: "New parameters are added to the optimizer in every step.",
    severity: RuleSeverity::High,
    why: "An optimizer keeps every parameter it is given, with its state, as long as it lives. A parameter
created and added in the loop stays after its variable is gone.",
    costs: "Every tensor that was added (256 of 256 KiB per step measured), and the optimizer state for it.",
    bad: "
for step in range(1000):
    prompt = nn.Parameter(torch.zeros(8, 1024, device='cuda'))
    optimizer.add_param_group({'params': [prompt]})
    model(prompt).sum().backward()
",
    good: "
prompt = nn.Parameter(torch.zeros(8, 1024, device='cuda'))
optimizer.add_param_group({'params': [prompt]})
for step in range(1000):
    model(prompt).sum().backward()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, call) in checked.calls() {
        if !call.method_is("add_param_group") || call.at.sometimes {
            continue;
        }
        let Some(inner) = call.at.in_loop else { continue };
        let range = facts.loops[inner.0].range;
        // Only parameters created in this loop: groups of an existing model are added once, however many
        // there are.
        let made_here = |name: &str| {
            facts.emptied.iter().any(|(bound, at)| {
                *bound == name && range.contains(*at) && checked.file.text(*at).contains("Parameter(")
            })
        };
        let adds_new = call
            .call
            .args
            .iter()
            .any(|arg| arg.any(&mut |part| matches!(part.kind, ExprKind::Name(name) if made_here(name))));
        if adds_new {
            found.push(
                RULE.at(
                    RuleSeverity::High,
                    call.expr.range,
                    "a parameter created in the loop is added in every iteration: the optimizer keeps all \
                     of them"
                        .to_owned(),
                )
                .advise("create and add it once, before the loop"),
            );
        }
    }
}
