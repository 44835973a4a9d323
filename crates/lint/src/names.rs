//! Meaning of names at a position: whether inserted code finds what it refers to.

use crate::file::{FunctionId, PythonFile};
use crate::tree::{Body, Expr, ExprKind, Stmt, StmtKind, walk};

impl<'a> PythonFile<'_, 'a> {
    /// Returns the name under which a module can be used where this function is defined and inside of it:
    /// `torch`, `th`.
    pub(crate) fn name_for(&self, path: &str, at: FunctionId) -> Option<&'a str> {
        let mut names: Vec<&'a str> = self.names_of(path).collect();
        names.sort_unstable();
        names.into_iter().find(|name| self.resolves(name, path, at))
    }

    /// Returns whether a name always means this module where the function is defined and inside of it: it is
    /// imported by a plain statement of the file before the function, and nothing else binds it, there or in
    /// a scope in between. An import under a condition, in a `try`, or for type checkers only, is not enough.
    pub(crate) fn resolves(&self, name: &str, path: &str, at: FunctionId) -> bool {
        let function = self.functions[at.0].range;
        let imports = |stmt: &Stmt<'a>| match &stmt.kind {
            StmtKind::Import(list) => list.iter().any(|one| one.binds == name && one.path == path),
            _ => false,
        };
        let is_imported = self.body.iter().any(|stmt| imports(stmt) && stmt.range.end <= function.start);
        is_imported && !(self.is_bound_elsewhere(name, path) && self.is_rebound(self.body, name, path, at))
    }

    /// Returns whether anything in the file binds the name to something else. If not, no scope has to be
    /// looked at.
    fn is_bound_elsewhere(&self, name: &str, path: &str) -> bool {
        *self.bound_elsewhere.borrow_mut().entry((name.to_owned(), path.to_owned())).or_insert_with(|| {
            let mut is_bound = false;
            walk(self.body, &mut |stmt| {
                is_bound |= binds_elsewhere(stmt, name, path) || has_parameter(stmt, name);
            });
            is_bound
        })
    }

    /// Returns whether anything in this scope, or in one between it and the function or inside the function,
    /// binds the name to something else.
    fn is_rebound(&self, body: &Body<'a>, name: &str, path: &str, at: FunctionId) -> bool {
        let function = self.functions[at.0].range;
        body.iter().any(|stmt| {
            let here = binds_elsewhere(stmt, name, path);
            let is_inner_scope = matches!(stmt.kind, StmtKind::Function(_) | StmtKind::Class(_));
            if is_inner_scope && !stmt.range.contains(function) && !function.contains(stmt.range) {
                // Another scope, whose names are its own unless it declares them global.
                return here || declares_global(stmt, name);
            }
            here || has_parameter(stmt, name)
                || stmt.bodies().into_iter().any(|inner| self.is_rebound(inner, name, path, at))
        })
    }
}

/// Returns whether a statement itself binds a name to something else than this module.
fn binds_elsewhere(stmt: &Stmt<'_>, name: &str, path: &str) -> bool {
    match &stmt.kind {
        // `import torch.nn` binds `torch` to `torch`. What a star import binds is unknown.
        StmtKind::Import(list) => {
            list.iter().any(|one| one.binds == "*" || one.binds == name && one.path != path)
        }
        _ => binds(stmt, name),
    }
}

/// Returns whether a statement itself, without nested statements, binds or deletes a name.
pub(crate) fn binds(stmt: &Stmt<'_>, name: &str) -> bool {
    let is_target = |expr: &Expr<'_>| is_target(expr, name);
    let by_kind = match &stmt.kind {
        StmtKind::Assign { targets, .. } | StmtKind::Delete(targets) => targets.iter().any(is_target),
        StmtKind::Augment { target, .. } | StmtKind::For { target, .. } => is_target(target),
        StmtKind::With { items, .. } => items.iter().filter_map(|(_, name)| name.as_ref()).any(is_target),
        StmtKind::Try { handlers, .. } => handlers.iter().any(|handler| handler.name == Some(name)),
        StmtKind::Function(function) => function.name == name,
        StmtKind::Class(class) => class.name == name,
        StmtKind::Import(list) => list.iter().any(|one| one.binds == name),
        StmtKind::Global(names) => names.contains(&name),
        _ => false,
    };
    let walrus = |part: &Expr<'_>| matches!(&part.kind, ExprKind::Walrus(sides) if is_target(&sides[0]));
    by_kind || stmt.expressions().into_iter().any(|expr| expr.any(&mut |part| walrus(part)))
}

/// Returns whether a statement defines a function with such a parameter.
pub(crate) fn has_parameter(stmt: &Stmt<'_>, name: &str) -> bool {
    matches!(&stmt.kind, StmtKind::Function(function)
        if function.parameters.iter().any(|parameter| parameter.name == name))
}

/// Returns whether an assignment to this expression binds the name.
fn is_target(expr: &Expr<'_>, name: &str) -> bool {
    match &expr.kind {
        ExprKind::Name(found) => *found == name,
        ExprKind::Sequence(_, items) => items.iter().any(|item| is_target(item, name)),
        ExprKind::Through(of) => is_target(of, name),
        _ => false,
    }
}

/// Matches `global torch` in a function that does not enclose the position.
fn declares_global(stmt: &Stmt<'_>, name: &str) -> bool {
    matches!(&stmt.kind, StmtKind::Global(names) if names.contains(&name))
        || stmt.bodies().into_iter().flatten().any(|inner| declares_global(inner, name))
}
