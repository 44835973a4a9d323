//! What each block is for: parameter, gradient, optimizer state, activation, …
//!
//! A plain snapshot does not say. But a parameter is there before the first step and stays, its gradient has its size
//! and appears inside `backward()`, its optimizer state has its size and appears inside the optimizer, an activation
//! waits for `backward()`. Where these agree there is little to guess.

use crate::backward::Backward;
use crate::roles::Roles;
use crate::steps::{Confidence, Steps};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Bytes, History, Life};

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Category {
    /// Weights and buffers.
    Parameter,
    /// `.grad` of a parameter.
    Gradient,
    /// What the optimizer keeps between steps.
    Optimizer,
    /// What the forward pass keeps for `backward()`, or hands on.
    Activation,
    /// Data made before the forward pass.
    Input,
    /// Gone again before it could matter to anything but the peak.
    Temporary,
    /// Scratch memory of cuBLAS and cuDNN.
    Workspace,
    /// The trace does not tell.
    Unknown,
}

impl Category {
    /// All of them, in the order of reports.
    pub const ALL: [Category; 8] = [
        Category::Parameter,
        Category::Gradient,
        Category::Optimizer,
        Category::Activation,
        Category::Input,
        Category::Temporary,
        Category::Workspace,
        Category::Unknown,
    ];

    /// Its word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Category::Parameter => "parameter",
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
pub struct ByCategory(pub [Bytes; 8]);

impl ByCategory {
    /// Those of one.
    pub fn get(&self, category: Category) -> Bytes {
        self.0[category as usize]
    }
}

/// The category of every block of a history.
pub struct Categories {
    of_life: Vec<Category>,
    /// How far to trust the split into parameters, gradients and optimizer state.
    pub confidence: Confidence,
    /// Why.
    pub reason: &'static str,
}

impl Categories {
    /// The category of a row of [`History::lives`].
    #[inline]
    pub fn of(&self, life: usize) -> Category {
        self.of_life[life]
    }

    /// What the program holds once `position` events have happened.
    pub fn at(&self, history: &History, position: usize) -> ByCategory {
        let mut sums = ByCategory::default();
        for (life, category) in history.lives.iter().zip(&self.of_life) {
            if life.is_allocated_at(position) {
                sums.0[*category as usize] += life.size;
            }
        }
        sums
    }
}

/// What cuBLAS takes once per handle and stream: before Hopper, and from Hopper on.
const CUBLAS_WORKSPACES: [u64; 2] = [8_519_680, 33_554_432];

/// Events that a temporary may live for: a few operations.
const SHORT: usize = 48;

/// Sorts every block of `history`.
pub(crate) fn categories(
    history: &History,
    roles: &Roles,
    steps: &Steps,
    backward: &Backward,
    failed_at: Option<usize>,
) -> Categories {
    let sorter = Sorter::new(history, roles, steps, backward, failed_at);
    let mut of_life = vec![Category::Unknown; history.lives.len()];
    let mut nameless: FxHashMap<u64, u64> = FxHashMap::default();
    let mut workspaces: FxHashSet<(u64, u64, bool)> = FxHashSet::default();
    let mut step = 0;
    for (row, life) in history.lives.iter().enumerate() {
        let born = life.born().unwrap_or(0);
        while steps.bounds.get(step).is_some_and(|&bound| bound <= born) {
            step += 1;
        }
        let mut category = sorter.sort(row, life, step);
        if category == Category::Parameter && life.born().is_none() && roles.of(life.stack).without_python {
            // From before the history and without a stack, a parameter and its optimizer state look alike. There are as
            // many parameters as gradients; the rest is state.
            let count = nameless.entry(life.requested.0).or_default();
            *count += 1;
            if sorter.gradients_a_step.get(&life.requested.0).is_some_and(|&gradients| *count > gradients) {
                category = Category::Optimizer;
            }
        }
        let is_library_scratch = CUBLAS_WORKSPACES.contains(&life.requested.0)
            && life.freed().is_none()
            && !matches!(category, Category::Parameter | Category::Gradient | Category::Optimizer);
        of_life[row] = if is_library_scratch {
            let stream = history.regions.get(life.region as usize).map_or(0, |region| region.stream);
            let engine = roles.of(life.stack).without_python;
            // One for each handle: a second block of this size is the program's own.
            if workspaces.insert((stream, life.requested.0, engine)) { Category::Workspace } else { category }
        } else {
            category
        };
    }
    let (confidence, reason) = sorter.confidence();
    Categories { of_life, confidence, reason }
}

struct Sorter<'a> {
    history: &'a History,
    roles: &'a Roles,
    steps: &'a Steps,
    backward: &'a Backward,
    /// Where the first step begins; without steps, where the first forward pass does.
    setup_ends: usize,
    /// Sizes of what is made before that and stays.
    lasting: FxHashSet<u64>,
    /// Sizes of blocks that outlive the `backward()` they were made in and have a lasting block's size.
    gradients: FxHashSet<u64>,
    /// How many gradients of each size one step makes.
    gradients_a_step: FxHashMap<u64, u64>,
    /// Sizes of what the optimizer keeps.
    states: FxHashSet<u64>,
    has_convolutions: bool,
    /// The last allocation that failed: what it met was in use, whatever became of it afterwards.
    failed_at: Option<usize>,
}

impl<'a> Sorter<'a> {
    fn new(
        history: &'a History,
        roles: &'a Roles,
        steps: &'a Steps,
        backward: &'a Backward,
        failed_at: Option<usize>,
    ) -> Sorter<'a> {
        let first_forward = || {
            history.lives.iter().find_map(|life| {
                let role = roles.of(life.stack);
                (role.module && !role.placing).then(|| life.born()).flatten()
            })
        };
        let setup_ends = match steps.bounds.first() {
            Some(&first) => first,
            None => first_forward().unwrap_or(history.len()),
        };
        let mut sorter = Sorter {
            history,
            roles,
            steps,
            backward,
            setup_ends,
            lasting: FxHashSet::default(),
            gradients: FxHashSet::default(),
            gradients_a_step: FxHashMap::default(),
            states: FxHashSet::default(),
            has_convolutions: false,
            failed_at,
        };
        for life in &history.lives {
            if sorter.is_setup(life) && sorter.outlives_first_step(life) {
                sorter.lasting.insert(life.requested.0);
            }
        }
        let (mut step, mut in_step) = (0, FxHashMap::<u64, u64>::default());
        for (row, life) in history.lives.iter().enumerate() {
            let role = roles.of(life.stack);
            if role.without_python {
                if sorter.is_gradient(row, life) {
                    let begun = steps.bounds.partition_point(|&bound| Some(bound) <= life.born());
                    if begun != step {
                        (step, in_step) = (begun, FxHashMap::default());
                    }
                    let count = in_step.entry(life.requested.0).or_default();
                    *count += 1;
                    let most = sorter.gradients_a_step.entry(life.requested.0).or_default();
                    *most = (*most).max(*count);
                    sorter.gradients.insert(life.requested.0);
                }
            } else if role.optimizer {
                if life.freed().is_none() {
                    sorter.states.insert(life.requested.0);
                }
            } else {
                sorter.has_convolutions |= role.convolution;
            }
        }
        sorter
    }

    fn is_setup(&self, life: &Life) -> bool {
        life.born().is_none_or(|born| born < self.setup_ends)
    }

    fn outlives_first_step(&self, life: &Life) -> bool {
        let end = self.steps.bounds.get(1).copied().unwrap_or(self.history.len());
        life.freed().is_none_or(|freed| freed >= end)
    }

    fn is_gradient(&self, row: usize, life: &Life) -> bool {
        let ends_at = self.backward.ends_at(row);
        ends_at.is_some_and(|end| life.freed().is_none_or(|freed| freed >= end))
            && self.lasting.contains(&life.requested.0)
    }

    /// `begun` steps had begun when the block was allocated.
    fn sort(&self, row: usize, life: &Life, begun: usize) -> Category {
        let role = self.roles.of(life.stack);
        let (born, freed) = (life.born().unwrap_or(0), life.freed());
        if self.is_setup(life) && !role.optimizer {
            return match () {
                () if !self.outlives_first_step(life) => Category::Temporary,
                () if role.placing || role.module => Category::Parameter,
                () if self.gradients.contains(&life.requested.0) => Category::Parameter,
                () if self.states.contains(&life.requested.0) => Category::Parameter,
                () if role.without_python => Category::Unknown,
                () => Category::Input,
            };
        }
        let step_ends = self.steps.bounds.get(begun).copied().unwrap_or(self.history.len());
        let outlives_step = freed.is_none_or(|freed| freed >= step_ends);
        if role.optimizer {
            return if outlives_step { Category::Optimizer } else { Category::Temporary };
        }
        let is_scratch = freed == Some(born + 1) && (role.convolution || role.without_python && self.has_convolutions);
        if is_scratch {
            return Category::Workspace;
        }
        if role.without_python {
            return match self.backward.ends_at(row) {
                Some(_) if self.gradients.contains(&life.requested.0) && self.is_gradient(row, life) => {
                    Category::Gradient
                }
                Some(_) if outlives_step => Category::Unknown,
                _ => Category::Temporary,
            };
        }
        let is_there_at = |event: usize| event < step_ends && freed.is_none_or(|freed| freed >= event);
        let waits_for_backward = self.backward.next_after(born).is_some_and(is_there_at)
            || self.failed_at.is_some_and(|failed| born < failed && is_there_at(failed));
        if !role.module && !role.backward && self.is_before_forward(born, begun) {
            return if waits_for_backward || outlives_step { Category::Input } else { Category::Temporary };
        }
        let is_long = freed.is_none_or(|freed| {
            freed - born > SHORT || (freed - born) * 4 > step_ends - self.step_begins(begun)
        });
        if waits_for_backward || outlives_step || is_long { Category::Activation } else { Category::Temporary }
    }

    fn step_begins(&self, begun: usize) -> usize {
        begun.checked_sub(1).map_or(self.setup_ends, |step| self.steps.bounds[step])
    }

    /// Whether no module has run yet in this step.
    fn is_before_forward(&self, born: usize, begun: usize) -> bool {
        let begins = self.step_begins(begun);
        let lives = &self.history.lives;
        let first = lives.partition_point(|life| life.born().is_none_or(|at| at < begins));
        // Inputs are few and come first; a program that makes more before its model runs is no training loop.
        lives[first..]
            .iter()
            .take(64)
            .take_while(|life| life.born().is_some_and(|at| at < born))
            .all(|life| {
                let role = self.roles.of(life.stack);
                !role.module && !role.without_python
            })
            && lives[first..].iter().take(64).any(|life| life.born() == Some(born))
    }

    fn confidence(&self) -> (Confidence, &'static str) {
        match (self.gradients.is_empty(), self.states.is_empty()) {
            (false, false) => (
                Confidence::High,
                "parameters, gradients and optimizer state pair up by size and by where they were allocated",
            ),
            (false, true) => (Confidence::Medium, "parameters pair up with gradients by size; no optimizer state was seen"),
            (true, _) if self.steps.count() > 0 => {
                (Confidence::Medium, "no gradients were seen: parameters are what was placed before the first step and stayed")
            }
            (true, _) => (Confidence::Low, "no steps were found to tell lasting from passing memory"),
        }
    }
}
