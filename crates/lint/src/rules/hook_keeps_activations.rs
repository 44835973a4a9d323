use crate::checked::Checked;
use crate::facts::{AbstractValue, CallFact, FunctionFacts, LoopId, TensorStore};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Rule};
use crate::severity::RuleSeverity;
use crate::tree::{Expr, ExprKind, SourceRange, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM107",
    name: "hook-keeps-activations",
    summary: "A forward hook appends the activations of every step to a list.",
    severity: RuleSeverity::High,
    why: "A hook runs on every forward pass, in training and evaluation alike. A list that it appends to and
that is never emptied holds the layer's activations of every step. `detach()` does not help: it drops the
graph, not the tensor.",
    costs: "The layer's output, every step, detached or not (measured: 1541 KiB per step either way). A
dictionary keyed by the layer's name holds one set and does not grow.",
    bad: "
activations = []
def hook(module, inputs, output):
    activations.append(output.detach())
model.layer4.register_forward_hook(hook)
",
    good: "
activations = {}
def hook(module, inputs, output):
    activations['layer4'] = output.detach()
model.layer4.register_forward_hook(hook)
",
    check,
};

fn check(checked: &Checked<'_, '_, '_>, found: &mut Vec<Diagnostic>) {
    for (facts, call) in checked.calls() {
        let Some((_, name)) = call.call.method() else { continue };
        if !matches!(name, "register_forward_hook" | "register_forward_pre_hook") {
            continue;
        }
        // Hooks that are removed in the same function exist for one pass only.
        if facts.id != FunctionId::MODULE && facts.calls.iter().any(|other| other.method_is("remove")) {
            continue;
        }
        if is_removed(checked, facts, call) || runs_once(checked, facts) {
            continue;
        }
        let Some(hook) = call.call.args.first() else { continue };
        match hook_of(checked, facts, call, hook) {
            Some(Hook::Function(id)) => in_function(checked, id, found),
            Some(Hook::Lambda(body)) => in_lambda(checked, body, found),
            None => {}
        }
    }
}

/// Returns whether the handle of a hook is given to the caller, or removed before any step.
fn is_removed(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>, call: &CallFact<'_, '_>) -> bool {
    let registered = call.expr.range;
    let mut handle = None;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        if let StmtKind::Assign { targets, value } = &stmt.kind
            && value.range == registered
        {
            handle = targets.first().and_then(|target| checked.file.key(target));
        }
    });
    let Some(handle) = handle else { return false };
    let mut is_returned = false;
    walk(checked.file.body_of(facts.id), &mut |stmt| {
        is_returned |= matches!(&stmt.kind, StmtKind::Return(Some(value))
            if value.reads_key(checked.file.source, handle));
    });
    let removes = |call: &&CallFact<'_, '_>| {
        let of = call.call.method().filter(|(_, method)| *method == "remove").map(|(base, _)| base);
        of.and_then(|base| checked.file.key(base)) == Some(handle)
    };
    let removed = facts.calls.iter().filter(removes).map(|call| call.expr.range.start).min();
    let has_step_before = |end: u32| {
        let mut loops = (0..facts.loops.len()).map(LoopId);
        loops.any(|id| {
            let begins = facts.loops[id.0].range.start;
            (registered.start..end).contains(&begins) && checked.is_step_loop(facts, id)
        })
    };
    is_returned || removed.is_some_and(|end| !has_step_before(end))
}

/// Returns whether a script registers a hook and then runs its models a fixed number of times, not in a loop.
fn runs_once(checked: &Checked<'_, '_, '_>, facts: &FunctionFacts<'_, '_>) -> bool {
    let in_loop = |facts: &FunctionFacts<'_, '_>| {
        facts.forwards.iter().any(|(_, _, at)| at.in_loop.is_some())
            || facts.loops.iter().any(|of| of.over_batches)
    };
    facts.id == FunctionId::MODULE
        && !facts.forwards.is_empty()
        && !checked.trains()
        && !checked.facts.iter().any(in_loop)
}

enum Hook<'x, 'a> {
    Function(FunctionId),
    Lambda(&'x Expr<'a>),
}

/// Returns the function behind `hook`, `self.hook`, `make_hook(name)` or a lambda.
fn hook_of<'x, 't, 'a>(
    checked: &Checked<'_, 't, 'a>,
    facts: &FunctionFacts<'t, 'a>,
    call: &CallFact<'t, 'a>,
    hook: &'x Expr<'a>,
) -> Option<Hook<'x, 'a>> {
    match (&hook.kind, call.args.first()?) {
        (ExprKind::Lambda(lambda), _) => Some(Hook::Lambda(&lambda.body)),
        (_, AbstractValue::Function(id)) => Some(Hook::Function(*id)),
        (ExprKind::Call(made), _) => {
            let name = match made.callee.kind {
                ExprKind::Name(name) | ExprKind::Attribute(_, name) => name,
                _ => return None,
            };
            let class = checked.file.class_of(facts.id).map(|class| class.class.name);
            let maker = checked.file.functions.iter().enumerate().position(|(at, defined)| {
                let same_class = defined.class.map(|id| checked.file.classes[id.0].class.name) == class
                    || defined.class.is_none();
                checked.file.name_of(FunctionId(at)) == name && same_class
            })?;
            returned_function(checked, FunctionId(maker)).map(Hook::Function)
        }
        _ => None,
    }
}

/// Returns the inner function that a hook factory returns.
fn returned_function(checked: &Checked<'_, '_, '_>, maker: FunctionId) -> Option<FunctionId> {
    let returns = checked.file.body_of(maker).iter().rev().find_map(|stmt| match &stmt.kind {
        StmtKind::Return(Some(value)) => checked.file.key(value),
        _ => None,
    })?;
    let inner = checked.file.functions.iter().position(|defined| {
        defined.parent == maker && defined.function.is_some_and(|function| function.name == returns)
    })?;
    Some(FunctionId(inner))
}

fn in_function(checked: &Checked<'_, '_, '_>, id: FunctionId, found: &mut Vec<Diagnostic>) {
    let Some(facts) = checked.facts.iter().find(|facts| facts.id == id) else { return };
    for kept in &facts.kept {
        let TensorStore::Outside { name } = kept.store else { continue };
        // Arguments of the hook, or values computed from them; numbers and shapes are skipped.
        let Some(node) = checked.node_of(facts, &kept.value) else { continue };
        let of = facts.node(node);
        if of.on_host
            || is_emptied(checked, name)
            || is_about(checked, id, kept.expr)
            || is_by_module(checked, id, kept.range)
            || facts.ancestors(node).len() > 1 && is_reduced(checked, kept.expr)
        {
            continue;
        }
        say(kept.expr.range, name, found);
    }
}

/// Whether a value says something about an activation or a module, and holds no activation: a shape, an `id`,
/// a class, the module itself.
fn is_about(checked: &Checked<'_, '_, '_>, hook: FunctionId, kept: &Expr<'_>) -> bool {
    let text = checked.file.text(kept.range);
    let is_of_module = module_of(checked, hook).is_some_and(|module| {
        text.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    is_of_module || [".shape", ".size(", "id(", "type(", "__class__"].iter().any(|part| text.contains(part))
}

/// Returns the name of a hook's first argument, the module.
fn module_of<'a>(checked: &Checked<'_, '_, 'a>, hook: FunctionId) -> Option<&'a str> {
    let function = checked.file.functions[hook.0].function?;
    function.parameters.iter().map(|parameter| parameter.name).find(|name| *name != "self")
}

/// Matches `acts[module] = o` in `def hook(module, i, o)`: one entry for each module.
fn is_by_module(checked: &Checked<'_, '_, '_>, hook: FunctionId, kept: SourceRange) -> bool {
    let text: String = checked.file.text(kept).split_whitespace().collect();
    module_of(checked, hook).is_some_and(|module| text.contains(&format!("[{module}]=")))
}

/// Checks `lambda m, i, o: acts.append(o)`.
fn in_lambda(checked: &Checked<'_, '_, '_>, body: &Expr<'_>, found: &mut Vec<Diagnostic>) {
    let Some(call) = body.as_call() else { return };
    let Some((list, "append")) = call.method() else { return };
    let (Some(kept), ExprKind::Name(name)) = (call.args.first(), &list.kind) else { return };
    let is_host = checked.file.text(kept.range).contains(".cpu(") || is_reduced(checked, kept);
    if !is_host && !is_emptied(checked, name) {
        say(kept.range, name, found);
    }
}

fn say(range: SourceRange, name: &str, found: &mut Vec<Diagnostic>) {
    let message = format!(
        "the hook appends to `{name}` on every forward pass: the activations of every step stay on the \
         GPU, detached or not"
    );
    found.push(RULE.at(RuleSeverity::High, range, message).advise(
        "use a dictionary keyed by the layer's name, empty the list in each step, or keep `.cpu()` copies \
         and remove the hook when done",
    ));
}

/// Returns whether the value is small: means, norms and single numbers.
fn is_reduced(checked: &Checked<'_, '_, '_>, expr: &Expr<'_>) -> bool {
    let text = checked.file.text(expr.range);
    [
        ".mean(", ".sum(", ".norm(", ".item(", ".max(", ".std(", ".var(", ".shape", ".size(", ".numpy(",
        ".tolist(",
    ]
    .iter()
    .any(|part| text.contains(part))
}

/// Returns whether the list is emptied or recreated somewhere, by its name, whatever it is an attribute of.
fn is_emptied(checked: &Checked<'_, '_, '_>, name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let same = |key: &str| key.rsplit('.').next() == Some(last);
    let mut made = 0;
    let mut emptied = false;
    for facts in &checked.facts {
        for (key, range) in facts.emptied.iter().filter(|(key, _)| same(key)) {
            let text = checked.file.text(*range);
            // The first assignment creates it; a removing call, a `del` or a second assignment empties it.
            if text.starts_with("del") || text.contains('(') && !text.contains('=') {
                emptied = true;
            } else if text.starts_with(key) {
                made += 1;
            }
        }
    }
    let mut returned = false;
    walk(checked.file.body, &mut |stmt| {
        returned |=
            matches!(&stmt.kind, StmtKind::Return(Some(value)) if checked.file.key(value).is_some_and(same));
    });
    // A list that a function creates and returns is new on every call.
    let local = !checked.file.functions.is_empty()
        && checked.facts.iter().any(|facts| {
            facts.id != FunctionId::MODULE && facts.containers.iter().any(|container| container.name == name)
        });
    emptied || made > 1 || returned && local
}
