use crate::checked::Checked;
use crate::facts::{Origin, Value};
use crate::file::{ClassId, FunctionId};
use crate::rule::{Diagnostic, Rule, Severity};
use crate::tree::{Expr, ExprKind, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM119",
    name: "objects-hold-each-other",
    says: "Two objects with tensors hold each other, so only the collector frees them.",
    severity: Severity::High,
    why: "Python frees an object when its last reference goes. Two that refer to each other always have one left, and wait for the
collector, which counts objects and knows nothing of gigabytes; with `gc.disable()` or `gc.freeze()` they wait for ever.",
    costs: "The tensors of every pair until the collector runs (measured on an H200: 8 MiB a step, exactly, with the collector off).",
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
        let (Value::Instance(class, _), Some((_, name))) = (&call.receiver, call.call.method()) else { continue };
        let Some(method) = checked.file.method(*class, name) else { continue };
        let other = call.args.iter().any(|arg| matches!(arg, Value::Instance(..)));
        if other && links(checked, method) && holds_tensors(checked, *class) {
            let (severity, message) = if off {
                (Severity::High, "the two hold each other from here on, and the collector is off: their tensors are never freed")
            } else {
                (Severity::Medium, "the two hold each other from here on: their tensors stay until the collector runs, long after the last use")
            };
            found.push(
                RULE.at(severity, call.expr.range, message.to_owned())
                    .advise("let one of them hold a `weakref.ref`, or take the link away when done"),
            );
        }
    }
}

/// Whether a method makes its object and an argument refer to each other.
fn links(checked: &Checked<'_, '_, '_>, method: FunctionId) -> bool {
    let Some(function) = checked.file.functions[method.0].function else { return false };
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    walk(&function.body, &mut |stmt| {
        let StmtKind::Assign { targets, value } = &stmt.kind else { return };
        for target in targets {
            match (&target.kind, &value.kind) {
                (ExprKind::Sequence(_, targets), ExprKind::Sequence(_, values)) => {
                    pairs.extend(targets.iter().zip(values).filter_map(|(target, value)| held(target, value)));
                }
                _ => pairs.extend(held(target, value)),
            }
        }
    });
    let parameters = function.parameters.iter().skip(1).map(|parameter| parameter.name);
    parameters.into_iter().any(|other| pairs.contains(&("self", other)) && pairs.contains(&(other, "self")))
}

/// `holder.x = held`
fn held<'a>(target: &Expr<'a>, value: &Expr<'a>) -> Option<(&'a str, &'a str)> {
    match (&target.kind, &value.kind) {
        (ExprKind::Attribute(holder, _), ExprKind::Name(held)) => match holder.kind {
            ExprKind::Name(holder) => Some((holder, held)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether objects of the class are made with tensors.
fn holds_tensors(checked: &Checked<'_, '_, '_>, class: ClassId) -> bool {
    let name = checked.file.classes[class.0].class.name;
    checked.calls().any(|(facts, call)| {
        checked.file.text(call.call.callee.range) == name
            && call.args.iter().any(|arg| matches!(arg, Value::Tensor(node) if !matches!(facts.node(*node).origin, Origin::Parameter(_))))
    })
}
