use crate::checked::Checked;
use crate::facts::{FunctionFacts, Loop};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, Operator, SourceRange, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM601",
    name: "benchmark-with-varying-shapes",
    summary: "`cudnn.benchmark` is on, and the input size changes from step to step.",
    severity: RuleSeverity::Medium,
    why: "For every new shape, cuDNN tries its algorithms, each with the workspace it asks for. With many
input sizes the trials are repeated, and the largest workspace sets the peak.",
    costs: "A higher peak and extra time at every new shape, released afterwards: 2.7 GiB in a ResNet-18
program with three sizes that otherwise needs a fraction of it (measured on an H200).",
    bad: "
torch.backends.cudnn.benchmark = True
for step in range(100):
    side = random.choice((160, 192, 224))
    x = torch.randn(16, 3, side, side, device='cuda')
    model(x).mean().backward()
",
    good: "
torch.backends.cudnn.benchmark = False
for step in range(100):
    side = random.choice((160, 192, 224))
    x = torch.randn(16, 3, side, side, device='cuda')
    model(x).mean().backward()
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    let Some(flag) = flag(checked) else { return };
    let varies = checked.facts.iter().any(|facts| facts.loops.iter().any(|of| varies(checked, facts, of)));
    if varies {
        found.push(
            RULE.at(
                RuleSeverity::Medium,
                flag,
                "this file creates inputs of several sizes: cuDNN tries its algorithms on each new one, \
                 with workspaces that can set the peak"
                    .to_owned(),
            )
            .advise("turn it off, or pad the inputs to a few sizes and warm up on each"),
        );
    }
}

/// Finds `torch.backends.cudnn.benchmark = True`.
fn flag(checked: &Checked<'_, '_, '_>) -> Option<SourceRange> {
    let mut flag = None;
    walk(checked.file.body, &mut |stmt| {
        if let StmtKind::Assign { targets, value } = &stmt.kind
            && crate::file::is_true(value)
            && targets.iter().any(|target| {
                checked.file.path(target).is_some_and(|path| path == "torch.backends.cudnn.benchmark")
            })
        {
            flag = Some(stmt.range);
        }
    });
    flag
}

/// Returns whether a loop that runs a model picks a size in every iteration and creates its input from it.
fn varies(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, of: &Loop<'_, '_>) -> bool {
    let runs = facts.forwards.iter().any(|(_, node, _)| of.range.contains(facts.node(*node).range));
    if !runs {
        return false;
    }
    let mut picked: Vec<&str> = Vec::new();
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        if let StmtKind::Assign { targets, value } = &stmt.kind
            && of.range.contains(stmt.range)
            && picks(checked, value)
        {
            picked.extend(targets.iter().filter_map(|target| checked.file.key(target)));
        }
    });
    facts.calls.iter().filter(|call| of.range.contains(call.expr.range)).any(|call| {
        let makes_input = call.path.as_deref().is_some_and(|path| {
            matches!(
                path,
                "torch.randn"
                    | "torch.rand"
                    | "torch.zeros"
                    | "torch.empty"
                    | "torch.nn.functional.interpolate"
            )
        });
        let reads = |expr: &Expr<'_>| picked.iter().any(|name| expr.reads_key(checked.file.source, name));
        makes_input
            && (call
                .call
                .args
                .iter()
                .skip(usize::from(call.is("torch.nn.functional.interpolate")))
                .any(reads)
                || call.call.keywords.iter().any(|keyword| reads(&keyword.value)))
    })
}

/// Matches `random.choice(sizes)` and `(160, 192, 224)[step % 3]`.
fn picks(checked: &Checked<'_, '_, '_>, value: &Expr<'_>) -> bool {
    value.any(&mut |part| match &part.kind {
        ExprKind::Call(call) => checked
            .file
            .path(&call.callee)
            .is_some_and(|path| path.starts_with("random.") || path.starts_with("numpy.random.")),
        ExprKind::Subscript(_, index) => {
            index.any(&mut |part| matches!(part.kind, ExprKind::Binary(Operator::Modulo, _)))
        }
        _ => false,
    })
}
