use super::device_in_dataset::runs_in_worker;
use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;

pub(super) const RULE: Rule = Rule {
    code: "OOM502",
    name: "pinned-in-dataset",
    summary: "A dataset or collate function pins memory itself.",
    severity: RuleSeverity::Medium,
    why: "Pinning needs a CUDA context, so each worker process creates one. The effect is also lost: a batch
travels to the main process through shared memory, which is not pinned.",
    costs: "A CUDA context per worker on the GPU (hundreds of MiB); on the host, blocks rounded up to a
power of two and kept by the worker.",
    bad: "
class Images(Dataset):
    def __getitem__(self, index):
        return self.images[index].pin_memory()
",
    good: "
loader = DataLoader(images, num_workers=4, pin_memory=True)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, call) in checked.calls() {
        if call.method_is("pin_memory") && call.path.is_none() && runs_in_worker(checked, facts) {
            found.push(
                RULE.at(
                    RuleSeverity::Medium,
                    call.expr.range,
                    "pinning creates a CUDA context in each of the loader's workers, and the batch reaches \
                     the main process through memory that is not pinned"
                        .to_owned(),
                )
                .advise("let the loader do it: `DataLoader(…, pin_memory=True)`"),
            );
        }
    }
}
