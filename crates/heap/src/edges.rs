//! Adjacency lists of a graph that is built once and then read many times.
//!
//! Compressed sparse rows: the targets of all nodes in one array, row after row, and the start of each row.
//! Twenty million edges are three allocations, and a walk over a node's edges reads contiguous memory.

use std::ops::Range;

/// Edges of a graph. Nodes are numbered from 0.
pub struct Edges {
    /// One entry more than there are nodes: row `n` is `starts[n]..starts[n + 1]`.
    starts: Vec<u32>,
    targets: Vec<u32>,
    order: Vec<u32>,
}

impl Edges {
    /// Creates rows from the edges `(from, to)`. Those of one node keep their order; self edges and repeated
    /// edges are kept.
    ///
    /// # Panics If a pair names a node that does not exist, or if there are more than `u32::MAX` pairs.
    /// Callers validate pairs from untrusted input first.
    pub fn new(nodes: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Edges {
        let starts = row_starts(nodes, pairs.clone().map(|(from, _)| from));
        let edges = starts.last().map_or(0, |&end| end as usize);
        let (mut targets, mut order) = (vec![0; edges], vec![0; edges]);
        let mut next = starts.clone();
        for (position, (from, to)) in (0..).zip(pairs) {
            assert!((to as usize) < nodes, "an edge points at a node that does not exist");
            let place = take(&mut next, from);
            targets[place] = to;
            order[place] = position;
        }
        Edges { starts, targets, order }
    }

    /// Returns the targets of `node`.
    pub fn of(&self, node: u32) -> &[u32] {
        &self.targets[self.positions(node)]
    }

    /// Returns the positions of the edges of `node` among all edges: the part of [`Edges::order`] that
    /// belongs to [`Edges::of`].
    pub fn positions(&self, node: u32) -> Range<usize> {
        self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize
    }

    /// Returns the index of the pair that each edge was created from, so that a caller can look up data about
    /// its pairs. For [`Edges::reversed`], the pairs are the original edges, by position.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Returns all targets, row after row.
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// Returns the graph with every edge reversed. The sources of a node are in ascending order.
    pub fn reversed(&self) -> Edges {
        let starts = row_starts(self.nodes(), self.targets.iter().copied());
        let (mut targets, mut order) = (vec![0; self.len()], vec![0; self.len()]);
        let mut next = starts.clone();
        for node in 0..self.nodes() as u32 {
            for position in self.positions(node) {
                let place = take(&mut next, self.targets[position]);
                targets[place] = node;
                order[place] = position as u32;
            }
        }
        Edges { starts, targets, order }
    }

    /// Returns the number of edges.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns whether there are no edges.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.starts.len() - 1
    }
}

/// Returns the start of each row when things are sorted into `rows` rows, and the end of the last one.
pub(crate) fn row_starts(rows: usize, row_of_each: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut starts = vec![0u32; rows + 1];
    let mut count = 0usize;
    for row in row_of_each {
        starts[row as usize + 1] += 1;
        count += 1;
    }
    assert!(u32::try_from(count).is_ok(), "edges are numbered with 32 bits");
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    starts
}

/// Returns the next free position in a row.
pub(crate) fn take(next: &mut [u32], row: u32) -> usize {
    let place = next[row as usize];
    next[row as usize] += 1;
    place as usize
}
