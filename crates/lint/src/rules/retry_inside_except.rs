use crate::checked::Checked;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, SourceRange, Stmt, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM113",
    name: "retry-inside-except",
    summary: "After an out-of-memory error the work is retried inside the `except` block.",
    severity: RuleSeverity::Medium,
    why: "Inside `except` the exception still exists, with the frames of the failed attempt and all their
tensors. A smaller attempt has to fit in addition to the failed one. After the block, that memory is free.",
    costs: "All local tensors of the failed attempt while the second one runs (measured: held inside the
block, free after it).",
    bad: "
try:
    loss = model(batch)
except torch.cuda.OutOfMemoryError:
    torch.cuda.empty_cache()
    loss = model(batch[:4])
",
    good: "
failed = False
try:
    loss = model(batch)
except torch.cuda.OutOfMemoryError:
    failed = True
if failed:
    loss = model(batch[:4])
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    walk(checked.file.body, &mut |stmt| {
        let StmtKind::Try { body, handlers, .. } = &stmt.kind else { return };
        for handler in handlers {
            let Some(catches) = &handler.catches else { continue };
            if !is_out_of_memory(checked, catches) {
                continue;
            }
            // `if "out of memory" in str(error)` shows what the block is about.
            let asks = mentions_out_of_memory(checked, &handler.body);
            let tried = called(checked, body);
            let again = called(checked, &handler.body).into_iter().find(|call| {
                let is_tried = |with_result: bool| {
                    tried.iter().any(|other| other.name == call.name && (other.has_use || !with_result))
                };
                // A logger or `zero_grad()` returns nothing that is used.
                let may_compute = asks && call.has_use && is_tried(true);
                is_tried(false) && (computes(checked, call.name) || may_compute)
            });
            if let Some(CalledFunction { name, range, .. }) = again {
                let message = format!(
                    "`{name}` is retried while the failed attempt is still in memory: inside `except` the \
                     exception holds its frames and their tensors"
                );
                found.push(
                    RULE.at(RuleSeverity::Medium, range, message)
                        .advise("set a flag, leave the block, and retry after it"),
                );
            }
        }
    });
}

/// Returns whether a handler catches out-of-memory errors and little else.
fn is_out_of_memory(checked: &Checked<'_, '_, '_>, catches: &Expr<'_>) -> bool {
    let items: Vec<&Expr<'_>> = match &catches.kind {
        ExprKind::Sequence(_, items) => items.iter().collect(),
        _ => vec![catches],
    };
    items.iter().any(|item| {
        let name = checked.file.text(item.range);
        name.ends_with("OutOfMemoryError") || name == "RuntimeError"
    })
}

fn mentions_out_of_memory(checked: &Checked<'_, '_, '_>, body: &[Stmt<'_>]) -> bool {
    body.iter().any(|stmt| checked.file.text(stmt.range).contains("out of memory"))
}

/// A call in one of the blocks.
struct CalledFunction<'a> {
    /// What is called, as written.
    name: &'a str,
    range: SourceRange,
    /// Whether something is done with the result.
    has_use: bool,
}

/// Functions of Python that compute nothing on a GPU by themselves.
const BUILTINS: [&str; 26] = [
    "print",
    "str",
    "len",
    "isinstance",
    "range",
    "int",
    "float",
    "max",
    "min",
    "sum",
    "abs",
    "round",
    "bool",
    "list",
    "dict",
    "set",
    "tuple",
    "sorted",
    "zip",
    "enumerate",
    "getattr",
    "hasattr",
    "type",
    "repr",
    "next",
    "iter",
];

/// Returns what the statements call.
fn called<'a>(checked: &Checked<'_, '_, 'a>, body: &[Stmt<'a>]) -> Vec<CalledFunction<'a>> {
    let mut names = Vec::new();
    walk(body, &mut |stmt| {
        for expr in stmt.expressions() {
            expr.any(&mut |part| {
                if let Some(call) = part.as_call()
                    && let Some(name) = checked.file.key(&call.callee)
                    && checked.file.path(&call.callee).is_none()
                    && !BUILTINS.contains(&name)
                {
                    let is_statement =
                        matches!(&stmt.kind, StmtKind::Expr(whole) if whole.range == part.range);
                    names.push(CalledFunction { name, range: part.range, has_use: !is_statement });
                }
                false
            });
        }
    });
    names
}

/// Returns whether the name is a model, or a function of the file that runs one.
fn computes(checked: &Checked<'_, '_, '_>, name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    checked.file.is_module_name(name)
        || checked
            .facts
            .iter()
            .any(|facts| checked.file.name_of(facts.id) == last && !facts.forwards.is_empty())
}
