//! Shortest reference paths that are readable for people: from a variable, by names.
//!
//! Every reference has a cost, so that a path by names is preferred to one through C code, and a variable of
//! the user to one of a library.

use crate::graph::{Heap, ReferenceKind, Root};

/// Cost of a path that starts in a library.
const LIBRARY_COST: u32 = 8;
/// Cost of a path that starts in C code: more than any path by names.
const C_CODE_COST: u32 = 1 << 12;
/// Cost of a path that starts in garbage.
const GARBAGE_COST: u32 = 1 << 14;
/// Cost of an object that was not reached yet.
const UNREACHED_COST: u32 = u32::MAX;
/// Predecessor of a root.
const NO_PREDECESSOR: u32 = u32::MAX;

/// Shortest paths from the roots to every object.
pub(crate) struct ShortestPaths {
    /// Index into the list of roots, or the position of the last edge.
    last: Vec<u32>,
    /// Predecessor; [`NO_PREDECESSOR`] for a root.
    before: Vec<u32>,
}

/// Path from a root to an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Index into the list of roots.
    pub root: usize,
    /// Positions of the edges, in order.
    pub edges: Vec<usize>,
}

impl ShortestPaths {
    /// Computes the shortest paths. `is_own` decides whether a root is the user's own code.
    pub(crate) fn new(heap: &Heap, roots: &[(u32, Root)], is_own: impl Fn(&Root) -> bool) -> ShortestPaths {
        let mut costs = vec![UNREACHED_COST; heap.len()];
        let mut paths = ShortestPaths { last: vec![0; heap.len()], before: vec![NO_PREDECESSOR; heap.len()] };
        // Buckets by cost, because costs are small numbers.
        let mut waiting: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
        for (place, (node, root)) in (0..).zip(roots) {
            let cost = match root {
                Root::Module { .. } | Root::Frame { .. } if is_own(root) => 0,
                Root::Module { .. } | Root::Frame { .. } => LIBRARY_COST,
                Root::Outside | Root::Recorder => C_CODE_COST,
                Root::Garbage => GARBAGE_COST,
            };
            if cost < costs[*node as usize] {
                costs[*node as usize] = cost;
                paths.last[*node as usize] = place;
                waiting.entry(cost).or_default().push(*node);
            }
        }
        while let Some((cost, nodes)) = waiting.pop_first() {
            for node in nodes {
                if costs[node as usize] != cost {
                    continue;
                }
                for position in heap.edges.positions(node) {
                    let to = heap.edges.targets()[position];
                    let next = cost.saturating_add(cost_of(heap, position));
                    if next < costs[to as usize] {
                        costs[to as usize] = next;
                        paths.last[to as usize] = position as u32;
                        paths.before[to as usize] = node;
                        waiting.entry(next).or_default().push(to);
                    }
                }
            }
        }
        paths
    }

    /// Returns the path to an object; every object of a heap whose garbage has roots has one.
    pub(crate) fn to(&self, node: u32) -> Path {
        let mut edges = Vec::new();
        let mut at = node;
        while self.before[at as usize] != NO_PREDECESSOR {
            edges.push(self.last[at as usize] as usize);
            at = self.before[at as usize];
        }
        edges.reverse();
        Path { root: self.last[at as usize] as usize, edges }
    }
}

fn cost_of(heap: &Heap, position: usize) -> u32 {
    let name = heap.name(position);
    match name.link {
        ReferenceKind::Inside => 0,
        // A reference from a function to its caller does not show who holds something.
        ReferenceKind::Attribute if name.text == "f_back" => 64,
        ReferenceKind::Attribute if name.text == "__class__" => 16,
        ReferenceKind::Attribute | ReferenceKind::Local => 2,
        // Prefers `model.head.weight` to `optimizer.param_groups[0]['params'][7]` for a parameter.
        ReferenceKind::Item | ReferenceKind::Closure | ReferenceKind::Cached | ReferenceKind::Element => 3,
        ReferenceKind::Part => 12,
        // An optimizer has its parameters as keys of its state.
        ReferenceKind::Key => 24,
    }
}

impl Path {
    /// Returns the nodes along the path, from the root on.
    pub fn nodes(&self, heap: &Heap, roots: &[(u32, Root)]) -> Vec<u32> {
        let steps = self.edges.iter().map(|&position| heap.edges.targets()[position]);
        std::iter::once(roots[self.root].0).chain(steps).collect()
    }

    /// Returns the path to its `nodes`th node.
    pub fn until(&self, nodes: usize) -> Path {
        Path { root: self.root, edges: self.edges[..nodes.min(self.edges.len())].to_vec() }
    }
}
