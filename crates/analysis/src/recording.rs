//! What oomph's recorder notes beside a snapshot. Every part may be missing; nothing here has been checked against the
//! snapshot yet.

use crate::trace::order::Order;
use heap::Heap;
use snapshot::Bytes;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The notes of one rank.
#[derive(Clone, Debug)]
pub struct Recording {
    /// When steps ended, in order.
    pub marks: Vec<StepMark>,
    /// Whether allocations after the last step were recorded with their stacks.
    pub ends_with_stacks: bool,
    /// Allocations that each device had made by the time of the snapshot.
    pub allocations: Counts,
    /// Which tensor lies where.
    pub labels: Labels,
    /// The paths of modules for which numbers stand in the events' metadata.
    pub modules: Vec<String>,
    /// The device's own numbers when an allocation failed.
    pub shortage: Option<Shortage>,
    /// The devices, by ordinal.
    pub cards: Vec<Card>,
    /// What was in use on them beside PyTorch's memory.
    pub outside: Vec<Outside>,
    /// The references that kept tensors alive, the moment that says most about a leak first.
    pub heaps: Vec<Arc<HeapDump>>,
}

impl Recording {
    /// That of a plain snapshot.
    pub(crate) const NONE: &'static Recording = &Recording {
        marks: Vec::new(),
        ends_with_stacks: true,
        allocations: Counts(Vec::new()),
        labels: Labels { tensors: Vec::new(), sets: Vec::new(), marks: Vec::new() },
        modules: Vec::new(),
        shortage: None,
        cards: Vec::new(),
        outside: Vec::new(),
        heaps: Vec::new(),
    };

    /// What is known of a device.
    pub fn card(&self, device: u32) -> Option<&Card> {
        self.cards.iter().find(|card| card.device == device)
    }

    /// What was in use on a device beside PyTorch's memory.
    pub fn outside(&self, device: u32) -> Option<&Outside> {
        self.outside.iter().find(|outside| outside.device == device)
    }
}

impl Default for Recording {
    fn default() -> Recording {
        Recording::NONE.clone()
    }
}

/// The references that kept tensors alive at a moment.
pub struct HeapDump {
    /// The objects and their references.
    pub heap: Arc<Heap>,
    /// Allocations by then.
    pub allocations: Counts,
    /// What made the recorder write it: `exit`, `oom`, `growing`.
    pub dumped: String,
    /// What it does not show.
    pub caveats: Vec<String>,
}

impl fmt::Debug for HeapDump {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} objects", self.heap.len())
    }
}

/// Allocations that had been made, by device: `allocation.all.allocated` of `memory_stats()`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Counts(pub Vec<(u32, u64)>);

impl Counts {
    /// Those of one device.
    pub fn of(&self, device: u32) -> Option<u64> {
        self.0.iter().find(|(of, _)| *of == device).map(|(_, count)| *count)
    }
}

/// The end of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepMark {
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
    /// Allocations by then.
    pub allocations: Counts,
    /// Whether the allocations of the step were recorded with their stacks.
    pub has_stacks: bool,
}

impl Default for StepMark {
    fn default() -> StepMark {
        StepMark { time_us: 0, allocations: Counts::default(), has_stacks: true }
    }
}

/// What a tensor is. The first of these counts where one block is several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Label {
    /// A parameter of a module.
    Parameter,
    /// A buffer of a module.
    Buffer,
    /// `.grad` of a parameter.
    Gradient,
    /// What an optimizer keeps for a parameter.
    Optimizer,
    /// What a module was called with.
    Input,
}

impl Label {
    /// All of them, in order of precedence.
    pub const ALL: [Label; 5] =
        [Label::Parameter, Label::Buffer, Label::Gradient, Label::Optimizer, Label::Input];

    /// Its word in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Label::Parameter => "parameter",
            Label::Buffer => "buffer",
            Label::Gradient => "gradient",
            Label::Optimizer => "optimizer",
            Label::Input => "input",
        }
    }
}

/// A tensor by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// What it is.
    pub label: Label,
    /// Its dotted name in the root module, `h.0.attn.weight`.
    pub name: String,
    /// The class of the root module, empty if unknown.
    pub root: String,
}

/// Where a tensor's storage lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Place in [`Labels::tensors`].
    pub tensor: u32,
    /// Device ordinal.
    pub device: u32,
    /// Address of the storage.
    pub addr: u64,
    /// Bytes of the storage.
    pub bytes: u64,
}

/// A moment at which the recorder looked where the tensors were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelMark {
    /// Allocations by then.
    pub allocations: Counts,
    /// Place in [`Labels::sets`].
    pub set: usize,
}

/// Which tensor lay where, and when. Indices may point nowhere.
#[derive(Clone, Default, Debug)]
pub struct Labels {
    /// Every tensor.
    pub tensors: Vec<Tensor>,
    /// Tensors that were there together.
    pub sets: Vec<Vec<Placed>>,
    /// When each set was seen, in order of time.
    pub marks: Vec<LabelMark>,
}

/// A device as the driver describes it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Card {
    /// Ordinal.
    pub device: u32,
    /// `NVIDIA H200`, or empty.
    pub name: String,
    /// All its memory.
    pub total: Option<Bytes>,
    /// The most that the process may have of it.
    pub limit: Option<Bytes>,
}

/// Memory of a device that PyTorch does not know of: the most that the driver showed at the end of a step.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Outside {
    /// Ordinal.
    pub device: u32,
    /// The process's own: the CUDA context, libraries.
    pub process: Bytes,
    /// That of other processes.
    pub others: Bytes,
}

/// What the driver said when an allocation failed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Device ordinal.
    pub device: u32,
    /// All memory of the device.
    pub total: Option<Bytes>,
    /// What was free on it.
    pub free: Option<Bytes>,
    /// The most that the process may have, if there is a limit.
    pub limit: Option<Bytes>,
    /// Other processes on the device.
    pub others: Vec<Process>,
}

/// A process that holds memory of the device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u64,
    /// What it holds.
    pub bytes: Bytes,
    /// Its name, or empty.
    pub name: String,
}

/// From a recorder's counts to positions in the history. They are counted back from the end, since a history may have
/// lost its beginning.
pub(crate) struct Counted {
    /// The events that allocate.
    births: Vec<usize>,
    /// The count at the end.
    end: u64,
    len: usize,
}

impl Counted {
    /// `None` where the recording does not say how many there were in the end.
    pub(crate) fn new(order: &Order<'_>, recording: &Recording) -> Option<Counted> {
        let end = recording.allocations.of(order.device)?;
        let births = order.allocations(0..order.len()).map(|(event, _)| event).collect();
        Some(Counted { births, end, len: order.len() })
    }

    /// The events that allocate, in order.
    pub(crate) fn births(&self) -> &[usize] {
        &self.births
    }

    /// How many of the allocations that the history has had been made at a count; `None` before the history.
    pub(crate) fn place(&self, count: u64) -> Option<usize> {
        let later = usize::try_from(self.end.checked_sub(count)?).ok()?;
        self.births.len().checked_sub(later)
    }

    /// How many of `counts` from the last one back can be believed: a count that is higher than a later one was made before
    /// the program reset its statistics.
    pub(crate) fn reliable(&self, counts: impl DoubleEndedIterator<Item = u64>) -> usize {
        let mut limit = self.end;
        let believed = |&count: &u64| {
            let fits = count <= limit;
            limit = limit.min(count);
            fits
        };
        counts.rev().take_while(believed).count()
    }

    /// The positions at which just so many allocations had been made; `None` before the history.
    pub(crate) fn at(&self, count: u64) -> Option<RangeInclusive<usize>> {
        let made = self.place(count)?;
        let from = made.checked_sub(1).map_or(0, |last| self.births[last] + 1);
        Some(from..=self.births.get(made).copied().unwrap_or(self.len))
    }
}

/// Which of the processes that the driver lists, by what they hold, is the recorded one: the one that names itself. In a
/// container the driver numbers processes otherwise than they do: then the one that holds just a little more than PyTorch has
/// reserved.
pub fn own_process(by_name: Option<usize>, held: &[u64], reserved: u64) -> Option<usize> {
    by_name
        .or_else(|| (0..held.len()).filter(|&place| held[place] >= reserved).min_by_key(|&place| held[place]))
}
