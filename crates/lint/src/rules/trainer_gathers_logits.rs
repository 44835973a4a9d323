use crate::checked::Checked;
use crate::facts::{CallFact, FunctionFacts};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::Literal;

pub(super) const RULE: Rule = Rule {
    code: "OOM603",
    name: "trainer-gathers-logits",
    summary: "Hugging Face's Trainer keeps all logits of the evaluation on the GPU for `compute_metrics`.",
    severity: RuleSeverity::Medium,
    why: "With `compute_metrics`, the Trainer collects what the model returns for every batch on the device,
and passes it on at the end. For a language model that is batch × sequence × vocabulary for the whole
evaluation set. `eval_accumulation_steps` only moves it to the host.",
    costs: "All logits of the evaluation set, freed at its end: a peak, not a leak.",
    bad: "
from transformers import AutoModelForCausalLM, Trainer

model = AutoModelForCausalLM.from_pretrained('gpt2')
trainer = Trainer(model=model, args=args, eval_dataset=data, compute_metrics=accuracy)
",
    good: "
from transformers import AutoModelForCausalLM, Trainer

model = AutoModelForCausalLM.from_pretrained('gpt2')
trainer = Trainer(
    model=model, args=args, eval_dataset=data, compute_metrics=accuracy,
    preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    if !has_vocabulary(checked.file.source) {
        return;
    }
    let saves = [
        "predict_with_generate",
        "prediction_loss_only",
        "eval_accumulation_steps",
        "preprocess_logits_for_metrics",
    ]
    .iter()
    .any(|name| checked.file.mentions(name) || checked.file.source.contains(name));
    if saves {
        return;
    }
    for (facts, call) in checked.calls() {
        let is_trainer = call
            .path
            .as_deref()
            .is_some_and(|path| path.starts_with("transformers.") && path.ends_with("Trainer"));
        let metrics = call.call.keyword("compute_metrics").filter(|keyword| !keyword.value.is(Literal::None));
        if let Some(metrics) = metrics
            && is_trainer
            && model_of(checked, facts, call).is_none_or(has_vocabulary)
            && !call.call.hides_arguments()
        {
            found.push(
                RULE.at(
                    RuleSeverity::Medium,
                    metrics.range,
                    "the Trainer collects the logits of the whole evaluation set on the GPU for it: batch \
                     × sequence × vocabulary for every batch"
                        .to_owned(),
                )
                .advise(
                    "`preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)` keeps what \
                     the metric needs",
                ),
            );
        }
    }
}

/// Returns whether source code mentions a model with a vocabulary: only their logits are large.
fn has_vocabulary(source: &str) -> bool {
    ["ForCausalLM", "ForMaskedLM", "ForSeq2SeqLM", "LMHeadModel", "ForConditionalGeneration"]
        .iter()
        .any(|name| source.contains(name))
}

/// Returns the line that makes the model of a trainer, if it makes one of the classes of transformers.
fn model_of<'t, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    call: &CallFact<'t, 'a>,
) -> Option<&'a str> {
    let model = checked.file.key(call.call.argument("model", 0)?)?;
    let before = call.expr.range.start;
    let made = facts.emptied.iter().filter(|(name, at)| *name == model && at.start < before);
    let line = made.max_by_key(|(_, at)| at.start).map(|(_, at)| checked.file.text(*at))?;
    line.contains("For").then_some(line)
}
