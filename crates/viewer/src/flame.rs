//! Memory by call stack, as a tree: at a moment, over a stretch, or as the difference of two.

use crate::groups::By;
use crate::view::View;
use analysis::words::grouped;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::ops::Range;

/// Branches below this share of the whole are left out, by name but not by sum.
const LEAST_SHARE: u64 = 2_000;
/// About how many branches there are at most.
const MOST: usize = 4_000;
/// Frames of a stack that are shown, from the outermost; only recursion goes deeper.
const DEEPEST: usize = 200;

/// What a tree is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// Bytes at a position.
    At(usize),
    /// Mean bytes over a stretch of positions.
    Over(Range<usize>),
}

impl When {
    /// In words; events are numbered from 0.
    pub(crate) fn words(&self) -> String {
        match self {
            When::At(0) => "before the first event".to_owned(),
            When::At(position) => format!("after event {}", grouped(*position as u64 - 1)),
            When::Over(positions) => format!(
                "mean from {} to after event {}",
                When::At(positions.start).words(),
                grouped(positions.end.saturating_sub(2) as u64)
            ),
        }
    }
}

struct Node {
    name: String,
    file: String,
    line: u32,
    user: bool,
    bytes: f64,
    base: f64,
    count: u64,
    children: Vec<u32>,
}

struct Tree {
    nodes: Vec<Node>,
    /// By parent, name, file and line.
    known: FxHashMap<(u32, String, String, u32), u32>,
}

/// The tree of a view, held against that of another (or the same) if one is given.
pub(crate) fn flame(view: &View<'_>, when: &When, base: Option<(&View<'_>, &When)>) -> Value {
    let mut tree = Tree::new();
    tree.add(view, when, false);
    if let Some((view, when)) = base {
        tree.add(view, when, true);
    }
    let total = tree.nodes[0].bytes.max(tree.nodes[0].base);
    let mut weights: Vec<f64> = tree.nodes.iter().map(|node| node.bytes.max(node.base)).collect();
    weights.sort_unstable_by(|a, b| b.total_cmp(a));
    let least = weights.get(MOST).copied().unwrap_or(0.0).max(total / LEAST_SHARE as f64);
    json!({
        "root": tree.branch(0, least),
        "what": when.words(),
        "against": base.map(|(other, when)| match other.id == view.id {
            true => when.words(),
            false => format!("{} {}", other.short_name(), when.words()),
        }),
    })
}

/// Bytes and blocks of each group of stacks: at a moment, or their mean over a stretch.
fn weigh(view: &View<'_>, when: &When) -> FxHashMap<(u32, u32), (f64, u64)> {
    let (history, sites) = (view.history(), &view.groups(By::Site).of_life);
    let mut sums: FxHashMap<(u32, u32), (f64, u64)> = FxHashMap::default();
    let mut add = |row: usize, weight: f64| {
        let sum = sums.entry((history.lives[row].stack.0, sites[row])).or_default();
        sum.0 += weight;
        sum.1 += 1;
    };
    match when {
        When::At(position) => {
            for row in view.allocated_at(*position) {
                add(row as usize, history.lives[row as usize].size.0 as f64);
            }
        }
        When::Over(positions) => {
            let length = positions.len().max(1) as f64;
            for (row, life) in history.lives.iter().enumerate() {
                let there = life.allocated_within(positions.clone());
                if !there.is_empty() {
                    add(row, life.size.0 as f64 * there.len() as f64 / length);
                }
            }
        }
    }
    sums
}

impl Tree {
    fn new() -> Tree {
        let root = Node {
            name: "all".to_owned(),
            file: String::new(),
            line: 0,
            user: false,
            bytes: 0.0,
            base: 0.0,
            count: 0,
            children: Vec::new(),
        };
        Tree { nodes: vec![root], known: FxHashMap::default() }
    }

    fn add(&mut self, view: &View<'_>, when: &When, is_base: bool) {
        let snapshot = view.snapshot();
        let text = |id| snapshot.strings.get(id);
        for ((stack, site), (bytes, count)) in weigh(view, when) {
            let mut at = 0;
            self.count(at, bytes, count, is_base);
            let frames = snapshot.stacks.frames(snapshot::StackId(stack));
            let has_python = frames.iter().any(|&frame| !view.device().sites.is_native(frame));
            if !has_python {
                // What runs inside `backward()` has no Python stack: its line is the next best thing.
                let group = view.group_json(By::Site, site);
                let text = |key: &str| group[key].as_str().unwrap_or_default().to_owned();
                let name = [text("label"), text("detail")].join(" ").trim().to_owned();
                at = self.child(at, &name, "", 0, true);
                self.count(at, bytes, count, is_base);
            }
            for &id in frames.iter().rev().take(DEEPEST) {
                let frame = snapshot.stacks.frame(id);
                let is_user = view.device().sites.is_user(id);
                at = self.child(at, text(frame.function), text(frame.file), frame.line, is_user);
                self.count(at, bytes, count, is_base);
            }
        }
    }

    fn count(&mut self, node: u32, bytes: f64, count: u64, is_base: bool) {
        let node = &mut self.nodes[node as usize];
        if is_base {
            node.base += bytes;
        } else {
            node.bytes += bytes;
            node.count += count;
        }
    }

    fn child(&mut self, parent: u32, name: &str, file: &str, line: u32, user: bool) -> u32 {
        let next = self.nodes.len() as u32;
        let key = (parent, name.to_owned(), file.to_owned(), line);
        let found = *self.known.entry(key).or_insert(next);
        if found == next {
            let (name, file) = (name.to_owned(), file.to_owned());
            let children = Vec::new();
            self.nodes.push(Node { name, file, line, user, bytes: 0.0, base: 0.0, count: 0, children });
            self.nodes[parent as usize].children.push(next);
        }
        found
    }

    fn branch(&self, node: u32, least: f64) -> Value {
        let node = &self.nodes[node as usize];
        let weight = |&child: &u32| self.nodes[child as usize].bytes.max(self.nodes[child as usize].base);
        let mut shown: Vec<u32> = node
            .children
            .iter()
            .copied()
            .filter(|child| weight(child) > 0.0 && weight(child) >= least)
            .collect();
        shown.sort_by_key(|child| (Reverse(weight(child) as u64), *child));
        json!({
            "name": node.name,
            "file": node.file,
            "line": node.line,
            "user": node.user,
            "bytes": node.bytes.round(),
            "base": node.base.round(),
            "count": node.count,
            "leftOut": node.children.len() - shown.len(),
            "children": shown.iter().map(|&child| self.branch(child, least)).collect::<Vec<_>>(),
        })
    }
}
