//! Holder of some memory: the one object whose removal would free most of it, and its reference path.

use crate::analyzed::AnalyzedHeap;
use crate::graph::{ReferenceKind, Root, StorageDevice};
use crate::holder_kind::HolderKind;
use crate::paths::Path;
use std::collections::{HashMap, HashSet};

/// Minimum share of the requested memory that an object must retain to be its holder.
const MIN_HOLDER_SHARE: f64 = 0.5;
/// Minimum share of an object's retained memory that a part must retain to be the holder instead.
const MIN_PART_SHARE: f64 = 0.9;

/// Maximum number of other paths reported for a holder.
const MAX_OTHER_PATHS: usize = 3;

/// Holder of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The object; one of them if there are several.
    pub node: u32,
    /// Number of similar objects: reference cycles, objects held by C code. Otherwise 1.
    pub similar: usize,
    /// Reference path of the holder.
    pub path: Path,
    /// Other paths to it: it is freed only when these are gone, too.
    pub also: Vec<Path>,
    /// Path from a root to the memory through the holder.
    pub example: Path,
    /// How it came to hold the memory.
    pub kind: HolderKind,
    /// Bytes of the requested memory that it holds, with all similar objects.
    pub bytes: u64,
    /// Nodes of these bytes.
    pub held: Vec<u32>,
    /// Bytes that would be freed without it, per device.
    pub retained: Vec<(StorageDevice, u64)>,
    /// Number of its references that lead to the requested memory.
    pub entries: usize,
    /// Whether tensors are held with the autograd graph that created them.
    pub keeps_history: bool,
}

/// Most paths that are followed to see what a holder keeps its tensors by.
const MAX_SAMPLED_PATHS: usize = 64;

/// Holder before it is described.
struct HolderCandidate {
    node: u32,
    alike: usize,
    held: Vec<u32>,
}

impl AnalyzedHeap {
    /// Finds the holder of these nodes, each with its bytes. `None` if there are no nodes.
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
        let HolderCandidate { node, alike, held } = match self.descend(total, &weights) {
            Some(node) => {
                let hangs_on_it = self.retained_with(node);
                let held = wanted.iter().map(|(each, _)| *each).filter(|&each| hangs_on_it[each as usize]);
                HolderCandidate { node, alike: 1, held: held.collect() }
            }
            None => self.most_alike(wanted).or_else(|| self.on_shortest_paths(total, wanted))?,
        };
        let is_held: HashSet<u32> = held.iter().copied().collect();
        let of_it: Vec<(u32, u64)> =
            wanted.iter().copied().filter(|(each, _)| is_held.contains(each)).collect();
        let bytes = of_it.iter().map(|(_, bytes)| bytes).sum();
        let example = self.example(node, &of_it)?;
        let path = self.path(node);
        Some(Holder {
            also: self.other_paths(node, &path),
            similar: alike,
            kind: self.holder_kind(node, &self.roots, &example),
            entries: self.heap.edges.of(node).iter().filter(|&&to| weights[to as usize] > 0).count(),
            keeps_history: self.keeps_history(node, &of_it),
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

    /// Finds the holders of these nodes one after the other: what the first does not hold is searched again,
    /// as long as it is more than `least_share` of all.
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

    /// Descends the dominator tree to the last object in which the program keeps things.
    fn descend(&self, total: u64, weights: &[u64]) -> Option<u32> {
        let (mut at, mut holder): (Option<u32>, Option<u32>) = (None, None);
        let mut is_in_history = false;
        while let Some(best) = self.dominated(at).iter().copied().max_by_key(|&node| weights[node as usize]) {
            // A module or a running function is not an answer, whatever its share.
            let enough = match at {
                Some(node) if !self.is_root(node) => MIN_PART_SHARE * weights[node as usize] as f64,
                _ => MIN_HOLDER_SHARE * total as f64,
            };
            let weight = weights[best as usize];
            if weight == 0 || (weight as f64) < enough || self.heap.storage(best).is_some() {
                break;
            }
            // A variable that is a tensor holds itself and its gradient; tensors in a list are held by the
            // list.
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

    /// Returns the instance whose dictionary this is.
    fn owner(&self, node: u32) -> u32 {
        let path = self.path(node);
        let hidden = path
            .edges
            .iter()
            .rev()
            .take_while(|&&edge| self.heap.name(edge).link == ReferenceKind::Inside)
            .count();
        let nodes = path.nodes(&self.heap, &self.roots);
        nodes[nodes.len() - 1 - hidden]
    }

    /// Returns whether its content is named: a module, a running function, an instance.
    fn is_namespace(&self, node: u32) -> bool {
        let is_name = |link: ReferenceKind| matches!(link, ReferenceKind::Attribute | ReferenceKind::Local);
        self.is_root(node) || self.heap.references(node).any(|(name, _)| is_name(name.link))
    }

    /// Finds similar objects that hold most of it together: cycles that wait for the garbage collector,
    /// objects held by C code.
    fn most_alike(&self, wanted: &[(u32, u64)]) -> Option<HolderCandidate> {
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
        (bytes as f64 >= MIN_HOLDER_SHARE * total as f64).then(|| HolderCandidate {
            node: roots[0],
            alike: roots.len(),
            held,
        })
    }

    /// Finds the holder of memory that no single object retains: the last object on nearly all of the
    /// shortest paths, or the first on most of them.
    fn on_shortest_paths(&self, total: u64, wanted: &[(u32, u64)]) -> Option<HolderCandidate> {
        let paths: Vec<(u32, u64, Vec<u32>)> = wanted
            .iter()
            .map(|&(node, bytes)| (node, bytes, self.path(node).nodes(&self.heap, &self.roots)))
            .collect();
        let mut weights: HashMap<u32, (u64, usize)> = HashMap::new();
        for (_, bytes, candidate) in &paths {
            let places = candidate.iter().take_while(|&&each| !self.is_kept_thing(each)).enumerate();
            for (depth, &place) in places.filter(|(_, place)| !self.is_root(**place)) {
                weights.entry(place).or_insert((0, depth)).0 += bytes;
            }
        }
        let having = |share: f64| {
            let enough = share * total as f64;
            weights.iter().filter(move |(_, (weight, _))| *weight as f64 >= enough)
        };
        let last = having(MIN_PART_SHARE).max_by_key(|(node, (_, depth))| (*depth, **node));
        let first = || having(MIN_HOLDER_SHARE).min_by_key(|(node, (_, depth))| (*depth, **node));
        let first_tensor = || {
            let (_, _, candidate) = paths.iter().max_by_key(|(_, bytes, _)| *bytes)?;
            candidate.iter().copied().find(|&each| self.is_kept_thing(each))
        };
        let node = last.or_else(first).map(|(&place, _)| self.owner(place)).or_else(first_tensor)?;
        let held = paths
            .iter()
            .filter(|(_, _, candidate)| candidate.contains(&node))
            .map(|(each, ..)| *each)
            .collect();
        Some(HolderCandidate { node, alike: 1, held })
    }

    /// Marks the objects that would be freed with one.
    fn retained_with(&self, holder: u32) -> Vec<bool> {
        let mut retained = vec![false; self.heap.len()];
        for &node in self.dominators.order() {
            retained[node as usize] =
                node == holder || self.dominator(node).is_some_and(|parent| retained[parent as usize]);
        }
        retained
    }

    /// Returns a path to the memory through the holder: that of the first of the largest storages.
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

    /// Returns the shortest paths to an object by its other references.
    fn other_paths(&self, node: u32, path: &Path) -> Vec<Path> {
        let heap = &self.heap;
        let mut paths: Vec<Path> = Vec::new();
        let positions = (0..heap.edges.len()).filter(|&position| heap.edges.targets()[position] == node);
        for position in positions.filter(|position| path.edges.last() != Some(position)) {
            let mut candidate = self.path(self.source(position));
            // Excludes paths through the object itself, and those of the recorder.
            let is_round = candidate.nodes(heap, &self.roots).contains(&node);
            // A value on the stack of a function is temporary.
            let is_temporary = heap.name(position).link == ReferenceKind::Part;
            if !is_round && !is_temporary && self.roots[candidate.root].1 != Root::Recorder {
                candidate.edges.push(position);
                paths.push(candidate);
            }
        }
        paths.sort_by_key(|candidate| (candidate.edges.len(), candidate.edges.clone()));
        paths.truncate(MAX_OTHER_PATHS);
        paths
    }

    /// Returns whether the path from the holder to the memory leads through a tensor's history.
    /// Whether a holder keeps most of these nodes, each with its bytes, through the graphs that made them.
    fn keeps_history(&self, holder: u32, held: &[(u32, u64)]) -> bool {
        let (mut all, mut through) = (0, 0);
        for &(node, bytes) in held.iter().step_by(held.len().div_ceil(MAX_SAMPLED_PATHS).max(1)) {
            all += bytes;
            through += if self.is_through_history(holder, &self.path(node)) { bytes } else { 0 };
        }
        2 * through > all
    }

    fn is_through_history(&self, holder: u32, example: &Path) -> bool {
        let nodes = example.nodes(&self.heap, &self.roots);
        let from = nodes.iter().position(|&node| node == holder).unwrap_or(0);
        nodes[from..].iter().any(|&node| self.is_history(node))
    }
}
