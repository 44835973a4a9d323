//! Heap with its dominator tree and retained sizes.

use crate::components::{Components, components};
use crate::cycles::Cycle;
use crate::dominators::{Dominators, Parent, dominators};
use crate::edges::Edges;
use crate::graph::{Heap, ReferenceKind, Root, Storage, StorageDevice};
use crate::paths::{Path, ShortestPaths};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// Heap with precomputed dominator tree, retained sizes and shortest reference paths.
pub struct AnalyzedHeap {
    /// The heap.
    pub heap: Arc<Heap>,
    /// Roots of the heap, and one for each group of objects that nothing refers to any more.
    pub roots: Vec<(u32, Root)>,
    /// Devices that hold memory.
    pub devices: Vec<StorageDevice>,
    pub(crate) paths: ShortestPaths,
    pub(crate) dominators: Dominators,
    pub(crate) children: Edges,
    /// Bytes of each storage, in their order.
    pub bytes: Vec<u64>,
    /// Retained bytes by device, then by node.
    retained: Vec<Vec<u64>>,
    /// Whether each node belongs to the autograd graph.
    is_history: Vec<bool>,
    is_tensor: Vec<bool>,
    is_garbage: Vec<bool>,
    /// Modules and running functions.
    named: HashSet<u32>,
    pub(crate) cycles: OnceLock<Vec<Cycle>>,
}

impl AnalyzedHeap {
    /// Analyzes a heap. `is_own` decides whether a module or function is the user's own code, `bytes_of`
    /// gives the bytes that a storage takes on its device.
    pub fn new(
        heap: &Arc<Heap>,
        is_own: impl Fn(&Root) -> bool,
        bytes_of: impl Fn(&Storage) -> u64,
    ) -> AnalyzedHeap {
        let components = components(&heap.edges);
        let mut roots = heap.roots.clone();
        let garbage = garbage(heap, &roots, &components);
        roots.extend(garbage.starts.iter().map(|&node| (node, Root::Garbage)));
        let starts: Vec<u32> = roots.iter().map(|(node, _)| *node).collect();
        let dominators = dominators(&heap.edges, &starts);
        let mut devices: Vec<StorageDevice> =
            heap.storages.iter().map(|storage| storage.device.clone()).collect();
        devices.sort_unstable();
        devices.dedup();
        let retained = devices.iter().map(|device| {
            let mut own = vec![0; heap.len()];
            for storage in heap.storages.iter().filter(|storage| storage.device == *device) {
                own[storage.node as usize] = bytes_of(storage);
            }
            dominators.retained(&own)
        });
        let (is_history, is_tensor) = tensors_and_history(heap);
        let is_named = |root: &Root| matches!(root, Root::Module { .. } | Root::Frame { .. });
        let named = roots.iter().filter(|(_, root)| is_named(root)).map(|(node, _)| *node).collect();
        AnalyzedHeap {
            retained: retained.collect(),
            bytes: heap.storages.iter().map(&bytes_of).collect(),
            paths: ShortestPaths::new(heap, &roots, is_own),
            children: dominators.children(),
            is_garbage: garbage.is_garbage,
            dominators,
            devices,
            is_history,
            is_tensor,
            named,
            cycles: OnceLock::new(),
            roots,
            heap: Arc::clone(heap),
        }
    }

    /// Returns the bytes that would be freed with an object, on each device that has any.
    pub fn retained(&self, node: u32) -> Vec<(&StorageDevice, u64)> {
        let each = self.devices.iter().zip(&self.retained);
        each.map(|(device, bytes)| (device, bytes[node as usize])).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Returns the bytes that would be freed with an object, on all devices together.
    pub fn retained_bytes(&self, node: u32) -> u64 {
        self.retained.iter().map(|bytes| bytes[node as usize]).fold(0, u64::saturating_add)
    }

    /// Returns the closest dominator of an object.
    pub fn dominator(&self, node: u32) -> Option<u32> {
        match self.dominators.parent(node) {
            Parent::Node(parent) => Some(parent),
            Parent::Root | Parent::Unreachable => None,
        }
    }

    /// Returns the objects that an object dominates directly; with `None` those that nothing dominates.
    pub fn dominated(&self, node: Option<u32>) -> &[u32] {
        self.children.of(node.unwrap_or(self.heap.len() as u32))
    }

    /// Returns the shortest path to an object.
    pub fn path(&self, node: u32) -> Path {
        self.paths.to(node)
    }

    /// Returns a path to a node from each variable that leads to it, shortest first: it is freed when all of
    /// these are gone. Paths of garbage, or of objects held by C code, start there.
    pub fn reference_paths(&self, node: u32, most: usize) -> Vec<Path> {
        let heap = &self.heap;
        let reversed = heap.edges.reversed();
        // Edge to follow from each node that leads there, searched backwards.
        let mut next: Vec<u32> = vec![u32::MAX; heap.len()];
        let mut seen = vec![false; heap.len()];
        seen[node as usize] = true;
        let mut waiting = std::collections::VecDeque::from([node]);
        let mut starts: Vec<(u32, usize)> = Vec::new();
        while let Some(at) = waiting.pop_front() {
            let mut sources: Vec<(u32, u32)> = reversed
                .positions(at)
                .map(|place| (reversed.order()[place], reversed.targets()[place]))
                .collect();
            // Among several references of one object, a named one is preferred.
            sources.sort_by_key(|&(position, _)| heap.name(position as usize).link == ReferenceKind::Part);
            for (position, source) in sources {
                if self.is_root(source) {
                    starts.push((source, position as usize));
                } else if !std::mem::replace(&mut seen[source as usize], true) {
                    next[source as usize] = position;
                    waiting.push_back(source);
                }
            }
        }
        let mut ways: Vec<Path> = Vec::new();
        for (place, (root, kind)) in self.roots.iter().enumerate() {
            let begins: Vec<Option<usize>> = match kind {
                Root::Recorder => continue,
                Root::Outside | Root::Garbage if seen[*root as usize] => vec![None],
                Root::Outside | Root::Garbage => continue,
                _ => {
                    starts.iter().filter(|(start, _)| start == root).map(|(_, first)| Some(*first)).collect()
                }
            };
            for first in begins {
                let mut edges: Vec<usize> = first.into_iter().collect();
                let mut at = first.map_or(*root, |first| heap.edges.targets()[first]);
                while at != node {
                    edges.push(next[at as usize] as usize);
                    at = heap.edges.targets()[next[at as usize] as usize];
                }
                ways.push(Path { root: place, edges });
            }
        }
        let is_named = |path: &Path| !matches!(self.roots[path.root].1, Root::Outside | Root::Garbage);
        // A value on the stack of a function usually belongs to one of its variables too, and is temporary.
        let is_in_passing =
            |path: &Path| path.edges.first().is_some_and(|&edge| heap.name(edge).link == ReferenceKind::Part);
        ways.sort_by_key(|path| (!is_named(path), is_in_passing(path), path.edges.len(), path.edges.clone()));
        ways.truncate(most);
        ways
    }

    /// Returns whether nothing refers to the node any more: it waits for the garbage collector.
    pub fn is_garbage(&self, node: u32) -> bool {
        self.is_garbage[node as usize]
    }

    /// Returns whether the node belongs to the autograd graph.
    pub fn is_history(&self, node: u32) -> bool {
        self.is_history[node as usize]
    }

    /// Returns whether the node is a tensor, part of its history, or its memory: not an object in which the
    /// program keeps things.
    pub fn is_kept_thing(&self, node: u32) -> bool {
        self.is_history[node as usize] || self.is_tensor[node as usize] || self.heap.storage(node).is_some()
    }

    /// Returns whether the node is a module or a running function.
    pub(crate) fn is_root(&self, node: u32) -> bool {
        self.named.contains(&node)
    }

    /// Returns whether only the recorder holds the node.
    pub(crate) fn is_of_recorder(&self, node: u32) -> bool {
        self.roots[self.path(node).root].1 == Root::Recorder
    }

    /// Returns whether the node is a tensor.
    pub fn is_tensor(&self, node: u32) -> bool {
        self.is_tensor[node as usize]
    }
}

fn tensors_and_history(heap: &Heap) -> (Vec<bool>, Vec<bool>) {
    let (mut is_history, mut is_tensor) = (vec![false; heap.len()], vec![false; heap.len()]);
    for node in 0..heap.len() as u32 {
        for (name, to) in heap.references(node) {
            let leads_to_history = name.text == "grad_fn" || name.text.starts_with("next_functions[");
            is_history[to as usize] |= name.link == ReferenceKind::Attribute && leads_to_history;
            is_tensor[node as usize] |= name.link == ReferenceKind::Inside && heap.storage(to).is_some();
        }
    }
    (is_history, is_tensor)
}

struct Garbage {
    is_garbage: Vec<bool>,
    /// One object of each group that no other garbage refers to.
    starts: Vec<u32>,
}

fn garbage(heap: &Heap, roots: &[(u32, Root)], components: &Components) -> Garbage {
    let mut is_garbage = vec![true; heap.len()];
    let mut waiting: Vec<u32> = roots.iter().map(|(node, _)| *node).collect();
    while let Some(node) = waiting.pop() {
        if std::mem::replace(&mut is_garbage[node as usize], false) {
            waiting.extend(heap.edges.of(node));
        }
    }
    let mut is_referred_to = vec![false; components.count];
    for node in (0..heap.len() as u32).filter(|&node| is_garbage[node as usize]) {
        for &to in heap.edges.of(node) {
            let (from, to) = (components.of[node as usize], components.of[to as usize]);
            is_referred_to[to as usize] |= from != to;
        }
    }
    let mut starts = Vec::new();
    for node in (0..heap.len() as u32).filter(|&node| is_garbage[node as usize]) {
        let of = components.of[node as usize] as usize;
        if !std::mem::replace(&mut is_referred_to[of], true) {
            starts.push(node);
        }
    }
    Garbage { is_garbage, starts }
}

/// Adds bytes to the sum of a device.
pub(crate) fn add(sums: &mut Vec<(StorageDevice, u64)>, device: &StorageDevice, bytes: u64) {
    match sums.iter_mut().find(|(of, _)| of == device) {
        Some((_, sum)) => *sum = sum.saturating_add(bytes),
        None => sums.push((device.clone(), bytes)),
    }
}
