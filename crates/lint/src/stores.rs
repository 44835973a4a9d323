//! Which lines of a program store something under a name: what keeps a tensor is known by a name alone.

use crate::source::PythonSource;
use crate::syntax::{self, SyntaxError};
use crate::tree::{self, Expr, ExprKind, Literal, SourceRange, Stmt, StmtKind};

/// A line that stores something under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoringLine {
    /// The line, counted from 1.
    pub line: usize,
    /// What it does to the name.
    pub how: Storing,
}

/// How a line stores something, from what hardly keeps anything to what adds to what is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Storing {
    /// `history = []`
    Empties,
    /// `best = model(x)`
    Assigns,
    /// `total = total + loss`
    Carries,
    /// `history.append(loss)`, `cache[key] = loss`, `total += loss`
    Adds,
}

/// Methods that add to a container.
const ADDING: [&str; 11] = [
    "append",
    "appendleft",
    "extend",
    "insert",
    "add",
    "update",
    "setdefault",
    "put",
    "push",
    "write",
    "register_buffer",
];

/// Returns every line of `source` that stores something under `name`, a variable or an attribute, in no
/// particular order.
pub fn stores(source: &PythonSource, name: &str) -> Result<Vec<StoringLine>, SyntaxError> {
    let program = syntax::parse(source.text(), source.is_notebook())?;
    let mut found = Vec::new();
    tree::walk(&program.body, &mut |stmt| in_statement(stmt, name, &mut found));
    let store = |(range, how): (SourceRange, Storing)| StoringLine { line: source.line(range.start), how };
    Ok(found.into_iter().map(store).collect())
}

fn in_statement(stmt: &Stmt<'_>, name: &str, found: &mut Vec<(SourceRange, Storing)>) {
    match &stmt.kind {
        StmtKind::Assign { targets, value } => {
            targets.iter().for_each(|target| in_target(target, value, name, found));
        }
        StmtKind::Augment { target, .. } if is_of(target, name) => found.push((target.range, Storing::Adds)),
        _ => {}
    }
    for expression in stmt.expressions() {
        expression.any(&mut |part| {
            let call = part.as_call().and_then(|call| call.method());
            if let Some((base, method)) = call
                && ADDING.contains(&method)
                && is_of(base, name)
            {
                found.push((base.range, Storing::Adds));
            }
            if let ExprKind::Walrus(sides) = &part.kind {
                in_target(&sides[0], &sides[1], name, found);
            }
            false
        });
    }
}

fn in_target(target: &Expr<'_>, value: &Expr<'_>, name: &str, found: &mut Vec<(SourceRange, Storing)>) {
    match &target.kind {
        ExprKind::Sequence(_, targets) => {
            let each = targets.iter().filter(|target| is_of(target, name));
            found.extend(each.map(|target| (target.range, Storing::Assigns)));
        }
        ExprKind::Subscript(..) if is_of(target, name) => found.push((target.range, Storing::Adds)),
        _ if is_of(target, name) => {
            let carries = value.any(&mut |part| is_named(part, name));
            let how = match (carries, is_empty(value)) {
                (true, _) => Storing::Carries,
                (false, true) => Storing::Empties,
                (false, false) => Storing::Assigns,
            };
            found.push((target.range, how));
        }
        _ => {}
    }
}

/// `history`, `self.history`, or an item of it.
fn is_of(expression: &Expr<'_>, name: &str) -> bool {
    match &expression.kind {
        ExprKind::Subscript(base, _) => is_of(base, name),
        _ => is_named(expression, name),
    }
}

fn is_named(expression: &Expr<'_>, name: &str) -> bool {
    matches!(&expression.kind, ExprKind::Name(found) | ExprKind::Attribute(_, found) if *found == name)
}

/// `[]`, `{}`, `None`, `0`, `set()`, `deque(maxlen=8)`: something that holds no tensor yet.
fn is_empty(value: &Expr<'_>) -> bool {
    match &value.kind {
        ExprKind::Sequence(_, items) => items.is_empty(),
        ExprKind::Dict(items) => items.is_empty(),
        ExprKind::Literal(Literal::None | Literal::Number(_)) => true,
        ExprKind::Call(call) => match call.callee.kind {
            ExprKind::Name("deque" | "defaultdict") => true,
            ExprKind::Name("set" | "dict" | "list") => call.args.is_empty() && call.keywords.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line that most looks like it adds to a name, with how.
    fn best(source: &str, name: &str) -> Option<(usize, Storing)> {
        let found = stores(&PythonSource::python(source.as_bytes()), name).expect("Python");
        let best = found.into_iter().max_by_key(|store| (store.how, std::cmp::Reverse(store.line)));
        best.map(|store| (store.line, store.how))
    }

    #[test]
    fn the_line_that_adds_to_a_name_is_found() {
        use Storing::{Adds, Assigns, Carries, Empties};
        for (source, name, expected) in [
            ("history = []\nhistory.append(loss)\nprint(history)\n", "history", Some((2, Adds))),
            ("my_history.append(x)\nhistory[i] = x\n", "history", Some((2, Adds))),
            ("f.setdefault(n, []).append(o)\n", "f", Some((1, Adds))),
            ("f[n].append(o)\n", "f", Some((1, Adds))),
            ("total = zeros(())\ntotal = total * 0.9 + loss\n", "total", Some((2, Carries))),
            ("total += loss  # total = 1\n", "total", Some((1, Adds))),
            ("self.other, other.other = other, self\n", "other", Some((1, Assigns))),
            ("if history == []: pass\n# history.append(x)\nx = history[0]\n", "history", None),
            ("self.store = {}\nself.store['a'] += [x]\n", "store", Some((2, Adds))),
            ("best = model(x)\nuse(best)\n", "best", Some((1, Assigns))),
            ("kept = deque(maxlen=8)\n", "kept", Some((1, Empties))),
            ("text = \"\"\"\nhistory.append(x)\n\"\"\"\n", "history", None),
        ] {
            assert_eq!(best(source, name), expected, "{source}");
        }
    }
}
