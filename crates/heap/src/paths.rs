//! The shortest way to an object that a person can follow: from a variable, by names.
//!
//! Every reference has a cost, so that a way by names is taken before one through C code, and a variable of the user's before
//! a library's.

use crate::graph::{Heap, Link, Root};

/// What is not known or not wanted, as a cost: more than any path by names.
const FROM_LIBRARY: u32 = 8;
const FROM_OUTSIDE: u32 = 1 << 12;
const FROM_GARBAGE: u32 = 1 << 14;
const FARTHEST: u32 = u32::MAX;
const ROOT: u32 = u32::MAX;

/// Shortest ways from the roots to every object.
pub(crate) struct Paths {
    /// Place in the list of roots, or the position of the last edge.
    last: Vec<u32>,
    /// The node before; [`ROOT`] for a root.
    before: Vec<u32>,
}

/// A way from a root to an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Place in the list of roots.
    pub root: usize,
    /// Positions of the edges, in order.
    pub edges: Vec<usize>,
}

impl Paths {
    /// All of them. `is_own` says of a root whether it is the user's own code.
    pub(crate) fn new(heap: &Heap, roots: &[(u32, Root)], is_own: impl Fn(&Root) -> bool) -> Paths {
        let mut costs = vec![FARTHEST; heap.len()];
        let mut paths = Paths { last: vec![0; heap.len()], before: vec![ROOT; heap.len()] };
        // By cost, as costs are small numbers.
        let mut waiting: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
        for (place, (node, root)) in (0..).zip(roots) {
            let cost = match root {
                Root::Module { .. } | Root::Frame { .. } if is_own(root) => 0,
                Root::Module { .. } | Root::Frame { .. } => FROM_LIBRARY,
                Root::Outside | Root::Recorder => FROM_OUTSIDE,
                Root::Garbage => FROM_GARBAGE,
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

    /// The way to an object; every object of a heap whose garbage has roots has one.
    pub(crate) fn to(&self, node: u32) -> Path {
        let mut edges = Vec::new();
        let mut at = node;
        while self.before[at as usize] != ROOT {
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
        Link::Inside => 0,
        // From one function to its caller says nothing about who holds something.
        Link::Attribute if name.text == "f_back" => 64,
        Link::Attribute if name.text == "__class__" => 16,
        Link::Attribute | Link::Local => 2,
        // A parameter is rather `model.head.weight` than `optimizer.param_groups[0]['params'][7]`.
        Link::Item | Link::Closure | Link::Cached | Link::Element => 3,
        Link::Part => 12,
        // An optimizer has its parameters as keys of its state.
        Link::Key => 24,
    }
}

impl Path {
    /// The nodes along the way, from the root on.
    pub fn nodes(&self, heap: &Heap, roots: &[(u32, Root)]) -> Vec<u32> {
        let steps = self.edges.iter().map(|&position| heap.edges.targets()[position]);
        std::iter::once(roots[self.root].0).chain(steps).collect()
    }

    /// The way to the `nodes`th node along it.
    pub fn until(&self, nodes: usize) -> Path {
        Path { root: self.root, edges: self.edges[..nodes.min(self.edges.len())].to_vec() }
    }
}
