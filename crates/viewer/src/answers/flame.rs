//! Memory by call stack, as a tree: at a position, over an interval, or as the difference of two.

use super::Moments;
use crate::no_such_run;
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::groups::GroupBy;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Branches below this fraction of the whole (1 in 2,000) are not listed; their bytes stay in the sums.
const MIN_FRACTION: f64 = 2_000.0;
/// Approximate number of branches in an answer.
const MAX_BRANCHES: usize = 4_000;
/// Frames of a stack that are shown, from the outermost; only recursion goes deeper.
const MAX_DEPTH: usize = 200;

/// Asks for memory by call stack: at a position (`at`) or its mean over an interval (`from`, `to`), and what
/// to compare it with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
pub(crate) struct FlameQuery {
    pub(crate) run: usize,
    pub(crate) at: Option<usize>,
    pub(crate) from: Option<usize>,
    pub(crate) to: Option<usize>,
    pub(crate) base_run: Option<usize>,
    pub(crate) base_at: Option<usize>,
    pub(crate) base_from: Option<usize>,
    pub(crate) base_to: Option<usize>,
}

impl Question for FlameQuery {
    const NAME: &'static str = "flame";
    type Answer = FlameAnswer;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<FlameAnswer, Problem> {
        viewer.about(self.run, |view| viewer.flame(view, self))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<FlameQuery> {
        match *part {
            ExportPart::Moment { view, at } => {
                vec![FlameQuery { run: view.id, at: Some(at), ..FlameQuery::default() }]
            }
            _ => Vec::new(),
        }
    }
}

/// Memory by call stack.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FlameAnswer {
    root: FlameNode,
    /// When that is: `after event 3,119`.
    what: String,
    /// What it is compared with.
    against: Option<String>,
}

/// A frame with the frames that it calls.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FlameNode {
    /// Name of the function.
    name: String,
    file: String,
    line: u32,
    /// Whether it is the user's own code.
    user: bool,
    /// Bytes at the position, or their mean over the interval.
    bytes: f64,
    /// Bytes of what it is compared with; 0 if there is nothing to compare with.
    base: f64,
    /// Blocks.
    count: u64,
    children: Vec<FlameNode>,
    /// Callees that are too small to be listed; their bytes are in `bytes`.
    left_out: usize,
}

impl Viewer<'_> {
    pub(crate) fn flame(&self, view: &DeviceView<'_>, query: &FlameQuery) -> Result<FlameAnswer, Problem> {
        let no_time = || Problem::new("the question has neither `at` nor `from` and `to`");
        let when = Moments::of(view, query.at, query.from, query.to).ok_or_else(no_time)?;
        let Some(base) = query.base_run else { return Ok(flame(view, &when, None)) };
        let loaded = self.loaded(base)?;
        let other = loaded.view(base).ok_or_else(no_such_run)?;
        let against =
            Moments::of(&other, query.base_at, query.base_from, query.base_to).ok_or_else(no_time)?;
        Ok(flame(view, &when, Some((&other, &against))))
    }
}

struct TreeNode {
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
    nodes: Vec<TreeNode>,
    /// By parent, name, file and line.
    known: FxHashMap<(u32, String, String, u32), u32>,
}

/// Builds the tree of a view, compared with that of another (or the same) if one is given.
fn flame(view: &DeviceView<'_>, when: &Moments, base: Option<(&DeviceView<'_>, &Moments)>) -> FlameAnswer {
    let mut tree = Tree::new();
    tree.add(view, when, false);
    if let Some((view, when)) = base {
        tree.add(view, when, true);
    }
    let total = tree.nodes[0].bytes.max(tree.nodes[0].base);
    let mut weights: Vec<f64> = tree.nodes.iter().map(|node| node.bytes.max(node.base)).collect();
    weights.sort_unstable_by(|a, b| b.total_cmp(a));
    let least = weights.get(MAX_BRANCHES).copied().unwrap_or(0.0).max(total / MIN_FRACTION);
    let against = base.map(|(other, when)| match other.id == view.id {
        true => when.words(),
        false => format!("{} {}", other.short_name(), when.words()),
    });
    FlameAnswer { root: tree.branch(0, least), what: when.words(), against }
}

/// Returns bytes and blocks by stack and site: at a position, or their mean over an interval.
fn weigh(view: &DeviceView<'_>, when: &Moments) -> FxHashMap<(u32, u32), (f64, u64)> {
    let (history, sites) = (view.history(), &view.groups(GroupBy::Site).of_allocation);
    let mut sums: FxHashMap<(u32, u32), (f64, u64)> = FxHashMap::default();
    let mut add = |row: usize, weight: f64| {
        let sum = sums.entry((history.allocations[row].stack.0, sites[row])).or_default();
        sum.0 += weight;
        sum.1 += 1;
    };
    match when {
        Moments::At(position) => {
            for row in view.allocated_at(*position) {
                add(row as usize, history.allocations[row as usize].size.0 as f64);
            }
        }
        Moments::Over(positions) => {
            let length = positions.len().max(1) as f64;
            for (row, allocation) in history.allocations.iter().enumerate() {
                let there = allocation.allocated_within(positions.clone());
                if !there.is_empty() {
                    add(row, allocation.size.0 as f64 * there.len() as f64 / length);
                }
            }
        }
    }
    sums
}

impl Tree {
    fn new() -> Tree {
        let root = TreeNode {
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

    fn add(&mut self, view: &DeviceView<'_>, when: &Moments, is_base: bool) {
        let snapshot = view.snapshot();
        let text = |id| snapshot.strings.get(id);
        for ((stack, site), (bytes, count)) in weigh(view, when) {
            let mut at = 0;
            self.count(at, bytes, count, is_base);
            let frames = snapshot.stacks.frames(snapshot::StackId(stack));
            let has_python = frames.iter().any(|&frame| !view.device().sites.is_native(frame));
            if !has_python {
                // Work inside `backward()` has no Python stack: the site of its forward pass stands in for
                // it.
                let group = view.group(GroupBy::Site, site);
                let name = group.map(|group| format!("{} {}", group.label, group.detail)).unwrap_or_default();
                let name = name.trim().to_owned();
                at = self.child(at, &name, "", 0, true);
                self.count(at, bytes, count, is_base);
            }
            for &id in frames.iter().rev().take(MAX_DEPTH) {
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
            self.nodes.push(TreeNode { name, file, line, user, bytes: 0.0, base: 0.0, count: 0, children });
            self.nodes[parent as usize].children.push(next);
        }
        found
    }

    fn branch(&self, node: u32, least: f64) -> FlameNode {
        let node = &self.nodes[node as usize];
        let weight = |&child: &u32| self.nodes[child as usize].bytes.max(self.nodes[child as usize].base);
        let mut shown: Vec<u32> = node
            .children
            .iter()
            .copied()
            .filter(|child| weight(child) > 0.0 && weight(child) >= least)
            .collect();
        shown.sort_by_key(|child| (Reverse(weight(child) as u64), *child));
        FlameNode {
            name: node.name.clone(),
            file: node.file.clone(),
            line: node.line,
            user: node.user,
            bytes: node.bytes.round(),
            base: node.base.round(),
            count: node.count,
            left_out: node.children.len() - shown.len(),
            children: shown.iter().map(|&child| self.branch(child, least)).collect(),
        }
    }
}
