//! Who keeps some memory: the one object whose going would free most of it, and the way to it.

use crate::graph::{Device, Link, Root};
use crate::habit::Habit;
use crate::holdings::Holdings;
use crate::paths::Path;
use std::collections::{HashMap, HashSet};

/// Of all that is asked about, what has to hang on an object for it to be the holder.
const MOST: f64 = 0.5;
/// Of what hangs on an object, what has to hang on a part of it for the part to be the holder.
const NEARLY_ALL: f64 = 0.9;

/// Other ways to a holder that are told.
const OTHER_WAYS: usize = 3;

/// What keeps memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The object; of several alike, one.
    pub node: u32,
    /// How many alike: reference cycles, objects held by C code. Otherwise 1.
    pub alike: usize,
    /// The way to it.
    pub path: Path,
    /// Other ways to it: it is not gone before these are.
    pub also: Vec<Path>,
    /// The way from a root to the memory, by way of the holder.
    pub example: Path,
    /// How it came to keep it.
    pub habit: Habit,
    /// Bytes of what was asked about that it holds, with all that are alike.
    pub bytes: u64,
    /// The nodes that these are the bytes of.
    pub held: Vec<u32>,
    /// What would be free without it, on each device.
    pub retained: Vec<(Device, u64)>,
    /// Its references that lead to what was asked about.
    pub entries: usize,
    /// Whether tensors are kept with the graph that made them.
    pub keeps_history: bool,
}

/// A holder, before anything is said about it.
struct Found {
    node: u32,
    alike: usize,
    held: Vec<u32>,
}

impl Holdings {
    /// Who keeps these nodes, each with its bytes. `None` if there are none.
    pub fn holder(&self, wanted: &[(u32, u64)]) -> Option<Holder> {
        let total: u64 = wanted.iter().map(|(_, bytes)| bytes).sum();
        if total == 0 {
            return None;
        }
        let mut weights = vec![0u64; self.heap.len()];
        for &(node, bytes) in wanted {
            weights[node as usize] += bytes;
        }
        for &node in self.dominators.order().iter().rev() {
            if let Some(parent) = self.dominator(node) {
                weights[parent as usize] += weights[node as usize];
            }
        }
        let Found { node, alike, held } = match self.descend(total, &weights) {
            Some(node) => {
                let hangs_on_it = self.hanging_on(node);
                let held = wanted.iter().map(|(each, _)| *each).filter(|&each| hangs_on_it[each as usize]);
                Found { node, alike: 1, held: held.collect() }
            }
            None => self.most_alike(wanted).or_else(|| self.on_the_way(total, wanted))?,
        };
        let is_held: HashSet<u32> = held.iter().copied().collect();
        let of_it: Vec<(u32, u64)> =
            wanted.iter().copied().filter(|(each, _)| is_held.contains(each)).collect();
        let bytes = of_it.iter().map(|(_, bytes)| bytes).sum();
        let example = self.example(node, &of_it)?;
        let path = self.path(node);
        Some(Holder {
            also: self.other_ways(node, &path),
            alike,
            habit: self.habit(node, &self.roots, &example),
            entries: self.heap.edges.of(node).iter().filter(|&&to| weights[to as usize] > 0).count(),
            keeps_history: self.is_through_history(node, &example),
            retained: self
                .retained(node)
                .into_iter()
                .map(|(device, bytes)| (device.clone(), bytes))
                .collect(),
            path,
            example,
            node,
            bytes,
            held,
        })
    }

    /// Who keeps these nodes, part after part: what the first does not hold is asked about again, as long as it is more than
    /// this share of all.
    pub fn holders(&self, wanted: &[(u32, u64)], least_share: f64) -> Vec<Holder> {
        let total: u64 = wanted.iter().map(|(_, bytes)| bytes).sum();
        let mut rest = wanted.to_vec();
        let mut holders = Vec::new();
        while rest.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64 > least_share * total as f64 {
            let Some(holder) = self.holder(&rest) else { break };
            let held: HashSet<u32> = holder.held.iter().copied().collect();
            let before = rest.len();
            rest.retain(|(node, _)| !held.contains(node));
            holders.push(holder);
            if rest.len() == before {
                break;
            }
        }
        holders
    }

    /// Down the dominator tree, to the last place where the program keeps things.
    fn descend(&self, total: u64, weights: &[u64]) -> Option<u32> {
        let (mut at, mut holder): (Option<u32>, Option<u32>) = (None, None);
        let mut is_in_history = false;
        while let Some(best) = self.dominated(at).iter().copied().max_by_key(|&node| weights[node as usize]) {
            // A module or a running function is no answer, whatever share of it is elsewhere.
            let enough = match at {
                Some(node) if !self.is_root(node) => NEARLY_ALL * weights[node as usize] as f64,
                _ => MOST * total as f64,
            };
            let weight = weights[best as usize];
            if weight == 0 || (weight as f64) < enough || self.heap.storage(best).is_some() {
                break;
            }
            // A variable that is a tensor holds itself, and its gradient; what is in a list is held by the list.
            let is_named = at.is_none_or(|node| self.is_namespace(node) || self.is_tensor(node));
            if self.is_history(best) {
                is_in_history = true;
            } else if !self.is_tensor(best) {
                is_in_history = false;
                holder = (!self.is_root(best)).then_some(best).or(holder);
            } else if is_named && !is_in_history {
                holder = Some(best);
            }
            at = Some(best);
        }
        holder.map(|node| self.owner(node))
    }

    /// The instance whose dictionary this is.
    fn owner(&self, node: u32) -> u32 {
        let path = self.path(node);
        let hidden =
            path.edges.iter().rev().take_while(|&&edge| self.heap.name(edge).link == Link::Inside).count();
        let nodes = path.nodes(&self.heap, &self.roots);
        nodes[nodes.len() - 1 - hidden]
    }

    /// Whether what is in it has names of its own: a module, a running function, an instance.
    fn is_namespace(&self, node: u32) -> bool {
        let is_name = |link: Link| matches!(link, Link::Attribute | Link::Local);
        self.is_root(node) || self.heap.references(node).any(|(name, _)| is_name(name.link))
    }

    /// Many alike that hold most of it together: cycles that wait for the collector, objects that C code holds.
    fn most_alike(&self, wanted: &[(u32, u64)]) -> Option<Found> {
        let total: u64 = wanted.iter().map(|(_, bytes)| bytes).sum();
        let mut groups: HashMap<String, (u64, Vec<u32>, Vec<u32>)> = HashMap::new();
        for &(node, bytes) in wanted {
            let (root, kind) = &self.roots[self.path(node).root];
            if matches!(kind, Root::Garbage | Root::Outside) {
                let (sum, roots, held) =
                    groups.entry(format!("{kind:?} {}", self.heap.class(*root))).or_default();
                *sum += bytes;
                roots.push(*root);
                held.push(node);
            }
        }
        let (bytes, mut roots, held) = groups.into_values().max_by(|a, b| (a.0, &b.1).cmp(&(b.0, &a.1)))?;
        roots.sort_unstable();
        roots.dedup();
        (bytes as f64 >= MOST * total as f64).then(|| Found { node: roots[0], alike: roots.len(), held })
    }

    /// Where nothing alone keeps it alive: the last place that nearly all of the shortest ways lead through, or the first
    /// that most do.
    fn on_the_way(&self, total: u64, wanted: &[(u32, u64)]) -> Option<Found> {
        let ways: Vec<(u32, u64, Vec<u32>)> = wanted
            .iter()
            .map(|&(node, bytes)| (node, bytes, self.path(node).nodes(&self.heap, &self.roots)))
            .collect();
        let mut weights: HashMap<u32, (u64, usize)> = HashMap::new();
        for (_, bytes, way) in &ways {
            let places = way.iter().take_while(|&&each| !self.is_kept_thing(each)).enumerate();
            for (depth, &place) in places.filter(|(_, place)| !self.is_root(**place)) {
                weights.entry(place).or_insert((0, depth)).0 += bytes;
            }
        }
        let having = |share: f64| {
            let enough = share * total as f64;
            weights.iter().filter(move |(_, (weight, _))| *weight as f64 >= enough)
        };
        let last = having(NEARLY_ALL).max_by_key(|(node, (_, depth))| (*depth, **node));
        let first = || having(MOST).min_by_key(|(node, (_, depth))| (*depth, **node));
        let first_tensor = || {
            let (_, _, way) = ways.iter().max_by_key(|(_, bytes, _)| *bytes)?;
            way.iter().copied().find(|&each| self.is_kept_thing(each))
        };
        let node = last.or_else(first).map(|(&place, _)| self.owner(place)).or_else(first_tensor)?;
        let held = ways.iter().filter(|(_, _, way)| way.contains(&node)).map(|(each, ..)| *each).collect();
        Some(Found { node, alike: 1, held })
    }

    /// Which objects would go with one.
    fn hanging_on(&self, holder: u32) -> Vec<bool> {
        let mut hangs = vec![false; self.heap.len()];
        for &node in self.dominators.order() {
            hangs[node as usize] =
                node == holder || self.dominator(node).is_some_and(|parent| hangs[parent as usize]);
        }
        hangs
    }

    /// A way to the memory through the holder: of the largest piece, the first.
    fn example(&self, holder: u32, wanted: &[(u32, u64)]) -> Option<Path> {
        let largest = wanted.iter().map(|(_, bytes)| *bytes).max()?;
        let of_largest =
            wanted.iter().filter(|(_, bytes)| *bytes == largest).map(|(node, _)| self.path(*node));
        let mut paths: Vec<Path> = of_largest.take(64).collect();
        paths.sort_by_key(|path| {
            (!path.nodes(&self.heap, &self.roots).contains(&holder), path.edges.len(), path.edges.clone())
        });
        paths.into_iter().next()
    }

    /// The shortest ways to an object by its other references.
    fn other_ways(&self, node: u32, path: &Path) -> Vec<Path> {
        let heap = &self.heap;
        let mut ways: Vec<Path> = Vec::new();
        let positions = (0..heap.edges.len()).filter(|&position| heap.edges.targets()[position] == node);
        for position in positions.filter(|position| path.edges.last() != Some(position)) {
            let mut way = self.path(self.source(position));
            // Not those that lead through the object itself, nor what the recorder does.
            let is_round = way.nodes(heap, &self.roots).contains(&node);
            // A value on the stack of a function is on its way, not kept.
            let is_in_passing = heap.name(position).link == Link::Part;
            if !is_round && !is_in_passing && self.roots[way.root].1 != Root::Recorder {
                way.edges.push(position);
                ways.push(way);
            }
        }
        ways.sort_by_key(|way| (way.edges.len(), way.edges.clone()));
        ways.truncate(OTHER_WAYS);
        ways
    }

    /// Whether the way from the holder to the memory leads through a tensor's history.
    fn is_through_history(&self, holder: u32, example: &Path) -> bool {
        let nodes = example.nodes(&self.heap, &self.roots);
        let from = nodes.iter().position(|&node| node == holder).unwrap_or(0);
        nodes[from..].iter().any(|&node| self.is_history(node))
    }
}
