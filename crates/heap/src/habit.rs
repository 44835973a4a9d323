//! How a holder is called, and by what habit of programming it came to hold: known by the way that leads to the memory.

use crate::graph::{Link, Root};
use crate::holder::Holder;
use crate::holdings::Holdings;
use crate::paths::Path;
use crate::words;

/// The ways in which programs keep memory by mistake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Habit {
    /// A list, dictionary, set or queue that grows.
    Container,
    /// A tensor whose graph reaches back through the steps.
    Chain,
    /// Objects that refer to each other, which only the collector frees.
    Cycle,
    /// An exception, with the frames of its traceback.
    Exception,
    /// `sys.last_traceback` and its neighbours.
    LastError,
    /// What a notebook keeps of its outputs.
    Notebook,
    /// `functools.lru_cache`.
    Cache,
    /// A hook of a module or tensor.
    Hook,
    /// A variable that a function has taken from around it.
    Closure,
    /// An attribute of the `ctx` of a `torch.autograd.Function`.
    Context,
    /// A logger.
    Logger,
    /// A generator that has not come to its end.
    Generator,
    /// A variable or an attribute.
    Variable,
    /// C code; no Python object is known to hold it.
    Outside,
}

impl Habit {
    /// Its word in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Habit::Container => "container",
            Habit::Chain => "chain",
            Habit::Cycle => "cycle",
            Habit::Exception => "exception",
            Habit::LastError => "last_error",
            Habit::Notebook => "notebook",
            Habit::Cache => "cache",
            Habit::Hook => "hook",
            Habit::Closure => "closure",
            Habit::Context => "context",
            Habit::Logger => "logger",
            Habit::Generator => "generator",
            Habit::Variable => "variable",
            Habit::Outside => "outside",
        }
    }
}

/// A holder in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Called {
    /// The way to it: `__main__.history`.
    pub path: String,
    /// The way to the memory: `__main__.history[19].grad_fn…_saved_self`; where it has many entries alike, `history[…]`.
    pub held_by: String,
    /// How it came to keep it.
    pub habit: Habit,
}

type Roots = [(u32, Root)];

impl Holdings {
    /// A holder as it is.
    pub fn called(&self, holder: &Holder) -> Called {
        self.called_from((&self.roots, &holder.path), (&self.roots, &holder.example), holder, holder.habit)
    }

    /// A holder as it was before the error that ended the program: its traceback has the functions that ran then.
    pub fn called_before_error(&self, holder: &Holder) -> Called {
        let (path_roots, path) = self.since_innermost_frame(&holder.path);
        let (roots, example) = self.since_innermost_frame(&holder.example);
        let habit = self.habit(holder.node, &roots, &example);
        self.called_from((&path_roots, &path), (&roots, &example), holder, habit)
    }

    fn called_from(
        &self,
        path: (&Roots, &Path),
        example: (&Roots, &Path),
        holder: &Holder,
        habit: Habit,
    ) -> Called {
        let nodes = holder.example.nodes(&self.heap, &self.roots);
        let at = nodes.iter().position(|&node| node == holder.node);
        let entry = at.filter(|_| holder.entries > 1).and_then(|at| holder.example.edges.get(at));
        Called {
            path: words::path(&self.heap, path.0, path.1, |_| false),
            held_by: words::path(&self.heap, example.0, example.1, |position| entry == Some(&position)),
            habit,
        }
    }

    /// A way as if its innermost frame still ran.
    fn since_innermost_frame(&self, path: &Path) -> (Vec<(u32, Root)>, Path) {
        let nodes = path.nodes(&self.heap, &self.roots);
        let innermost = nodes.iter().rposition(|&node| self.heap.class(node) == "frame").unwrap_or(0);
        let frame = Root::Frame { thread: String::new(), file: String::new(), line: 0 };
        (vec![(nodes[innermost], frame)], Path { root: 0, edges: path.edges[innermost..].to_vec() })
    }

    pub(crate) fn habit(&self, holder: u32, roots: &Roots, example: &Path) -> Habit {
        let nodes = example.nodes(&self.heap, roots);
        let root = &roots[example.root].1;
        // What happens inside a tensor's history says nothing about where the tensor is kept, but for a `ctx`.
        let kept = nodes.iter().position(|&node| self.is_history(node)).unwrap_or(nodes.len() - 1);
        let names: Vec<(Link, &str, u32)> = example.edges[..kept]
            .iter()
            .zip(&nodes)
            .map(|(&position, &from)| {
                (self.heap.name(position).link, self.heap.name(position).text.as_str(), from)
            })
            .collect();
        let has = |test: &dyn Fn(&(Link, &str, u32)) -> bool| names.iter().any(test);
        let is_error = has(&|(_, text, _)| matches!(*text, "__traceback__" | "tb_frame" | "tb_next"));
        let first = names.iter().find(|(link, ..)| *link == Link::Attribute).map_or("", |(_, text, _)| text);
        let module = match root {
            Root::Module { name, .. } => name.as_str(),
            _ => "",
        };
        let class = self.heap.class(holder);
        let through_context =
            |at: usize| self.is_history(nodes[at]) && self.heap.name(example.edges[at]).link == Link::Inside;
        match () {
            () if (0..example.edges.len()).any(through_context) => Habit::Context,
            () if *root == Root::Garbage => Habit::Cycle,
            () if module == "sys" && first.starts_with("last_") => Habit::LastError,
            () if is_error => Habit::Exception,
            () if is_of_notebook(module, first) => Habit::Notebook,
            () if has(&|(link, _, from)| {
                *link == Link::Cached || self.heap.class(*from) == "functools._lru_cache_wrapper"
            }) =>
            {
                Habit::Cache
            }
            () if has(&|(_, text, _)| text.ends_with("_hooks") && text.starts_with('_')) => Habit::Hook,
            () if module == "logging"
                || nodes[..=kept].iter().any(|&node| is_logger(self.heap.class(node))) =>
            {
                Habit::Logger
            }
            () if has(&|(_, _, from)| is_suspended(self.heap.class(*from))) => Habit::Generator,
            () if has(&|(link, ..)| *link == Link::Closure) => Habit::Closure,
            () if *root == Root::Outside => Habit::Outside,
            () if self.is_tensor(holder) && nodes.iter().any(|&node| self.is_history(node)) => Habit::Chain,
            () if is_container(class) => Habit::Container,
            () => Habit::Variable,
        }
    }
}

/// What IPython, and Python's own prompt, keep of what was shown.
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
