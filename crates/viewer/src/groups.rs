//! Every block in one group: by line, category, module, stack or size.

use crate::changes::{changes, shifted};
use analysis::{Category, Key, Origin, Outline};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// What bands of the timeline stand for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum By {
    Site,
    Category,
    Module,
    Stack,
    Size,
}

impl By {
    pub(crate) const ALL: [By; 5] = [By::Site, By::Category, By::Module, By::Stack, By::Size];

    pub(crate) fn name(self) -> &'static str {
        match self {
            By::Site => "site",
            By::Category => "category",
            By::Module => "module",
            By::Stack => "stack",
            By::Size => "size",
        }
    }

    fn key(self) -> Key {
        match self {
            By::Site => Key::Site,
            By::Category => Key::Category,
            By::Module => Key::Module { most: READABLE },
            By::Stack => Key::Stack,
            By::Size => Key::Size,
        }
    }
}

/// Modules that can be told apart in a picture; more are counted by layer.
const READABLE: usize = 64;

/// The groups of one device's blocks. Their numbers are their ranks: 0 held most at one time.
pub(crate) struct Groups {
    pub(crate) of_life: Vec<u32>,
    pub(crate) all: Vec<Group>,
}

pub(crate) struct Group {
    pub(crate) origin: Origin,
    /// The most that it held, and where it did so first.
    pub(crate) highest: u64,
    pub(crate) position: usize,
    /// Blocks that it had in all.
    pub(crate) blocks: u64,
}

impl Groups {
    pub(crate) fn new(outline: &Outline<'_>, by: By) -> Groups {
        let (device, history) = (outline.device, &outline.device.history);
        let by_layer = by == By::Module && device.modules.len() > READABLE;
        let mut numbers: FxHashMap<Origin, u32> = FxHashMap::default();
        let mut all: Vec<Group> = Vec::new();
        let mut of_life: Vec<u32> = (0..history.lives.len())
            .map(|row| {
                let origin = outline.origin_of(row, by.key(), by_layer);
                let number = *numbers.entry(origin).or_insert(all.len() as u32);
                if number as usize == all.len() {
                    all.push(Group { origin, highest: 0, position: 0, blocks: 0 });
                }
                all[number as usize].blocks += 1;
                number
            })
            .collect();

        let mut held = vec![0u64; all.len()];
        for (row, life) in history.lives.iter().enumerate().take_while(|(_, life)| life.born().is_none()) {
            if life.is_allocated_at(0) {
                held[of_life[row] as usize] = shifted(held[of_life[row] as usize], life.size.0, true);
            }
        }
        for (group, &held) in all.iter_mut().zip(&held) {
            group.highest = held;
        }
        changes(device, 0..history.len(), |event, row, is_birth| {
            let number = of_life[row] as usize;
            held[number] = shifted(held[number], history.lives[row].size.0, is_birth);
            if is_birth && held[number] > all[number].highest {
                (all[number].highest, all[number].position) = (held[number], event + 1);
            }
        });

        let mut ranked: Vec<(usize, Group)> = all.into_iter().enumerate().collect();
        ranked.sort_by_key(|(_, group)| match group.origin {
            // Categories have an order of their own, the same in every run.
            Origin::Category(category) => (Reverse(u64::MAX - category as u64), group.origin),
            origin => (Reverse(group.highest), origin),
        });
        let mut ranks = vec![0u32; ranked.len()];
        for (place, &(number, _)) in ranked.iter().enumerate() {
            ranks[number] = place as u32;
        }
        of_life.iter_mut().for_each(|number| *number = ranks[*number as usize]);
        Groups { of_life, all: ranked.into_iter().map(|(_, group)| group).collect() }
    }

    /// The first group whose origin is wanted.
    pub(crate) fn number_of(&self, wanted: impl Fn(Origin) -> bool) -> Option<u32> {
        self.all.iter().position(|group| wanted(group.origin)).map(|place| place as u32)
    }
}

/// Bytes by category, in the order of reports, without those that have none.
pub(crate) fn named_categories(bytes: &analysis::ByCategory) -> Vec<(&'static str, u64)> {
    let all = Category::ALL.iter().map(|&category| (category.name(), bytes.get(category).0));
    all.filter(|(_, bytes)| *bytes > 0).collect()
}
