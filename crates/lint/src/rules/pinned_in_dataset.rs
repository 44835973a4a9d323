use super::device_in_dataset::runs_in_worker;
use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    code: "OOM502",
    name: "pinned-in-dataset",
    says: "A dataset or collate function pins memory itself.",
    severity: Severity::Medium,
    why: "Pinning needs a CUDA context, so each worker process gets one. And what it pins is lost on the way: a batch travels to the main
process through shared memory, which is not pinned.",
    costs: "A CUDA context for each worker on the GPU (hundreds of MiB); on the host, blocks that are rounded up to a power of two and
kept by the worker.",
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
                RULE.at(Severity::Medium, call.expr.range, "pinning gives each of the loader's workers a CUDA context, and the batch reaches the main process through memory that is not pinned".to_owned())
                    .advise("let the loader do it: `DataLoader(…, pin_memory=True)`"),
            );
        }
    }
}
