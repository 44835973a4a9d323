//! What would go if one object went: the dominator tree of a heap.
//!
//! A node dominates another if every path from the roots to the other leads through it. The closest of a node's
//! dominators is its parent in a tree, and what a node keeps alive all by itself is what hangs below it there.
//!
//! The algorithm is Semi-NCA (Georgiadis, Tarjan, Werneck 2006). Nodes are numbered in the order of a depth-first walk
//! from a virtual root, number 0, that points at all roots. A node's *semidominator* is the lowest number from which a
//! path leads to it through higher numbers than its own only. Its dominator is then the closest ancestor, in
//! the tree of those found so far, whose number is not above the semidominator's. It does more work than
//! Lengauer–Tarjan in the worst case and less in practice.
//!
//! Reasons for the form it has here: memory is what it waits for.
//! - Every table is indexed by the number in the walk, so that neighbours in the graph are neighbours in memory.
//! - An edge from a lower number to a higher one only offers its source as a semidominator, which the walk does in
//!   passing. Only the others are sorted by target, and the graph is never reversed as a whole.
//! - Nobody asks which node has the lowest semidominator on a path, so the number alone is kept, beside the link.

use crate::edges::{Edges, row_starts, take};

/// The dominator tree of what can be reached from the roots.
pub struct Dominators {
    /// A node's number in the walk; 0 if it cannot be reached.
    numbers: Vec<u32>,
    /// The node of each number. The virtual root, number 0, has `VIRTUAL` here.
    order: Vec<u32>,
    /// The number of each number's dominator.
    parents: Vec<u32>,
}

/// The closest dominator of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The node cannot be reached.
    Unreachable,
    /// No single node keeps it alive: it is a root, or roots reach it in more than one way.
    Root,
    Node(u32),
}

const VIRTUAL: u32 = u32::MAX;

/// The dominator tree below a virtual root that points at all `roots`.
pub fn dominators(edges: &Edges, roots: &[u32]) -> Dominators {
    let Walk { numbers, order, tree, lowest, upward } = walk(edges, roots);
    let semidominators = semidominators(&tree, lowest, &upward);
    // Ancestors come before their descendants, so the tree turns into the dominator tree in place.
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
    pub fn parent(&self, node: u32) -> Parent {
        match self.numbers[node as usize] {
            0 => Parent::Unreachable,
            number => match self.order[self.parents[number as usize] as usize] {
                VIRTUAL => Parent::Root,
                parent => Parent::Node(parent),
            },
        }
    }

    /// Every node that can be reached, parents before their children.
    pub fn order(&self) -> &[u32] {
        &self.order[1..]
    }

    /// The sum of `own` over each node and all below it: what goes if the node goes. 0 for what cannot be reached.
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

    /// Each node's children. There is one row more than there are nodes: the last is the virtual root's.
    pub fn children(&self) -> Edges {
        let nodes = self.numbers.len();
        let pairs = self.order.iter().zip(&self.parents).skip(1).map(|(&node, &parent)| {
            let parent = self.order[parent as usize];
            (if parent == VIRTUAL { nodes as u32 } else { parent }, node)
        });
        Edges::new(nodes + 1, pairs)
    }
}

/// What a depth-first walk finds out. All but `numbers` is by number.
struct Walk {
    numbers: Vec<u32>,
    order: Vec<u32>,
    /// From where the walk came.
    tree: Vec<u32>,
    /// The lowest number that points at this one, among those below it.
    lowest: Vec<u32>,
    /// The edges from higher numbers to lower ones, as `(to, from)`.
    upward: Vec<(u32, u32)>,
}

fn walk(edges: &Edges, roots: &[u32]) -> Walk {
    let nodes = edges.nodes();
    assert!(nodes < VIRTUAL as usize, "nodes are numbered with 32 bits");
    let mut walk = Walk {
        numbers: vec![0; nodes],
        order: Vec::with_capacity(nodes + 1),
        tree: Vec::with_capacity(nodes + 1),
        lowest: Vec::with_capacity(nodes + 1),
        upward: Vec::new(),
    };
    walk.order.push(VIRTUAL);
    walk.tree.push(0);
    walk.lowest.push(0);
    // Edges that led to a new node when their source was entered, and the number of the source.
    let mut ahead: Vec<(u32, u32)> = Vec::new();
    for &root in roots {
        ahead.push((root, 0));
        while let Some((node, from)) = ahead.pop() {
            match walk.numbers[node as usize] {
                0 => walk.enter(edges, node, from, &mut ahead),
                // Entered meanwhile, so its number is the higher one.
                number => {
                    let lowest = &mut walk.lowest[number as usize];
                    *lowest = from.min(*lowest);
                }
            }
        }
    }
    walk
}

impl Walk {
    /// Looks at all edges of a node at once: the processor then waits for the numbers of their targets together.
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

/// A number's link to one of its ancestors in the tree, and the lowest semidominator from it up to there, the ancestor
/// left out.
#[derive(Clone, Copy)]
struct Link {
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
    let mut links: Vec<Link> = tree.iter().map(|&above| Link { above, least: VIRTUAL }).collect();
    for number in (1..tree.len()).rev() {
        let mut least = lowest[number];
        for &from in &sources[starts[number] as usize..starts[number + 1] as usize] {
            if least == 0 {
                break; // Nothing is lower. Classes and modules are pointed at by everybody, and are often roots.
            }
            least = least.min(least_above(&mut links, from, number as u32));
        }
        lowest[number] = least;
        links[number].least = least;
    }
    lowest
}

/// The lowest semidominator among `from` and those of its ancestors whose numbers are higher than `floor`. Every other
/// link on the way is made to skip one, which keeps the paths short: a chain of millions is walked once, not each time.
fn least_above(links: &mut [Link], from: u32, floor: u32) -> u32 {
    let mut at = from as usize;
    let mut least = VIRTUAL;
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
        links[at] = Link { above: above.above, least: link.least.min(above.least) };
        at = above.above as usize;
    }
}
