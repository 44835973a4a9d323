//! Text form of reference paths: `__main__.history[19].grad_fn…_saved_self`.

use crate::graph::{Heap, ReferenceKind, ReferenceName, Root};
use crate::paths::Path;

/// Number of steps above which a path is shortened to its beginning and end.
const MAX_STEPS: usize = 64;
const FIRST_STEPS: usize = 24;
const LAST_STEPS: usize = 8;

/// Formats a path as Python code, as far as possible. `is_any` decides whether the item of an edge stands for
/// many.
pub fn path(heap: &Heap, roots: &[(u32, Root)], path: &Path, is_any: impl Fn(usize) -> bool) -> String {
    let (node, root) = &roots[path.root];
    let mut text = start(heap, *node, root);
    let mut is_in_graph = false;
    let shown = path.edges.len();
    for (place, &position) in path.edges.iter().enumerate() {
        if shown > MAX_STEPS && (FIRST_STEPS..shown - LAST_STEPS).contains(&place) {
            if place == FIRST_STEPS {
                text.push('…');
            }
            continue;
        }
        let name = heap.name(position);
        let is_next = name.link == ReferenceKind::Attribute && name.text.starts_with("next_functions[");
        if is_next && is_in_graph {
            continue;
        }
        if is_next {
            text.push('…');
            is_in_graph = true;
            continue;
        }
        let step = match name.link {
            ReferenceKind::Part => format!(" → {}", heap.class(heap.edges.targets()[position])),
            _ => step(name, is_any(position)),
        };
        // There is no dot after omitted nodes of the autograd graph.
        text.push_str(if is_in_graph { step.strip_prefix('.').unwrap_or(&step) } else { &step });
        is_in_graph = false;
    }
    text
}

/// Formats one step of a path. `is_any`: it stands for many.
pub(crate) fn step(name: &ReferenceName, is_any: bool) -> String {
    let text = &name.text;
    match name.link {
        ReferenceKind::Attribute => format!(".{text}"),
        ReferenceKind::Item if is_any => "[…]".to_owned(),
        ReferenceKind::Item => format!("[{text}]"),
        ReferenceKind::Local => format!(" local {text}"),
        ReferenceKind::Closure => format!(" closure {text}"),
        ReferenceKind::Element => "{…}".to_owned(),
        ReferenceKind::Key => format!(" key {text}"),
        ReferenceKind::Cached => " cache".to_owned(),
        ReferenceKind::Inside | ReferenceKind::Part => String::new(),
    }
}

/// Formats the root of a path.
fn start(heap: &Heap, node: u32, root: &Root) -> String {
    match root {
        Root::Module { name, .. } => name.clone(),
        Root::Frame { thread, .. } => {
            let is_usual = thread.is_empty() || thread == "MainThread";
            let thread = if is_usual { String::new() } else { format!("thread {thread}, ") };
            format!("{thread}frame {}", short(heap.text(node)))
        }
        Root::Recorder => "oomph's recorder".to_owned(),
        Root::Outside => format!("<{}, held by C code>", described(heap, node)),
        Root::Garbage => format!("<{}, garbage>", described(heap, node)),
    }
}

/// Describes an object by its class and description: `torch.Tensor float32 (64, 128)`.
pub fn described(heap: &Heap, node: u32) -> String {
    match heap.text(node) {
        "" => heap.class(node).to_owned(),
        text => format!("{} {}", heap.class(node), short(text)),
    }
}

/// Removes the folder from `step (/home/user/train.py:40)`.
fn short(text: &str) -> String {
    match text.rsplit_once(" (") {
        Some((name, place)) if place.ends_with(')') && place.contains(['/', '\\']) => {
            format!("{name} ({}", place.rsplit(['/', '\\']).next().unwrap_or(place))
        }
        _ => text.to_owned(),
    }
}
