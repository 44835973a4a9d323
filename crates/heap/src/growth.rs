//! Comparison of two heaps of one process by reference path: what grew between them.

use crate::analyzed::AnalyzedHeap;
use crate::graph::{ReferenceKind, StorageDevice};
use crate::path_text;
use std::collections::BTreeMap;

/// Containers with more entries than this count as one path, whatever their keys.
const MAX_SEPARATE_ENTRIES: usize = 8;

/// Memory at one path.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Amount {
    /// Number of storages.
    pub count: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Path whose memory changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathChange {
    /// Reference path: `__main__.history[…]`.
    pub place: String,
    /// Device that holds the memory.
    pub device: StorageDevice,
    /// Amount in the earlier heap.
    pub before: Amount,
    /// Amount in the later heap.
    pub after: Amount,
}

impl PathChange {
    /// Returns the growth in bytes.
    pub fn growth(&self) -> i64 {
        let (before, after) = (self.before.bytes, self.after.bytes);
        let most = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        most(after).saturating_sub(most(before))
    }
}

/// Returns every path whose memory changed, largest growth first.
pub fn changes(before: &AnalyzedHeap, after: &AnalyzedHeap) -> Vec<PathChange> {
    let mut changes: BTreeMap<(String, StorageDevice), (Amount, Amount)> = BTreeMap::new();
    for (key, amount) in before.places() {
        changes.entry(key).or_default().0 = amount;
    }
    for (key, amount) in after.places() {
        changes.entry(key).or_default().1 = amount;
    }
    let mut changes: Vec<PathChange> = changes
        .into_iter()
        .filter(|(_, (before, after))| before != after)
        .map(|((place, device), (before, after))| PathChange { place, device, before, after })
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.growth()));
    changes
}

impl AnalyzedHeap {
    /// Sums the memory at each path: the shortest path up to the first tensor.
    pub fn places(&self) -> BTreeMap<(String, StorageDevice), Amount> {
        let mut places: BTreeMap<(String, StorageDevice), Amount> = BTreeMap::new();
        for (storage, &bytes) in self.heap.storages.iter().zip(&self.bytes) {
            let amount = places.entry((self.place(storage.node), storage.device.clone())).or_default();
            amount.count += 1;
            amount.bytes = amount.bytes.saturating_add(bytes);
        }
        places
    }

    /// Returns the path of a node up to the first tensor: `__main__.history[…]`.
    pub fn place(&self, node: u32) -> String {
        let path = self.path(node);
        let nodes = path.nodes(&self.heap, &self.roots);
        let kept = nodes.iter().position(|&node| self.is_kept_thing(node)).unwrap_or(nodes.len() - 1);
        path_text::path(&self.heap, &self.roots, &path.until(kept), |position| {
            let name = self.heap.name(position);
            let is_number = name.text.bytes().all(|byte| byte.is_ascii_digit());
            name.link == ReferenceKind::Item
                && (is_number || self.heap.edges.of(self.source(position)).len() > MAX_SEPARATE_ENTRIES)
        })
    }
}
