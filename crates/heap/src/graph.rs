//! The objects of a process that lead to tensors, and how each refers to the others.

use crate::edges::Edges;
use std::collections::HashMap;

/// How one object refers to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Link {
    /// By an attribute of this name.
    Attribute,
    /// By an item; the text stands between the brackets.
    Item,
    /// By a local variable.
    Local,
    /// By a variable that a function takes from around it.
    Closure,
    /// As an element of a set.
    Element,
    /// As a key of a dictionary.
    Key,
    /// As a result that a function's cache keeps.
    Cached,
    /// A step that a path leaves out: from an instance to its dictionary, from a tensor to its memory.
    Inside,
    /// Somehow, in C code.
    Part,
}

/// A reference's kind and name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// What kind of reference it is.
    pub link: Link,
    /// The name of the attribute or variable, or what stands between the brackets.
    pub text: String,
}

/// A device that memory lies on.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Device {
    /// PyTorch's word: `cuda`, `cpu`.
    pub kind: String,
    /// Its ordinal.
    pub index: u32,
}

impl Device {
    /// Whether it is the host's memory.
    pub fn is_cpu(&self) -> bool {
        self.kind == "cpu"
    }
}

/// The memory of one or several tensors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Storage {
    /// The node that stands for it.
    pub node: u32,
    /// Where it lies.
    pub device: Device,
    /// Address on the device.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// What is alive without being referred to by another object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Root {
    /// The variables of a module.
    Module {
        /// `__main__`, `torch.nn`.
        name: String,
        /// Its source, or empty.
        file: String,
    },
    /// A function that runs.
    Frame {
        /// Its thread, empty for the one that wrote this.
        thread: String,
        /// Its source.
        file: String,
        /// The line that it is at.
        line: u32,
    },
    /// The recorder that wrote this: what it holds is its own.
    Recorder,
    /// C code refers to it, or a function that runs, from its stack.
    Outside,
    /// Nothing: it waits for the collector, with what it refers to.
    Garbage,
}

/// What a walk found, unchecked.
#[derive(Clone, Default, Debug)]
pub struct Parts {
    /// Names of classes.
    pub types: Vec<String>,
    /// Sources of modules by name.
    pub files: HashMap<String, String>,
    /// Place of each node's class in `types`.
    pub nodes: Vec<u32>,
    /// What else is known of some nodes.
    pub texts: Vec<(u32, String)>,
    /// What references are called.
    pub names: Vec<Name>,
    /// From, to, and place in `names`.
    pub edges: Vec<(u32, u32, u32)>,
    /// Memory of tensors.
    pub storages: Vec<Storage>,
    /// Nodes that are alive by themselves.
    pub roots: Vec<(u32, Root)>,
}

/// The graph, with every number in it known to be good.
pub struct Heap {
    types: Vec<String>,
    files: HashMap<String, String>,
    nodes: Vec<u32>,
    texts: HashMap<u32, String>,
    names: Vec<Name>,
    /// Who refers to whom.
    pub edges: Edges,
    /// The name of each edge, by its position.
    edge_names: Vec<u32>,
    /// Memory of tensors.
    pub storages: Vec<Storage>,
    /// Nodes that are alive by themselves.
    pub roots: Vec<(u32, Root)>,
    storage_of: HashMap<u32, u32>,
}

impl Heap {
    /// From what was read. A number that points nowhere is left out with what it belongs to.
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

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The class of an object, with its module: `collections.OrderedDict`, `list`.
    pub fn class(&self, node: u32) -> &str {
        &self.types[self.nodes[node as usize] as usize]
    }

    /// What is known of an object beside its class: a tensor's shape, a function's name and line.
    pub fn text(&self, node: u32) -> &str {
        self.texts.get(&node).map_or("", String::as_str)
    }

    /// The source of a module.
    pub fn file(&self, module: &str) -> Option<&str> {
        self.files.get(module).map(String::as_str)
    }

    /// What the edge at a position is called.
    pub fn name(&self, position: usize) -> &Name {
        &self.names[self.edge_names[position] as usize]
    }

    /// The references of an object: what each is called, and what is referred to.
    pub fn references(&self, node: u32) -> impl Iterator<Item = (&Name, u32)> {
        self.edges.positions(node).map(|position| (self.name(position), self.edges.targets()[position]))
    }

    /// The memory that a node stands for.
    pub fn storage(&self, node: u32) -> Option<&Storage> {
        self.storage_of.get(&node).map(|&at| &self.storages[at as usize])
    }
}
