use crate::checked::Checked;
use crate::facts::Returned;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{CallExpr, ExprKind, Function, Literal, Parameter, SourceRange, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM110",
    name: "unbounded-tensor-cache",
    summary: "A cache without a limit holds tensors.",
    severity: RuleSeverity::High,
    why: "`functools.cache` and `lru_cache(maxsize=None)` never evict. A function that returns tensors and
is called with sizes, steps or other values that keep changing leaves one tensor behind for each.",
    costs: "One result per new set of arguments (measured: 128 KiB per key). With a `maxsize` it is a fixed
amount.",
    bad: "
@functools.cache
def mask(length):
    return torch.ones(length, length, device='cuda').tril()
",
    good: "
@functools.lru_cache(maxsize=8)
def mask(length):
    return torch.ones(length, length, device='cuda').tril()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, defined) in checked.facts.iter().map(|facts| (facts, &checked.file.functions[facts.id.0])) {
        let Some(function) = defined.function else { continue };
        let Some((decorator, true)) = cache_of(checked, function) else { continue };
        let text = checked.file.text(defined.range);
        let has_arguments = function.parameters.iter().any(|parameter| is_open(checked, parameter, text));
        let returns_tensor = matches!(facts.returned, Returned::Tensor { .. });
        if has_arguments && returns_tensor && on_device(function) {
            found.push(
                RULE.at(
                    RuleSeverity::High,
                    decorator,
                    "the cache has no limit and holds a tensor for every new set of arguments".to_owned(),
                )
                .advise("give it a `maxsize`, or keep only the result that is needed"),
            );
        }
    }
}

/// Returns whether an argument can have any number of values: devices, types, names and switches have a few.
fn is_open(checked: &Checked<'_, '_, '_>, parameter: &Parameter<'_>, function: &str) -> bool {
    let annotation = parameter.annotation.as_ref().map_or("", |of| checked.file.text(of.range));
    let has_few = ["str", "bool", "dtype", "device", "Literal"].iter().any(|kind| annotation.contains(kind));
    // `assert n in {80, 128}`, `if n not in (2, 3): raise …`
    let is_checked = [format!("assert {} in", parameter.name), format!("if {} not in", parameter.name)]
        .iter()
        .any(|check| function.contains(check));
    !has_few
        && !is_checked
        && !matches!(parameter.name, "self" | "cls" | "device" | "dtype" | "name" | "key" | "mode")
}

/// Returns the cache around a function: its position, and whether it has no limit.
pub(super) fn cache_of(
    checked: &Checked<'_, '_, '_>,
    function: &Function<'_>,
) -> Option<(SourceRange, bool)> {
    if function.decorators.iter().any(|decorator| checked.file.text(decorator.range) == "staticmethod") {
        return None;
    }
    function.decorators.iter().find_map(|decorator| {
        let call = decorator.as_call();
        let callee = call.map_or(decorator, |call| &call.callee);
        let path = checked.file.path(callee);
        let unbounded = match path.as_deref() {
            Some("functools.cache") => true,
            Some(path) if is_lru_cache(path) => has_no_limit(call),
            None if is_lru_cache(checked.file.key(callee)?) => has_no_limit(call),
            _ => return None,
        };
        Some((decorator.range, unbounded))
    })
}

/// Matches `functools.lru_cache` and the wrappers around it that projects write; not those that hold their
/// keys weakly, or have one cache per instance.
fn is_lru_cache(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or(path).to_ascii_lowercase();
    name.contains("lru_cache") && !["weak", "instance", "async"].iter().any(|word| name.contains(word))
}

fn has_no_limit(call: Option<&CallExpr<'_>>) -> bool {
    call.and_then(|call| call.argument("maxsize", 0)).is_some_and(|size| size.is(Literal::None))
}

/// Returns whether a device is named in the function: otherwise its tensors are most likely in host memory.
fn on_device(function: &Function<'_>) -> bool {
    let mut named = function.parameters.iter().any(|parameter| parameter.name.contains("device"));
    walk(&function.body, &mut |stmt| {
        if matches!(stmt.kind, StmtKind::Function(_) | StmtKind::Class(_)) {
            return;
        }
        for expr in stmt.expressions() {
            named |= expr.any(&mut |part| match &part.kind {
                ExprKind::Call(call) => {
                    call.keyword("device").is_some()
                        || call.method().is_some_and(|(_, name)| matches!(name, "cuda" | "to"))
                }
                _ => false,
            });
        }
    });
    named
}
