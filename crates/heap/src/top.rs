//! Variables that hold the most memory.

use crate::analyzed::AnalyzedHeap;
use crate::graph::{ReferenceKind, Root};
use crate::holder::Holder;
use std::collections::{BinaryHeap, HashMap};

/// Minimum share of an object's memory for which a part is listed separately.
const MIN_PART_SHARE: f64 = 0.1;

/// Holder with all memory that it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopHolder {
    /// Description of the holder.
    pub holder: Holder,
    /// Bytes on all devices.
    pub bytes: u64,
}

type Storages = Vec<(u32, u64)>;

impl AnalyzedHeap {
    /// Lists all memory by holder, largest first: what each variable retains, and if that is an object with
    /// several parts, what these retain.
    pub fn top(&self, most: usize) -> Vec<TopHolder> {
        let sizes: HashMap<u32, u64> = self
            .heap
            .storages
            .iter()
            .zip(&self.bytes)
            .map(|(storage, &bytes)| (storage.node, bytes))
            .collect();
        let mut waiting: BinaryHeap<(u64, Vec<u32>, Storages)> = BinaryHeap::new();
        let add = |waiting: &mut BinaryHeap<_>, nodes: Vec<u32>| {
            let storages = self.storages_under(&nodes, &sizes);
            let bytes: u64 = storages.iter().map(|(_, bytes)| bytes).sum();
            if bytes > 0 {
                waiting.push((bytes, nodes, storages));
            }
        };
        for nodes in self.by_variable() {
            add(&mut waiting, nodes);
        }
        let mut found = Vec::new();
        while let Some((bytes, nodes, storages)) = waiting.pop() {
            if found.len() == most {
                break;
            }
            let parts = self.parts(&nodes, bytes);
            if parts.is_empty() {
                let holder = self.holder(&storages);
                found.extend(holder.map(|holder| TopHolder { holder, bytes }));
            } else {
                parts.into_iter().for_each(|part| add(&mut waiting, part));
            }
        }
        found
    }

    /// Groups storages by variable. What several variables hold together is retained by none of them: it
    /// counts with the nearest.
    fn by_variable(&self) -> Vec<Vec<u32>> {
        let mut groups: HashMap<String, Vec<u32>> = HashMap::new();
        for &child in self.dominated(None) {
            let nodes = if self.is_root(child) { self.dominated_visibly(Some(child)) } else { vec![child] };
            for node in nodes {
                let path = self.path(node);
                let key = match &self.roots[path.root].1 {
                    Root::Recorder => continue,
                    Root::Outside | Root::Garbage => self.similarity_key(None, node),
                    _ => format!("{:?}", path.edges.first().map(|&edge| self.heap.edges.targets()[edge])),
                };
                groups.entry(key).or_default().push(node);
            }
        }
        groups.into_values().collect()
    }

    /// Returns the parts of an object that hold its memory between them; none if the object itself is the
    /// better answer: a model, a container, a tensor.
    fn parts(&self, nodes: &[u32], bytes: u64) -> Vec<Vec<u32>> {
        let is_split =
            |node: &u32| !self.is_kept_thing(*node) && self.is_instance(*node) && !self.is_module(*node);
        let largest = nodes.iter().copied().filter(is_split).max_by_key(|&node| self.retained_bytes(node));
        let Some(node) = largest else { return Vec::new() };
        let mut small: Vec<u32> = nodes.iter().copied().filter(|&other| other != node).collect();
        let large = |part: &u32| self.retained_bytes(*part) as f64 >= MIN_PART_SHARE * bytes as f64;
        let (large, rest): (Vec<u32>, Vec<u32>) =
            self.dominated_visibly(Some(node)).into_iter().partition(large);
        small.extend(rest);
        if large.is_empty() {
            return Vec::new();
        }
        let small = (!small.is_empty()).then_some(small);
        large.into_iter().map(|part| vec![part]).chain(small).collect()
    }

    /// Returns whether the node has attributes.
    fn is_instance(&self, node: u32) -> bool {
        self.heap.references(node).any(|(name, to)| match name.link {
            ReferenceKind::Attribute => name.text != "__class__",
            ReferenceKind::Inside => self.heap.storage(to).is_none(),
            _ => false,
        })
    }

    /// Returns whether the node is a `torch.nn.Module`: the dictionaries of its parts are left out of paths.
    fn is_module(&self, node: u32) -> bool {
        let inside =
            |node: u32| self.heap.references(node).filter(|(name, _)| name.link == ReferenceKind::Inside);
        inside(node).any(|(_, dictionary)| inside(dictionary).next().is_some())
    }

    fn storages_under(&self, nodes: &[u32], sizes: &HashMap<u32, u64>) -> Storages {
        let mut found = Vec::new();
        let mut waiting = nodes.to_vec();
        while let Some(node) = waiting.pop() {
            if let Some(&bytes) = sizes.get(&node) {
                found.push((node, bytes));
            }
            waiting.extend(self.dominated(Some(node)));
        }
        found.sort_unstable();
        found
    }
}
