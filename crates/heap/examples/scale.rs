//! Benchmark of a large heap: five million objects with twenty million references, synthetic but shaped like
//! those of a training script. `cargo run --release -p oomph-heap --example scale`; with `scattered`, the
//! objects are numbered at random, the worst case for the caches.

#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use heap::components::components;
use heap::dominators::{Parent, dominators};
use heap::edges::Edges;
use std::time::{Duration, Instant};

const NODES: u32 = 5_000_000;
const EDGES: usize = 20_000_000;
/// Modules and classes: the first objects, and the roots.
const ROOTS: u32 = 1_000;

fn main() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut pairs = references(&mut random);
    let mut roots: Vec<u32> = (0..ROOTS).collect();
    let scattered = std::env::args().any(|argument| argument == "scattered");
    if scattered {
        let names = shuffled(&mut random);
        let rename = |node: &mut u32| *node = names[*node as usize];
        roots.iter_mut().for_each(rename);
        pairs.iter_mut().for_each(|(from, to)| {
            rename(from);
            rename(to);
        });
    }
    let own: Vec<u64> = (0..NODES).map(|_| 16 * u64::from(1 + random.below(32))).collect();
    println!(
        "{NODES} objects, {EDGES} references, numbered {}",
        if scattered { "at random" } else { "as allocated" }
    );

    let mut total = Duration::ZERO;
    let edges = timed("edges", &mut total, || Edges::new(NODES as usize, pairs.iter().copied()));
    let reversed = timed("reversed", &mut total, || edges.reversed());
    let tree = timed("dominators", &mut total, || dominators(&edges, &roots));
    let retained = timed("retained", &mut total, || tree.retained(&own));
    let children = timed("children", &mut total, || tree.children());
    let found = timed("components", &mut total, || components(&edges));
    println!("{:<12}{:>7.0} ms", "together", total.as_secs_f64() * 1e3);

    let tops = children.of(NODES);
    let bytes: u64 = tops.iter().map(|&node| retained[node as usize]).sum();
    let deepest = depth(&tree);
    println!("reachable {}, below no single object {}, tree depth {deepest}", tree.order().len(), tops.len());
    println!("bytes {bytes}, components {}, of them cycles {}", found.count, cycles(&found.cyclic));
    println!("most referenced {:?}", (0..NODES).map(|node| reversed.of(node).len()).max());
}

fn timed<T>(what: &str, total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    *total += took;
    println!("{what:<12}{:>7.0} ms", took.as_secs_f64() * 1e3);
    result
}

fn cycles(cyclic: &[bool]) -> usize {
    cyclic.iter().filter(|&&cyclic| cyclic).count()
}

fn depth(tree: &heap::dominators::Dominators) -> u32 {
    let mut depths = vec![0u32; NODES as usize];
    for &node in tree.order() {
        depths[node as usize] = match tree.parent(node) {
            Parent::Node(parent) => depths[parent as usize] + 1,
            Parent::Root | Parent::Unreachable => 1,
        };
    }
    depths.into_iter().max().unwrap_or(0)
}

/// Generates the references. Every object but a leaf points at its class. Most are in trees of containers,
/// some form chains like autograd graphs with a saved tensor per link; some point back at their holder, and
/// one in two hundred is unreferenced. The rest are cross references, most of them nearby or to leaves that
/// many share (names, numbers, tensors), some to anything.
fn references(random: &mut Random) -> Vec<(u32, u32)> {
    let mut heap =
        SyntheticHeap { pairs: Vec::with_capacity(EDGES), holders: (0..ROOTS).collect(), leaves: vec![] };
    let mut node = ROOTS;
    while node < NODES {
        if random.below(20_000) == 0 {
            let length = (1_000 + random.below(20_000)).min(NODES - node);
            heap.chain(random, node, length);
            node += length;
        } else {
            heap.contained(random, node);
            node += 1;
        }
    }
    while heap.pairs.len() < EDGES {
        heap.across(random);
    }
    heap.pairs
}

struct SyntheticHeap {
    pairs: Vec<(u32, u32)>,
    holders: Vec<u32>,
    leaves: Vec<u32>,
}

impl SyntheticHeap {
    fn contained(&mut self, random: &mut Random, node: u32) {
        let leaf = random.below(5) < 3;
        if random.below(200) != 0 {
            let holders = self.holders.len() as u32;
            let one = if random.below(16) == 0 { random.below(holders) } else { random.near(holders, 256) };
            let holder = self.holders[one as usize];
            self.pairs.push((holder, node));
            if !leaf && random.below(12) == 0 {
                self.pairs.push((node, holder));
            }
        }
        if leaf {
            self.leaves.push(node);
        } else {
            self.holders.push(node);
            self.pairs.push((node, random.below(ROOTS)));
        }
    }

    /// The program holds the newest link, which points at the link before it, and so on.
    fn chain(&mut self, random: &mut Random, first: u32, length: u32) {
        let holder = self.holders[random.below(self.holders.len() as u32) as usize];
        self.pairs.push((holder, first + length - 1));
        for node in first..first + length {
            self.pairs.push((node, random.below(ROOTS)));
            if node > first {
                self.pairs.push((node, node - 1));
            }
            let saved = random.near(self.leaves.len() as u32, 4096);
            self.pairs.extend(self.leaves.get(saved as usize).map(|&tensor| (node, tensor)));
        }
    }

    fn across(&mut self, random: &mut Random) {
        let (holders, leaves) = (self.holders.len() as u32, self.leaves.len() as u32);
        let one = random.below(holders);
        let from = self.holders[one as usize];
        let to = match random.below(20) {
            0 => random.below(NODES),
            1..8 => random.near(from, 4096),
            8..14 => self.leaves[random.below(leaves / 64) as usize],
            _ => {
                let beside = u64::from(one) * u64::from(leaves) / u64::from(holders);
                self.leaves[random.near(beside as u32, 1024) as usize]
            }
        };
        self.pairs.push((from, to));
    }
}

fn shuffled(random: &mut Random) -> Vec<u32> {
    let mut names: Vec<u32> = (0..NODES).collect();
    for last in (1..NODES).rev() {
        names.swap(last as usize, random.below(last + 1) as usize);
    }
    names
}

/// Xorshift: the same heap on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Returns one of the `distance` objects before `node`.
    fn near(&mut self, node: u32, distance: u32) -> u32 {
        node.saturating_sub(1 + self.below(distance))
    }
}
