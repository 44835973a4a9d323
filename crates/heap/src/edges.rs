//! Which nodes a node points at, for a graph that is built once and then read many times.
//!
//! Compressed sparse rows: the targets of all nodes in one array, row after row, and where each row starts. Twenty
//! million edges are three allocations, and a walk over a node's edges is a walk over neighbouring memory.

use std::ops::Range;

/// The edges of a graph. Nodes are numbered from 0.
pub struct Edges {
    /// One more than there are nodes: row `n` is `starts[n]..starts[n + 1]`.
    starts: Vec<u32>,
    targets: Vec<u32>,
    order: Vec<u32>,
}

impl Edges {
    /// The edges `(from, to)` as rows. Those of one node keep the order in which they are given; self edges and
    /// repeated edges are kept.
    ///
    /// # Panics
    /// If a pair names a node that is not there, or if there are more than `u32::MAX` pairs: whoever reads pairs from
    /// outside has to check them.
    pub fn new(nodes: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Edges {
        let starts = row_starts(nodes, pairs.clone().map(|(from, _)| from));
        let edges = starts.last().map_or(0, |&end| end as usize);
        let (mut targets, mut order) = (vec![0; edges], vec![0; edges]);
        let mut next = starts.clone();
        for (position, (from, to)) in (0..).zip(pairs) {
            assert!((to as usize) < nodes, "an edge points at a node that is not there");
            let place = take(&mut next, from);
            targets[place] = to;
            order[place] = position;
        }
        Edges { starts, targets, order }
    }

    /// What `node` points at.
    pub fn of(&self, node: u32) -> &[u32] {
        &self.targets[self.positions(node)]
    }

    /// Where the edges of `node` lie among all edges: the part of [`Edges::order`] that belongs to [`Edges::of`].
    pub fn positions(&self, node: u32) -> Range<usize> {
        self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize
    }

    /// Which of the pairs each edge was, so that what a caller keeps beside the pairs can be found from an edge. For
    /// [`Edges::reversed`], the pairs are the edges that were turned around, by position.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// All targets, row after row.
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// Every edge, turned around. What points at a node comes in ascending order.
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

    /// Number of edges.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there is no edge at all.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.starts.len() - 1
    }
}

/// Where each row starts when things are sorted into `rows` rows, and where the last one ends.
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

/// The next free place in a row.
pub(crate) fn take(next: &mut [u32], row: u32) -> usize {
    let place = next[row as usize];
    next[row as usize] += 1;
    place as usize
}
