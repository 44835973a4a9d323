use super::loss_kept_in_list::store;
use crate::checked::Checked;
use crate::facts::{AbstractValue, HasGraph};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM105",
    name: "logits-kept-on-device",
    summary: "The full logits of every batch are kept on the GPU.",
    severity: RuleSeverity::Medium,
    why: "Under `no_grad` a kept output has no graph, but logits of a language model are batch × sequence ×
vocabulary, and most metrics only need the chosen token.",
    costs: "One output per batch, until the evaluation ends: 16 × 512 × 50257 in bfloat16 is 785 MiB per
batch.",
    bad: "
with torch.no_grad():
    for batch in loader:
        all_logits.append(model(**batch).logits)
",
    good: "
with torch.no_grad():
    for batch in loader:
        predictions.append(model(**batch).logits.argmax(-1).cpu())
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    let is_language_model =
        ["CausalLM", "LMHead", "Seq2SeqLM", "MaskedLM"].iter().any(|name| checked.file.source.contains(name));
    if !is_language_model {
        return;
    }
    for facts in &checked.facts {
        for kept in &facts.kept {
            let AbstractValue::Tensor(node) = kept.value else { continue };
            let of = facts.node(node);
            // Only values named logits: the size of other outputs is unknown.
            let is_logits = checked.file.text(kept.expr.range).ends_with("logits");
            let over_batches = facts.around(kept.at.in_loop).any(|at| facts.loops[at.0].over_batches);
            let in_script = checked.file.class_of(facts.id).is_none();
            if (over_batches || in_script)
                && of.graph == HasGraph::No
                && !of.on_host
                && is_logits
                && checked.grows(facts, kept)
            {
                let message = format!("{} keeps the full logits of every batch on the GPU", store(kept));
                found.push(
                    RULE.at(RuleSeverity::Medium, kept.place(), message)
                        .advise("keep what the metric needs (`.argmax(-1)`), and move it: `.cpu()`")
                        .about(checked.behind(facts, kept, node)),
                );
            }
        }
    }
}
