//! Dominator tree of a heap: what would be freed with an object.
//!
//! A node dominates another if every path from the roots to the other leads through it. The closest of a
//! node's dominators is its parent in a tree, and a node retains exactly what is below it there.
//!
//! The algorithm is Semi-NCA (Georgiadis, Tarjan, Werneck 2006). Nodes are numbered in the order of a
//! depth-first walk from a virtual root, number 0, that points at all roots. A node's *semidominator* is the
//! lowest number from which a path leads to it through higher numbers than its own only. Its dominator is
//! then the closest ancestor, in the tree of those found so far, whose number is not above the
//! semidominator's. It does more work than Lengauer–Tarjan in the worst case and less in practice.
//!
//! The implementation is bound by memory access:
//!
//! - Every table is indexed by the number in the walk, so that neighbors in the graph are neighbors in
//!   memory.
//! - An edge from a lower number to a higher one only offers its source as a semidominator, which the walk
//!   handles itself. Only the others are sorted by target, and the graph is never reversed as a whole.
//! - Which node has the lowest semidominator on a path is not needed, so only the number is kept, with the
//!   link.

use crate::edges::{Edges, row_starts, take};

/// Dominator tree of everything reachable from the roots.
pub struct Dominators {
    /// Number of each node in the walk; 0 if it is unreachable.
    numbers: Vec<u32>,
    /// Node of each number. The virtual root, number 0, has `VIRTUAL_ROOT` here.
    order: Vec<u32>,
    /// Number of each number's dominator.
    parents: Vec<u32>,
}

/// Closest dominator of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The node is unreachable.
    Unreachable,
    /// No single node keeps it alive: it is a root, or is reachable from several roots.
    Root,
    /// The closest dominator.
    Node(u32),
}

/// Node of the virtual root.
const VIRTUAL_ROOT: u32 = u32::MAX;

/// Computes the dominator tree below a virtual root that points at all `roots`.
///
/// # Panics
/// If the graph has `u32::MAX` nodes or more.
pub fn dominators(edges: &Edges, roots: &[u32]) -> Dominators {
    let DepthFirstWalk { numbers, order, tree, lowest, upward } = walk(edges, roots);
    let semidominators = semidominators(&tree, lowest, &upward);
    // Ancestors precede their descendants, so the tree becomes the dominator tree in place.
    let mut parents = tree;
    for number in 1..parents.len() {
        let mut parent = parents[number];
        while parent > semidominators[number] {
            parent = parents[parent as usize];
        }
        parents[number] = parent;
    }
    Dominators { numbers, order, parents }
}

impl Dominators {
    /// Returns the closest dominator of a node.
    pub fn parent(&self, node: u32) -> Parent {
        match self.numbers[node as usize] {
            0 => Parent::Unreachable,
            number => match self.order[self.parents[number as usize] as usize] {
                VIRTUAL_ROOT => Parent::Root,
                parent => Parent::Node(parent),
            },
        }
    }

    /// Returns every reachable node, parents before their children.
    pub fn order(&self) -> &[u32] {
        &self.order[1..]
    }

    /// Sums `own` over each node and everything below it: what is freed with the node. 0 for unreachable
    /// nodes.
    pub fn retained(&self, own: &[u64]) -> Vec<u64> {
        let mut sums: Vec<u64> = Vec::with_capacity(self.order.len());
        sums.push(0);
        sums.extend(self.order().iter().map(|&node| own[node as usize]));
        for number in (1..sums.len()).rev() {
            let parent = self.parents[number] as usize;
            sums[parent] = sums[parent].saturating_add(sums[number]);
        }
        self.numbers.iter().map(|&number| if number == 0 { 0 } else { sums[number as usize] }).collect()
    }

    /// Returns each node's children. There is one row more than there are nodes: the last is that of the
    /// virtual root.
    pub fn children(&self) -> Edges {
        let nodes = self.numbers.len();
        let pairs = self.order.iter().zip(&self.parents).skip(1).map(|(&node, &parent)| {
            let parent = self.order[parent as usize];
            (if parent == VIRTUAL_ROOT { nodes as u32 } else { parent }, node)
        });
        Edges::new(nodes + 1, pairs)
    }
}

/// Result of a depth-first walk. All but `numbers` is indexed by number.
struct DepthFirstWalk {
    numbers: Vec<u32>,
    order: Vec<u32>,
    /// Predecessor in the walk.
    tree: Vec<u32>,
    /// Lowest number that points at this one, among those below it.
    lowest: Vec<u32>,
    /// Edges from higher numbers to lower ones, as `(to, from)`.
    upward: Vec<(u32, u32)>,
}

fn walk(edges: &Edges, roots: &[u32]) -> DepthFirstWalk {
    let nodes = edges.nodes();
    assert!(nodes < VIRTUAL_ROOT as usize, "nodes are numbered with 32 bits");
    let mut walk = DepthFirstWalk {
        numbers: vec![0; nodes],
        order: Vec::with_capacity(nodes + 1),
        tree: Vec::with_capacity(nodes + 1),
        lowest: Vec::with_capacity(nodes + 1),
        upward: Vec::new(),
    };
    walk.order.push(VIRTUAL_ROOT);
    walk.tree.push(0);
    walk.lowest.push(0);
    // Edges that led to a new node when their source was entered, and the number of the source.
    let mut ahead: Vec<(u32, u32)> = Vec::new();
    for &root in roots {
        ahead.push((root, 0));
        while let Some((node, from)) = ahead.pop() {
            match walk.numbers[node as usize] {
                0 => walk.enter(edges, node, from, &mut ahead),
                // Entered in the meantime, so its number is the higher one.
                number => {
                    let lowest = &mut walk.lowest[number as usize];
                    *lowest = from.min(*lowest);
                }
            }
        }
    }
    walk
}

impl DepthFirstWalk {
    /// Visits all edges of a node at once, so that the processor loads the numbers of their targets in
    /// parallel.
    fn enter(&mut self, edges: &Edges, node: u32, from: u32, ahead: &mut Vec<(u32, u32)>) {
        let number = self.order.len() as u32;
        self.numbers[node as usize] = number;
        self.order.push(node);
        self.tree.push(from);
        self.lowest.push(from);
        for &target in edges.of(node).iter().rev() {
            match self.numbers[target as usize] {
                0 => ahead.push((target, number)),
                seen if seen < number => self.upward.push((seen, number)),
                _ => {}
            }
        }
    }
}

/// Link of a number to one of its ancestors in the tree, with the lowest semidominator on the way there,
/// excluding the ancestor.
#[derive(Clone, Copy)]
struct AncestorLink {
    above: u32,
    least: u32,
}

fn semidominators(tree: &[u32], mut lowest: Vec<u32>, upward: &[(u32, u32)]) -> Vec<u32> {
    let starts = row_starts(tree.len(), upward.iter().map(|&(to, _)| to));
    let mut next = starts.clone();
    let mut sources = vec![0; upward.len()];
    for &(to, from) in upward {
        sources[take(&mut next, to)] = from;
    }
    let mut links: Vec<AncestorLink> =
        tree.iter().map(|&above| AncestorLink { above, least: VIRTUAL_ROOT }).collect();
    for number in (1..tree.len()).rev() {
        let mut least = lowest[number];
        for &from in &sources[starts[number] as usize..starts[number + 1] as usize] {
            if least == 0 {
                break; // The minimum. Most objects point at classes and modules, which are often roots.
            }
            least = least.min(least_above(&mut links, from, number as u32));
        }
        lowest[number] = least;
        links[number].least = least;
    }
    lowest
}

/// Returns the lowest semidominator among `from` and its ancestors with numbers above `floor`. Halves the
/// path on the way: a chain of millions is walked once, not each time.
fn least_above(links: &mut [AncestorLink], from: u32, floor: u32) -> u32 {
    let mut at = from as usize;
    let mut least = VIRTUAL_ROOT;
    loop {
        let link = links[at];
        least = least.min(link.least);
        if link.above <= floor {
            return least;
        }
        let above = links[link.above as usize];
        least = least.min(above.least);
        if above.above <= floor {
            return least;
        }
        links[at] = AncestorLink { above: above.above, least: link.least.min(above.least) };
        at = above.above as usize;
    }
}
