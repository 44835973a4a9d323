//! Strongly connected components of a graph: objects that keep each other alive. Reference counting alone
//! never frees a component with a cycle.
//!
//! Tarjan's algorithm in Pearce's form (2016), with one number per node instead of three. Nodes in progress
//! count up from 1 and return their numbers when they are done; finished components count down from the top.
//! A finished node is therefore always higher than one in progress, so the comparison that looks for the
//! earliest reachable node ignores it.

use crate::edges::Edges;

/// Strongly connected components of a graph.
pub struct Components {
    /// Component of each node. A component is numbered after all components that it points at.
    pub of: Vec<u32>,
    /// Number of components.
    pub count: usize,
    /// Whether each component has more than one member, or one that points at itself.
    pub cyclic: Vec<bool>,
}

/// Node whose edges are being followed.
struct Visit {
    node: u32,
    /// Number of the node while it is in progress.
    number: u32,
    /// Lowest number reached so far.
    lowest: u32,
    /// Start of its edges among those that are still to be followed.
    ahead: usize,
}

/// Computes the strongly connected components of a graph.
///
/// # Panics
/// If the graph has more than `u32::MAX` nodes.
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
    /// 0 for an unseen node, a low number for one in progress, `u32::MAX` minus its component for a finished
    /// one.
    numbers: Vec<u32>,
    /// Number of nodes in progress.
    under_way: u32,
    /// Edges that led to a new node when their source was entered.
    ahead: Vec<u32>,
    /// Nodes without further edges that reach an earlier node, so they belong to a component in progress.
    waiting: Vec<u32>,
    cyclic: Vec<bool>,
}

impl Search {
    /// Visits all edges of a node at once, so that the processor loads the numbers of their targets in
    /// parallel.
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

    /// Advances along a node's edges to the next one that leads to a new node. A target that was new when the
    /// node was entered but no longer is, is below the node in the walk: what it reaches is reported on the
    /// way up.
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
