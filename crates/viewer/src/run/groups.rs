//! Groups of blocks: by site, category, module, stack or size.

use super::changes::{changes, shifted};
use analysis::{Category, Key, Origin, RunModel};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// What blocks are grouped by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum GroupBy {
    #[default]
    Site,
    Category,
    Module,
    Stack,
    Size,
}

impl GroupBy {
    /// Number of groupings.
    pub(crate) const COUNT: usize = 5;

    fn key(self) -> Key {
        match self {
            GroupBy::Site => Key::Site,
            GroupBy::Category => Key::Category,
            GroupBy::Module => Key::Module { most: MAX_MODULES },
            GroupBy::Stack => Key::Stack,
            GroupBy::Size => Key::Size,
        }
    }
}

/// Modules that a picture can distinguish; where there are more, they are grouped by layer.
const MAX_MODULES: usize = 64;

/// The groups of one device's blocks. Group 0 held most at one time.
pub(crate) struct Groups {
    /// Group of each allocation.
    pub(crate) of_allocation: Vec<u32>,
    pub(crate) all: Vec<GroupTotals>,
}

/// A group over the whole run.
pub(crate) struct GroupTotals {
    pub(crate) origin: Origin,
    /// The most bytes that it held at one time.
    pub(crate) highest: u64,
    /// First position at which it held them.
    pub(crate) position: usize,
    /// Number of blocks.
    pub(crate) blocks: u64,
}

impl Groups {
    pub(crate) fn new(model: &RunModel<'_>, by: GroupBy) -> Groups {
        let (device, history) = (model.device, &model.device.history);
        let by_layer = by == GroupBy::Module && device.modules.len() > MAX_MODULES;
        let mut numbers: FxHashMap<Origin, u32> = FxHashMap::default();
        let mut all: Vec<GroupTotals> = Vec::new();
        let mut of_allocation: Vec<u32> = (0..history.allocations.len())
            .map(|row| {
                let origin = model.origin_of(row, by.key(), by_layer);
                let number = *numbers.entry(origin).or_insert(all.len() as u32);
                if number as usize == all.len() {
                    all.push(GroupTotals { origin, highest: 0, position: 0, blocks: 0 });
                }
                all[number as usize].blocks += 1;
                number
            })
            .collect();

        let mut held = vec![0u64; all.len()];
        for (row, allocation) in history
            .allocations
            .iter()
            .enumerate()
            .take_while(|(_, allocation)| allocation.alloc_event().is_none())
        {
            if allocation.is_allocated_at(0) {
                held[of_allocation[row] as usize] =
                    shifted(held[of_allocation[row] as usize], allocation.size.0, true);
            }
        }
        for (group, &held) in all.iter_mut().zip(&held) {
            group.highest = held;
        }
        changes(device, 0..history.len(), |event, row, is_alloc| {
            let number = of_allocation[row] as usize;
            held[number] = shifted(held[number], history.allocations[row].size.0, is_alloc);
            if is_alloc && held[number] > all[number].highest {
                (all[number].highest, all[number].position) = (held[number], event + 1);
            }
        });

        let mut ranked: Vec<(usize, GroupTotals)> = all.into_iter().enumerate().collect();
        ranked.sort_by_key(|(_, group)| match group.origin {
            // Categories have the same order in every run.
            Origin::Category(category) => (Reverse(u64::MAX - category as u64), group.origin),
            origin => (Reverse(group.highest), origin),
        });
        let mut ranks = vec![0u32; ranked.len()];
        for (rank, &(number, _)) in ranked.iter().enumerate() {
            ranks[number] = rank as u32;
        }
        of_allocation.iter_mut().for_each(|number| *number = ranks[*number as usize]);
        Groups { of_allocation, all: ranked.into_iter().map(|(_, group)| group).collect() }
    }

    /// Returns the first group whose origin is wanted.
    pub(crate) fn number_of(&self, wanted: impl Fn(Origin) -> bool) -> Option<u32> {
        self.all.iter().position(|group| wanted(group.origin)).map(|number| number as u32)
    }
}

/// Returns bytes by category name, in the order of the report, without empty categories.
pub(crate) fn named_categories(bytes: &analysis::ByCategory) -> Vec<(&'static str, u64)> {
    let all = Category::ALL.iter().map(|&category| (category.name(), bytes.get(category).0));
    all.filter(|(_, bytes)| *bytes > 0).collect()
}
