//! Paths as text: `__main__.history[19].grad_fn…_saved_self`.

use crate::graph::{Heap, Link, Name, Root};
use crate::paths::Path;

/// Of a longer path, so much of its beginning and its end.
const LONGEST: usize = 64;
const BEGINNING: usize = 24;
const END: usize = 8;

/// A path as it would be written in Python, as far as that goes. `is_any` says of an edge that its item stands for many.
pub fn path(heap: &Heap, roots: &[(u32, Root)], path: &Path, is_any: impl Fn(usize) -> bool) -> String {
    let (node, root) = &roots[path.root];
    let mut text = start(heap, *node, root);
    let mut is_in_graph = false;
    let shown = path.edges.len();
    for (place, &position) in path.edges.iter().enumerate() {
        if shown > LONGEST && (BEGINNING..shown - END).contains(&place) {
            if place == BEGINNING {
                text.push('…');
            }
            continue;
        }
        let name = heap.name(position);
        let is_next = name.link == Link::Attribute && name.text.starts_with("next_functions[");
        if is_next && is_in_graph {
            continue;
        }
        if is_next {
            text.push('…');
            is_in_graph = true;
            continue;
        }
        let step = match name.link {
            Link::Part => format!(" → {}", heap.class(heap.edges.targets()[position])),
            _ => step(name, is_any(position)),
        };
        // Behind nodes of a graph that are left out there is no dot.
        text.push_str(if is_in_graph { step.strip_prefix('.').unwrap_or(&step) } else { &step });
        is_in_graph = false;
    }
    text
}

/// How one step is written behind another. `is_any`: it stands for many.
pub(crate) fn step(name: &Name, is_any: bool) -> String {
    let text = &name.text;
    match name.link {
        Link::Attribute => format!(".{text}"),
        Link::Item if is_any => "[…]".to_owned(),
        Link::Item => format!("[{text}]"),
        Link::Local => format!(" local {text}"),
        Link::Closure => format!(" closure {text}"),
        Link::Element => "{…}".to_owned(),
        Link::Key => format!(" key {text}"),
        Link::Cached => " cache".to_owned(),
        Link::Inside | Link::Part => String::new(),
    }
}

/// The root itself.
fn start(heap: &Heap, node: u32, root: &Root) -> String {
    match root {
        Root::Module { name, .. } => name.clone(),
        Root::Frame { thread, .. } => {
            let thread = if thread.is_empty() { String::new() } else { format!("thread {thread}, ") };
            format!("{thread}frame {}", short(heap.text(node)))
        }
        Root::Recorder => "oomph's recorder".to_owned(),
        Root::Outside => format!("<{}, held by C code>", described(heap, node)),
        Root::Garbage => format!("<{}, garbage>", described(heap, node)),
    }
}

/// An object by its class and what is known of it: `torch.Tensor float32 (64, 128)`.
pub fn described(heap: &Heap, node: u32) -> String {
    match heap.text(node) {
        "" => heap.class(node).to_owned(),
        text => format!("{} {}", heap.class(node), short(text)),
    }
}

/// `step (/home/user/train.py:40)` without the folder.
fn short(text: &str) -> String {
    match text.rsplit_once(" (") {
        Some((name, place)) if place.ends_with(')') && place.contains(['/', '\\']) => {
            format!("{name} ({}", place.rsplit(['/', '\\']).next().unwrap_or(place))
        }
        _ => text.to_owned(),
    }
}
