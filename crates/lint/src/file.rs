//! Definitions of a file: imports, functions, classes, and how its names are used.

use crate::torch;
use crate::tree::{
    Body, CallExpr, Class, Expr, ExprKind, Function, Literal, SourceRange, Stmt, StmtKind, walk,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;

/// Function of the file; 0 is the module itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct FunctionId(pub(crate) usize);

impl FunctionId {
    pub(crate) const MODULE: FunctionId = FunctionId(0);
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClassId(pub(crate) usize);

/// Parsed file with its names.
pub(crate) struct PythonFile<'t, 'a> {
    pub(crate) source: &'a str,
    pub(crate) body: &'t Body<'a>,
    pub(crate) functions: Vec<Defined<'t, 'a>>,
    pub(crate) classes: Vec<DefinedClass<'t, 'a>>,
    imports: FxHashMap<&'a str, &'t str>,
    /// Whether a name is bound anywhere to something else than a module, for those that were asked about.
    pub(crate) bound_elsewhere: RefCell<FxHashMap<(String, String), bool>>,
    /// Whether PyTorch or a library on top of it is imported.
    imports_torch: bool,
    /// Names on which a method is called that only modules have: `model` of `model.eval()`.
    modules: FxHashSet<&'a str>,
    /// Names on which `eval()` or `train()` is called.
    switched: FxHashSet<&'a str>,
    /// Names of models whose parameters are frozen somewhere: `net.requires_grad_(False)`.
    frozen: FxHashSet<&'a str>,
    /// Whether CUDA is mentioned at all.
    knows_cuda: bool,
    /// Whether `torch.set_grad_enabled(False)` applies to the whole file.
    gradients_are_off: bool,
    /// Every attribute and every keyword mentioned anywhere.
    mentioned: FxHashSet<&'a str>,
    /// Attributes and imports whose names indicate evaluation.
    evaluations: FxHashSet<&'a str>,
    functions_by_name: FxHashMap<&'a str, FunctionId>,
    classes_by_name: FxHashMap<&'a str, ClassId>,
}

/// Function with its enclosing scope.
pub(crate) struct Defined<'t, 'a> {
    /// `None` for the module.
    pub(crate) function: Option<&'t Function<'a>>,
    pub(crate) range: SourceRange,
    pub(crate) class: Option<ClassId>,
    pub(crate) parent: FunctionId,
}

pub(crate) struct DefinedClass<'t, 'a> {
    pub(crate) class: &'t Class<'a>,
    pub(crate) kind: ClassKind,
    methods: FxHashMap<&'a str, FunctionId>,
}

/// Kind of a class, according to its bases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClassKind {
    /// `torch.nn.Module`.
    Module,
    /// `LightningModule`: validation, test and prediction steps run without gradients.
    Lightning,
    /// `torch.autograd.Function`.
    Function,
    Dataset,
    Plain,
}

impl ClassKind {
    pub(crate) fn is_module(self) -> bool {
        matches!(self, ClassKind::Module | ClassKind::Lightning)
    }
}

impl<'t, 'a> PythonFile<'t, 'a> {
    pub(crate) fn new(source: &'a str, body: &'t Body<'a>) -> PythonFile<'t, 'a> {
        let whole = SourceRange { start: 0, end: source.len() as u32 };
        let module = Defined { function: None, range: whole, class: None, parent: FunctionId::MODULE };
        let mut file = PythonFile {
            source,
            body,
            functions: vec![module],
            classes: Vec::new(),
            imports: FxHashMap::default(),
            bound_elsewhere: RefCell::default(),
            imports_torch: false,
            modules: FxHashSet::default(),
            switched: FxHashSet::default(),
            frozen: FxHashSet::default(),
            knows_cuda: memchr::memmem::find(source.as_bytes(), b"cuda").is_some(),
            gradients_are_off: false,
            mentioned: FxHashSet::default(),
            evaluations: FxHashSet::default(),
            functions_by_name: FxHashMap::default(),
            classes_by_name: FxHashMap::default(),
        };
        walk(body, &mut |stmt| file.note(stmt));
        let names = file.mentioned.iter().chain(file.imports.keys());
        file.evaluations =
            names.copied().filter(|name| *name != "eval" && torch::reads_as_evaluation(name)).collect();
        file.define(body, None, FunctionId::MODULE);
        let mut off = false;
        walk(body, &mut |stmt| off |= file.turns_gradients_off(stmt));
        file.gradients_are_off = off;
        file
    }

    /// Records imports, and what the expressions of a statement reveal about names.
    fn note(&mut self, stmt: &'t Stmt<'a>) {
        if let StmtKind::Import(imports) = &stmt.kind {
            const LIBRARIES: &[&str] = &["torch", "lightning", "transformers", "accelerate", "timm"];
            self.imports_torch |= imports.iter().any(|import| {
                let first = import.path.split('.').next().unwrap_or("");
                LIBRARIES.iter().any(|library| first.contains(library))
            });
            self.imports.extend(imports.iter().map(|import| (import.binds, import.path.as_str())));
        }
        self.note_frozen(stmt);
        for expr in stmt.expressions() {
            expr.any(&mut |part| {
                match &part.kind {
                    ExprKind::Attribute(_, name) => drop(self.mentioned.insert(name)),
                    ExprKind::Call(call) => {
                        self.mentioned.extend(call.keywords.iter().filter_map(|keyword| keyword.name));
                        if let Some((base, method)) = call.method()
                            && torch::MODULE_ONLY_METHODS.contains(&method)
                            && let Some(key) = key(self.source, base)
                        {
                            self.modules.insert(key);
                            if matches!(method, "eval" | "train") {
                                self.switched.insert(key);
                            }
                        }
                    }
                    _ => {}
                }
                false
            });
        }
    }

    /// Records models whose parameters this statement freezes.
    fn note_frozen(&mut self, stmt: &'t Stmt<'a>) {
        let source = self.source;
        let key = |expr: &Expr<'a>| key(source, expr);
        match &stmt.kind {
            // `for p in net.parameters(): p.requires_grad = False`
            StmtKind::For { iter, .. } if freezes(self.text(stmt.range)) => {
                let of = iter.as_call().and_then(CallExpr::method);
                let of = of.filter(|(_, method)| matches!(*method, "parameters" | "named_parameters"));
                self.frozen.extend(of.and_then(|(model, _)| key(model)));
            }
            // `net = Net().requires_grad_(False)`
            StmtKind::Assign { targets, value } if freezes(self.text(value.range)) => {
                self.frozen.extend(targets.iter().filter_map(key));
            }
            // `net.requires_grad_(False)`, `set_requires_grad(net, False)`, `freeze(net)`
            StmtKind::Expr(expr) => {
                let Some(call) = expr.as_call() else { return };
                let name = self.text(call.callee.range).rsplit('.').next().unwrap_or("");
                let turns_off = call.args.iter().any(|arg| arg.is(Literal::False));
                // `net.freeze_encoder()` freezes a part.
                let model = call.method().map(|(base, _)| base);
                let freezes = name == "freeze" || name.starts_with("freeze") && !call.args.is_empty();
                if freezes || name.contains("requires_grad") && turns_off {
                    self.frozen.extend(call.args.iter().chain(model).filter_map(key));
                }
            }
            _ => {}
        }
    }

    /// Returns whether the parameters of a model are frozen somewhere in the file.
    pub(crate) fn is_frozen(&self, model: &str) -> bool {
        self.frozen.contains(model)
    }

    fn turns_gradients_off(&self, stmt: &Stmt<'a>) -> bool {
        let StmtKind::Expr(expr) = &stmt.kind else { return false };
        expr.as_call().is_some_and(|call| {
            let is_off = call.argument("mode", 0).is_some_and(|arg| arg.is(Literal::False));
            is_off && self.path(&call.callee).is_some_and(|path| path.ends_with("set_grad_enabled"))
        })
    }

    pub(crate) fn knows_cuda(&self) -> bool {
        self.knows_cuda
    }

    pub(crate) fn gradients_are_off(&self) -> bool {
        self.gradients_are_off
    }

    fn define(&mut self, body: &'t [Stmt<'a>], class: Option<ClassId>, parent: FunctionId) {
        for stmt in body {
            match &stmt.kind {
                StmtKind::Function(function) => {
                    let id = FunctionId(self.functions.len());
                    self.functions.push(Defined {
                        function: Some(function),
                        range: stmt.range,
                        class,
                        parent,
                    });
                    match class {
                        Some(class) => drop(self.classes[class.0].methods.insert(function.name, id)),
                        None => drop(self.functions_by_name.insert(function.name, id)),
                    }
                    self.define(&function.body, None, id);
                }
                StmtKind::Class(found) => {
                    let id = ClassId(self.classes.len());
                    let kind = match self.kind_of(found) {
                        // A class with a base and a `forward` is most likely a module.
                        ClassKind::Plain if !found.bases.is_empty() && has_forward(found) => {
                            ClassKind::Module
                        }
                        kind => kind,
                    };
                    self.classes.push(DefinedClass { class: found, kind, methods: FxHashMap::default() });
                    self.classes_by_name.insert(found.name, id);
                    self.define(&found.body, Some(id), parent);
                }
                _ => stmt.bodies().into_iter().for_each(|inner| self.define(inner, class, parent)),
            }
        }
    }

    fn kind_of(&self, class: &Class<'a>) -> ClassKind {
        let of_base = |base: &Expr<'a>| {
            if let ExprKind::Name(name) = base.kind
                && let Some(&local) = self.classes_by_name.get(name)
            {
                return Some(self.classes[local.0].kind);
            }
            let path = self.path(base)?;
            torch::kind_of_base(&path)
        };
        class.bases.iter().find_map(of_base).unwrap_or(ClassKind::Plain)
    }

    /// Returns `a`, `a.b` or `self.a.b` as written; nothing else has a key.
    pub(crate) fn key(&self, expr: &Expr<'a>) -> Option<&'a str> {
        key(self.source, expr)
    }

    pub(crate) fn text(&self, range: SourceRange) -> &'a str {
        self.source.get(range.bytes()).unwrap_or("")
    }

    /// Resolves a name by the imports: `F.mse_loss` → `torch.nn.functional.mse_loss`.
    pub(crate) fn path(&self, expr: &Expr<'a>) -> Option<String> {
        let written = self.key(expr)?;
        let (first, rest) = written.split_once('.').unwrap_or((written, ""));
        let path = self.imports.get(first)?;
        Some(if rest.is_empty() { (*path).to_owned() } else { format!("{path}.{rest}") })
    }

    /// Iterates over the imports of the project itself, as far as they can be told apart: name and path.
    pub(crate) fn imports(&self) -> impl Iterator<Item = (&'a str, &'t str)> + '_ {
        let imports = self.imports.iter().map(|(name, path)| (*name, *path));
        // A file without functions is there to collect names, as `__init__.py` is.
        let collects = self.functions.len() == 1;
        imports.filter(move |(_, path)| path.starts_with('.') || collects && path.contains('.'))
    }

    /// Returns whether the file uses another framework instead of PyTorch.
    pub(crate) fn is_of_other_framework(&self) -> bool {
        let imports = |framework: &str| {
            self.imports.values().any(|path| path.split('.').next().is_some_and(|first| first == framework))
        };
        ["mxnet", "tensorflow", "jax", "paddle", "mindspore", "jittor"].into_iter().any(imports)
            && !self.imports_torch
    }

    /// Iterates over the names under which a module is imported anywhere in the file: `torch`, `th`.
    pub(crate) fn names_of<'n>(&'n self, path: &'n str) -> impl Iterator<Item = &'a str> + 'n {
        self.imports.iter().filter(move |(_, found)| **found == path).map(|(name, _)| *name)
    }

    /// Returns whether anything is imported from a module: `from torch.optim import Adam`.
    pub(crate) fn imports_from(&self, module: &str) -> bool {
        self.imports.values().any(|path| path.strip_prefix(module).is_some_and(|rest| rest.starts_with('.')))
    }

    /// Returns whether a class has a base that neither the file nor PyTorch defines.
    pub(crate) fn has_unknown_base(&self, class: &DefinedClass<'t, 'a>) -> bool {
        let is_known = |base: &Expr<'a>| match base.kind {
            ExprKind::Name("object" | "ABC" | "Protocol") => true,
            ExprKind::Name(name) if self.classes_by_name.contains_key(name) => true,
            _ => self.path(base).is_some_and(|path| path.starts_with("torch.")),
        };
        !class.class.bases.iter().all(is_known)
    }

    /// Returns whether an attribute or keyword of this name is anywhere in the file.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.mentioned.contains(name)
    }

    /// Returns whether an attribute or import of the file has a name that indicates evaluation.
    pub(crate) fn is_evaluation(&self, name: &str) -> bool {
        self.evaluations.contains(name)
    }

    /// Returns whether a name may come from `from x import *`.
    pub(crate) fn is_from_star(&self, name: &str) -> bool {
        self.imports.contains_key("*")
            && !self.imports.contains_key(name)
            && !self.functions_by_name.contains_key(name)
    }

    /// Returns whether a name is used as a module somewhere, or is a usual name of one.
    pub(crate) fn is_module_name(&self, key: &str) -> bool {
        self.modules.contains(key) || torch::reads_as_module(key)
    }

    /// Returns whether `eval()` or `train()` is called on a name somewhere.
    pub(crate) fn is_switched(&self, key: &str) -> bool {
        self.switched.contains(key)
    }

    pub(crate) fn function_named(&self, name: &str) -> Option<FunctionId> {
        self.functions_by_name.get(name).copied()
    }

    pub(crate) fn class_named(&self, name: &str) -> Option<ClassId> {
        self.classes_by_name.get(name).copied()
    }

    pub(crate) fn method(&self, class: ClassId, name: &str) -> Option<FunctionId> {
        self.classes[class.0].methods.get(name).copied()
    }

    pub(crate) fn class_of(&self, function: FunctionId) -> Option<&DefinedClass<'t, 'a>> {
        // A function inside a method has the method's `self`.
        let mut at = function;
        loop {
            let defined = &self.functions[at.0];
            if let Some(class) = defined.class {
                return self.classes.get(class.0);
            }
            if at == FunctionId::MODULE {
                return None;
            }
            at = defined.parent;
        }
    }

    pub(crate) fn name_of(&self, function: FunctionId) -> &'a str {
        self.functions[function.0].function.map_or("", |function| function.name)
    }

    pub(crate) fn body_of(&self, function: FunctionId) -> &'t [Stmt<'a>] {
        self.functions[function.0].function.map_or(self.body, |function| &function.body)
    }
}

fn key<'a>(source: &'a str, expr: &Expr<'a>) -> Option<&'a str> {
    let mut at = expr;
    loop {
        match &at.kind {
            ExprKind::Name(_) => return source.get(expr.range.bytes()),
            ExprKind::Attribute(base, _) => at = base,
            _ => return None,
        }
    }
}

/// Returns whether a piece of source sets `requires_grad` to `False`.
pub(crate) fn freezes(text: &str) -> bool {
    let mut after = memchr::memmem::find_iter(text.as_bytes(), "requires_grad").map(|at| &text[at..]);
    let settings = ["requires_grad = False", "requires_grad=False", "requires_grad_(False)"];
    after.any(|rest| settings.iter().any(|setting| rest.starts_with(setting)))
}

fn has_forward(class: &Class<'_>) -> bool {
    class
        .body
        .iter()
        .any(|stmt| matches!(&stmt.kind, StmtKind::Function(function) if function.name == "forward"))
}

/// Returns whether an expression is `True`.
pub(crate) fn is_true(expr: &Expr<'_>) -> bool {
    expr.is(Literal::True)
}
