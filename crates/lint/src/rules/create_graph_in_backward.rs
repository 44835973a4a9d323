use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM202",
    name: "create-graph-in-backward",
    summary: "`backward(create_graph=True)` ties parameters and gradients into a cycle that is never freed.",
    severity: RuleSeverity::Medium,
    why: "The gradients that `backward()` stores then have a graph of their own, which leads back to the
parameters that hold them. The cycle runs through C++, where Python's garbage collector does not look.",
    costs: "If gradients are reset in each step: nothing. If they never are: one model per step (1552 KiB
measured). After `del model`: the model, its gradients and their graph, permanently (4656 KiB measured,
`gc.collect()` frees none of it).",
    bad: "
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward(create_graph=True)
",
    good: "
for x, y in loader:
    loss = criterion(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for backward in facts.backwards.iter().filter(|backward| !backward.is_grad()) {
            let Some(flag) =
                backward.call.keyword("create_graph").filter(|keyword| crate::file::is_true(&keyword.value))
            else {
                continue;
            };
            let message = "the gradients get a graph that leads back to their parameters: after `del \
                           model` neither is ever freed, and without a reset each step adds one model"
                .to_owned();
            found.push(RULE.at(RuleSeverity::Medium, flag.range, message).advise(
                "use `torch.autograd.grad(loss, parameters, create_graph=True)`; if it has to be \
                 `backward()`, set the gradients to `None` afterwards",
            ));
        }
    }
}
