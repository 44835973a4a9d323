use crate::checked::Checked;
use crate::facts::{CallFact, FunctionFacts};
use crate::file::{ClassKind, FunctionId};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind};

pub(super) const RULE: Rule = Rule {
    code: "OOM501",
    name: "device-in-dataset",
    summary: "A dataset or collate function moves tensors to the GPU.",
    severity: RuleSeverity::Medium,
    why: "With `num_workers > 0` it runs in worker processes. Every worker that touches the GPU creates its
own CUDA context, and holds its prefetched batches on the GPU.",
    costs: "A fixed amount per worker: hundreds of MiB for a context (414 MiB in a reported message), and
the prefetched batches.",
    bad: "
class Images(Dataset):
    def __getitem__(self, index):
        return self.images[index].cuda()
",
    good: "
class Images(Dataset):
    def __getitem__(self, index):
        return self.images[index]

for x in DataLoader(images, num_workers=4, pin_memory=True):
    x = x.cuda(non_blocking=True)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    let mut last = None;
    for (facts, call) in checked.calls() {
        // The cheap test first: a file has thousands of calls.
        if last != Some(facts.id) && to_gpu(checked, call) && runs_in_worker(checked, facts) {
            last = Some(facts.id);
            // Most loaders have no workers: without one in sight this may cost nothing.
            let (severity, when) = match loaders(checked).next() {
                Some(_) => (RuleSeverity::Medium, "this runs in the loader's workers: each"),
                None => (RuleSeverity::Low, "with workers, this runs in them, and each"),
            };
            found.push(
                RULE.at(
                    severity,
                    call.expr.range,
                    format!(
                        "{when} creates a CUDA context of hundreds of MiB, and holds its prefetched \
                         batches on the GPU"
                    ),
                )
                .advise(
                    "return it on the CPU, and move the batch in the training loop (`pin_memory=True`, \
                     `non_blocking=True`)",
                ),
            );
        }
    }
}

/// Matches `.cuda()`, `.to("cuda")`, `device="cuda"`, and `.to(self.device)` in a file that mentions CUDA.
fn to_gpu(checked: &Checked<'_, '_, '_>, call: &CallFact<'_, '_>) -> bool {
    let knows_cuda = checked.file.knows_cuda();
    let is_gpu = |of: &Expr<'_>| match of.text() {
        Some(text) => text.starts_with("cuda"),
        None => {
            knows_cuda && checked.file.key(of).is_some_and(|key| key.rsplit('.').next() == Some("device"))
        }
    };
    let named = call.call.keyword("device").is_some_and(|keyword| is_gpu(&keyword.value));
    match call.call.method() {
        Some((_, "cuda")) => call.call.args.len() <= 1 && call.path.is_none(),
        Some((_, "to")) => named || call.call.args.first().is_some_and(is_gpu),
        _ => named && call.path.as_deref().is_some_and(|path| path.starts_with("torch.")),
    }
}

/// Returns whether a function runs in a worker: a dataset's items and collate functions, unless the file
/// shows that there are no workers.
pub(super) fn runs_in_worker(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>) -> bool {
    let name = checked.file.name_of(facts.id);
    let in_dataset = checked.is_in(facts.id, ClassKind::Dataset)
        && matches!(name, "__getitem__" | "__getitems__" | "__iter__");
    (in_dataset || is_collate(checked, facts.id, name)) && !shows_no_workers(checked)
}

fn is_collate(checked: &Checked<'_, '_, '_>, id: FunctionId, name: &str) -> bool {
    id != FunctionId::MODULE
        && checked.calls().any(|(_, call)| {
            call.call.keyword("collate_fn").is_some_and(|keyword| match keyword.value.kind {
                ExprKind::Name(given) | ExprKind::Attribute(_, given) => given == name,
                _ => false,
            })
        })
}

/// Returns whether every `DataLoader` of the file has no workers, which is the default.
fn shows_no_workers(checked: &Checked<'_, '_, '_>) -> bool {
    loaders(checked).next().is_some()
        && loaders(checked).all(|call| {
            let workers = call.call.keyword("num_workers").map(|keyword| &keyword.value);
            !call.call.hides_arguments()
                && workers.is_none_or(|workers| workers.is(crate::tree::Literal::Number("0")))
        })
}

/// Iterates over the calls of `DataLoader` in the file.
fn loaders<'c, 't, 'a>(
    checked: &'c Checked<'_, 't, 'a>,
) -> impl Iterator<Item = &'c CallFact<'t, 'a>> + use<'c, 't, 'a> {
    let is_loader =
        |call: &&CallFact<'t, 'a>| call.path.as_deref().is_some_and(|path| path.ends_with("DataLoader"));
    checked.calls().map(|(_, call)| call).filter(is_loader)
}
