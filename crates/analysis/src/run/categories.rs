//! Category of each block: parameter, gradient, optimizer state, activation, …
//!
//! A plain snapshot does not say. But a parameter is there before the first step and stays, its gradient has
//! its size and appears inside `backward()`, its optimizer state has its size and appears inside the
//! optimizer, an activation waits for `backward()`. Where these agree there is little to guess.

use crate::run::device::Device;
use crate::run::sizes::{BlockSizes, outlives_backward, outlives_first_step};
use crate::trace::backward::Follow;
use crate::trace::modules::Phase;
use crate::trace::roles::{Role, Roles};
use crate::trace::steps::Confidence;
use recording::Label;
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Allocation, Bytes, History};

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Category {
    /// Weights; also buffers, where no recorder distinguished them.
    Parameter,
    /// Buffers of modules.
    Buffer,
    /// `.grad` of a parameter.
    Gradient,
    /// What the optimizer keeps between steps.
    Optimizer,
    /// What the forward pass keeps for `backward()`, or hands on.
    Activation,
    /// Data made before the forward pass.
    Input,
    /// Freed so soon that it matters only to the peak.
    Temporary,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// Not known from the trace.
    Unknown,
}

impl Category {
    /// All categories, in the order of reports.
    pub const ALL: [Category; 9] = [
        Category::Parameter,
        Category::Buffer,
        Category::Gradient,
        Category::Optimizer,
        Category::Activation,
        Category::Input,
        Category::Temporary,
        Category::Workspace,
        Category::Unknown,
    ];

    /// Name in reports and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Category::Parameter => "parameter",
            Category::Buffer => "buffer",
            Category::Gradient => "gradient",
            Category::Optimizer => "optimizer",
            Category::Activation => "activation",
            Category::Input => "input",
            Category::Temporary => "temporary",
            Category::Workspace => "workspace",
            Category::Unknown => "unknown",
        }
    }
}

/// Bytes of each category, in the order of [`Category::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByCategory(pub [Bytes; Category::ALL.len()]);

impl ByCategory {
    /// Bytes of one category.
    pub fn get(&self, category: Category) -> Bytes {
        self.0[category as usize]
    }
}

/// The category of every block of a history.
pub struct Categories {
    of_allocation: Vec<Category>,
    /// Confidence in the split into parameters, gradients and optimizer state.
    pub confidence: Confidence,
    /// Reason for that confidence.
    pub reason: &'static str,
}

impl Categories {
    /// The category of a row of [`History::allocations`].
    #[inline]
    pub fn of(&self, allocation: usize) -> Category {
        self.of_allocation[allocation]
    }

    /// What the program holds once `position` events have happened.
    pub fn at(&self, history: &History, position: usize) -> ByCategory {
        let mut sums = ByCategory::default();
        for (allocation, category) in
            history.allocations[..history.first_allocated_from(position)].iter().zip(&self.of_allocation)
        {
            if allocation.is_allocated_at(position) {
                sums.0[*category as usize] += allocation.size;
            }
        }
        sums
    }
}

/// What cuBLAS takes once per handle and stream: before Hopper, and from Hopper on.
const CUBLAS_WORKSPACES: [u64; 2] = [8_519_680, 33_554_432];

/// What cuBLASLt takes for each thread and stream.
const CUBLASLT_WORKSPACE: u64 = 1 << 20;

/// Events that a temporary may live for: a few operations.
const MAX_TEMPORARY_EVENTS: usize = 48;

impl From<Label> for Category {
    fn from(label: Label) -> Category {
        match label {
            Label::Parameter => Category::Parameter,
            Label::Buffer => Category::Buffer,
            Label::Gradient => Category::Gradient,
            Label::Optimizer => Category::Optimizer,
            Label::Input => Category::Input,
        }
    }
}

/// Sorts every block of a device. `failed_at` is the last allocation that failed.
pub(crate) fn categories(device: &Device<'_>, failed_at: Option<usize>) -> Categories {
    let Device { history, roles, steps, backward, .. } = device;
    let setup_ends = match steps.bounds.first() {
        Some(&first) => first,
        None => first_forward(history, roles).unwrap_or(history.len()),
    };
    let mut sizes = BlockSizes::new(device, setup_ends);
    let is_labelled = sizes.learn(device);
    let mut sorter = Sorter {
        device,
        failed_at,
        setup_ends,
        loop_ends: steps.bounds.last().copied().unwrap_or(usize::MAX),
        sizes: &sizes,
        backward: backward.follow(),
        begun: 0,
        inputs: 0,
        nameless: FxHashMap::default(),
        workspaces: FxHashSet::default(),
    };
    let of_allocation = history
        .allocations
        .iter()
        .enumerate()
        .map(|(row, allocation)| sorter.sort(row, allocation))
        .collect();
    let (confidence, reason) = match is_labelled {
        true => (Confidence::High, "a recorder saw which tensor each of these blocks is"),
        false => sizes.confidence(steps),
    };
    Categories { of_allocation, confidence, reason }
}

fn first_forward(history: &History, roles: &Roles) -> Option<usize> {
    history.allocations.iter().find_map(|allocation| {
        roles.of(allocation.stack).is_forward().then(|| allocation.alloc_event()).flatten()
    })
}

/// Sorts one block after the other.
struct Sorter<'a> {
    device: &'a Device<'a>,
    /// The last allocation that failed: what it met was in use, whatever became of it afterwards.
    failed_at: Option<usize>,
    /// Where the first step begins; without steps, where the first forward pass does.
    setup_ends: usize,
    /// Where the last step ends: trainers return the workspaces of cuBLAS after it. Without steps, the end of
    /// the history.
    loop_ends: usize,
    sizes: &'a BlockSizes,
    backward: Follow<'a>,
    /// Number of steps that have begun.
    begun: usize,
    /// Blocks that this step has made so far, if no module has run in it yet.
    inputs: usize,
    nameless: FxHashMap<u64, u64>,
    workspaces: FxHashSet<(u64, u64, bool)>,
}

/// Most inputs per step: inputs are few and come first.
const MAX_INPUTS_PER_STEP: usize = 64;

impl Sorter<'_> {
    fn sort(&mut self, row: usize, allocation: &Allocation) -> Category {
        let phase = self.device.scope_of(allocation).phase;
        let role = self.device.roles.of(allocation.stack).during(phase);
        let alloc_event = allocation.alloc_event().unwrap_or(0);
        while self.device.steps.bounds.get(self.begun).is_some_and(|&bound| bound <= alloc_event) {
            self.begun += 1;
            self.inputs = 0;
        }
        self.inputs += if role.module || role.without_python { MAX_INPUTS_PER_STEP } else { 1 };
        if let Some(tensor) = self.device.tensor_of(row) {
            return tensor.label.into();
        }
        let mut category = self.by_role(allocation, role, phase);
        if is_refuted(self.device, category, row) {
            category = unlabelled(category, allocation, role, self.step_ends());
        }
        if category == Category::Parameter && allocation.alloc_event().is_none() && role.without_python {
            // From before the history and without a stack, a parameter and its optimizer state look alike.
            // There are as many parameters as gradients; the rest is state.
            let count = self.nameless.entry(allocation.requested.0).or_default();
            *count += 1;
            if self.sizes.gradients.get(&allocation.requested.0).is_some_and(|&gradients| *count > gradients)
            {
                return Category::Optimizer;
            }
        }
        let size = allocation.requested.0;
        let is_library_scratch = !self.device.is_cpu()
            && allocation.free_event().is_none_or(|freed| freed >= self.loop_ends)
            && (CUBLAS_WORKSPACES.contains(&size) || size == CUBLASLT_WORKSPACE)
            && !matches!(category, Category::Parameter | Category::Gradient | Category::Optimizer);
        if is_library_scratch {
            let stream =
                self.device.history.regions.get(allocation.region as usize).map_or(0, |region| region.stream);
            // One for each handle, and a handle for each thread: a second block of this size is the program's
            // own, unless no tensor is there.
            if CUBLAS_WORKSPACES.contains(&size)
                && self.workspaces.insert((stream, size, role.without_python))
                || self.device.is_no_storage(allocation)
            {
                return Category::Workspace;
            }
        }
        category
    }

    /// Where the step ends that the block at hand was allocated in.
    fn step_ends(&self) -> usize {
        self.device.steps.bounds.get(self.begun).copied().unwrap_or(self.device.history.len())
    }

    /// Whether no step ends after the block at hand was allocated.
    fn is_in_last_step(&self) -> bool {
        self.device.steps.bounds.get(self.begun).is_none()
    }

    /// The category of a block made before the first step, outside of the optimizer.
    fn made_in_setup(&self, allocation: &Allocation, role: Role, phase: Option<Phase>) -> Category {
        let size = allocation.requested.0;
        let has_size_of_parameter =
            self.sizes.gradients.contains_key(&size) || self.sizes.states.contains(&size);
        if !outlives_first_step(self.device, allocation) {
            Category::Temporary
        } else if phase == Some(Phase::Forward) {
            Category::Activation
        } else if role.placing || role.module || has_size_of_parameter {
            Category::Parameter
        } else if role.without_python {
            Category::Unknown
        } else {
            Category::Input
        }
    }

    fn by_role(&mut self, allocation: &Allocation, role: Role, phase: Option<Phase>) -> Category {
        let (alloc_event, freed, size) =
            (allocation.alloc_event().unwrap_or(0), allocation.free_event(), allocation.requested.0);
        let is_setup = allocation.alloc_event().is_none_or(|alloc_event| alloc_event < self.setup_ends);
        if is_setup && !role.optimizer {
            return self.made_in_setup(allocation, role, phase);
        }
        let step_ends = self.step_ends();
        let outlives_step = freed.is_none_or(|freed| freed >= step_ends);
        if role.optimizer {
            return if outlives_step { Category::Optimizer } else { Category::Temporary };
        }
        let may_be_scratch = role.convolution || role.without_python && self.device.roles.any_convolution();
        if may_be_scratch && !self.device.is_cpu() && freed == Some(alloc_event + 1) {
            return Category::Workspace;
        }
        if role.without_python {
            let end = self.backward.end_of(alloc_event);
            let is_gradient =
                outlives_backward(self.device, allocation, end) && self.sizes.gradients.contains_key(&size);
            // The step in which the record ends is not over: its backward pass was still at work.
            let is_unfinished = phase == Some(Phase::Backward) && self.is_in_last_step();
            return if is_gradient {
                Category::Gradient
            } else if !is_unfinished && end.is_some() && outlives_step {
                Category::Unknown
            } else {
                Category::Temporary
            };
        }
        let is_there_at = |event: usize| event < step_ends && freed.is_none_or(|freed| freed >= event);
        let waits_for_backward = self.backward.next_after(alloc_event).is_some_and(is_there_at)
            || self.failed_at.is_some_and(|failed| alloc_event < failed && is_there_at(failed));
        if self.inputs <= MAX_INPUTS_PER_STEP && !role.module && !role.backward {
            return if waits_for_backward || outlives_step { Category::Input } else { Category::Temporary };
        }
        let step_begins =
            self.begun.checked_sub(1).map_or(self.setup_ends, |step| self.device.steps.bounds[step]);
        let is_long = freed.is_none_or(|freed| {
            freed - alloc_event > MAX_TEMPORARY_EVENTS || (freed - alloc_event) * 4 > step_ends - step_begins
        });
        if waits_for_backward || outlives_step || is_long {
            Category::Activation
        } else {
            Category::Temporary
        }
    }
}

/// Whether a recorder looked at the tensors of the kind that a block seems to be, and this one was not among
/// them.
fn is_refuted(device: &Device<'_>, guess: Category, row: usize) -> bool {
    let label = match guess {
        Category::Parameter => Label::Parameter,
        Category::Gradient => Label::Gradient,
        Category::Optimizer => Label::Optimizer,
        _ => return false,
    };
    device.labels.would_know(label, row, &device.history.allocations)
}

/// Category of a block that a recorder examined and that is not a tensor of a module, although it looks like
/// one in a plain snapshot.
fn unlabelled(guess: Category, allocation: &Allocation, role: Role, step_ends: usize) -> Category {
    let outlives_step = allocation.free_event().is_none_or(|freed| freed >= step_ends);
    match guess {
        Category::Parameter if role.placing || role.module || role.without_python => Category::Unknown,
        Category::Parameter => Category::Input,
        Category::Gradient | Category::Optimizer if outlives_step => Category::Unknown,
        Category::Gradient | Category::Optimizer => Category::Temporary,
        other => other,
    }
}
