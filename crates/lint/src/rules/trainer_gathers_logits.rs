use crate::checked::Checked;
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
    // Logits are large only for models with a vocabulary.
    let is_language_model =
        ["ForCausalLM", "ForMaskedLM", "ForSeq2SeqLM", "LMHeadModel", "ForConditionalGeneration"]
            .iter()
            .any(|name| checked.file.source.contains(name));
    if !is_language_model {
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
    for (_, call) in checked.calls() {
        let is_trainer = call
            .path
            .as_deref()
            .is_some_and(|path| path.starts_with("transformers.") && path.ends_with("Trainer"));
        let metrics = call.call.keyword("compute_metrics").filter(|keyword| !keyword.value.is(Literal::None));
        if let Some(metrics) = metrics
            && is_trainer
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
