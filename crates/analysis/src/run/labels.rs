//! Which tensor each block is, as far as a recorder saw it.
//!
//! A mark says which tensors were at which addresses after a number of allocations. Addresses are reused, so
//! each mark is looked up among the allocations at its addresses, in order of time; each is visited once.
//! In steps that repeat an earlier one the recorder looks at nothing: their blocks get the labels of that
//! step.

use crate::run::model::RunModel;
use crate::trace::counted::Counted;
use crate::trace::order::Order;
use crate::trace::repeated::repeats;
use recording::{Label, Labels, Recording};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Allocation, Bytes, History};

const NONE: u32 = u32::MAX;

/// The tensor of every block that has a label.
pub(crate) struct LabelledBlocks<'a> {
    labels: &'a Labels,
    /// Index in [`Labels::tensors`] of each row of [`History::allocations`]; empty without labels.
    of_allocation: Vec<u32>,
    /// Where tensors of each kind were looked at, ascending: a block that was there and has no label is none.
    seen: [Vec<usize>; Label::ALL.len()],
    /// Rows of blocks in repeated steps, each with the row that it repeats.
    like: FxHashMap<u32, u32>,
}

/// The allocations at one address, oldest first, and how many of them had begun at the last mark.
#[derive(Default)]
struct AddressSlot {
    allocations: Vec<u32>,
    begun: usize,
}

impl<'a> LabelledBlocks<'a> {
    pub(crate) fn new(history: &History, order: &Order<'_>, recording: &'a Recording) -> LabelledBlocks<'a> {
        let labels = &recording.labels;
        let nothing = LabelledBlocks {
            labels,
            of_allocation: Vec::new(),
            seen: Default::default(),
            like: FxHashMap::default(),
        };
        if labels.marks.is_empty() {
            return nothing;
        }
        let Some(counted) = Counted::new(order, recording) else { return nothing };
        let device = order.device;
        let marks: Vec<(u64, usize)> = labels
            .marks
            .iter()
            .filter_map(|mark| Some((mark.allocations.of(device)?, mark.set)))
            .filter(|(_, set)| *set < labels.sets.len())
            .collect();
        let reliable = counted.reliable(marks.iter().map(|(count, _)| *count));
        let marks = &marks[marks.len() - reliable..];

        let mut slots: Vec<AddressSlot> = Vec::new();
        let mut slot_of: FxHashMap<u64, u32> = FxHashMap::default();
        // Each set as tensors, the slots of their addresses, and bytes.
        let sets: Vec<Vec<(u32, u32, u64)>> = labels
            .sets
            .iter()
            .map(|set| {
                let here = set.iter().filter(|placed| {
                    placed.device == device && (placed.tensor as usize) < labels.tensors.len()
                });
                here.map(|placed| {
                    let slot = *slot_of.entry(placed.addr).or_insert_with(|| {
                        slots.push(AddressSlot::default());
                        slots.len() as u32 - 1
                    });
                    (placed.tensor, slot, placed.bytes)
                })
                .collect()
            })
            .collect();
        let kinds: Vec<FxHashSet<Label>> = sets
            .iter()
            .map(|set| set.iter().map(|(tensor, ..)| labels.tensors[*tensor as usize].label).collect())
            .collect();
        for (row, allocation) in history.allocations.iter().enumerate() {
            if let Some(&slot) = slot_of.get(&allocation.addr) {
                slots[slot as usize].allocations.push(row as u32);
            }
        }

        let mut labelled = LabelledBlocks { of_allocation: vec![NONE; history.allocations.len()], ..nothing };
        for &(count, set) in marks {
            let Some(position) = counted.at(count).map(|range| *range.start()) else { continue };
            for label in &kinds[set] {
                labelled.seen[*label as usize].push(position);
            }
            for &(tensor, slot, bytes) in &sets[set] {
                let AddressSlot { allocations, begun } = &mut slots[slot as usize];
                let has_begun = |&row: &u32| {
                    history.allocations[row as usize]
                        .alloc_event()
                        .is_none_or(|alloc_event| alloc_event < position)
                };
                while allocations.get(*begun).is_some_and(has_begun) {
                    *begun += 1;
                }
                let Some(&row) = begun.checked_sub(1).and_then(|last| allocations.get(last)) else {
                    continue;
                };
                let allocation = &history.allocations[row as usize];
                // A storage that is larger than the block is not what was allocated there.
                if allocation.is_allocated_at(position) && bytes <= allocation.size.0 {
                    labelled.add(row as usize, tensor);
                }
            }
        }
        labelled.repeat(history, order, recording);
        labelled
    }

    /// Labels the blocks of repeated steps like those that they repeat.
    fn repeat(&mut self, history: &History, order: &Order<'_>, recording: &Recording) {
        let repeats = repeats(order, recording);
        if repeats.like.is_empty() {
            return;
        }
        let mut row_of = vec![NONE; order.len()];
        for (row, allocation) in history.allocations.iter().enumerate() {
            if let Some(of) = allocation.alloc_event().and_then(|event| row_of.get_mut(event)) {
                *of = row as u32;
            }
        }
        for (event, like) in repeats.like {
            let Some(like) = like.map(|like| row_of[like]).filter(|&like| like != NONE) else { continue };
            let row = row_of[event];
            if row != NONE && self.of_allocation[row as usize] == NONE {
                self.of_allocation[row as usize] = self.of_allocation[like as usize];
                self.like.insert(row, like);
            }
        }
    }

    fn add(&mut self, row: usize, tensor: u32) {
        let label = |tensor: u32| self.labels.tensors[tensor as usize].label;
        if self.of_allocation[row] == NONE || label(tensor) < label(self.of_allocation[row]) {
            self.of_allocation[row] = tensor;
        }
    }

    /// The place in [`Labels::tensors`] of a row of [`History::allocations`].
    #[inline]
    pub(crate) fn tensor(&self, row: usize) -> Option<usize> {
        self.of_allocation.get(row).copied().filter(|&tensor| tensor != NONE).map(|tensor| tensor as usize)
    }

    /// Whether a tensor of this kind would have its label, because the recorder labeled such tensors while
    /// the block was live. Tensors that a model keeps are labeled when it first runs and at the end, so a
    /// block that was freed without a label was not one of them.
    pub(crate) fn would_know(&self, label: Label, row: usize, allocations: &[Allocation]) -> bool {
        let row = self.like.get(&(row as u32)).map_or(row, |&like| like as usize);
        let allocation = &allocations[row];
        let seen = &self.seen[label as usize];
        let lasts = matches!(label, Label::Parameter | Label::Buffer | Label::Optimizer);
        if lasts && allocation.free_event().is_some() && !seen.is_empty() {
            return true;
        }
        let next = seen.partition_point(|&position| {
            allocation.alloc_event().is_some_and(|alloc_event| position <= alloc_event)
        });
        seen.get(next).is_some_and(|&position| allocation.is_allocated_at(position))
    }

    /// Every labelled block: its row and what it is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Label)> + '_ {
        (0..self.of_allocation.len())
            .filter_map(|row| Some((row, self.labels.tensors[self.tensor(row)?].label)))
    }
}

/// The tensors of one kind that a recorder named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LabelledTensors {
    /// The most that there were at one time.
    pub tensors: u64,
    /// The most that they held at one time, in requested bytes.
    pub most: Bytes,
    /// What they held at the peak, in requested bytes.
    pub at_peak: Bytes,
}

impl RunModel<'_> {
    /// What a recorder named, in the order of [`Label::ALL`].
    pub fn labelled(&self) -> [LabelledTensors; Label::ALL.len()] {
        let (device, peak) = (self.device, self.device.history.allocated_peak.position);
        let mut sums = [LabelledTensors::default(); Label::ALL.len()];
        // Where what each kind holds changes, and by how much.
        let mut changes: [Vec<(usize, i128, i64)>; Label::ALL.len()] = Default::default();
        for (row, label) in device.labels.iter().filter(|&(row, _)| device.tensor_of(row).is_some()) {
            let allocation = &device.history.allocations[row];
            if allocation.is_allocated_at(peak) {
                sums[label as usize].at_peak += allocation.requested;
            }
            let bytes = i128::from(allocation.requested.0);
            changes[label as usize].push((
                allocation.alloc_event().map_or(0, |alloc_event| alloc_event + 1),
                bytes,
                1,
            ));
            changes[label as usize].extend(allocation.free_event().map(|freed| (freed + 1, -bytes, -1)));
        }
        for (sum, mut changes) in sums.iter_mut().zip(changes) {
            changes.sort_unstable();
            let (mut held, mut count) = (0, 0);
            for (_, bytes, tensors) in changes {
                held += bytes;
                count += tensors;
                sum.tensors = sum.tensors.max(u64::try_from(count).unwrap_or(0));
                sum.most = sum.most.max(Bytes(u64::try_from(held).unwrap_or(0)));
            }
        }
        sums
    }
}
