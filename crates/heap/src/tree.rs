//! The dominator tree for people: names instead of numbers, alike together, and no deeper than there is something to say.

use crate::graph::{Device, Link, Name, Root};
use crate::holdings::{Holdings, add};
use crate::words;

/// How much of the tree is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Levels.
    pub depth: usize,
    /// Branches of one object.
    pub most: usize,
    /// Bytes below which a branch is left out.
    pub least: u64,
}

/// An object, or several alike, with what would go with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Branch {
    /// How the object above refers to it: `.history`, `[…]`; for the first ones the whole way to it.
    pub name: String,
    /// Its class and what is known of it.
    pub what: String,
    /// How many alike.
    pub count: usize,
    /// What would be free without it, on each device.
    pub retained: Vec<(Device, u64)>,
    /// What it dominates.
    pub branches: Vec<Branch>,
    /// Branches that are not shown.
    pub left_out: usize,
}

impl Branch {
    /// Bytes on all devices.
    pub fn bytes(&self) -> u64 {
        self.retained.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Holdings {
    /// What is held, from the roots.
    pub fn tree(&self, limits: Limits) -> Branch {
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

    fn branches(&self, node: Option<u32>, limits: Limits, depth: usize) -> (Vec<Branch>, usize) {
        if depth == 0 {
            return (Vec::new(), 0);
        }
        let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
        let mut places: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
        for child in self.seen_from(node) {
            if self.retained_bytes(child) == 0 || node.is_none() && self.is_of_recorder(child) {
                continue;
            }
            let key = self.likeness(node, child);
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

    /// What an object dominates, without the steps that a path leaves out.
    pub(crate) fn seen_from(&self, node: Option<u32>) -> Vec<u32> {
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
        path.edges.last().is_some_and(|&last| self.heap.name(last).link == Link::Inside)
    }

    /// What makes it one of several alike.
    pub(crate) fn likeness(&self, above: Option<u32>, node: u32) -> String {
        let name = match self.last_name(node) {
            Some(name) if name.link == Link::Item => "[…]".to_owned(),
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

    fn last_name(&self, node: u32) -> Option<&Name> {
        self.path(node).edges.last().map(|&last| self.heap.name(last))
    }

    fn branch(&self, above: Option<u32>, alike: &[u32], limits: Limits, depth: usize) -> Branch {
        let first = alike[0];
        let mut retained = Vec::new();
        for &node in alike {
            for (device, bytes) in self.retained(node) {
                add(&mut retained, device, bytes);
            }
        }
        let path = self.path(first);
        let name = match (above, path.edges.last()) {
            (None, _) => words::path(&self.heap, &self.roots, &path, |position| {
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
            words::described(&self.heap, first)
        };
        Branch { name, what, count: alike.len(), retained, branches, left_out }
    }

    fn step(&self, position: usize, is_any: bool) -> String {
        let name = self.heap.name(position);
        match name.link {
            Link::Key => "key".to_owned(),
            Link::Inside | Link::Part => "→".to_owned(),
            _ => words::step(name, is_any).trim_start().to_owned(),
        }
    }
}
