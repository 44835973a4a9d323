//! The run model: a device reduced to what findings need.

use crate::run::categories::{Categories, Category, categories};
use crate::run::device::{Device, Moment};
use crate::run::growth::{GrowingSites, growing_sites};
use crate::run::parallel::join;
use crate::run::step_peaks::{StepPeaks, step_peaks};
use crate::trace::modules::{Common, ModuleId};
use crate::trace::site::Site;
use snapshot::{Bytes, FrameId, History, Metric, PoolClass, StackId};

/// The run reduced to what findings need: a device with its steps, categories, step peaks and growing sites.
pub struct RunModel<'a> {
    /// The device.
    pub device: &'a Device<'a>,
    /// Category of each block.
    pub categories: Categories,
    /// Peak of each step.
    pub step_peaks: StepPeaks,
    pub(crate) growing_sites: GrowingSites,
}

impl<'a> RunModel<'a> {
    /// Builds the model of a device's run.
    pub fn new(device: &'a Device<'a>) -> RunModel<'a> {
        let failed_at = device.position_of(Moment::Oom).map(|position| position - 1);
        let categories = categories(device, failed_at);
        let (step_peaks, growing_sites) = join(
            device.is_large(),
            || step_peaks(device.snapshot, &device.history, &device.steps, &categories),
            || growing_sites(device, &categories),
        );
        RunModel { device, categories, step_peaks, growing_sites }
    }

    /// `active_bytes.all.peak`: the most that was ever in use at one time.
    pub(crate) fn active_peak(&self) -> Bytes {
        active_peak(&self.device.history)
    }

    /// The events that returned a workspace's segment to the device as soon as it was freed: cuDNN trying its
    /// algorithms.
    pub(crate) fn cudnn_trials(&self) -> Vec<usize> {
        let history = &self.device.history;
        let returned: Vec<usize> = self
            .step_peaks
            .segments
            .iter()
            .filter(|event| !event.reserves)
            .map(|event| event.event)
            .collect();
        if returned.is_empty() {
            return returned;
        }
        let mut trials: Vec<usize> = history
            .allocations
            .iter()
            .enumerate()
            .filter(|(row, _)| self.categories.of(*row) == Category::Workspace)
            .filter_map(|(_, allocation)| allocation.completed_event().map(|completed| completed + 1))
            .filter(|next| returned.binary_search(next).is_ok())
            .collect();
        trials.sort_unstable();
        trials
    }

    /// Microseconds from one event to another; 0 where the clock was not recorded or ran backwards.
    pub(crate) fn elapsed_us(&self, from: usize, to: usize) -> u64 {
        let history = &self.device.history;
        let Some(last) = history.len().checked_sub(1) else { return 0 };
        let time =
            |event: usize| self.device.snapshot.events.get(history.rows.start + event.min(last)).time_us;
        u64::try_from(time(to).saturating_sub(time(from))).unwrap_or(0)
    }

    /// The line of code behind a stack.
    pub(crate) fn frame_of(&self, stack: StackId) -> Option<FrameId> {
        self.device.sites.of(stack).frame()
    }

    /// The line of code behind a block: its own, or what is known of the `backward()` in which it was
    /// allocated.
    pub fn frame_of_allocation(&self, allocation: usize) -> Option<FrameId> {
        let allocation = &self.device.history.allocations[allocation];
        match allocation.alloc_event() {
            Some(alloc_event) => self.device.site_of_event(alloc_event).frame(),
            None => self.frame_of(allocation.stack),
        }
    }

    /// What to know about the line of a block that was allocated inside `backward()`.
    pub(crate) fn doubt_in_backward(&self, allocation: usize) -> Option<&'static str> {
        match self.device.site_of_event(self.device.history.allocations[allocation].alloc_event()?) {
            Site::Backward(_) => Some(
                "allocations inside `backward()` have no stack; the line is the \
                 `backward()` call",
            ),
            Site::BackwardOf(_) => Some(
                "allocations inside `backward()` have no stack; this is the backward of the line, found \
                     by its module",
            ),
            _ => None,
        }
    }

    /// The module that most of these rows of `allocations` are in.
    pub(crate) fn common_module(&self, rows: impl Iterator<Item = usize>) -> Option<ModuleId> {
        let device = self.device;
        if device.modules.is_empty() {
            return None;
        }
        let mut common = Common::default();
        rows.for_each(|row| {
            common.add(&device.modules, device.module_of(row), device.history.allocations[row].size)
        });
        common.module()
    }

    /// The module that most blocks of one line are in, once `position` events have happened.
    pub(crate) fn module_at(&self, position: usize, line: Option<FrameId>) -> Option<ModuleId> {
        let history = &self.device.history;
        let begun = 0..history.first_allocated_from(position);
        self.common_module(begun.filter(|&row| {
            history.allocations[row].is_allocated_at(position) && self.frame_of_allocation(row) == line
        }))
    }
}

/// Bytes of `active_bytes.all.peak`: the most that was ever in use at one time.
pub(crate) fn active_peak(history: &History) -> Bytes {
    Bytes(history.stats.get(Metric::ActiveBytes, PoolClass::All).peak.max(0) as u64)
}
