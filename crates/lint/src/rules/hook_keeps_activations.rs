use crate::checked::Checked;
use crate::facts::{CallFact, Facts, Store, Value};
use crate::file::FunctionId;
use crate::rule::{Diagnostic, Rule, Severity};
use crate::tree::{Expr, ExprKind, Range, StmtKind, walk};

pub(super) const RULE: Rule = Rule {
    code: "OOM107",
    name: "hook-keeps-activations",
    says: "A forward hook adds the activations of every step to a list.",
    severity: Severity::High,
    why: "A hook runs on every forward pass, for training and evaluation alike. A list that it appends to and that nobody empties
holds the layer's activations of every step. `detach()` does not help: it drops the graph, not the tensor.",
    costs: "The layer's output, every step, detached or not (measured: 1541 KiB a step both ways). A dictionary that is written by the
name of the layer holds one set and does not grow.",
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
        // Hooks that are taken away again in the same function are there for one pass.
        if facts.id != FunctionId::MODULE && facts.calls.iter().any(|other| other.method_is("remove")) {
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

enum Hook<'x, 'a> {
    Function(FunctionId),
    Lambda(&'x Expr<'a>),
}

/// The function behind `hook`, `self.hook`, `make_hook(name)` or a lambda.
fn hook_of<'x, 't, 'a>(checked: &Checked<'_, 't, 'a>, facts: &Facts<'t, 'a>, call: &CallFact<'t, 'a>, hook: &'x Expr<'a>) -> Option<Hook<'x, 'a>> {
    match (&hook.kind, call.args.first()?) {
        (ExprKind::Lambda(lambda), _) => Some(Hook::Lambda(&lambda.body)),
        (_, Value::Function(id)) => Some(Hook::Function(*id)),
        (ExprKind::Call(made), _) => {
            let name = match made.callee.kind {
                ExprKind::Name(name) | ExprKind::Attribute(_, name) => name,
                _ => return None,
            };
            let class = checked.file.class_of(facts.id).map(|class| class.class.name);
            let maker = checked.file.functions.iter().enumerate().position(|(at, defined)| {
                let same_class = defined.class.map(|id| checked.file.classes[id.0].class.name) == class || defined.class.is_none();
                checked.file.name_of(FunctionId(at)) == name && same_class
            })?;
            returned_function(checked, FunctionId(maker)).map(Hook::Function)
        }
        _ => None,
    }
}

/// The inner function that a maker of hooks gives back.
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
        let Store::Outside { name } = kept.store else { continue };
        // Arguments of the hook, or what is computed from them; numbers and shapes are none.
        let Some(node) = checked.node_of(facts, &kept.value) else { continue };
        let of = facts.node(node);
        if of.on_host || is_emptied(checked, name) || facts.ancestors(node).len() > 1 && is_reduced(checked, kept.expr) {
            continue;
        }
        say(kept.expr.range, name, found);
    }
}

/// `lambda m, i, o: acts.append(o)`
fn in_lambda(checked: &Checked<'_, '_, '_>, body: &Expr<'_>, found: &mut Vec<Diagnostic>) {
    let Some(call) = body.as_call() else { return };
    let Some((list, "append")) = call.method() else { return };
    let (Some(kept), ExprKind::Name(name)) = (call.args.first(), &list.kind) else { return };
    let is_host = checked.file.text(kept.range).contains(".cpu(") || is_reduced(checked, kept);
    if !is_host && !is_emptied(checked, name) {
        say(kept.range, name, found);
    }
}

fn say(range: Range, name: &str, found: &mut Vec<Diagnostic>) {
    let message = format!("the hook adds to `{name}` on every forward pass: the activations of every step stay on the GPU, detached or not");
    found.push(RULE.at(Severity::High, range, message).advise("write into a dictionary under the layer's name, empty the list on each step, or `.cpu()` and remove the hook when done"));
}

/// Means, norms and single numbers are small.
fn is_reduced(checked: &Checked<'_, '_, '_>, expr: &Expr<'_>) -> bool {
    let text = checked.file.text(expr.range);
    [".mean(", ".sum(", ".norm(", ".item(", ".max(", ".std(", ".var(", ".shape", ".size(", ".numpy(", ".tolist("].iter().any(|part| text.contains(part))
}

/// Whether the list is emptied or made anew somewhere: by its name, whatever it is an attribute of.
fn is_emptied(checked: &Checked<'_, '_, '_>, name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let same = |key: &str| key.rsplit('.').next() == Some(last);
    let mut made = 0;
    let mut emptied = false;
    for facts in &checked.facts {
        for (key, range) in facts.emptied.iter().filter(|(key, _)| same(key)) {
            let text = checked.file.text(*range);
            // The first assignment makes it; a call that removes, a `del` or a second assignment empties it.
            if text.starts_with("del") || text.contains('(') && !text.contains('=') {
                emptied = true;
            } else if text.starts_with(key) {
                made += 1;
            }
        }
    }
    let mut returned = false;
    walk(checked.file.body, &mut |stmt| {
        returned |= matches!(&stmt.kind, StmtKind::Return(Some(value)) if checked.file.key(value).is_some_and(same));
    });
    // A list that a function makes and gives back is new on every call of it.
    let local = !checked.file.functions.is_empty() && checked.facts.iter().any(|facts| facts.id != FunctionId::MODULE && facts.containers.iter().any(|container| container.name == name));
    emptied || made > 1 || returned && local
}
