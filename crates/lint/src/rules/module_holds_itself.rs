use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Class, ExprKind, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM118",
    name: "module-holds-itself",
    summary: "A module stores its own method or a lambda on `self`, so `del model` does not free it.",
    severity: RuleSeverity::Low,
    why: "`self.f = self.method` (or a lambda that uses `self`) makes the module part of a reference cycle.
When its last variable goes, nothing is freed until Python's garbage collector runs, which counts objects,
not gigabytes.",
    costs: "Nothing while the model is in use. After `del model`, the whole model until the garbage
collector runs (measured: 256 KiB per model, freed by `gc.collect()`): an out-of-memory error in sweeps,
folds and notebooks.",
    bad: "
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.pool = self.mean_pool

    def mean_pool(self, x):
        return x.mean(1)
",
    good: "
class Net(nn.Module):
    def pool(self, x):
        return self.mean_pool(x)

    def mean_pool(self, x):
        return x.mean(1)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (id, class) in checked.file.classes.iter().enumerate() {
        if !class.kind.is_module() {
            continue;
        }
        walk(&class.class.body, &mut |stmt| {
            let StmtKind::Assign { targets, value } = &stmt.kind else { return };
            let on_self = targets
                .iter()
                .any(|target| checked.file.key(target).is_some_and(|key| key.starts_with("self.")));
            let method = |key: &str| {
                let name = key.strip_prefix("self.").filter(|name| !name.contains('.'));
                name.is_some_and(|name| {
                    checked
                        .file
                        .method(crate::file::ClassId(id), name)
                        .is_some_and(|method| !is_static(checked, method))
                })
            };
            let holds = match &value.kind {
                ExprKind::Attribute(..) => checked.file.key(value).is_some_and(method),
                ExprKind::Lambda(lambda) => {
                    lambda.body.any(&mut |part| matches!(part.kind, ExprKind::Name("self")))
                }
                _ => false,
            };
            // A module without parameters has nothing that would stay.
            if on_self && holds && makes_tensors(checked, class.class) {
                found.push(
                    RULE.at(
                        RuleSeverity::Low,
                        value.range,
                        "this makes the module refer to itself: after `del model` its memory stays until \
                         the garbage collector runs"
                            .to_owned(),
                    )
                    .advise(
                        "choose in `forward`, store the method's name, or call `gc.collect()` after `del \
                         model`",
                    ),
                );
            }
        });
    }
}

/// Returns whether a method does not bind `self`: properties and static methods.
fn is_static(checked: &Checked<'_, '_, '_>, method: crate::file::FunctionId) -> bool {
    let decorators = checked.file.functions[method.0].function.map(|function| &function.decorators);
    decorators.is_some_and(|decorators| {
        decorators.iter().any(|decorator| {
            matches!(
                checked.file.text(decorator.range),
                "staticmethod" | "property" | "classmethod" | "cached_property"
            )
        })
    })
}

/// Returns whether the class creates parameters, buffers or layers.
fn makes_tensors(checked: &Checked<'_, '_, '_>, class: &Class<'_>) -> bool {
    let mut makes = false;
    walk(&class.body, &mut |stmt| {
        makes |= stmt.expressions().into_iter().any(|expr| {
            expr.any(&mut |part| {
                let Some(call) = part.as_call() else { return false };
                let is_layer =
                    checked.file.path(&call.callee).is_some_and(|path| path.starts_with("torch.nn."));
                let adds =
                    |name: &str| matches!(name, "register_buffer" | "register_parameter" | "add_module");
                is_layer || call.method().is_some_and(|(_, name)| adds(name))
            })
        });
    });
    makes
}
