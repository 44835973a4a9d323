//! Description of a holder, and its kind: how it came to hold memory, judged by the reference path.

use crate::analyzed::AnalyzedHeap;
use crate::graph::{ReferenceKind, Root};
use crate::holder::Holder;
use crate::path_text;
use crate::paths::Path;

/// Ways in which programs hold memory by mistake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HolderKind {
    /// List, dictionary, set or queue that grows.
    Container,
    /// Tensor whose autograd graph reaches back through the steps.
    Chain,
    /// Objects that refer to each other, which only the garbage collector frees.
    Cycle,
    /// Exception, with the frames of its traceback.
    Exception,
    /// `sys.last_traceback`, `sys.last_value` or `sys.last_exc`.
    LastError,
    /// Outputs kept by a notebook.
    Notebook,
    /// `functools.lru_cache`.
    Cache,
    /// Hook of a module or tensor.
    Hook,
    /// Variable captured by a closure.
    Closure,
    /// Attribute of the `ctx` of a `torch.autograd.Function`.
    Context,
    /// Logger.
    Logger,
    /// Generator that has not finished.
    Generator,
    /// Variable or attribute.
    Variable,
    /// C code; no Python object is known to hold it.
    Outside,
}

impl HolderKind {
    /// Returns the name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            HolderKind::Container => "container",
            HolderKind::Chain => "chain",
            HolderKind::Cycle => "cycle",
            HolderKind::Exception => "exception",
            HolderKind::LastError => "last_error",
            HolderKind::Notebook => "notebook",
            HolderKind::Cache => "cache",
            HolderKind::Hook => "hook",
            HolderKind::Closure => "closure",
            HolderKind::Context => "context",
            HolderKind::Logger => "logger",
            HolderKind::Generator => "generator",
            HolderKind::Variable => "variable",
            HolderKind::Outside => "outside",
        }
    }
}

/// Description of a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderDescription {
    /// Reference path of the holder: `__main__.history`.
    pub path: String,
    /// Reference path of the memory: `__main__.history[19].grad_fn…_saved_self`; `history[…]` if it has many
    /// similar entries.
    pub held_by: String,
    /// How it came to hold the memory.
    pub kind: HolderKind,
}

type Roots = [(u32, Root)];

/// Most tensors that a state carried from step to step consists of.
const MAX_PARTS_OF_STATE: usize = 4;

impl AnalyzedHeap {
    /// Describes a holder.
    pub fn describe(&self, holder: &Holder) -> HolderDescription {
        self.called_from((&self.roots, &holder.path), (&self.roots, &holder.example), holder, holder.kind)
    }

    /// Describes a holder as it was before the error that ended the program: its traceback has the functions
    /// that were running then.
    pub fn describe_before_error(&self, holder: &Holder) -> HolderDescription {
        let (path_roots, path) = self.since_innermost_frame(&holder.path);
        let (roots, example) = self.since_innermost_frame(&holder.example);
        let kind = self.holder_kind(holder.node, &roots, &example);
        self.called_from((&path_roots, &path), (&roots, &example), holder, kind)
    }

    fn called_from(
        &self,
        path: (&Roots, &Path),
        example: (&Roots, &Path),
        holder: &Holder,
        kind: HolderKind,
    ) -> HolderDescription {
        let nodes = holder.example.nodes(&self.heap, &self.roots);
        let at = nodes.iter().position(|&node| node == holder.node);
        let entry = at.filter(|_| holder.entries > 1).and_then(|at| holder.example.edges.get(at));
        HolderDescription {
            path: path_text::path(&self.heap, path.0, path.1, |_| false),
            held_by: path_text::path(&self.heap, example.0, example.1, |position| entry == Some(&position)),
            kind,
        }
    }

    /// Returns a path as if its innermost frame were still running.
    fn since_innermost_frame(&self, path: &Path) -> (Vec<(u32, Root)>, Path) {
        let nodes = path.nodes(&self.heap, &self.roots);
        let innermost = nodes.iter().rposition(|&node| self.heap.class(node) == "frame").unwrap_or(0);
        let frame = Root::Frame { thread: String::new(), file: String::new(), line: 0 };
        (vec![(nodes[innermost], frame)], Path { root: 0, edges: path.edges[innermost..].to_vec() })
    }

    /// Whether an object is a tensor, or a tuple of a few, as the state of an LSTM is.
    fn is_state(&self, node: u32) -> bool {
        let parts = || self.heap.references(node).map(|(_, part)| part);
        self.is_tensor(node)
            || self.heap.class(node) == "tuple"
                && parts().count() <= MAX_PARTS_OF_STATE
                && parts().all(|part| self.is_tensor(part))
    }

    /// Judges by the path how a holder came to hold memory; the first kind that applies wins.
    pub(crate) fn holder_kind(&self, holder: u32, roots: &Roots, example: &Path) -> HolderKind {
        let nodes = example.nodes(&self.heap, roots);
        let root = &roots[example.root].1;
        // References inside a tensor's history do not show where the tensor is kept, except for a `ctx`.
        let kept = nodes.iter().position(|&node| self.is_history(node)).unwrap_or(nodes.len() - 1);
        let names: Vec<(ReferenceKind, &str, u32)> = example.edges[..kept]
            .iter()
            .zip(&nodes)
            .map(|(&position, &from)| {
                (self.heap.name(position).link, self.heap.name(position).text.as_str(), from)
            })
            .collect();
        let has = |test: &dyn Fn(&(ReferenceKind, &str, u32)) -> bool| names.iter().any(test);
        let is_error = has(&|(_, text, _)| matches!(*text, "__traceback__" | "tb_frame" | "tb_next"));
        let first =
            names.iter().find(|(link, ..)| *link == ReferenceKind::Attribute).map_or("", |(_, text, _)| text);
        let module = match root {
            Root::Module { name, .. } => name.as_str(),
            _ => "",
        };
        let class = self.heap.class(holder);
        let through_context = |at: usize| {
            self.is_history(nodes[at]) && self.heap.name(example.edges[at]).link == ReferenceKind::Inside
        };
        if (0..example.edges.len()).any(through_context) {
            HolderKind::Context
        } else if *root == Root::Garbage && is_error {
            // A stored exception refers to itself through the frames of its traceback.
            HolderKind::Exception
        } else if *root == Root::Garbage {
            HolderKind::Cycle
        } else if module == "sys" && first.starts_with("last_") {
            HolderKind::LastError
        } else if is_error {
            HolderKind::Exception
        } else if is_of_notebook(module, first) {
            HolderKind::Notebook
        } else if has(&|(link, _, from)| {
            *link == ReferenceKind::Cached || self.heap.class(*from) == "functools._lru_cache_wrapper"
        }) {
            HolderKind::Cache
        } else if has(&|(_, text, _)| text.ends_with("_hooks") && text.starts_with('_')) {
            HolderKind::Hook
        } else if module == "logging" || nodes[..=kept].iter().any(|&node| is_logger(self.heap.class(node))) {
            HolderKind::Logger
        } else if has(&|(_, _, from)| is_suspended(self.heap.class(*from))) {
            HolderKind::Generator
        } else if has(&|(link, ..)| *link == ReferenceKind::Closure) {
            HolderKind::Closure
        } else if *root == Root::Outside {
            HolderKind::Outside
        } else if self.is_state(holder) && nodes.iter().any(|&node| self.is_history(node)) {
            HolderKind::Chain
        } else if is_container(class) {
            HolderKind::Container
        } else {
            HolderKind::Variable
        }
    }
}

/// Returns whether IPython or Python's own prompt keeps a shown value under this name.
fn is_of_notebook(module: &str, first: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match module {
        "__main__" => {
            matches!(first, "_" | "__" | "___" | "Out" | "_oh")
                || first.strip_prefix('_').is_some_and(is_number)
        }
        "builtins" => first == "_",
        _ => false,
    }
}

fn is_logger(class: &str) -> bool {
    let name = class.rsplit('.').next().unwrap_or(class);
    class.starts_with("logging.") || name.ends_with("Logger") || name.ends_with("LogRecord")
}

fn is_suspended(class: &str) -> bool {
    matches!(class, "generator" | "coroutine" | "async_generator")
}

fn is_container(class: &str) -> bool {
    let name = class.rsplit('.').next().unwrap_or(class);
    matches!(name, "list" | "dict" | "set" | "deque" | "OrderedDict" | "defaultdict")
        || name.ends_with("List")
        || name.ends_with("Dict")
}
