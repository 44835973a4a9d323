//! Readable dominator tree: names instead of numbers, similar objects grouped, and small branches left out.

use crate::analyzed::{AnalyzedHeap, add};
use crate::graph::{ReferenceKind, ReferenceName, Root, StorageDevice};
use crate::path_text;

/// Limits of the tree's size.
#[derive(Clone, Copy, Debug)]
pub struct TreeLimits {
    /// Number of levels.
    pub depth: usize,
    /// Number of branches of one object.
    pub most: usize,
    /// Minimum size of a branch, in bytes.
    pub least: u64,
}

/// Object, or several similar ones, with everything it retains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Branch {
    /// Reference from its parent: `.history`, `[…]`; the whole path for the first level.
    pub name: String,
    /// Class and description.
    pub what: String,
    /// Number of similar objects.
    pub count: usize,
    /// Bytes that would be freed without it, per device.
    pub retained: Vec<(StorageDevice, u64)>,
    /// Objects that it dominates.
    pub branches: Vec<Branch>,
    /// Number of branches that are left out.
    pub left_out: usize,
}

impl Branch {
    /// Returns the bytes on all devices.
    pub fn bytes(&self) -> u64 {
        self.retained.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl AnalyzedHeap {
    /// Returns the tree of everything held, from the roots.
    pub fn tree(&self, limits: TreeLimits) -> Branch {
        let mut whole = Branch {
            name: String::new(),
            what: String::new(),
            count: 1,
            retained: Vec::new(),
            branches: Vec::new(),
            left_out: 0,
        };
        for (storage, &bytes) in self.heap.storages.iter().zip(&self.bytes) {
            add(&mut whole.retained, &storage.device, bytes);
        }
        (whole.branches, whole.left_out) = self.branches(None, limits, limits.depth);
        whole
    }

    fn branches(&self, node: Option<u32>, limits: TreeLimits, depth: usize) -> (Vec<Branch>, usize) {
        if depth == 0 {
            return (Vec::new(), 0);
        }
        let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
        let mut places: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
        for child in self.dominated_visibly(node) {
            if self.retained_bytes(child) == 0 || node.is_none() && self.is_of_recorder(child) {
                continue;
            }
            let key = self.similarity_key(node, child);
            let place = *places.entry(key.clone()).or_insert_with(|| {
                groups.push((key, Vec::new()));
                groups.len() - 1
            });
            groups[place].1.push(child);
        }
        let bytes = |(_, children): &(String, Vec<u32>)| -> u64 {
            children.iter().map(|&child| self.retained_bytes(child)).sum()
        };
        groups.retain(|group| bytes(group) >= limits.least);
        groups.sort_by_key(|group| std::cmp::Reverse(bytes(group)));
        let left_out = groups.len().saturating_sub(limits.most);
        groups.truncate(limits.most);
        let branches =
            groups.iter().map(|(_, children)| self.branch(node, children, limits, depth)).collect();
        (branches, left_out)
    }

    /// Returns what an object dominates, without the steps that a path leaves out.
    pub(crate) fn dominated_visibly(&self, node: Option<u32>) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut waiting = self.dominated(node).to_vec();
        while let Some(child) = waiting.pop() {
            let is_inside = node.is_some() && self.is_inside(child) && !self.is_kept_thing(child);
            if is_inside { waiting.extend(self.dominated(Some(child))) } else { seen.push(child) }
        }
        seen.sort_unstable();
        seen
    }

    fn is_inside(&self, node: u32) -> bool {
        let path = self.path(node);
        path.edges.last().is_some_and(|&last| self.heap.name(last).link == ReferenceKind::Inside)
    }

    /// Returns the key by which similar objects are grouped.
    pub(crate) fn similarity_key(&self, above: Option<u32>, node: u32) -> String {
        let name = match self.last_name(node) {
            Some(name) if name.link == ReferenceKind::Item => "[…]".to_owned(),
            Some(name) => format!("{:?} {}", name.link, name.text),
            None => String::new(),
        };
        let root = if above.is_none() { self.root_of(node) } else { String::new() };
        format!("{root} {name} {}", self.heap.class(node))
    }

    fn root_of(&self, node: u32) -> String {
        let path = self.path(node);
        match &self.roots[path.root].1 {
            root @ (Root::Outside | Root::Garbage) => format!("{root:?}"),
            _ => self.place(node),
        }
    }

    fn last_name(&self, node: u32) -> Option<&ReferenceName> {
        self.path(node).edges.last().map(|&last| self.heap.name(last))
    }

    fn branch(&self, above: Option<u32>, alike: &[u32], limits: TreeLimits, depth: usize) -> Branch {
        let first = alike[0];
        let mut retained = Vec::new();
        for &node in alike {
            for (device, bytes) in self.retained(node) {
                add(&mut retained, device, bytes);
            }
        }
        let path = self.path(first);
        let name = match (above, path.edges.last()) {
            (None, _) => path_text::path(&self.heap, &self.roots, &path, |position| {
                alike.len() > 1 && path.edges.last() == Some(&position)
            }),
            (Some(_), Some(&last)) => self.step(last, alike.len() > 1),
            (Some(_), None) => String::new(),
        };
        let (branches, left_out) = if alike.len() > 1 || self.is_kept_thing(first) {
            (Vec::new(), 0)
        } else {
            self.branches(Some(first), limits, depth - 1)
        };
        let what = if alike.len() > 1 {
            self.heap.class(first).to_owned()
        } else {
            path_text::described(&self.heap, first)
        };
        Branch { name, what, count: alike.len(), retained, branches, left_out }
    }

    fn step(&self, position: usize, is_any: bool) -> String {
        let name = self.heap.name(position);
        match name.link {
            ReferenceKind::Key => "key".to_owned(),
            ReferenceKind::Inside | ReferenceKind::Part => "→".to_owned(),
            _ => path_text::step(name, is_any).trim_start().to_owned(),
        }
    }
}
