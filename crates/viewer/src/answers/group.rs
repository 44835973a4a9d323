//! One group of blocks at a position.

use super::overview::first_moment;
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::groups::{GroupBy, named_categories};
use crate::run::shapes::{BlockGroup, StackFrame};
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use analysis::ByCategory;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use snapshot::{Bytes, StackId};
use std::cmp::Reverse;

/// Stacks of a group that are shown.
const MAX_STACKS: usize = 8;
/// Blocks that are searched for stacks where none is allocated.
const MAX_SEARCHED_BLOCKS: usize = 100_000;

/// Groups that have details in an exported page.
const MAX_EXPORTED_GROUPS: u32 = 48;

/// Asks for a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct GroupQuery {
    pub(crate) run: usize,
    #[serde(default)]
    pub(crate) by: GroupBy,
    pub(crate) id: u32,
    /// The position.
    pub(crate) at: usize,
}

impl Question for GroupQuery {
    const NAME: &'static str = "group";
    type Answer = GroupDetails;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<GroupDetails, Problem> {
        viewer.about(self.run, |view| group(view, self))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<GroupQuery> {
        match *part {
            ExportPart::Details { view } => {
                let at = first_moment(view);
                let group = |id| GroupQuery { run: view.id, by: GroupBy::Site, id, at };
                (0..MAX_EXPORTED_GROUPS).map(group).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A group at a position.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct GroupDetails {
    group: BlockGroup,
    by: GroupBy,
    /// Bytes at the position.
    bytes: u64,
    /// Blocks at the position.
    count: u64,
    highest: GroupPeak,
    /// Blocks in the whole run.
    made: u64,
    /// Stacks at the position, largest first.
    stacks: Vec<GroupStack>,
    /// Bytes of each category at the position.
    categories: Vec<(&'static str, u64)>,
}

/// The most that a group held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct GroupPeak {
    bytes: u64,
    position: usize,
}

/// Blocks of a group that one stack allocated.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct GroupStack {
    bytes: u64,
    count: u64,
    /// Innermost frame first.
    frames: Vec<StackFrame>,
}

/// Describes a group.
pub(crate) fn group(view: &DeviceView<'_>, query: &GroupQuery) -> Result<GroupDetails, Problem> {
    let (history, groups) = (view.history(), view.groups(query.by));
    let no_such_group = || Problem::new("there is no such group");
    let totals = groups.all.get(query.id as usize).ok_or_else(no_such_group)?;
    let (mut bytes, mut count) = (Bytes::ZERO, 0u64);
    let mut categories = ByCategory::default();
    let mut stacks: FxHashMap<StackId, (Bytes, u64)> = FxHashMap::default();
    for row in view.allocated_at(view.clamped(query.at)).into_iter().map(|row| row as usize) {
        if groups.of_allocation[row] != query.id {
            continue;
        }
        let allocation = &history.allocations[row];
        bytes += allocation.size;
        count += 1;
        categories.0[view.model.categories.of(row) as usize] += allocation.size;
        let of_stack = stacks.entry(allocation.stack).or_default();
        of_stack.0 += allocation.size;
        of_stack.1 += 1;
    }
    // A group that holds nothing at the position shows the stacks of all its blocks.
    if stacks.is_empty() {
        let rows = groups.of_allocation.iter().zip(&history.allocations).filter(|(of, _)| **of == query.id);
        for (_, allocation) in rows.take(MAX_SEARCHED_BLOCKS) {
            stacks.entry(allocation.stack).or_default();
        }
    }
    Ok(GroupDetails {
        group: view.group(query.by, query.id).ok_or_else(no_such_group)?,
        by: query.by,
        bytes: bytes.0,
        count,
        highest: GroupPeak { bytes: totals.highest, position: totals.position },
        made: totals.blocks,
        stacks: largest(view, stacks),
        categories: named_categories(&categories),
    })
}

fn largest(view: &DeviceView<'_>, stacks: FxHashMap<StackId, (Bytes, u64)>) -> Vec<GroupStack> {
    let mut stacks: Vec<(StackId, (Bytes, u64))> = stacks.into_iter().collect();
    stacks.sort_by_key(|&(stack, (bytes, _))| (Reverse(bytes), stack));
    let largest = stacks.into_iter().take(MAX_STACKS);
    largest
        .map(|(stack, (bytes, count))| GroupStack { bytes: bytes.0, count, frames: view.stack(stack) })
        .collect()
}
