use crate::checked::Checked;
use crate::facts::{FunctionFacts, NodeId, TensorOrigin};
use crate::file::ClassKind;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, Function, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM203",
    name: "tensor-on-ctx",
    summary: "A custom autograd function stores a tensor on `ctx` instead of saving it.",
    severity: RuleSeverity::Medium,
    why: "`backward()` frees what `save_for_backward` keeps. An attribute of `ctx` lives as long as the
graph node: with a kept loss it stays after `backward()`. An output on `ctx` creates a cycle (output, node,
ctx, output) that only the garbage collector breaks.",
    costs: "An input: nothing by itself; with a kept loss, that tensor every step (256 KiB measured, instead
of 0). An output: the tensor of every step until the garbage collector runs (128 KiB per step after
`backward()`, 256 KiB without).",
    bad: "
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y
        return y
",
    good: "
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        let defined = &checked.file.functions[facts.id.0];
        let (Some(function), Some(class)) = (defined.function, defined.class) else { continue };
        if checked.file.classes[class.0].kind != ClassKind::Function
            || !matches!(function.name, "forward" | "setup_context")
        {
            continue;
        }
        let Some(ctx) = function.parameters.first().map(|parameter| parameter.name) else { continue };
        walk(&function.body, &mut |stmt| {
            let StmtKind::Assign { targets, value } = &stmt.kind else { return };
            for target in targets {
                let put = on_ctx(target, value, ctx);
                found.extend(put.into_iter().filter_map(|name| judge(checked, facts, function, ctx, name)));
            }
        });
    }
}

/// Returns what an assignment puts on `ctx`, alone or in a tuple or list.
fn on_ctx<'x, 'a>(target: &Expr<'a>, value: &'x Expr<'a>, ctx: &str) -> Vec<&'x Expr<'a>> {
    match (&target.kind, &value.kind) {
        // `ctx.x, ctx.y = x, y`
        (ExprKind::Sequence(_, targets), ExprKind::Sequence(_, values)) if targets.len() == values.len() => {
            targets.iter().zip(values).flat_map(|(target, value)| on_ctx(target, value, ctx)).collect()
        }
        (ExprKind::Attribute(base, _), kind) if matches!(base.kind, ExprKind::Name(name) if name == ctx) => {
            match kind {
                ExprKind::Sequence(_, items) => items.iter().collect(),
                _ => vec![value],
            }
        }
        _ => Vec::new(),
    }
}

fn judge(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    function: &Function<'_>,
    ctx: &str,
    value: &Expr<'_>,
) -> Option<Diagnostic> {
    let ExprKind::Name(name) = value.kind else { return None };
    let is_output = returns(function, name);
    if !is_output && !is_tensor(checked, facts, function, name) {
        return None;
    }
    let is_input = function.parameters.iter().any(|parameter| parameter.name == name);
    let (severity, message) = if is_output {
        (
            RuleSeverity::Medium,
            format!(
                "`{name}` is the output: on `ctx` it is part of a cycle, and the tensor of every step stays \
                 until the garbage collector runs"
            ),
        )
    } else {
        (
            RuleSeverity::Low,
            format!(
                "`{name}` stays as long as its graph node, and `backward()` does not free it: with a kept \
                 loss, one more in every step"
            ),
        )
    };
    let advice = if is_output || is_input {
        format!("`{ctx}.save_for_backward({name})`")
    } else {
        format!("`{ctx}.save_for_backward({name})`, unless second derivatives are needed")
    };
    Some(RULE.at(severity, value.range, message).advise(advice))
}

/// Returns whether a name is certainly a tensor: computed by PyTorch, annotated, or used as only tensors are.
fn is_tensor(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    function: &Function<'_>,
    name: &str,
) -> bool {
    if let Some(parameter) = function.parameters.iter().find(|parameter| parameter.name == name) {
        return match &parameter.annotation {
            Some(annotation) => checked.file.path(annotation).is_some_and(|path| path == "torch.Tensor"),
            None => used_as_tensor(function, name),
        };
    }
    let Some(crate::facts::AbstractValue::Tensor(node)) = facts.names.get(name) else { return false };
    let from: Vec<NodeId> = facts.ancestors(*node);
    // A value computed from arguments that may be numbers may be a number.
    matches!(facts.node(*node).origin, TensorOrigin::Derived | TensorOrigin::Fresh)
        && (from.iter().any(|at| facts.node(*at).origin == TensorOrigin::Fresh)
            || used_as_tensor(function, name)
            || made_by_torch(checked, function, name))
}

/// Returns whether methods are called on it that numbers and sizes do not have: `x.matmul(…)`, `x.detach()`.
fn used_as_tensor(function: &Function<'_>, name: &str) -> bool {
    const METHODS: &[&str] = &[
        "clone",
        "detach",
        "contiguous",
        "view",
        "reshape",
        "matmul",
        "new_zeros",
        "new_empty",
        "exp",
        "clamp",
        "sum",
        "mean",
        "t",
        "transpose",
        "to",
        "float",
        "cuda",
        "size",
        "dim",
    ];
    any_expr(function, &mut |part| match &part.kind {
        ExprKind::Call(call) => call.method().is_some_and(|(base, method)| {
            METHODS.contains(&method) && matches!(base.kind, ExprKind::Name(found) if found == name)
        }),
        ExprKind::Attribute(base, "shape" | "device" | "dtype") => {
            matches!(base.kind, ExprKind::Name(found) if found == name)
        }
        _ => false,
    })
}

fn made_by_torch(checked: &Checked<'_, '_, '_>, function: &Function<'_>, name: &str) -> bool {
    let mut made = false;
    walk(&function.body, &mut |stmt| {
        if let StmtKind::Assign { targets, value } = &stmt.kind
            && targets.iter().any(|target| matches!(target.kind, ExprKind::Name(found) if found == name))
        {
            let by_torch = value
                .as_call()
                .and_then(|call| checked.file.path(&call.callee))
                .is_some_and(|path| path.starts_with("torch."));
            made |= by_torch
                || value.as_call().is_some_and(|call| {
                    call.method().is_some_and(|(_, method)| {
                        crate::torch::gives(method, true) == crate::torch::Gives::Derived
                    })
                });
        }
    });
    made
}

fn returns(function: &Function<'_>, name: &str) -> bool {
    let mut found = false;
    walk(&function.body, &mut |stmt| {
        let StmtKind::Return(Some(value)) = &stmt.kind else { return };
        let is = |expr: &Expr<'_>| matches!(expr.kind, ExprKind::Name(returned) if returned == name);
        found |= is(value) || matches!(&value.kind, ExprKind::Sequence(_, items) if items.iter().any(is));
    });
    found
}

fn any_expr(function: &Function<'_>, is: &mut dyn FnMut(&Expr<'_>) -> bool) -> bool {
    let mut found = false;
    walk(&function.body, &mut |stmt| {
        for expr in stmt.expressions() {
            found = found || expr.any(&mut |part| is(part));
        }
    });
    found
}
