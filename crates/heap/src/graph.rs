//! Objects of a process that lead to tensors, and their references.

use crate::edges::Edges;
use std::collections::HashMap;
use std::fmt;

/// Kind of a reference from one object to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReferenceKind {
    /// Attribute of this name.
    Attribute,
    /// Item; the text is what is between the brackets.
    Item,
    /// Local variable.
    Local,
    /// Variable of an enclosing function that a closure captured.
    Closure,
    /// Element of a set.
    Element,
    /// Key of a dictionary.
    Key,
    /// Result in the cache of a function.
    Cached,
    /// Step that a path leaves out: from an instance to its dictionary, from a tensor to its memory.
    Inside,
    /// Unnamed reference in C code.
    Part,
}

/// Kind and name of a reference.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReferenceName {
    /// Kind of the reference.
    pub link: ReferenceKind,
    /// Name of the attribute or variable, or the text between the brackets.
    pub text: String,
}

/// Device that holds memory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StorageDevice {
    /// Device type in PyTorch's terms: `cuda`, `cpu`.
    pub kind: String,
    /// Device ordinal.
    pub index: u32,
}

impl StorageDevice {
    /// Whether it is the host's memory.
    pub fn is_cpu(&self) -> bool {
        self.kind == "cpu"
    }
}

impl fmt::Display for StorageDevice {
    /// `cuda:0`, `cpu`
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_cpu() { to.write_str("cpu") } else { write!(to, "{}:{}", self.kind, self.index) }
    }
}

/// Memory of one or several tensors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Storage {
    /// Node of the storage.
    pub node: u32,
    /// Device that holds it.
    pub device: StorageDevice,
    /// Address on the device.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Reason that an object is alive without a reference from another object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Root {
    /// Variables of a module.
    Module {
        /// Name of the module: `__main__`, `torch.nn`.
        name: String,
        /// Path of its source, or empty.
        file: String,
    },
    /// Running function.
    Frame {
        /// Name of its thread; empty for the thread that wrote the heap.
        thread: String,
        /// Path of its source.
        file: String,
        /// Current line.
        line: u32,
    },
    /// The recorder that wrote the heap: what it holds is its own.
    Recorder,
    /// Reference from C code, or from the stack of a running function.
    Outside,
    /// None: the object waits for the garbage collector, with everything it refers to.
    Garbage,
}

/// Content of a heap as read, not yet validated.
#[derive(Clone, Default, Debug)]
pub struct Parts {
    /// Names of classes.
    pub types: Vec<String>,
    /// Sources of modules by name.
    pub files: HashMap<String, String>,
    /// Index of each node's class in `types`.
    pub nodes: Vec<u32>,
    /// Descriptions of some nodes.
    pub texts: Vec<(u32, String)>,
    /// Names of references.
    pub names: Vec<ReferenceName>,
    /// Source, target, and index into `names`.
    pub edges: Vec<(u32, u32, u32)>,
    /// Memory of tensors.
    pub storages: Vec<Storage>,
    /// Nodes that are alive by themselves.
    pub roots: Vec<(u32, Root)>,
}

/// Validated graph of a process's objects.
pub struct Heap {
    types: Vec<String>,
    files: HashMap<String, String>,
    nodes: Vec<u32>,
    texts: HashMap<u32, String>,
    names: Vec<ReferenceName>,
    /// References between objects.
    pub edges: Edges,
    /// Name of each edge, by position.
    edge_names: Vec<u32>,
    /// Memory of tensors.
    pub storages: Vec<Storage>,
    /// Nodes that are alive by themselves.
    pub roots: Vec<(u32, Root)>,
    storage_of: HashMap<u32, u32>,
}

impl Heap {
    /// Validates what was read. Entries with an invalid number are left out.
    pub fn new(mut parts: Parts) -> Heap {
        let nodes = parts.nodes.len() as u32;
        let types = parts.types.len() as u32;
        let names = parts.names.len() as u32;
        if parts.types.is_empty() {
            parts.types.push("object".to_owned());
        }
        for of in &mut parts.nodes {
            *of = if *of < types { *of } else { 0 };
        }
        parts.edges.retain(|&(from, to, name)| from < nodes && to < nodes && name < names);
        parts.storages.retain(|storage| storage.node < nodes);
        parts.roots.retain(|(node, _)| *node < nodes);
        let edges = Edges::new(parts.nodes.len(), parts.edges.iter().map(|&(from, to, _)| (from, to)));
        let edge_names = edges.order().iter().map(|&pair| parts.edges[pair as usize].2).collect();
        let storage_of = (0..).zip(&parts.storages).map(|(at, storage)| (storage.node, at)).collect();
        Heap {
            types: parts.types,
            files: parts.files,
            nodes: parts.nodes,
            texts: parts.texts.into_iter().filter(|(node, _)| *node < nodes).collect(),
            names: parts.names,
            edges,
            edge_names,
            storages: parts.storages,
            roots: parts.roots,
            storage_of,
        }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the class of an object, with its module: `collections.OrderedDict`, `list`.
    pub fn class(&self, node: u32) -> &str {
        &self.types[self.nodes[node as usize] as usize]
    }

    /// Returns the description of an object: a tensor's shape, a function's name and line.
    pub fn text(&self, node: u32) -> &str {
        self.texts.get(&node).map_or("", String::as_str)
    }

    /// Returns the source of a module.
    pub fn file(&self, module: &str) -> Option<&str> {
        self.files.get(module).map(String::as_str)
    }

    /// Returns the name of the edge at a position.
    pub fn name(&self, position: usize) -> &ReferenceName {
        &self.names[self.edge_names[position] as usize]
    }

    /// Iterates over the references of an object: name and target.
    pub fn references(&self, node: u32) -> impl Iterator<Item = (&ReferenceName, u32)> {
        self.edges.positions(node).map(|position| (self.name(position), self.edges.targets()[position]))
    }

    /// Returns the storage of a node.
    pub fn storage(&self, node: u32) -> Option<&Storage> {
        self.storage_of.get(&node).map(|&at| &self.storages[at as usize])
    }
}
