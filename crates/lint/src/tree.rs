//! Python program as the rules see it: small, borrowed from the source, without what no rule needs.

use std::ops::Range as ByteRange;

/// Range of the source, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SourceRange {
    /// First byte.
    pub start: u32,
    /// End, exclusive.
    pub end: u32,
}

impl SourceRange {
    pub(crate) fn bytes(self) -> ByteRange<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn contains(self, other: SourceRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the empty range before this one.
    pub(crate) fn before(self) -> SourceRange {
        SourceRange { start: self.start, end: self.start }
    }

    /// Returns the empty range after this one.
    pub(crate) fn after(self) -> SourceRange {
        SourceRange { start: self.end, end: self.end }
    }
}

pub(crate) type Body<'a> = Vec<Stmt<'a>>;

#[derive(Debug)]
pub(crate) struct Expr<'a> {
    pub(crate) range: SourceRange,
    pub(crate) kind: ExprKind<'a>,
}

#[derive(Debug)]
pub(crate) enum ExprKind<'a> {
    Name(&'a str),
    Attribute(Box<Expr<'a>>, &'a str),
    Call(Box<CallExpr<'a>>),
    Subscript(Box<Expr<'a>>, Box<Expr<'a>>),
    /// `a:b:c`.
    Slice,
    Literal(Literal<'a>),
    /// Tuples, lists and sets.
    Sequence(Sequence, Vec<Expr<'a>>),
    /// A missing key means `**`.
    Dict(Vec<(Option<Expr<'a>>, Expr<'a>)>),
    Comprehension(Box<Comprehension<'a>>),
    Lambda(Box<Lambda<'a>>),
    /// Arithmetic.
    Binary(Operator, Box<[Expr<'a>; 2]>),
    Not(Box<Expr<'a>>),
    /// `-x`, `+x`, `~x`.
    Sign(Box<Expr<'a>>),
    Compare(Vec<Expr<'a>>),
    /// `a and b`, `a or b`: one of them.
    Either(Vec<Expr<'a>>),
    Conditional(Box<[Expr<'a>; 3]>),
    Walrus(Box<[Expr<'a>; 2]>),
    /// `*x`, `await x`.
    Through(Box<Expr<'a>>),
    Yield(Option<Box<Expr<'a>>>),
    /// Parts of an f-string.
    Format(Vec<Expr<'a>>),
    /// Expression nested deeper than in any real program.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sequence {
    Tuple,
    List,
    Set,
}

/// Operators that rules distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operator {
    Add,
    Modulo,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Literal<'a> {
    None,
    True,
    False,
    Number(&'a str),
    /// With its quotes and prefix.
    Text(&'a str),
    Other,
}

#[derive(Debug)]
pub(crate) struct CallExpr<'a> {
    pub(crate) callee: Expr<'a>,
    pub(crate) args: Vec<Expr<'a>>,
    /// A missing name means `**`.
    pub(crate) keywords: Vec<Keyword<'a>>,
}

#[derive(Debug)]
pub(crate) struct Keyword<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) value: Expr<'a>,
    /// Including the name.
    pub(crate) range: SourceRange,
}

#[derive(Debug)]
pub(crate) struct Comprehension<'a> {
    pub(crate) kind: Produces,
    /// The element, or a key and a value.
    pub(crate) elements: Vec<Expr<'a>>,
    pub(crate) generators: Vec<Generator<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Produces {
    Collection,
    Iterator,
}

#[derive(Debug)]
pub(crate) struct Generator<'a> {
    pub(crate) target: Expr<'a>,
    pub(crate) iter: Expr<'a>,
    pub(crate) conditions: Vec<Expr<'a>>,
}

#[derive(Debug)]
pub(crate) struct Lambda<'a> {
    pub(crate) parameters: Vec<Parameter<'a>>,
    pub(crate) body: Expr<'a>,
}

#[derive(Debug)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: &'a str,
    pub(crate) annotation: Option<Expr<'a>>,
    pub(crate) default: Option<Expr<'a>>,
}

#[derive(Debug)]
pub(crate) struct Stmt<'a> {
    pub(crate) range: SourceRange,
    pub(crate) kind: StmtKind<'a>,
}

#[derive(Debug)]
pub(crate) enum StmtKind<'a> {
    /// An annotation without a value assigns nothing and is left out.
    Assign {
        targets: Vec<Expr<'a>>,
        value: Expr<'a>,
    },
    Augment {
        target: Expr<'a>,
        operator: Operator,
        value: Expr<'a>,
    },
    Expr(Expr<'a>),
    Return(Option<Expr<'a>>),
    Raise(Vec<Expr<'a>>),
    Delete(Vec<Expr<'a>>),
    /// Branches with their conditions; `else` has none.
    If(Vec<(Option<Expr<'a>>, Body<'a>)>),
    For {
        target: Expr<'a>,
        iter: Expr<'a>,
        body: Body<'a>,
        otherwise: Body<'a>,
    },
    While {
        test: Expr<'a>,
        body: Body<'a>,
        otherwise: Body<'a>,
    },
    With {
        items: Vec<(Expr<'a>, Option<Expr<'a>>)>,
        body: Body<'a>,
    },
    Try {
        body: Body<'a>,
        handlers: Vec<Handler<'a>>,
        otherwise: Body<'a>,
        finally: Body<'a>,
    },
    Function(Box<Function<'a>>),
    Class(Box<Class<'a>>),
    Import(Vec<Import<'a>>),
    Global(Vec<&'a str>),
    Break,
    Continue,
    /// `assert`, the subject of `match`, …: expressions that are evaluated.
    Computes(Vec<Expr<'a>>),
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Handler<'a> {
    pub(crate) catches: Option<Expr<'a>>,
    pub(crate) name: Option<&'a str>,
    pub(crate) body: Body<'a>,
}

#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: Vec<Parameter<'a>>,
    pub(crate) decorators: Vec<Expr<'a>>,
    pub(crate) returns: Option<Expr<'a>>,
    pub(crate) body: Body<'a>,
    pub(crate) is_async: bool,
    /// Position of `def` or `async`, after any decorators.
    pub(crate) starts: SourceRange,
}

#[derive(Debug)]
pub(crate) struct Class<'a> {
    pub(crate) name: &'a str,
    pub(crate) bases: Vec<Expr<'a>>,
    pub(crate) body: Body<'a>,
}

/// `import a.b as c` binds `c` to `a.b`; `import a.b` binds `a` to `a`.
#[derive(Debug)]
pub(crate) struct Import<'a> {
    pub(crate) binds: &'a str,
    pub(crate) path: String,
}

impl<'a> Expr<'a> {
    pub(crate) fn as_call(&self) -> Option<&CallExpr<'a>> {
        match &self.kind {
            ExprKind::Call(call) => Some(call),
            _ => None,
        }
    }

    pub(crate) fn is(&self, literal: Literal<'_>) -> bool {
        matches!(self.kind, ExprKind::Literal(found) if found == literal)
    }

    /// Returns the content of a plain string literal.
    pub(crate) fn text(&self) -> Option<&'a str> {
        match self.kind {
            ExprKind::Literal(Literal::Text(quoted)) => {
                let unquoted = quoted.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
                Some(unquoted.trim_matches(['"', '\'']))
            }
            _ => None,
        }
    }

    /// Returns the direct subexpressions, without bodies of lambdas.
    pub(crate) fn children(&self) -> Vec<&Expr<'a>> {
        let mut children = Vec::new();
        self.any_child(&mut |child| {
            children.push(child);
            false
        });
        children
    }

    /// Returns whether a direct subexpression satisfies `is`, without bodies of lambdas.
    fn any_child<'t>(&'t self, is: &mut dyn FnMut(&'t Expr<'a>) -> bool) -> bool {
        match &self.kind {
            ExprKind::Name(_) | ExprKind::Slice | ExprKind::Literal(_) | ExprKind::Other => false,
            ExprKind::Attribute(of, _) | ExprKind::Not(of) | ExprKind::Sign(of) | ExprKind::Through(of) => {
                is(of)
            }
            ExprKind::Call(call) => {
                let mut keywords = call.keywords.iter().map(|keyword| &keyword.value);
                is(&call.callee) || call.args.iter().any(&mut *is) || keywords.any(is)
            }
            ExprKind::Subscript(base, index) => is(base) || is(index),
            ExprKind::Sequence(_, items)
            | ExprKind::Compare(items)
            | ExprKind::Either(items)
            | ExprKind::Format(items) => items.iter().any(is),
            ExprKind::Dict(items) => {
                items.iter().any(|(key, value)| key.as_ref().is_some_and(&mut *is) || is(value))
            }
            ExprKind::Comprehension(of) => {
                let mut sources =
                    of.generators.iter().flat_map(|one| one.conditions.iter().chain([&one.iter]));
                of.elements.iter().any(&mut *is) || sources.any(is)
            }
            ExprKind::Lambda(lambda) => {
                lambda.parameters.iter().filter_map(|parameter| parameter.default.as_ref()).any(is)
            }
            ExprKind::Binary(_, sides) | ExprKind::Walrus(sides) => sides.iter().any(is),
            ExprKind::Conditional(parts) => parts.iter().any(is),
            ExprKind::Yield(of) => of.as_deref().is_some_and(is),
        }
    }

    /// Returns whether this or any nested expression, bodies of lambdas included, satisfies `is`.
    pub(crate) fn any(&self, is: &mut dyn FnMut(&Expr<'a>) -> bool) -> bool {
        if is(self) {
            return true;
        }
        if let ExprKind::Lambda(lambda) = &self.kind
            && lambda.body.any(is)
        {
            return true;
        }
        self.any_child(&mut |child| child.any(is))
    }

    /// Returns whether a variable or attribute written like `key` is read in it.
    pub(crate) fn reads_key(&self, source: &str, key: &str) -> bool {
        self.any(&mut |part| {
            matches!(part.kind, ExprKind::Name(_) | ExprKind::Attribute(..))
                && source.get(part.range.bytes()) == Some(key)
        })
    }
}

impl<'a> CallExpr<'a> {
    pub(crate) fn keyword(&self, name: &str) -> Option<&Keyword<'a>> {
        self.keywords.iter().find(|keyword| keyword.name == Some(name))
    }

    /// Returns the argument of this name, or at this position.
    pub(crate) fn argument(&self, name: &str, place: usize) -> Option<&Expr<'a>> {
        self.keyword(name).map(|keyword| &keyword.value).or_else(|| self.args.get(place))
    }

    /// Returns whether arguments are hidden: `f(*a)` or `f(**a)`.
    pub(crate) fn hides_arguments(&self) -> bool {
        self.keywords.iter().any(|keyword| keyword.name.is_none())
            || self.args.iter().any(|arg| matches!(arg.kind, ExprKind::Through(_)))
    }

    /// Returns the last part of what is called: `append` of `self.history.append`.
    pub(crate) fn method(&self) -> Option<(&Expr<'a>, &'a str)> {
        match &self.callee.kind {
            ExprKind::Attribute(base, name) => Some((base, name)),
            _ => None,
        }
    }
}

/// Visits every statement of a body with those in it, functions and classes too, outermost first.
pub(crate) fn walk<'t, 'a>(body: &'t [Stmt<'a>], see: &mut dyn FnMut(&'t Stmt<'a>)) {
    for stmt in body {
        see(stmt);
        for inner in stmt.bodies() {
            walk(inner, see);
        }
    }
}

impl<'a> Stmt<'a> {
    /// Returns the bodies directly inside this statement.
    pub(crate) fn bodies(&self) -> Vec<&Body<'a>> {
        match &self.kind {
            StmtKind::If(branches) => branches.iter().map(|(_, body)| body).collect(),
            StmtKind::For { body, otherwise, .. } | StmtKind::While { body, otherwise, .. } => {
                vec![body, otherwise]
            }
            StmtKind::With { body, .. } => vec![body],
            StmtKind::Try { body, handlers, otherwise, finally } => {
                let handlers = handlers.iter().map(|handler| &handler.body);
                std::iter::once(body).chain(handlers).chain([otherwise, finally]).collect()
            }
            StmtKind::Function(function) => vec![&function.body],
            StmtKind::Class(class) => vec![&class.body],
            _ => Vec::new(),
        }
    }

    /// Returns the expressions directly inside this statement.
    pub(crate) fn expressions(&self) -> Vec<&Expr<'a>> {
        match &self.kind {
            StmtKind::Assign { targets, value } => targets.iter().chain([value]).collect(),
            StmtKind::Augment { target, value, .. } => vec![target, value],
            StmtKind::Expr(value) => vec![value],
            StmtKind::Return(value) => value.iter().collect(),
            StmtKind::Raise(values) | StmtKind::Delete(values) | StmtKind::Computes(values) => {
                values.iter().collect()
            }
            StmtKind::If(branches) => branches.iter().filter_map(|(test, _)| test.as_ref()).collect(),
            StmtKind::For { target, iter, .. } => vec![target, iter],
            StmtKind::While { test, .. } => vec![test],
            StmtKind::With { items, .. } => {
                items.iter().flat_map(|(of, name)| [of].into_iter().chain(name)).collect()
            }
            StmtKind::Try { handlers, .. } => {
                handlers.iter().filter_map(|handler| handler.catches.as_ref()).collect()
            }
            StmtKind::Function(function) => {
                let defaults = function.parameters.iter().filter_map(|parameter| parameter.default.as_ref());
                function.decorators.iter().chain(defaults).collect()
            }
            StmtKind::Class(class) => class.bases.iter().collect(),
            _ => Vec::new(),
        }
    }
}
