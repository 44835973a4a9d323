//! Objects that keep each other alive: the strongly connected components of a graph. Reference counting alone never
//! frees one with a cycle in it.
//!
//! Tarjan's algorithm in Pearce's form (2016), with one number per node instead of three. Nodes that are under way
//! count up from 1 and give their numbers back when they are done; finished components count down from the top. A
//! finished node is therefore always higher than one under way, and the comparison that looks for the earliest node
//! within reach passes over it by itself.

use crate::edges::Edges;

/// The strongly connected components of a graph.
pub struct Components {
    /// The component of each node. A component is numbered after all that it points at.
    pub of: Vec<u32>,
    /// Number of components.
    pub count: usize,
    /// By component: whether it has more than one member, or one that points at itself.
    pub cyclic: Vec<bool>,
}

/// A node whose edges are being followed.
struct Visit {
    node: u32,
    /// The node's number while it is under way.
    number: u32,
    /// The lowest number within reach so far.
    lowest: u32,
    /// Where its edges start among those that are still to be followed.
    ahead: usize,
}

pub fn components(edges: &Edges) -> Components {
    let nodes = edges.nodes();
    assert!(u32::try_from(nodes).is_ok(), "nodes are numbered with 32 bits");
    let mut search = Search {
        numbers: vec![0; nodes],
        under_way: 0,
        ahead: Vec::new(),
        waiting: Vec::new(),
        cyclic: Vec::new(),
    };
    let mut visits = Vec::new();
    for start in 0..nodes as u32 {
        if search.numbers[start as usize] == 0 {
            visits.push(search.enter(edges, start));
        }
        while let Some(visit) = visits.last() {
            if let Some(node) = search.follow(visit) {
                visits.push(search.enter(edges, node));
            } else if let Some(done) = visits.pop() {
                search.leave(&done);
                if let Some(before) = visits.last_mut() {
                    before.lowest = before.lowest.min(search.numbers[done.node as usize]);
                }
            }
        }
    }
    let Search { numbers: mut of, mut cyclic, .. } = search;
    for (node, component) in (0..).zip(&mut of) {
        *component = u32::MAX - *component;
        if edges.of(node).contains(&node) {
            cyclic[*component as usize] = true;
        }
    }
    Components { of, count: cyclic.len(), cyclic }
}

struct Search {
    /// 0 for a node not seen yet, a low number for one under way, `u32::MAX` less its component for a finished one.
    numbers: Vec<u32>,
    /// How many nodes are under way.
    under_way: u32,
    /// Edges that led to a new node when their source was entered.
    ahead: Vec<u32>,
    /// Nodes without further edges that reach an earlier node, so belong to a component still under way.
    waiting: Vec<u32>,
    cyclic: Vec<bool>,
}

impl Search {
    /// Looks at all edges of a node at once: the processor then waits for the numbers of their targets together.
    fn enter(&mut self, edges: &Edges, node: u32) -> Visit {
        self.under_way += 1;
        let number = self.under_way;
        self.numbers[node as usize] = number;
        let mut visit = Visit { node, number, lowest: number, ahead: self.ahead.len() };
        for &target in edges.of(node).iter().rev() {
            match self.numbers[target as usize] {
                0 => self.ahead.push(target),
                number => visit.lowest = visit.lowest.min(number),
            }
        }
        visit
    }

    /// Goes on with a node's edges up to one that leads to a new node. A target that was new when the node was entered
    /// and is not any more is below it in the walk: what it reaches is told on the way up.
    fn follow(&mut self, visit: &Visit) -> Option<u32> {
        while self.ahead.len() > visit.ahead {
            let node = self.ahead.pop()?;
            if self.numbers[node as usize] == 0 {
                return Some(node);
            }
        }
        None
    }

    fn leave(&mut self, visit: &Visit) {
        if visit.lowest < visit.number {
            self.numbers[visit.node as usize] = visit.lowest;
            self.waiting.push(visit.node);
            return;
        }
        let finished = u32::MAX - self.cyclic.len() as u32;
        self.numbers[visit.node as usize] = finished;
        let mut members = 1;
        while let Some(member) = self.waiting.pop_if(|member| self.numbers[*member as usize] >= visit.number)
        {
            self.numbers[member as usize] = finished;
            members += 1;
        }
        self.under_way -= members;
        self.cyclic.push(members > 1);
    }
}
