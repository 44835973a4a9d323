//! One device of a snapshot: its history, steps, sites and sidecar files.

use crate::run::holders::Holders;
use crate::run::labels::LabelledBlocks;
use crate::run::parallel::join;
use crate::trace::backward::Backward;
use crate::trace::modules::{ExecutionScope, ModuleId, Modules, Phase, line_that_calls_model};
use crate::trace::order::Order;
use crate::trace::roles::Roles;
use crate::trace::site::{Site, Sites};
use crate::trace::steps::{Steps, steps};
use recording::{Label, LabeledTensor, Recording};
use snapshot::{
    Action, Allocation, Bytes, Counters, DeviceKind, FrameId, History, PoolId, Snapshot, StackId,
};
use std::collections::BTreeMap;

/// A device: its history, its steps and the sites of its stacks.
pub struct Device<'a> {
    /// The snapshot that it belongs to.
    pub snapshot: &'a Snapshot,
    /// History of the device, rebuilt from its events.
    pub history: History,
    /// Where each stack comes from.
    pub sites: Sites,
    /// Steps of the run.
    pub steps: Steps,
    /// Sidecar files of a recorder, empty for a plain snapshot.
    pub recording: &'a Recording,
    /// The modules that ran.
    pub modules: Modules,
    pub(crate) roles: Roles,
    pub(crate) backward: Backward,
    pub(crate) labels: LabelledBlocks<'a>,
    /// Holders of its tensors, where a recorder dumped references.
    pub holders: Holders<'a>,
    /// The caveat of a history that begins after the peak.
    earlier_peak: Option<String>,
}

/// Events from which a second thread is worthwhile.
const MIN_EVENTS_FOR_THREADS: usize = 20_000;

/// A moment that a user can ask about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Highest allocated bytes.
    Peak,
    /// The last allocation that failed.
    Oom,
    /// When the snapshot was taken.
    End,
    /// Just after the event with this number.
    Event(usize),
}

/// Returns every device that holds memory or recorded events.
pub fn devices(snapshot: &Snapshot) -> Vec<Device<'_>> {
    recorded_devices(snapshot, Recording::NONE)
}

/// Returns every device that holds memory or recorded events, with a recorder's sidecar files.
pub fn recorded_devices<'a>(snapshot: &'a Snapshot, recording: &'a Recording) -> Vec<Device<'a>> {
    snapshot
        .devices()
        .into_iter()
        .map(|device| {
            let sites = Sites::new(snapshot);
            let order = Order::new(snapshot, device);
            let (history, (roles, steps, backward, modules)) = join(
                order.len() > MIN_EVENTS_FOR_THREADS,
                || History::new(snapshot, device),
                || {
                    let roles = Roles::new(snapshot, &sites);
                    let steps = steps(&order, &sites, &roles, recording);
                    let mut modules = Modules::new(snapshot, recording);
                    modules.find_lines(&order, &sites);
                    modules.fill_in(&order, &steps);
                    let backward = Backward::new(&order, &roles, &sites, &modules);
                    (roles, steps, backward, modules)
                },
            );
            let labels = LabelledBlocks::new(&history, &order, recording);
            let holders = Holders::new(&history, &order, recording, snapshot.kind);
            let earlier_peak = recording.earlier_peak(&history).map(|bytes| {
                format!(
                    "PyTorch counted a peak of {bytes} allocated before the history begins; this \
                     report does not include it"
                )
            });
            Device {
                snapshot,
                history,
                sites,
                steps,
                recording,
                modules,
                roles,
                backward,
                labels,
                holders,
                earlier_peak,
            }
        })
        .collect()
}

impl Device<'_> {
    /// Whether there is enough of it to share work between threads.
    pub(crate) fn is_large(&self) -> bool {
        self.history.len() > MIN_EVENTS_FOR_THREADS
    }

    /// Whether this is the memory of a CPU, pinned or not.
    pub fn is_cpu(&self) -> bool {
        self.snapshot.kind != DeviceKind::Gpu
    }

    /// Whether this is pinned memory of the host.
    pub fn is_pinned(&self) -> bool {
        self.snapshot.kind == DeviceKind::Pinned
    }

    /// Name in reports: `GPU 0`, `CPU`, `host (pinned)`.
    pub fn name(&self) -> String {
        match self.snapshot.kind {
            DeviceKind::Gpu => format!("GPU {}", self.history.device),
            DeviceKind::Cpu => "CPU".to_owned(),
            DeviceKind::Pinned => "host (pinned)".to_owned(),
        }
    }

    /// What is missing or contradictory in the file, and what a step is where that is not obvious.
    pub fn caveats(&self) -> impl Iterator<Item = &String> {
        self.history
            .caveats
            .iter()
            .chain(&self.snapshot.caveats)
            .chain(&self.steps.note)
            .chain(&self.earlier_peak)
    }

    /// Where the program was at an event.
    pub(crate) fn scope_at(&self, event: usize) -> ExecutionScope {
        if !self.modules.any_phase() {
            return ExecutionScope::default();
        }
        self.modules.of_event(event, self.snapshot.events.get(self.history.rows.start + event).context)
    }

    /// Where the program was when it allocated a block.
    pub fn scope_of(&self, allocation: &Allocation) -> ExecutionScope {
        allocation
            .alloc_event()
            .map_or_else(ExecutionScope::default, |alloc_event| self.scope_at(alloc_event))
    }

    /// Module of a row of [`History::allocations`]: the owner of the tensor, or the module that ran.
    pub fn module_of(&self, row: usize) -> Option<ModuleId> {
        let owner = self.labels.tensor(row).and_then(|tensor| self.modules.of_tensor(tensor));
        owner.or_else(|| self.scope_of(&self.history.allocations[row]).module)
    }

    /// Tensor of a row of [`History::allocations`], where a recorder saw it. Arguments of a module that is
    /// called inside another module's forward pass are activations, not inputs.
    pub fn tensor_of(&self, row: usize) -> Option<&LabeledTensor> {
        let tensor = &self.recording.labels.tensors[self.labels.tensor(row)?];
        let is_activation = tensor.label == Label::Input
            && self.scope_of(&self.history.allocations[row]).phase == Some(Phase::Forward);
        (!is_activation).then_some(tensor)
    }

    /// Whether an event allocates for the autograd engine: no line of the user's own is behind it.
    pub(crate) fn is_in_engine(&self, event: usize) -> bool {
        let role = self.roles.of(self.snapshot.events.stack(self.history.rows.start + event));
        role.without_python || role.in_engine && self.scope_at(event).phase == Some(Phase::Backward)
    }

    /// The user's line that calls the outermost module of a stack.
    pub(crate) fn caller_of_model(&self, stack: StackId) -> Option<FrameId> {
        line_that_calls_model(self.snapshot, &self.sites, stack)
    }

    /// The line whose forward pass through a module an event of `backward()` belongs to, where one function
    /// has called it in this step.
    pub(crate) fn forward_line(&self, module: ModuleId, event: usize) -> Option<FrameId> {
        let step = self.steps.of_event(event);
        self.modules.line(module, event, step.map_or(0, |step| self.steps.bounds[step]))
    }

    /// Where the request of an event comes from, according to its own stack and the calls around it.
    pub fn site_of_event(&self, event: usize) -> Site {
        let site = self.sites.of(self.snapshot.events.stack(self.history.rows.start + event));
        let place = self.scope_at(event);
        // Hooks of libraries and compiled code run in the engine's thread, below no line of the user's own.
        let is_of_library = matches!(site, Site::Library(_)) && place.phase == Some(Phase::Backward);
        if !self.is_in_engine(event) && !is_of_library {
            return site;
        }
        let module = place.module.filter(|_| place.phase == Some(Phase::Backward));
        if let Some(line) = module.and_then(|module| self.forward_line(module, event)) {
            return Site::BackwardOf(line);
        }
        let call = self.backward.call(event);
        match call.map(|call| self.sites.of(call)) {
            Some(Site::User(frame) | Site::Library(frame)) => Site::Backward(frame),
            _ => site,
        }
    }

    /// Moment that a report is about unless another is asked for: the last OOM, or else the peak.
    pub fn default_moment(&self) -> Moment {
        if self.position_of(Moment::Oom).is_some() { Moment::Oom } else { Moment::Peak }
    }

    /// Number of events that had happened at a moment; `None` if there was no such moment.
    pub fn position_of(&self, moment: Moment) -> Option<usize> {
        match moment {
            Moment::Peak => Some(self.history.allocated_peak.position),
            Moment::End => Some(self.history.len()),
            Moment::Event(event) => (event < self.history.len()).then_some(event + 1),
            Moment::Oom if self.history.stats.ooms == 0 => None,
            Moment::Oom => self
                .snapshot
                .events
                .actions(self.history.rows.clone())
                .rposition(|(action, _)| action == Action::Oom)
                .map(|event| event + 1),
        }
    }
}

/// One kind of memory of a device: a pool on a stream, small or large, expandable or not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PoolCategory {
    /// The pool.
    pub pool: PoolId,
    /// The stream that it serves.
    pub stream: u64,
    /// Whether it is the small half (requests up to 1 MiB).
    pub small: bool,
    /// Whether it is expandable memory.
    pub expandable: bool,
}

impl Device<'_> {
    /// The counters of every pool and stream at the end; empty pools are left out.
    pub fn pools_at_end(&self) -> Vec<(PoolCategory, Counters)> {
        let mut pools: BTreeMap<PoolCategory, Counters> = BTreeMap::new();
        for (region, counters) in self.history.regions.iter().zip(&self.history.region_ends) {
            let pool = PoolCategory {
                pool: region.pool,
                stream: region.stream,
                small: region.small,
                expandable: region.expandable,
            };
            *pools.entry(pool).or_default() += *counters;
        }
        pools.into_iter().filter(|(_, counters)| counters.reserved > Bytes::ZERO).collect()
    }
}
