use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::AbstractValue;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM122",
    name: "iterators-kept",
    summary: "Generators that did not run to completion are kept.",
    severity: RuleSeverity::High,
    why: "A suspended generator holds its local variables. A list of them, one per epoch, holds the data of
every epoch.",
    costs: "The local tensors of every suspended generator (measured: 128 KiB each in a test).",
    bad: "
def batches(epoch):
    pool = torch.randn(2048, 512, device='cuda')
    for i in range(0, 2048, 256):
        yield pool[i:i + 256]

for epoch in range(16):
    it = batches(epoch)
    iterators.append(it)
    model(next(it)).sum().backward()
",
    good: "
def batches(epoch):
    pool = torch.randn(2048, 512, device='cuda')
    for i in range(0, 2048, 256):
        yield pool[i:i + 256]

for epoch in range(16):
    it = batches(epoch)
    model(next(it)).sum().backward()
    it.close()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        for kept in &facts.kept {
            if matches!(kept.value, AbstractValue::Generator(_))
                && kept.at.in_loop.is_some()
                && checked.grows(facts, kept)
            {
                let message = format!(
                    "{} keeps a suspended generator in every iteration, and with it the tensors in its \
                     variables",
                    store(kept)
                );
                found.push(
                    RULE.at(RuleSeverity::High, kept.place(), message)
                        .advise("exhaust it or `close()` it, and do not keep it"),
                );
            }
        }
    }
}
