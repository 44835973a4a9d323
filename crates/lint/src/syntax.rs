//! Conversion of source to [`tree`](crate::tree). The only file that uses ruff's parser, whose crates change
//! with every release.

use crate::tree::{
    Body, CallExpr, Class, Comprehension, Expr, ExprKind, Function, Generator, Handler, Import, Keyword,
    Lambda, Literal, Operator, Parameter, Produces, Sequence, SourceRange, Stmt, StmtKind,
};
use ruff_python_ast::{self as ast, token::TokenKind};
use ruff_python_parser::{Mode, ParseOptions, Parsed, parse_unchecked};
use ruff_text_size::{Ranged, TextRange};

/// Maximum depth of nesting; deeper expressions become [`ExprKind::Other`].
const MAX_NESTING: usize = 200;
/// Bytes of stack that a level of nesting may take while a parsed program is dropped.
const STACK_BYTES_PER_LEVEL: usize = 1 << 10;

/// Reason that a source is not valid Python.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyntaxError {
    /// What is wrong.
    pub message: String,
    /// Where it is.
    pub range: SourceRange,
}

/// Content of a source.
pub(crate) struct Program<'a> {
    pub(crate) body: Body<'a>,
    pub(crate) comments: Vec<SourceRange>,
}

/// Parses a module, or the joined cells of a notebook (`%` and `!` lines are then allowed).
pub(crate) fn parse<'a>(source: &'a str, is_notebook: bool) -> Result<Program<'a>, SyntaxError> {
    let mode = if is_notebook { Mode::Ipython } else { Mode::Module };
    let parsed = parse_unchecked(source, ParseOptions::from(mode));
    let depth = deepest(&parsed, source);
    let program = lower(&parsed, source);
    if depth > MAX_NESTING {
        // The parser grows its stack as needed; dropping its result needs the same.
        stacker::grow(depth.saturating_mul(STACK_BYTES_PER_LEVEL) + (1 << 20), move || drop(parsed));
    }
    program
}

fn lower<'a>(parsed: &Parsed<ast::Mod>, source: &'a str) -> Result<Program<'a>, SyntaxError> {
    if let Some(error) = parsed.errors().first() {
        return Err(SyntaxError { message: error.error.to_string(), range: range(error.location) });
    }
    let tokens = parsed.tokens().iter();
    let comments =
        tokens.filter(|token| token.kind() == TokenKind::Comment).map(|token| range(token.range())).collect();
    let ast::Mod::Module(module) = parsed.syntax() else {
        return Ok(Program { body: Vec::new(), comments });
    };
    let lowering = RuffLowering { source };
    Ok(Program { body: lowering.body(&module.body, MAX_NESTING), comments })
}

/// Returns an upper bound for the depth of expressions: the tokens of one item of each open bracket, summed
/// over the brackets.
fn deepest(parsed: &Parsed<ast::Mod>, source: &str) -> usize {
    // A text of this length cannot be deeper than an ordinary stack allows.
    if source.len() <= 4 * MAX_NESTING {
        return 0;
    }
    let (mut items, mut depth, mut deepest): (Vec<usize>, usize, usize) = (vec![0], 0, 0);
    for token in parsed.tokens().iter() {
        let item = match token.kind() {
            TokenKind::Lpar | TokenKind::Lsqb | TokenKind::Lbrace => {
                items.push(0);
                0
            }
            TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace if items.len() > 1 => {
                depth -= items.pop().unwrap_or(0);
                0
            }
            TokenKind::Comma | TokenKind::Newline | TokenKind::Semi => {
                depth -= items.last_mut().map_or(0, std::mem::take);
                0
            }
            TokenKind::Comment | TokenKind::NonLogicalNewline => 0,
            _ => 1,
        };
        // A bracket is a level of its own, and part of the item that contains it.
        let item = item.max(1);
        if let Some(last) = items.last_mut() {
            *last += item;
        }
        depth += item;
        deepest = deepest.max(depth);
    }
    deepest
}

fn range(range: TextRange) -> SourceRange {
    SourceRange { start: range.start().to_u32(), end: range.end().to_u32() }
}

struct RuffLowering<'a> {
    source: &'a str,
}

impl<'a> RuffLowering<'a> {
    fn slice(&self, of: &impl Ranged) -> &'a str {
        self.source.get(range(of.range()).bytes()).unwrap_or("")
    }

    /// Returns the position before `def`: on the line of the name, because decorators are on other lines.
    fn definition(&self, def: &ast::StmtFunctionDef) -> SourceRange {
        let name = range(def.name.range()).start;
        let before = self.source.get(..name as usize).unwrap_or("");
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        let indent = before[line..].len() - before[line..].trim_start().len();
        let start = (line + indent) as u32;
        SourceRange { start, end: start }
    }

    fn body(&self, body: &[ast::Stmt], depth: usize) -> Body<'a> {
        let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
        body.iter().map(|stmt| self.stmt(stmt, depth)).collect()
    }

    fn stmt(&self, stmt: &ast::Stmt, depth: usize) -> Stmt<'a> {
        Stmt { range: range(stmt.range()), kind: self.stmt_kind(stmt, depth) }
    }

    fn stmt_kind(&self, stmt: &ast::Stmt, depth: usize) -> StmtKind<'a> {
        let expr = |of: &ast::Expr| self.expr(of, depth);
        let exprs = |of: &[ast::Expr]| of.iter().map(expr).collect::<Vec<_>>();
        let optional = |of: &Option<Box<ast::Expr>>| of.iter().map(|of| expr(of)).collect::<Vec<_>>();
        match stmt {
            ast::Stmt::FunctionDef(def) => StmtKind::Function(Box::new(self.function(def, depth))),
            ast::Stmt::ClassDef(def) => StmtKind::Class(Box::new(Class {
                name: self.slice(&def.name),
                bases: def.arguments.iter().flat_map(|arguments| exprs(&arguments.args)).collect(),
                body: self.body(&def.body, depth),
            })),
            ast::Stmt::Return(of) => StmtKind::Return(of.value.as_ref().map(|value| expr(value))),
            ast::Stmt::Delete(of) => StmtKind::Delete(exprs(&of.targets)),
            ast::Stmt::Assign(of) => StmtKind::Assign { targets: exprs(&of.targets), value: expr(&of.value) },
            ast::Stmt::AugAssign(of) => StmtKind::Augment {
                target: expr(&of.target),
                operator: operator(of.op),
                value: expr(&of.value),
            },
            ast::Stmt::AnnAssign(of) => match &of.value {
                Some(value) => StmtKind::Assign { targets: vec![expr(&of.target)], value: expr(value) },
                None => StmtKind::Nothing,
            },
            ast::Stmt::For(of) => StmtKind::For {
                target: expr(&of.target),
                iter: expr(&of.iter),
                body: self.body(&of.body, depth),
                otherwise: self.body(&of.orelse, depth),
            },
            ast::Stmt::While(of) => StmtKind::While {
                test: expr(&of.test),
                body: self.body(&of.body, depth),
                otherwise: self.body(&of.orelse, depth),
            },
            ast::Stmt::If(of) => {
                let first = (Some(expr(&of.test)), self.body(&of.body, depth));
                let others = of.elif_else_clauses.iter();
                let others =
                    others.map(|clause| (clause.test.as_ref().map(expr), self.body(&clause.body, depth)));
                StmtKind::If(std::iter::once(first).chain(others).collect())
            }
            ast::Stmt::With(of) => {
                let item = |item: &ast::WithItem| {
                    (expr(&item.context_expr), item.optional_vars.as_ref().map(|name| expr(name)))
                };
                StmtKind::With {
                    items: of.items.iter().map(item).collect(),
                    body: self.body(&of.body, depth),
                }
            }
            ast::Stmt::Match(of) => {
                // Each case is a branch; what a pattern binds is unknown.
                let subject = (Some(expr(&of.subject)), Vec::new());
                let cases = of.cases.iter().map(|case| (None, self.body(&case.body, depth)));
                StmtKind::If(std::iter::once(subject).chain(cases).collect())
            }
            ast::Stmt::Raise(of) => {
                StmtKind::Raise(optional(&of.exc).into_iter().chain(optional(&of.cause)).collect())
            }
            ast::Stmt::Try(of) => self.try_stmt(of, depth),
            ast::Stmt::Assert(of) => {
                StmtKind::Computes([expr(&of.test)].into_iter().chain(optional(&of.msg)).collect())
            }
            ast::Stmt::Import(of) => {
                StmtKind::Import(of.names.iter().map(|alias| self.import(alias)).collect())
            }
            ast::Stmt::ImportFrom(of) => self.import_from(of),
            ast::Stmt::Global(of) => StmtKind::Global(of.names.iter().map(|name| self.slice(name)).collect()),
            ast::Stmt::Nonlocal(of) => {
                StmtKind::Global(of.names.iter().map(|name| self.slice(name)).collect())
            }
            ast::Stmt::Expr(of) => StmtKind::Expr(expr(&of.value)),
            ast::Stmt::Break(_) => StmtKind::Break,
            ast::Stmt::Continue(_) => StmtKind::Continue,
            ast::Stmt::Pass(_) | ast::Stmt::TypeAlias(_) | ast::Stmt::IpyEscapeCommand(_) => {
                StmtKind::Nothing
            }
        }
    }

    fn function(&self, def: &ast::StmtFunctionDef, depth: usize) -> Function<'a> {
        let expr = |of: &ast::Expr| self.expr(of, depth);
        Function {
            name: self.slice(&def.name),
            parameters: self.parameters(&def.parameters, depth),
            decorators: def.decorator_list.iter().map(|of| expr(&of.expression)).collect(),
            returns: def.returns.as_ref().map(|of| expr(of)),
            body: self.body(&def.body, depth),
            is_async: def.is_async,
            starts: self.definition(def),
        }
    }

    fn try_stmt(&self, of: &ast::StmtTry, depth: usize) -> StmtKind<'a> {
        let handler = |handler: &ast::ExceptHandler| {
            let ast::ExceptHandler::ExceptHandler(handler) = handler;
            Handler {
                catches: handler.type_.as_ref().map(|of| self.expr(of, depth)),
                name: handler.name.as_ref().map(|name| self.slice(name)),
                body: self.body(&handler.body, depth),
            }
        };
        StmtKind::Try {
            body: self.body(&of.body, depth),
            handlers: of.handlers.iter().map(handler).collect(),
            otherwise: self.body(&of.orelse, depth),
            finally: self.body(&of.finalbody, depth),
        }
    }

    fn import(&self, alias: &ast::Alias) -> Import<'a> {
        let path = self.slice(&alias.name);
        let first = path.split('.').next().unwrap_or(path);
        match &alias.asname {
            Some(name) => Import { binds: self.slice(name), path: path.to_owned() },
            None => Import { binds: first, path: first.to_owned() },
        }
    }

    fn import_from(&self, of: &ast::StmtImportFrom) -> StmtKind<'a> {
        let module = of.module.as_ref().map_or("", |module| self.slice(module));
        let module = format!("{}{module}", ".".repeat(of.level.min(8) as usize));
        // `from . import a` is `.a`, `from .a import b` is `.a.b`.
        let dot = if module.ends_with('.') { "" } else { "." };
        let import = |alias: &ast::Alias| {
            let name = self.slice(&alias.name);
            let binds = alias.asname.as_ref().map_or(name, |name| self.slice(name));
            Import { binds, path: format!("{module}{dot}{name}") }
        };
        StmtKind::Import(of.names.iter().map(import).collect())
    }

    fn parameters(&self, of: &ast::Parameters, depth: usize) -> Vec<Parameter<'a>> {
        let parameter = |of: &ast::Parameter, default: Option<&ast::Expr>| Parameter {
            name: self.slice(&of.name),
            annotation: of.annotation.as_ref().map(|of| self.expr(of, depth)),
            default: default.map(|of| self.expr(of, depth)),
        };
        let named = of.posonlyargs.iter().chain(&of.args);
        let named = named.map(|of| parameter(&of.parameter, of.default.as_deref()));
        let rest = of.vararg.iter().map(|of| parameter(of, None));
        let keyword_only = of.kwonlyargs.iter().map(|of| parameter(&of.parameter, of.default.as_deref()));
        named.chain(rest).chain(keyword_only).chain(of.kwarg.iter().map(|of| parameter(of, None))).collect()
    }

    fn expr(&self, expr: &ast::Expr, depth: usize) -> Expr<'a> {
        let kind = match depth.checked_sub(1) {
            Some(depth) => self.expr_kind(expr, depth),
            None => ExprKind::Other,
        };
        Expr { range: range(expr.range()), kind }
    }

    fn expr_kind(&self, of: &ast::Expr, depth: usize) -> ExprKind<'a> {
        let expr = |of: &ast::Expr| self.expr(of, depth);
        let boxed = |of: &ast::Expr| Box::new(self.expr(of, depth));
        let exprs = |of: &[ast::Expr]| of.iter().map(expr).collect::<Vec<_>>();
        let comprehension = |kind, elements: &[&ast::Expr], generators: &[ast::Comprehension]| {
            ExprKind::Comprehension(Box::new(Comprehension {
                kind,
                elements: elements.iter().map(|of| expr(of)).collect(),
                generators: generators.iter().map(|of| self.generator(of, depth)).collect(),
            }))
        };
        match of {
            ast::Expr::Name(_) => ExprKind::Name(self.slice(of)),
            ast::Expr::Attribute(of) => ExprKind::Attribute(boxed(&of.value), self.slice(&of.attr)),
            ast::Expr::Call(of) => {
                let keyword = |keyword: &ast::Keyword| Keyword {
                    name: keyword.arg.as_ref().map(|name| self.slice(name)),
                    value: expr(&keyword.value),
                    range: range(keyword.range()),
                };
                ExprKind::Call(Box::new(CallExpr {
                    callee: expr(&of.func),
                    args: exprs(&of.arguments.args),
                    keywords: of.arguments.keywords.iter().map(keyword).collect(),
                }))
            }
            ast::Expr::Subscript(of) => ExprKind::Subscript(boxed(&of.value), boxed(&of.slice)),
            ast::Expr::Slice(_) => ExprKind::Slice,
            ast::Expr::Tuple(of) => ExprKind::Sequence(Sequence::Tuple, exprs(&of.elts)),
            ast::Expr::List(of) => ExprKind::Sequence(Sequence::List, exprs(&of.elts)),
            ast::Expr::Set(of) => ExprKind::Sequence(Sequence::Set, exprs(&of.elts)),
            ast::Expr::Dict(of) => ExprKind::Dict(
                of.items.iter().map(|item| (item.key.as_ref().map(expr), expr(&item.value))).collect(),
            ),
            ast::Expr::ListComp(of) => comprehension(Produces::Collection, &[&of.elt], &of.generators),
            ast::Expr::SetComp(of) => comprehension(Produces::Collection, &[&of.elt], &of.generators),
            ast::Expr::Generator(of) => comprehension(Produces::Iterator, &[&of.elt], &of.generators),
            ast::Expr::DictComp(of) => {
                let elements: Vec<&ast::Expr> = of.key.as_deref().into_iter().chain([&*of.value]).collect();
                comprehension(Produces::Collection, &elements, &of.generators)
            }
            ast::Expr::Lambda(of) => ExprKind::Lambda(Box::new(Lambda {
                parameters: of.parameters.as_ref().map_or_else(Vec::new, |of| self.parameters(of, depth)),
                body: expr(&of.body),
            })),
            ast::Expr::BinOp(of) => {
                ExprKind::Binary(operator(of.op), Box::new([expr(&of.left), expr(&of.right)]))
            }
            ast::Expr::UnaryOp(of) if of.op == ast::UnaryOp::Not => ExprKind::Not(boxed(&of.operand)),
            ast::Expr::UnaryOp(of) => ExprKind::Sign(boxed(&of.operand)),
            ast::Expr::BoolOp(of) => ExprKind::Either(exprs(&of.values)),
            ast::Expr::Compare(of) => {
                ExprKind::Compare(std::iter::once(expr(&of.left)).chain(exprs(&of.comparators)).collect())
            }
            ast::Expr::If(of) => {
                ExprKind::Conditional(Box::new([expr(&of.test), expr(&of.body), expr(&of.orelse)]))
            }
            ast::Expr::Named(of) => ExprKind::Walrus(Box::new([expr(&of.target), expr(&of.value)])),
            ast::Expr::Await(of) => ExprKind::Through(boxed(&of.value)),
            ast::Expr::Starred(of) => ExprKind::Through(boxed(&of.value)),
            ast::Expr::Yield(of) => ExprKind::Yield(of.value.as_ref().map(|of| boxed(of))),
            ast::Expr::YieldFrom(of) => ExprKind::Yield(Some(boxed(&of.value))),
            ast::Expr::FString(of) => {
                let parts = of.value.elements().filter_map(|part| part.as_interpolation());
                ExprKind::Format(parts.map(|part| expr(&part.expression)).collect())
            }
            ast::Expr::StringLiteral(_) => ExprKind::Literal(Literal::Text(self.slice(of))),
            ast::Expr::NumberLiteral(_) => ExprKind::Literal(Literal::Number(self.slice(of))),
            ast::Expr::BooleanLiteral(of) => {
                ExprKind::Literal(if of.value { Literal::True } else { Literal::False })
            }
            ast::Expr::NoneLiteral(_) => ExprKind::Literal(Literal::None),
            ast::Expr::BytesLiteral(_) | ast::Expr::EllipsisLiteral(_) => ExprKind::Literal(Literal::Other),
            ast::Expr::TString(_) | ast::Expr::IpyEscapeCommand(_) => ExprKind::Other,
        }
    }

    fn generator(&self, of: &ast::Comprehension, depth: usize) -> Generator<'a> {
        Generator {
            target: self.expr(&of.target, depth),
            iter: self.expr(&of.iter, depth),
            conditions: of.ifs.iter().map(|of| self.expr(of, depth)).collect(),
        }
    }
}

fn operator(of: ast::Operator) -> Operator {
    match of {
        ast::Operator::Add => Operator::Add,
        ast::Operator::Mod => Operator::Modulo,
        _ => Operator::Other,
    }
}
