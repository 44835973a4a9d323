use crate::checked::Checked;
use crate::facts::{FunctionFacts, GradMode};
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, SourceRange, Stmt, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM204",
    name: "weight-average-with-graph",
    summary: "A moving average of the weights is computed with gradients on.",
    severity: RuleSeverity::Low,
    why: "Parameters require gradients, so arithmetic on them is recorded. An average computed from the
previous one has a chain of nodes behind it, one link per step and parameter.",
    costs: "Nothing on the GPU (measured: flat). Host memory per parameter and step, and growing time when
the chain is freed.",
    bad: "
for name, param in model.named_parameters():
    shadow[name] = decay * shadow[name] + (1 - decay) * param
",
    good: "
with torch.no_grad():
    for name, param in model.named_parameters():
        shadow[name] = decay * shadow[name] + (1 - decay) * param
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for facts in &checked.facts {
        if facts.mode != GradMode::On || checked.is_off(facts) {
            continue;
        }
        for of in &facts.loops {
            let Some(iter) = of.iter else { continue };
            let over_parameters = iter.any(&mut |part| {
                part.as_call().is_some_and(|call| {
                    call.method().is_some_and(|(_, name)| matches!(name, "parameters" | "named_parameters"))
                })
            });
            if over_parameters {
                in_loop(checked, facts, of.range, &of.targets, found);
            }
        }
    }
}

fn in_loop(
    checked: &Checked<'_, '_, '_>,
    facts: &FunctionFacts<'_, '_>,
    range: SourceRange,
    targets: &[&str],
    found: &mut Vec<Diagnostic>,
) {
    let mut averages: Vec<SourceRange> = Vec::new();
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        if range.contains(stmt.range) && averages_itself(checked, stmt, targets) {
            averages.push(stmt.range);
        }
    });
    for average in averages {
        // Inside `with torch.no_grad()` nothing is recorded: the calls of the loop show it.
        let recorded = !without_gradients(checked, facts, average);
        if recorded {
            found.push(
                RULE.at(
                    RuleSeverity::Low,
                    average,
                    "the average is recorded: a chain of graph nodes grows in host memory with every step, \
                     GPU memory does not grow"
                        .to_owned(),
                )
                .advise("update it under `torch.no_grad()`"),
            );
        }
    }
}

/// Matches `shadow[name] = d * shadow[name] + (1 - d) * param`.
fn averages_itself(checked: &Checked<'_, '_, '_>, stmt: &Stmt<'_>, targets: &[&str]) -> bool {
    let StmtKind::Assign { targets: assigned, value } = &stmt.kind else { return false };
    let [target] = assigned.as_slice() else { return false };
    let (ExprKind::Subscript(..), ExprKind::Binary(..)) = (&target.kind, &value.kind) else { return false };
    let written = checked.file.text(target.range);
    let again = value.any(&mut |part| {
        matches!(part.kind, ExprKind::Subscript(..)) && checked.file.text(part.range) == written
    });
    again && has_parameter(value, targets)
}

/// Returns whether it is a parameter itself, not its `.data` or a detached copy.
fn has_parameter(expr: &Expr<'_>, targets: &[&str]) -> bool {
    match &expr.kind {
        // The last variable of `for name, param in …` is the parameter.
        ExprKind::Name(name) => targets.last() == Some(name),
        ExprKind::Binary(_, sides) => sides.iter().any(|side| has_parameter(side, targets)),
        _ => false,
    }
}

/// Returns whether a statement is inside a `with` that turns gradients off.
fn without_gradients(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, at: SourceRange) -> bool {
    let mut off = false;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        if let StmtKind::With { items, .. } = &stmt.kind
            && stmt.range.contains(at)
        {
            off |= items.iter().any(|(manager, _)| {
                let text = checked.file.text(manager.range);
                text.contains("grad") || text.contains("inference")
            });
        }
    });
    off
}
