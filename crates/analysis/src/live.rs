//! What is live at one moment, grouped so that a person understands it.

use crate::categories::Category;
use crate::device::Device;
use crate::explain::Outline;
use crate::site::Site;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, Life, StackId};

/// What to group live blocks by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// The line of the user's own code.
    Site,
    /// What the memory is for.
    Category,
    /// The whole call stack.
    Stack,
    /// The size of the block.
    Size,
}

/// What a group has in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// The same line.
    Site(Site),
    /// The same use.
    Category(Category),
    /// The same stack.
    Stack(StackId),
    /// The same block size.
    Size(Bytes),
}

/// Live blocks of one origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// What they share.
    pub origin: Origin,
    /// Their bytes, rounding included.
    pub bytes: Bytes,
    /// Bytes that the program asked for.
    pub requested: Bytes,
    /// How many there are.
    pub count: u64,
    /// How many of them were there before the history begins.
    pub from_before: u64,
}

/// The live blocks of a moment, largest group first; every block is in exactly one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// The groups.
    pub groups: Vec<Group>,
    /// Bytes of all groups: `allocated` at that moment.
    pub bytes: Bytes,
    /// Blocks of all groups.
    pub count: u64,
}

impl Live {
    /// The largest `top` groups, and what the others add up to: how many groups, blocks and bytes.
    pub fn top(&self, top: usize) -> (&[Group], Rest) {
        let (shown, hidden) = self.groups.split_at(top.min(self.groups.len()));
        let rest = Rest {
            groups: hidden.len() as u64,
            bytes: hidden.iter().map(|group| group.bytes).sum(),
            count: hidden.iter().map(|group| group.count).sum(),
        };
        (shown, rest)
    }
}

/// The sum of the groups that are not shown one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// How many groups.
    pub groups: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// Their blocks.
    pub count: u64,
}

impl Outline<'_> {
    /// Groups the blocks that the program holds once `position` events have happened.
    pub fn live_at(&self, position: usize, by: Key) -> Live {
        let mut groups: FxHashMap<Origin, Group> = FxHashMap::default();
        let history = &self.device.history;
        for (row, life) in history.lives[..history.first_born_from(position)].iter().enumerate() {
            if !life.is_allocated_at(position) {
                continue;
            }
            let origin = match by {
                Key::Site => Origin::Site(self.site_of(life)),
                Key::Category => Origin::Category(self.categories.of(row)),
                Key::Stack => Origin::Stack(life.stack),
                Key::Size => Origin::Size(life.size),
            };
            let group = groups.entry(origin).or_insert(Group {
                origin,
                bytes: Bytes::ZERO,
                requested: Bytes::ZERO,
                count: 0,
                from_before: 0,
            });
            group.bytes += life.size;
            group.requested += life.requested;
            group.count += 1;
            group.from_before += u64::from(life.born().is_none());
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.origin.cmp(&b.origin)));
        Live {
            bytes: groups.iter().map(|group| group.bytes).sum(),
            count: groups.iter().map(|group| group.count).sum(),
            groups,
        }
    }

    /// Where a block comes from, as far as its own stack and the calls around it tell.
    fn site_of(&self, life: &Life) -> Site {
        match (self.device.sites.of(life.stack), life.born()) {
            (Site::Unknown, None) => Site::Before,
            (_, Some(born)) => self.device.site_of_event(born),
            (site, None) => site,
        }
    }
}

impl Device<'_> {
    /// Where the request of an event comes from, as far as its own stack and the calls around it tell.
    pub fn site_of_event(&self, event: usize) -> Site {
        let site = self.sites.of(self.snapshot.events.stack(self.history.rows.start + event));
        let call = match site {
            Site::Unknown | Site::Native => self.backward.call(event),
            _ => None,
        };
        match call.map(|call| self.sites.of(call)) {
            Some(Site::User(frame) | Site::Library(frame)) => Site::Backward(frame),
            _ => site,
        }
    }
}
