use crate::checked::Checked;
use crate::facts::{AbstractValue, TensorOrigin};
use crate::file::{ClassId, FunctionId};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM119",
    name: "objects-hold-each-other",
    summary: "Two objects with tensors refer to each other, so only the garbage collector frees them.",
    severity: RuleSeverity::High,
    why: "Python frees an object with its last reference. Two objects that refer to each other always keep
one, and wait for the garbage collector, which counts objects, not gigabytes; with `gc.disable()` or
`gc.freeze()` they are never freed.",
    costs: "The tensors of every pair until the garbage collector runs (measured on an H200: exactly 8 MiB
per step with the collector off).",
    bad: "
class Node:
    def __init__(self, tensor):
        self.tensor, self.other = tensor, None
    def link(self, other):
        self.other, other.other = other, self

def make():
    a = Node(torch.randn(1024, 1024, device='cuda'))
    b = Node(torch.randn(1024, 1024, device='cuda'))
    a.link(b)
",
    good: "
class Node:
    def __init__(self, tensor):
        self.tensor, self.other = tensor, None
    def link(self, other):
        self.other, other.other = other, weakref.ref(self)

def make():
    a = Node(torch.randn(1024, 1024, device='cuda'))
    b = Node(torch.randn(1024, 1024, device='cuda'))
    a.link(b)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    let off = checked.calls().any(|(_, call)| call.is("gc.disable") || call.is("gc.freeze"));
    for (_, call) in checked.calls() {
        let (AbstractValue::Instance(class, _), Some((_, name))) = (&call.receiver, call.call.method())
        else {
            continue;
        };
        let Some(method) = checked.file.method(*class, name) else { continue };
        let other = call.args.iter().any(|arg| matches!(arg, AbstractValue::Instance(..)));
        if other && links(checked, method) && holds_tensors(checked, *class) {
            let (severity, message) = if off {
                (
                    RuleSeverity::High,
                    "from here on the two refer to each other, and the garbage collector is off: their \
                     tensors are never freed",
                )
            } else {
                (
                    RuleSeverity::Medium,
                    "from here on the two refer to each other: their tensors stay until the garbage \
                     collector runs, long after the last use",
                )
            };
            found.push(
                RULE.at(severity, call.expr.range, message.to_owned())
                    .advise("let one of them hold a `weakref.ref`, or remove the reference when done"),
            );
        }
    }
}

/// Returns whether a method makes its object and an argument refer to each other.
fn links(checked: &Checked<'_, '_, '_>, method: FunctionId) -> bool {
    let Some(function) = checked.file.functions[method.0].function else { return false };
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    walk(&function.body, &mut |stmt| {
        let StmtKind::Assign { targets, value } = &stmt.kind else { return };
        for target in targets {
            match (&target.kind, &value.kind) {
                (ExprKind::Sequence(_, targets), ExprKind::Sequence(_, values)) => {
                    pairs
                        .extend(targets.iter().zip(values).filter_map(|(target, value)| held(target, value)));
                }
                _ => pairs.extend(held(target, value)),
            }
        }
    });
    let parameters = function.parameters.iter().skip(1).map(|parameter| parameter.name);
    parameters.into_iter().any(|other| pairs.contains(&("self", other)) && pairs.contains(&(other, "self")))
}

/// Matches `holder.x = held`.
fn held<'a>(target: &Expr<'a>, value: &Expr<'a>) -> Option<(&'a str, &'a str)> {
    match (&target.kind, &value.kind) {
        (ExprKind::Attribute(holder, _), ExprKind::Name(held)) => match holder.kind {
            ExprKind::Name(holder) => Some((holder, held)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns whether objects of the class are created with tensors.
fn holds_tensors(checked: &Checked<'_, '_, '_>, class: ClassId) -> bool {
    let name = checked.file.classes[class.0].class.name;
    checked.calls().any(|(facts, call)| {
        let is_tensor = |arg: &AbstractValue<'_>| match arg {
            AbstractValue::Tensor(node) => !matches!(facts.node(*node).origin, TensorOrigin::Parameter(_)),
            _ => false,
        };
        checked.file.text(call.call.callee.range) == name && call.args.iter().any(is_tensor)
    })
}
