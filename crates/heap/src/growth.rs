//! What two heaps of one process hold, place by place: what grew between them.

use crate::graph::{Device, Link};
use crate::holdings::Holdings;
use crate::words;
use std::collections::BTreeMap;

/// A container with more entries than this is one place, whatever its keys.
const ONE_BY_ONE: usize = 8;

/// Memory at one place.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Amount {
    /// Storages.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A place whose memory changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// `__main__.history[…]`
    pub place: String,
    /// Where the memory lies.
    pub device: Device,
    /// What it was.
    pub before: Amount,
    /// What it is.
    pub after: Amount,
}

impl Change {
    /// Bytes more than before.
    pub fn growth(&self) -> i64 {
        let (before, after) = (self.before.bytes, self.after.bytes);
        let most = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        most(after).saturating_sub(most(before))
    }
}

/// Every place whose memory changed, the greatest growth first.
pub fn changes(before: &Holdings, after: &Holdings) -> Vec<Change> {
    let mut changes: BTreeMap<(String, Device), (Amount, Amount)> = BTreeMap::new();
    for (key, amount) in before.places() {
        changes.entry(key).or_default().0 = amount;
    }
    for (key, amount) in after.places() {
        changes.entry(key).or_default().1 = amount;
    }
    let mut changes: Vec<Change> = changes
        .into_iter()
        .filter(|(_, (before, after))| before != after)
        .map(|((place, device), (before, after))| Change { place, device, before, after })
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.growth()));
    changes
}

impl Holdings {
    /// The memory at each place: where the shortest way leads before it comes to a tensor.
    pub fn places(&self) -> BTreeMap<(String, Device), Amount> {
        let mut places: BTreeMap<(String, Device), Amount> = BTreeMap::new();
        for (storage, &bytes) in self.heap.storages.iter().zip(&self.bytes) {
            let amount = places.entry((self.place(storage.node), storage.device.clone())).or_default();
            amount.count += 1;
            amount.bytes = amount.bytes.saturating_add(bytes);
        }
        places
    }

    /// `__main__.history[…]`
    pub fn place(&self, node: u32) -> String {
        let path = self.path(node);
        let nodes = path.nodes(&self.heap, &self.roots);
        let kept = nodes.iter().position(|&node| self.is_kept_thing(node)).unwrap_or(nodes.len() - 1);
        words::path(&self.heap, &self.roots, &path.until(kept), |position| {
            let name = self.heap.name(position);
            let is_number = name.text.bytes().all(|byte| byte.is_ascii_digit());
            name.link == Link::Item
                && (is_number || self.heap.edges.of(self.source(position)).len() > ONE_BY_ONE)
        })
    }
}
