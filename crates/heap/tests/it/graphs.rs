//! Properties of graphs, on thousands of small ones, checked against the literal definitions.

use heap::components::components;
use heap::dominators::{Parent, dominators};
use heap::edges::Edges;
use proptest::prelude::*;

/// Small graph as generated: pairs, roots and a size for every node.
#[derive(Clone, Debug)]
struct Drawn {
    nodes: u32,
    pairs: Vec<(u32, u32)>,
    roots: Vec<u32>,
    own: Vec<u64>,
}

impl Drawn {
    fn edges(&self) -> Edges {
        Edges::new(self.nodes as usize, self.pairs.iter().copied())
    }

    /// Marks what is reachable from `starts` without visiting `removed`.
    fn reach(&self, starts: &[u32], removed: Option<u32>) -> Vec<bool> {
        let mut reached = vec![false; self.nodes as usize];
        for &start in starts {
            reached[start as usize] = Some(start) != removed;
        }
        loop {
            let before = reached.clone();
            for &(from, to) in &self.pairs {
                if reached[from as usize] && Some(to) != removed {
                    reached[to as usize] = true;
                }
            }
            if reached == before {
                return reached;
            }
        }
    }
}

/// From no edges to five per node: from isolated nodes to one dense component; edges of a small graph often
/// repeat.
fn drawn() -> impl Strategy<Value = Drawn> {
    (1u32..40, 0.0f64..5.0).prop_flat_map(|(nodes, density)| {
        let edges = (f64::from(nodes) * density) as usize;
        let pair = prop_oneof![
            6 => (0..nodes, 0..nodes),
            1 => (0..nodes).prop_map(|node| (node, node)),
            2 => (0..nodes).prop_map(move |node| (node, (node + 1) % nodes)),
        ];
        (
            proptest::collection::vec(pair, edges),
            proptest::collection::vec(0..nodes, 0..5),
            proptest::collection::vec(0u64..1000, nodes as usize),
        )
            .prop_map(move |(pairs, roots, own)| Drawn { nodes, pairs, roots, own })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn edges_equal_adjacency_lists(graph in drawn()) {
        let mut lists = vec![Vec::new(); graph.nodes as usize];
        let mut reversed = lists.clone();
        for (position, &(from, to)) in (0u32..).zip(&graph.pairs) {
            lists[from as usize].push((to, position));
        }
        for (from, list) in (0u32..).zip(&lists) {
            for &(to, position) in list {
                reversed[to as usize].push((from, position));
            }
        }
        let edges = graph.edges();
        let turned = edges.reversed();
        prop_assert_eq!((edges.nodes(), edges.len()), (lists.len(), graph.pairs.len()));
        prop_assert_eq!((turned.nodes(), turned.len()), (lists.len(), graph.pairs.len()));
        prop_assert_eq!(edges.is_empty(), graph.pairs.is_empty());
        for node in 0..graph.nodes {
            let given = edges.order()[edges.positions(node)].iter().copied();
            let row: Vec<_> = edges.of(node).iter().copied().zip(given).collect();
            prop_assert_eq!(&row, &lists[node as usize]);
            let given = turned.order()[turned.positions(node)].iter().map(|&at| edges.order()[at as usize]);
            let row: Vec<_> = turned.of(node).iter().copied().zip(given).collect();
            prop_assert_eq!(&row, &reversed[node as usize]);
        }
    }

    #[test]
    fn a_dominator_is_a_node_without_which_another_cannot_be_reached(graph in drawn()) {
        let nodes = graph.nodes;
        let tree = dominators(&graph.edges(), &graph.roots);
        let reached = graph.reach(&graph.roots, None);
        let without: Vec<Vec<bool>> = (0..nodes).map(|node| graph.reach(&graph.roots, Some(node))).collect();
        let strict = |node: u32| -> Vec<u32> {
            (0..nodes).filter(|&other| other != node && !without[other as usize][node as usize]).collect()
        };
        for node in 0..nodes {
            let expected = if reached[node as usize] {
                // The closest is the one that all the others dominate, so it has the most dominators itself.
                let closest = strict(node).into_iter().max_by_key(|&other| strict(other).len());
                closest.map_or(Parent::Root, Parent::Node)
            } else {
                Parent::Unreachable
            };
            prop_assert_eq!(tree.parent(node), expected, "parent of {}", node);
        }

        let retained = tree.retained(&graph.own);
        for node in 0..nodes as usize {
            let lost: u64 = (0..nodes as usize)
                .filter(|&other| reached[other] && !without[node][other])
                .map(|other| graph.own[other])
                .sum();
            prop_assert_eq!(retained[node], if reached[node] { lost } else { 0 }, "retained by {}", node);
        }
    }

    #[test]
    fn children_are_the_reversed_parents_and_follow_them(graph in drawn()) {
        let tree = dominators(&graph.edges(), &graph.roots);
        let children = tree.children();
        prop_assert_eq!(children.nodes(), graph.nodes as usize + 1);
        prop_assert_eq!(children.len(), tree.order().len());
        let mut place = vec![None; graph.nodes as usize];
        for (at, &node) in tree.order().iter().enumerate() {
            prop_assert_eq!(place[node as usize].replace(at), None, "{} comes twice", node);
        }
        for node in 0..graph.nodes {
            let (row, parent) = match tree.parent(node) {
                Parent::Unreachable => {
                    prop_assert_eq!(place[node as usize], None);
                    continue;
                }
                Parent::Root => (graph.nodes, None),
                Parent::Node(parent) => (parent, place[parent as usize]),
            };
            prop_assert!(parent < place[node as usize]);
            prop_assert!(children.of(row).contains(&node));
        }
    }

    #[test]
    fn members_of_a_component_reach_each_other(graph in drawn()) {
        let found = components(&graph.edges());
        let reach: Vec<Vec<bool>> = (0..graph.nodes).map(|node| graph.reach(&[node], None)).collect();
        let mut members = vec![0; found.count];
        for (node, reaches) in reach.iter().enumerate() {
            let component = found.of[node];
            members[component as usize] += 1;
            for (other, &reaches) in reaches.iter().enumerate() {
                prop_assert_eq!(component == found.of[other], reaches && reach[other][node]);
                prop_assert!(!reaches || component >= found.of[other], "numbered in order");
            }
        }
        prop_assert_eq!(found.cyclic.len(), found.count);
        for (component, &members) in members.iter().enumerate() {
            let inside = |node: u32| found.of[node as usize] as usize == component;
            let loops = graph.pairs.iter().any(|&(from, to)| from == to && inside(from));
            prop_assert!(members > 0);
            prop_assert_eq!(found.cyclic[component], members > 1 || loops);
        }
    }
}

const MANY: u32 = 1_000_000;

#[test]
fn a_chain_of_a_million_nodes_is_walked() {
    let chain = Edges::new(MANY as usize, (1..MANY).map(|node| (node - 1, node)));
    let tree = dominators(&chain, &[0]);
    assert_eq!(tree.parent(0), Parent::Root);
    assert_eq!(tree.parent(MANY - 1), Parent::Node(MANY - 2));
    let retained = tree.retained(&vec![1; MANY as usize]);
    assert!(retained.iter().rev().zip(1..).all(|(&bytes, expected)| bytes == expected));
    let found = components(&chain);
    assert_eq!(found.count, MANY as usize);
    assert!(!found.cyclic.contains(&true));
}

/// Each node points back at its predecessor and at the start: every link of the walk is used repeatedly.
#[test]
fn a_chain_of_a_million_nodes_with_back_edges_is_one_component() {
    let ways = (1..MANY).flat_map(|node| [(node - 1, node), (node, node - 1), (node, 0), (node, node / 2)]);
    let chain = Edges::new(MANY as usize, ways);
    let tree = dominators(&chain, &[0]);
    assert!((1..MANY).all(|node| tree.parent(node) == Parent::Node(node - 1)));
    let found = components(&chain);
    assert_eq!((found.count, found.cyclic), (1, vec![true]));
}

#[test]
fn a_list_of_a_million_objects_retains_those_with_no_other_reference() {
    // Node 0 is the list. A second root, the last node, also refers to every third object.
    let last = MANY - 1;
    let pairs = (1..last).map(|node| (0, node)).chain((1..last).step_by(3).map(|node| (last, node)));
    let fan = Edges::new(MANY as usize, pairs);
    let tree = dominators(&fan, &[0, last]);
    let shared = (1..last).step_by(3).len();
    assert_eq!(tree.parent(1), Parent::Root);
    assert_eq!(tree.parent(2), Parent::Node(0));
    assert_eq!(tree.children().of(MANY).len(), shared + 2);
    assert_eq!(tree.children().of(0).len(), last as usize - 1 - shared);
    let retained = tree.retained(&vec![2; MANY as usize]);
    assert_eq!((retained[0], retained[1]), (2 * u64::from(last) - 2 * shared as u64, 2));
    assert_eq!(fan.reversed().of(4), [0, last]);
}

#[test]
fn retained_sizes_saturate() {
    let pair = Edges::new(2, [(0, 1)].into_iter());
    assert_eq!(dominators(&pair, &[0]).retained(&[u64::MAX, u64::MAX - 1]), [u64::MAX, u64::MAX - 1]);
}

#[test]
fn an_empty_graph_has_an_empty_tree() {
    let none = Edges::new(0, std::iter::empty());
    assert!(none.is_empty() && none.reversed().is_empty());
    assert!(dominators(&none, &[]).order().is_empty());
    assert_eq!(components(&none).count, 0);
}
