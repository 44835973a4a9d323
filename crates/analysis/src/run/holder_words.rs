//! What is said about who keeps memory, and what to change, by the kind of holder.

use crate::run::holders::Held;
use crate::words::{counted, listed};
use heap::HolderKind;

/// What holds the memory, without a full stop.
pub(crate) fn sentence(held: &Held) -> String {
    let also: Vec<String> = held.also.iter().map(|path| format!("`{path}`")).collect();
    let also =
        if also.is_empty() { String::new() } else { format!("; the same object is also {}", listed(&also)) };
    if held.together.len() > 1 {
        let names: Vec<String> = held.together.iter().map(|name| format!("`{name}`")).collect();
        return format!(
            "held by {} together: it is freed when all of them are released or detached",
            listed(&names)
        );
    }
    format!("{}{also}", who(held))
}

fn who(held: &Held) -> String {
    let Held { holder, class, retained, alike, entries, .. } = held;
    let class = class.rsplit('.').next().unwrap_or(class);
    let what = if held.keeps_graph { " with the graphs that made them" } else { "" };
    match held.kind {
        HolderKind::Cycle if held.is_gradient_cycle => format!(
            "`backward(create_graph=True)` makes {}: each gradient refers to its graph, and the graph to the \
             parameter; only the garbage collector frees the {retained} that they keep",
            counted(*alike, "reference cycle")
        ),
        HolderKind::Cycle if *alike > 1 => format!(
            "{} keep {retained} that nothing else refers to: `{holder}`; only the garbage collector frees \
             them",
            counted(*alike, "reference cycle")
        ),
        HolderKind::Cycle => format!(
            "a reference cycle keeps {retained} that nothing else refers to: `{holder}`; only the garbage \
             collector frees it"
        ),
        HolderKind::Outside => format!(
            "no Python object is known to hold it: C code refers to {}",
            if *alike > 1 { format!("{} objects of class {class}", alike) } else { format!("`{holder}`") }
        ),
        HolderKind::Chain => format!(
            "held by `{holder}`, whose graph reaches back through the previous steps; releasing it frees \
             {retained}"
        ),
        _ if let Some(most) = held.max_entries => format!(
            "held by `{holder}`, a {class} with {} to tensors{what}, which stops growing at its `maxlen` of \
             {most}",
            counted(*entries, "reference")
        ),
        _ if held.parts.len() > 1 => {
            format!("held by `{holder}`, in its {}{what}; releasing them frees {retained}", parts(held))
        }
        _ if *entries > 1 => format!(
            "held by `{holder}`, a {class} with {} to tensors{what}; releasing it frees {retained}",
            counted(*entries, "reference")
        ),
        _ if held.by == *holder => format!("held by `{holder}`; releasing it frees {retained}"),
        _ => format!("held by `{holder}` (`{}`); releasing it frees {retained}", held.by),
    }
}

/// The attributes of a holder that keep the tensors.
fn parts(held: &Held) -> String {
    listed(&held.parts.iter().map(|part| format!("`{part}`")).collect::<Vec<_>>())
}

/// How to limit what a container of this class keeps.
fn bound(class: &str) -> &'static str {
    match class {
        "list" | "deque" | "collections.deque" => "bound it (`deque(maxlen=…)`) or empty it",
        _ => "remove old entries, or empty it",
    }
}

/// What to change, by the kind of holder.
pub(crate) fn advice(held: &Held, is_cpu: bool) -> String {
    let Held { holder, by, .. } = held;
    let name = held.store.names.first().map_or(holder.as_str(), String::as_str);
    let bound = bound(&held.class);
    let (copies, or_copies) =
        if is_cpu { ("", "") } else { (", `.cpu()` for large ones", ", or store `.cpu()` copies") };
    match held.kind {
        HolderKind::Container if held.max_entries.is_some() && !held.keeps_graph => {
            format!(
                "nothing, if there is room for all entries of `{holder}`; otherwise lower its \
                 `maxlen`{or_copies}"
            )
        }
        HolderKind::Container if held.keeps_graph => format!(
            "store numbers or tensors without their graphs in `{holder}`: `.item()`, or \
             `.detach()`{copies}; and {bound} when it has been used"
        ),
        HolderKind::Container if held.is_small_view => format!(
            "store `.clone()` of what goes into `{holder}`: it is a small view, and keeps all of the memory \
             that it is a view of; `.detach()` does not help"
        ),
        HolderKind::Container => format!(
            "`{holder}`: {bound} when it has been used{or_copies}; `.detach()` does not help: the tensors \
             themselves are stored"
        ),
        HolderKind::Chain if held.together.len() > 1 => {
            "`.detach()` the one of them that is carried from step to step (a hidden state, a running \
             total) before the next step: with its graph it keeps what every previous step has saved. \
             A `retain_graph=True` for its sake can go"
                .to_owned()
        }
        HolderKind::Chain if held.class == "tuple" => format!(
            "`.detach()` every part of `{name}` when it is stored, or run under `torch.no_grad()` if nothing \
             is trained: with its graph it keeps what every previous step has saved"
        ),
        HolderKind::Chain => format!(
            "`.detach()` what goes into `{name}`, or keep `.item()`: with its graph it keeps what every \
             previous step has saved. A `retain_graph=True` for its sake can go"
        ),
        HolderKind::Cycle if held.is_gradient_cycle => {
            "use `torch.autograd.grad(…, create_graph=True)`, which leaves `.grad` alone, instead of \
             `backward(create_graph=True)`; or set the `.grad` of every parameter to `None` at the end of \
             the step"
                .to_owned()
        }
        HolderKind::Cycle => format!(
            "break the cycle: make one of its links a `weakref.ref`, or set it to `None` when it is no \
             longer needed (`{holder}`); until then `gc.collect()` frees it"
        ),
        HolderKind::Exception => format!(
            "store `str(e)`, or `e.with_traceback(None)`: an exception keeps its traceback, the \
             traceback its frames, and frames their variables (`{by}`)"
        ),
        HolderKind::LastError => format!(
            "`{holder}` keeps the frames of the last error at the prompt, with their variables: `del \
             sys.last_traceback, sys.last_value` (and `sys.last_exc`), or restart"
        ),
        HolderKind::Notebook => format!(
            "the notebook keeps what it has shown (`{holder}`): end such a line with `;`, or `%reset -f \
             out`; at Python's own prompt `_ = None`"
        ),
        HolderKind::Cache => format!(
            "`functools.lru_cache` keeps every result, and its arguments (`{holder}`): give it a small \
             `maxsize`, call `cache_clear()`, or do not cache what has tensors; on a method it also \
             keeps every `self`"
        ),
        HolderKind::Hook => format!(
            "the hook keeps what it is given (`{by}`): overwrite instead of appending, clear it after use, \
             or `remove()` the handle"
        ),
        HolderKind::Closure => format!(
            "a function keeps it as a captured variable (`{by}`): drop the function, or give it what \
             it needs as an argument"
        ),
        HolderKind::Context => format!(
            "use `ctx.save_for_backward()` instead of an attribute of `ctx` (`{by}`): `backward()` frees \
             what was saved, attributes stay, and one that is the output makes a cycle"
        ),
        HolderKind::Logger => format!(
            "give the logger numbers or text instead of tensors (`.item()`): `{holder}` keeps what it is \
             given{}",
            if held.is_small_view {
                ", and a small view keeps all of the memory that it is a view of"
            } else {
                ""
            }
        ),
        HolderKind::Generator => format!(
            "run it to its end, `close()` the generator or cancel the task: it keeps the variables that it \
             stopped with (`{by}`)"
        ),
        HolderKind::Variable if held.parts.len() > 1 => format!(
            "empty {} of `{holder}` when they have been used{or_copies}{}",
            parts(held),
            if held.keeps_graph { "; store `.detach()` of what is kept longer" } else { "" }
        ),
        HolderKind::Variable => format!("set `{holder}` to `None`, or `del` it, once it is no longer needed"),
        HolderKind::Outside => {
            "look for what hands tensors to C++ code: a hook of a graph node, a communication buffer, an \
             extension"
                .to_owned()
        }
    }
}
