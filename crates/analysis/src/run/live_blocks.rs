//! Live blocks at one moment, in groups.

use crate::run::categories::{ByCategory, Category};
use crate::run::device::Device;
use crate::run::model::RunModel;
use crate::trace::modules::{Common, ModuleId, Phase};
use crate::trace::site::Site;
use crate::words::{grouped, printable, shortened, site_name};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Allocation, Bytes, StackId};

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
    /// The module that it belongs to: what its forward and backward pass allocate, its parameters, their
    /// gradients and optimizer state. If there would be more than `most` groups, a module counts with its
    /// numbered layer.
    Module {
        /// Most groups.
        most: usize,
    },
}

/// What a group has in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A line of code.
    Site(Site),
    /// A category.
    Category(Category),
    /// A call stack.
    Stack(StackId),
    /// A block size, in bytes.
    Size(Bytes),
    /// A module; `None` outside of all.
    Module(Option<ModuleId>),
}

/// Live blocks of one origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveGroup {
    /// What they share.
    pub origin: Origin,
    /// Bytes of the blocks, rounding included.
    pub bytes: Bytes,
    /// Bytes that the program requested.
    pub requested: Bytes,
    /// Number of blocks.
    pub count: u64,
    /// Number of blocks from before the history begins.
    pub from_before: u64,
    /// The module that nearly all of them are in, where a recorder noted it.
    pub module: Option<ModuleId>,
    /// What they are for, in their bytes.
    pub categories: ByCategory,
    /// Their bytes by what the program was doing: forward, backward, optimizer, neither or not known.
    pub phases: [Bytes; Phase::ALL.len() + 1],
}

/// The live blocks of a moment, largest group first; every block is in exactly one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// The groups.
    pub groups: Vec<LiveGroup>,
    /// Bytes of all groups: `allocated` at that moment.
    pub bytes: Bytes,
    /// Blocks of all groups.
    pub count: u64,
    /// Whether modules were counted with the numbered layer that they are in.
    pub by_layer: bool,
}

impl Live {
    /// The largest `top` groups, and what the others add up to: how many groups, blocks and bytes.
    pub fn top(&self, top: usize) -> (&[LiveGroup], Rest) {
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
    /// Number of groups.
    pub groups: u64,
    /// Bytes of their blocks.
    pub bytes: Bytes,
    /// Number of their blocks.
    pub count: u64,
}

impl LiveGroup {
    fn new(origin: Origin) -> LiveGroup {
        LiveGroup {
            origin,
            bytes: Bytes::ZERO,
            requested: Bytes::ZERO,
            count: 0,
            from_before: 0,
            module: None,
            categories: ByCategory::default(),
            phases: [Bytes::ZERO; Phase::ALL.len() + 1],
        }
    }
}

impl RunModel<'_> {
    /// Groups the blocks that the program holds once `position` events have happened.
    pub fn live_at(&self, position: usize, by: Key) -> Live {
        let mut groups: FxHashMap<Origin, (LiveGroup, Common)> = FxHashMap::default();
        let (device, history) = (self.device, &self.device.history);
        let by_layer = match by {
            Key::Module { most } => self.modules_at(position) > most,
            _ => false,
        };
        for (row, allocation) in
            history.allocations[..history.first_allocated_from(position)].iter().enumerate()
        {
            if !allocation.is_allocated_at(position) {
                continue;
            }
            let origin = self.origin_of(row, by, by_layer);
            let (group, common) =
                groups.entry(origin).or_insert_with(|| (LiveGroup::new(origin), Common::default()));
            if !device.modules.is_empty() {
                common.add(&device.modules, self.module_of(row), allocation.size);
            }
            let phase = device.scope_of(allocation).phase.map_or(Phase::ALL.len(), |phase| phase as usize);
            group.phases[phase] += allocation.size;
            group.categories.0[self.categories.of(row) as usize] += allocation.size;
            group.bytes += allocation.size;
            group.requested += allocation.requested;
            group.count += 1;
            group.from_before += u64::from(allocation.alloc_event().is_none());
        }
        let groups = groups.into_values();
        let mut groups: Vec<LiveGroup> =
            groups.map(|(group, common)| LiveGroup { module: common.module(), ..group }).collect();
        groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.origin.cmp(&b.origin)));
        Live {
            bytes: groups.iter().map(|group| group.bytes).sum(),
            count: groups.iter().map(|group| group.count).sum(),
            groups,
            by_layer,
        }
    }

    /// Group of a row of `allocations`; with `by_layer`, modules count with the numbered layer that they are
    /// in.
    pub fn origin_of(&self, row: usize, by: Key, by_layer: bool) -> Origin {
        let (device, allocation) = (self.device, &self.device.history.allocations[row]);
        match by {
            Key::Site => Origin::Site(self.site_of(allocation)),
            Key::Category => Origin::Category(self.categories.of(row)),
            Key::Stack => Origin::Stack(allocation.stack),
            Key::Size => Origin::Size(allocation.size),
            Key::Module { .. } => {
                let layer = |module| if by_layer { device.modules.layer(module) } else { module };
                Origin::Module(self.module_of(row).map(layer))
            }
        }
    }

    /// The module that a block belongs to. Library workspaces belong to no module.
    fn module_of(&self, row: usize) -> Option<ModuleId> {
        let is_scratch = self.categories.of(row) == Category::Workspace;
        self.device.module_of(row).filter(|_| !is_scratch)
    }

    /// Number of different modules that the live blocks of a moment belong to.
    fn modules_at(&self, position: usize) -> usize {
        let history = &self.device.history;
        let begun = history.allocations[..history.first_allocated_from(position)].iter().enumerate();
        let live = begun.filter(|(_, allocation)| allocation.is_allocated_at(position));
        live.map(|(row, _)| self.module_of(row)).collect::<FxHashSet<_>>().len()
    }

    /// Where a block comes from, according to its own stack and the calls around it.
    fn site_of(&self, allocation: &Allocation) -> Site {
        match (self.device.sites.of(allocation.stack), allocation.alloc_event()) {
            (Site::Unknown, None) => Site::Before,
            (_, Some(alloc_event)) => self.device.site_of_event(alloc_event),
            (site, None) => site,
        }
    }
}

impl Device<'_> {
    /// Name of an origin, and a detail such as the function.
    pub fn words_for(&self, origin: Origin) -> (String, String) {
        let snapshot = self.snapshot;
        let named = |frame, what: &str| {
            let function = printable(snapshot.strings.get(snapshot.stacks.frame(frame).function));
            (site_name(snapshot, frame), format!("{}{what}", shortened(&function, 40)))
        };
        let alone = |text: &str| (text.to_owned(), String::new());
        match origin {
            Origin::Site(Site::User(frame)) => named(frame, ""),
            Origin::Site(Site::Library(frame)) => named(frame, " (library)"),
            Origin::Site(Site::Backward(frame)) => named(frame, ", backward"),
            Origin::Site(Site::BackwardOf(frame)) => named(frame, ", backward"),
            Origin::Site(Site::Native) => alone("(C++ only)"),
            Origin::Site(Site::Before) => alone("(from before the history begins)"),
            Origin::Site(Site::Unknown) => alone("(no stack: backward() or C++)"),
            Origin::Stack(stack) => match self.sites.of(stack) {
                Site::Before | Site::Unknown => alone("(no stack)"),
                site => self.words_for(Origin::Site(site)),
            },
            Origin::Module(Some(module)) => alone(&printable(self.modules.path(module))),
            Origin::Module(None) => alone("outside of modules"),
            Origin::Category(category) => alone(category.name()),
            Origin::Size(size) => (format!("{size} blocks"), format!("{} bytes each", grouped(size.0))),
        }
    }
}
