//! Changes to a program that save memory, as edits of its source: what a person would type.
//!
//! A change that the source does not clearly allow is refused, and nothing is edited.

use crate::edit::Edit;
use crate::source::PythonSource;
use crate::syntax::{Program, SyntaxError, parse};
use crate::tree::{CallExpr, Expr, ExprKind, Literal, SourceRange, Stmt, StmtKind};

/// Methods of a training loop that belong to the step of the optimizer, not to a batch.
const OF_A_STEP: [&str; 6] =
    ["step", "zero_grad", "update", "unscale_", "clip_grad_norm_", "clip_grad_value_"];

/// Name for the number of a batch, where the loop has none.
const BATCH_NUMBER: &str = "batch_number";

/// Edits of one file, collected one after the other.
pub struct Rewrite<'a> {
    source: &'a PythonSource,
    program: Program<'a>,
    edits: Vec<Edit>,
}

/// A statement with the statements around it, outermost first.
struct Place<'t, 'a> {
    around: Vec<&'t Stmt<'a>>,
    body: &'t [Stmt<'a>],
    index: usize,
}

impl<'a> Rewrite<'a> {
    /// Starts with no edits.
    pub fn new(source: &'a PythonSource) -> Result<Rewrite<'a>, SyntaxError> {
        let program = parse(source.text(), source.is_notebook())?;
        Ok(Rewrite { source, program, edits: Vec::new() })
    }

    /// Returns the source after all edits; `None` if they do not fit each other, or the result is not Python.
    pub fn finish(self) -> Option<PythonSource> {
        let edited = self.source.edited(&self.edits)?;
        parse(edited.text(), edited.is_notebook()).is_ok().then_some(edited)
    }

    /// Puts the statements from one line up to another, exclusive, under a header such as `with …:`. Both
    /// lines have to be in one block.
    pub fn wrap(&mut self, first: u32, before: u32, header: &str) -> bool {
        let edits = || {
            let (from, to) = (self.place(first)?, self.place(before)?);
            if !std::ptr::eq(from.body, to.body) || from.index >= to.index {
                return None;
            }
            self.indented(&from.body[from.index..to.index], header)
        };
        self.add(edits())
    }

    /// Adds an argument to the call of `callee` on a line.
    pub fn add_argument(&mut self, line: u32, callee: &str, argument: &str) -> bool {
        let edits = || {
            let (range, call) = self.call(line, callee)?;
            let last =
                call.args.iter().map(|arg| arg.range).chain(call.keywords.iter().map(|of| of.range)).max();
            let (at, comma) = match last {
                Some(last) => (self.after_parentheses(last.end, range.end)?, ", "),
                None => (range.end - 1, ""),
            };
            Some(vec![insertion(at, format!("{comma}{argument}"))])
        };
        self.add(edits())
    }

    /// Calls something else on a line, if `keeps` holds for the name of each argument.
    pub fn replace_callee(&mut self, line: u32, callee: &str, new: &str, keeps: fn(&str) -> bool) -> bool {
        let edits = || {
            let (_, call) = self.call(line, callee)?;
            let keeps_all = call.keywords.iter().all(|keyword| keyword.name.is_some_and(keeps));
            (keeps_all && call.args.len() <= 2)
                .then(|| vec![Edit { range: call.callee.range, text: new.to_owned() }])
        };
        self.add(edits())
    }

    /// Divides an argument of the call of `callee` on a line: by its name, or its place without one.
    pub fn divide_argument(&mut self, line: u32, callee: &str, name: &str, place: usize, parts: u32) -> bool {
        let edits = || {
            let (_, call) = self.call(line, callee)?;
            let argument = call.argument(name, place)?;
            let text = self.source.slice(argument.range);
            let divided = match (&argument.kind, text.parse::<u32>()) {
                (ExprKind::Literal(Literal::Number(_)), Ok(number)) => (number / parts).to_string(),
                (ExprKind::Name(_) | ExprKind::Attribute(..), _) => format!("{text} // {parts}"),
                _ => format!("({text}) // {parts}"),
            };
            Some(vec![Edit { range: argument.range, text: divided }])
        };
        self.add(edits())
    }

    /// Inserts lines after the statement that gives a variable its value, in the function that runs a line.
    pub fn insert_after_assignment(&mut self, name: &str, line: u32, lines: &[String]) -> bool {
        let edits = || {
            let statement = self.assignment(name, line)?;
            let end = self.line_end(statement.range.end)?;
            let indent = self.indent(statement.range.start)?;
            let text: String = lines.iter().map(|line| format!("\n{indent}{line}")).collect();
            Some(vec![insertion(end, text)])
        };
        self.add(edits())
    }

    /// Inserts an import after the first group of imports of the file, unless it is there.
    pub fn import(&mut self, statement: &str) -> bool {
        if self.source.text().lines().any(|line| line.trim() == statement) {
            return true;
        }
        let edits = || {
            let is_import = |stmt: &&Stmt<'_>| matches!(stmt.kind, StmtKind::Import(_));
            let body = &self.program.body;
            let first = body.iter().position(|stmt| is_import(&stmt))?;
            let last = body[first..].iter().take_while(is_import).last()?;
            Some(vec![insertion(self.line_end(last.range.end)?, format!("\n{statement}"))])
        };
        self.add(edits())
    }

    /// Returns whether a name is used anywhere in the file.
    pub fn mentions(&self, name: &str) -> bool {
        self.source.text().split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
    }

    /// Has the loop around the backward pass on a line take a step only once for several batches, with the
    /// mean of their gradients.
    pub fn accumulate(&mut self, backward: u32, parts: u32) -> bool {
        let edits = || {
            let Place { around, body, index } = self.place(backward)?;
            let StmtKind::For { target, iter, .. } = &around.last()?.kind else { return None };
            let (number, mut edits) = self.batch_number(target, iter)?;
            edits.extend(self.divided_loss(&body[index], parts)?);
            for stmt in &body[..index] {
                if calls_method(stmt, &["zero_grad"]) {
                    edits.extend(
                        self.indented(std::slice::from_ref(stmt), &format!("if {number} % {parts} == 0:"))?,
                    );
                }
            }
            let after = &body[index + 1..];
            let first = after.iter().position(|stmt| calls_method(stmt, &OF_A_STEP))?;
            let count = after[first..].iter().take_while(|stmt| calls_method(stmt, &OF_A_STEP)).count();
            let group = &after[first..first + count];
            if !group.iter().any(|stmt| calls_method(stmt, &["step"])) {
                return None;
            }
            edits.extend(self.indented(group, &format!("if ({number} + 1) % {parts} == 0:"))?);
            Some(edits)
        };
        self.add(edits())
    }

    fn add(&mut self, edits: Option<Vec<Edit>>) -> bool {
        let found = edits.is_some();
        self.edits.extend(edits.unwrap_or_default());
        found
    }

    /// Returns the name that counts the batches of a loop, and the edits that introduce it.
    fn batch_number(&self, target: &Expr<'_>, iter: &Expr<'_>) -> Option<(String, Vec<Edit>)> {
        let is_enumerate = |call: &CallExpr<'_>| {
            matches!(call.callee.kind, ExprKind::Name("enumerate"))
                && call.args.len() == 1
                && call.keywords.is_empty()
        };
        if iter.as_call().is_some_and(is_enumerate) {
            return match &target.kind {
                ExprKind::Sequence(_, items) => match items.first()?.kind {
                    ExprKind::Name(name) if name != "_" => Some((name.to_owned(), Vec::new())),
                    _ => None,
                },
                _ => None,
            };
        }
        let text = self.source.slice(target.range);
        let is_bare = matches!(target.kind, ExprKind::Sequence(..)) && !text.starts_with(['(', '[']);
        let (open, close) = if is_bare { ("(", ")") } else { ("", "") };
        let edits = vec![
            Edit { range: target.range, text: format!("{BATCH_NUMBER}, {open}{text}{close}") },
            insertion(iter.range.start, "enumerate(".to_owned()),
            insertion(iter.range.end, ")".to_owned()),
        ];
        (!self.mentions(BATCH_NUMBER)).then(|| (BATCH_NUMBER.to_owned(), edits))
    }

    /// Returns the edit that divides the loss of `loss.backward()`, or of `accelerator.backward(loss)`.
    fn divided_loss(&self, stmt: &Stmt<'_>, parts: u32) -> Option<Vec<Edit>> {
        let StmtKind::Expr(value) = &stmt.kind else { return None };
        let call = value.as_call()?;
        let (base, "backward") = call.method()? else { return None };
        let divided = |of: &Expr<'_>| format!("{} / {parts}", self.source.slice(of.range));
        let edit = match call.args.as_slice() {
            [] if call.keywords.is_empty() => {
                Edit { range: base.range, text: format!("({})", divided(base)) }
            }
            [loss] if matches!(loss.kind, ExprKind::Name(_)) => {
                Edit { range: loss.range, text: divided(loss) }
            }
            _ => return None,
        };
        Some(vec![edit])
    }

    /// Returns the edits that put neighboring statements under a header.
    fn indented(&self, statements: &[Stmt<'_>], header: &str) -> Option<Vec<Edit>> {
        let (first, last) = (statements.first()?, statements.last()?);
        let indent = self.indent(first.range.start)?;
        self.line_end(last.range.end)?;
        // What is inside a string of several lines is not ours to indent.
        if statements.iter().any(has_long_string) {
            return None;
        }
        let unit = if indent.ends_with('\t') { "\t" } else { "    " };
        let line_start = first.range.start - indent.len() as u32;
        let mut edits = vec![insertion(line_start, format!("{indent}{header}\n"))];
        let text = self.source.slice(SourceRange { start: line_start, end: last.range.end });
        let mut at = line_start;
        for line in text.split_inclusive('\n') {
            if !line.trim().is_empty() {
                edits.push(insertion(at, unit.to_owned()));
            }
            at += line.len() as u32;
        }
        Some(edits)
    }

    /// Returns the space before a statement; `None` if something else is before it on its line.
    fn indent(&self, start: u32) -> Option<&'a str> {
        let before = self.source.text().get(..start as usize)?.rsplit('\n').next()?;
        before.trim().is_empty().then_some(before)
    }

    /// Returns where the line of a statement ends; `None` if another statement follows on it.
    fn line_end(&self, end: u32) -> Option<u32> {
        let rest = self.source.text().get(end as usize..)?;
        let rest = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let is_free = rest.trim().is_empty() || rest.trim_start().starts_with('#');
        is_free.then_some(end + rest.len() as u32)
    }

    /// Returns the end of an argument with the parentheses around it, in a call that ends at `end`.
    fn after_parentheses(&self, argument_end: u32, end: u32) -> Option<u32> {
        let rest = self.source.slice(SourceRange { start: argument_end, end: end.checked_sub(1)? });
        Some(argument_end + rest.rfind(')').map_or(0, |place| place as u32 + 1))
    }

    /// Returns the innermost statement that covers a line.
    fn place(&self, line: u32) -> Option<Place<'_, 'a>> {
        let mut place = Place { around: Vec::new(), body: &self.program.body, index: 0 };
        place.index = self.covering(place.body, line)?;
        loop {
            let stmt = &place.body[place.index];
            let inner = stmt.bodies().into_iter().find_map(|body| Some((body, self.covering(body, line)?)));
            let Some((body, index)) = inner else { return Some(place) };
            place.around.push(stmt);
            (place.body, place.index) = (body, index);
        }
    }

    fn covering(&self, body: &[Stmt<'a>], line: u32) -> Option<usize> {
        let covers = |stmt: &Stmt<'_>| {
            let (first, last) = (self.source.line(stmt.range.start), self.source.line(stmt.range.end));
            (first..=last).contains(&(line as usize))
        };
        body.iter().position(covers)
    }

    /// Returns the call on a line of something whose last name is `callee`.
    fn call(&self, line: u32, callee: &str) -> Option<(SourceRange, &CallExpr<'a>)> {
        let place = self.place(line)?;
        let mut expressions: Vec<&Expr<'a>> = place.body[place.index].expressions();
        let mut found = Vec::new();
        while let Some(expression) = expressions.pop() {
            if let Some(call) = expression.as_call() {
                let name = match &call.callee.kind {
                    ExprKind::Name(name) | ExprKind::Attribute(_, name) => *name,
                    _ => "",
                };
                if name == callee && !call.hides_arguments() {
                    found.push((expression.range, call));
                }
            }
            expressions.extend(expression.children());
        }
        match found.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// Returns the last statement before a line that gives a variable its value, in the same function; for an
    /// attribute of `self`, in any method of the class.
    fn assignment(&self, name: &str, line: u32) -> Option<&Stmt<'a>> {
        let place = self.place(line)?;
        let is_attribute = name.starts_with("self.");
        let scope = place.around.iter().rev().find(|stmt| match stmt.kind {
            StmtKind::Class(_) => is_attribute,
            StmtKind::Function(_) => !is_attribute,
            _ => false,
        });
        let body = match scope.map(|stmt| &stmt.kind) {
            Some(StmtKind::Function(function)) => &function.body,
            Some(StmtKind::Class(class)) => &class.body,
            _ if is_attribute => return None,
            _ => &self.program.body,
        };
        let mut last = None;
        let mut bodies = vec![body];
        while let Some(body) = bodies.pop() {
            for stmt in body {
                let assigns = match &stmt.kind {
                    StmtKind::Assign { targets, .. } => {
                        targets.iter().any(|target| self.source.slice(target.range) == name)
                    }
                    _ => false,
                };
                let is_before = is_attribute || self.source.line(stmt.range.end) < line as usize;
                if assigns && is_before && last.is_none_or(|of: &Stmt<'_>| of.range < stmt.range) {
                    last = Some(stmt);
                }
                let is_scope = matches!(stmt.kind, StmtKind::Function(_) | StmtKind::Class(_));
                if !is_scope || is_attribute {
                    bodies.extend(stmt.bodies());
                }
            }
        }
        last
    }
}

fn insertion(at: u32, text: String) -> Edit {
    Edit { range: SourceRange { start: at, end: at }, text }
}

/// Returns whether a statement is a call of one of these methods.
fn calls_method(stmt: &Stmt<'_>, methods: &[&str]) -> bool {
    let value = match &stmt.kind {
        StmtKind::Expr(value) | StmtKind::Assign { value, .. } => value,
        _ => return false,
    };
    value.as_call().and_then(CallExpr::method).is_some_and(|(_, name)| methods.contains(&name))
}

fn has_long_string(stmt: &Stmt<'_>) -> bool {
    let is_long = |part: &Expr<'_>| match &part.kind {
        ExprKind::Literal(Literal::Text(text)) => text.contains('\n'),
        ExprKind::Format(_) => true,
        _ => false,
    };
    stmt.expressions().into_iter().any(|of| of.any(&mut |part| is_long(part)))
        || stmt.bodies().into_iter().flatten().any(has_long_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: &str = "\
import torch
from torch.utils.data import DataLoader

model = Net().cuda()
model = torch.compile(model)
loader = DataLoader(data, batch_size=64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in loader:
    x = x.cuda()
    out = model(x)
    loss = criterion(
        out,
        y,
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
";

    fn rewritten(text: &str, change: impl FnOnce(&mut Rewrite<'_>) -> bool) -> Option<String> {
        let source = PythonSource::python(text.as_bytes());
        let mut rewrite = Rewrite::new(&source).expect("Python");
        if !change(&mut rewrite) {
            assert!(rewrite.edits.is_empty(), "a refused change edits nothing");
            return None;
        }
        Some(rewrite.finish().expect("Python").text().to_owned())
    }

    #[test]
    fn statements_between_two_lines_go_under_a_header() {
        let done = rewritten(LOOP, |of| of.wrap(10, 16, "with torch.autocast(\"cuda\"):")).expect("a change");
        let expected = "
    with torch.autocast(\"cuda\"):
        out = model(x)
        loss = criterion(
            out,
            y,
        )
        optimizer.zero_grad()
    loss.backward()
";
        assert!(done.contains(expected), "{done}");
        assert_eq!(rewritten(LOOP, |of| of.wrap(16, 10, "if x:")), None, "the other way round");
        assert_eq!(rewritten(LOOP, |of| of.wrap(4, 16, "if x:")), None, "not in one block");
        assert_eq!(rewritten("x = '''a\nb'''\ny = 2\n", |of| of.wrap(1, 3, "if x:")), None, "a long string");
        assert_eq!(
            rewritten("if x: a = 1\nc = 3\n", |of| of.wrap(1, 2, "if x:")),
            None,
            "no line of its own"
        );
    }

    #[test]
    fn an_argument_is_added_where_the_last_one_ends() {
        let add = |text: &str| rewritten(text, |of| of.add_argument(1, "AdamW", "fused=True"));
        assert_eq!(add("o = AdamW(p, lr=(1))\n").as_deref(), Some("o = AdamW(p, lr=(1), fused=True)\n"));
        assert_eq!(
            add("o = t.AdamW(\n    p,\n)\n").as_deref(),
            Some("o = t.AdamW(\n    p, fused=True,\n)\n")
        );
        assert_eq!(add("o = AdamW()\n").as_deref(), Some("o = AdamW(fused=True)\n"));
        assert_eq!(add("o = AdamW(**options)\n"), None);
        assert_eq!(add("o = kind(p)\n"), None);
    }

    #[test]
    fn another_class_is_called_with_arguments_that_it_has() {
        let replace = |text: &str| {
            rewritten(text, |of| of.replace_callee(1, "AdamW", "torch.optim.Adafactor", |name| name == "lr"))
        };
        assert_eq!(replace("o = AdamW(p, lr=1)\n").as_deref(), Some("o = torch.optim.Adafactor(p, lr=1)\n"));
        assert_eq!(replace("o = AdamW(p, betas=b)\n"), None);
    }

    #[test]
    fn a_batch_size_is_divided() {
        let divide =
            |text: &str| rewritten(text, |of| of.divide_argument(1, "DataLoader", "batch_size", 1, 4));
        assert_eq!(divide("l = DataLoader(d, 64)\n").as_deref(), Some("l = DataLoader(d, 16)\n"));
        assert_eq!(
            divide("l = DataLoader(d, batch_size=args.batch)\n").as_deref(),
            Some("l = DataLoader(d, batch_size=args.batch // 4)\n")
        );
        assert_eq!(
            divide("l = DataLoader(d, batch_size=a * b)\n").as_deref(),
            Some("l = DataLoader(d, batch_size=(a * b) // 4)\n")
        );
        assert_eq!(divide("l = DataLoader(d)\n"), None);
    }

    #[test]
    fn a_loop_takes_one_step_for_several_batches() {
        let done = rewritten(LOOP, |of| of.accumulate(16, 4)).expect("a change");
        let expected = "\
for batch_number, (x, y) in enumerate(loader):
    x = x.cuda()
    out = model(x)
    loss = criterion(
        out,
        y,
    )
    if batch_number % 4 == 0:
        optimizer.zero_grad()
    (loss / 4).backward()
    if (batch_number + 1) % 4 == 0:
        optimizer.step()
    print(loss.item())
";
        assert!(done.ends_with(expected), "{done}");
        let numbered = LOOP.replace("for x, y in loader", "for i, (x, y) in enumerate(loader)");
        let done = rewritten(&numbered, |of| of.accumulate(16, 2)).expect("a change");
        assert!(done.contains("if (i + 1) % 2 == 0:\n        optimizer.step()"), "{done}");
        assert_eq!(rewritten(&LOOP.replace("optimizer.step()", "step()"), |of| of.accumulate(16, 2)), None);
        assert_eq!(
            rewritten(&LOOP.replace("for x, y in loader:", "while x:"), |of| of.accumulate(16, 2)),
            None
        );
    }

    #[test]
    fn lines_go_after_the_last_assignment_of_the_function() {
        let line = ["use(model)".to_owned()];
        let done = rewritten(LOOP, |of| of.insert_after_assignment("model", 10, &line)).expect("a change");
        assert!(done.contains("torch.compile(model)\nuse(model)\nloader"), "{done}");
        let method = "
class T:
    def a(self):
        self.net = N()  # made
    def b(self):
        self.net(1)
";
        let done =
            rewritten(method, |of| of.insert_after_assignment("self.net", 6, &line)).expect("a change");
        assert!(done.contains("# made\n        use(model)\n    def b"), "{done}");
        assert_eq!(rewritten(LOOP, |of| of.insert_after_assignment("other", 10, &line)), None);
    }

    #[test]
    fn an_import_joins_the_others_once() {
        let done = rewritten(LOOP, |of| of.import("from functools import partial")).expect("a change");
        assert!(done.starts_with(
            "import torch\nfrom torch.utils.data import DataLoader\nfrom functools import partial\n"
        ));
        assert_eq!(rewritten(LOOP, |of| of.import("import torch")).as_deref(), Some(LOOP));
    }
}
