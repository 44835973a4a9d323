//! What the code behind a call stack was doing, judged by the names of its frames.

use crate::trace::modules::Phase;
use crate::trace::site::Sites;
use snapshot::{Snapshot, StackId};

/// What one stack was doing. Several may be true at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Role {
    /// Inside an optimizer, and not in a closure that it calls.
    pub(crate) optimizer: bool,
    /// Anywhere below an optimizer, closures included.
    pub(crate) in_optimizer: bool,
    /// On its way into `backward()`; what happens inside has no Python stack.
    pub(crate) backward: bool,
    /// Inside a `torch.nn` module or function.
    pub(crate) module: bool,
    /// Moves or builds a whole model: `model.cuda()`, `model.to(…)`, a constructor.
    pub(crate) placing: bool,
    /// Inside a convolution, where cuDNN takes its workspaces.
    pub(crate) convolution: bool,
    /// In `torch.cuda.empty_cache()`.
    pub(crate) empty_cache: bool,
    /// In the capture of a CUDA graph.
    pub(crate) capture: bool,
    /// Below the call of `backward()`, and not in code of the user's own that the engine calls.
    pub(crate) in_engine: bool,
    /// No Python at all: the autograd engine, or stacks were not recorded.
    pub(crate) without_python: bool,
}

impl Role {
    /// In a module's forward pass, not in building or moving it.
    pub(crate) fn is_forward(&self) -> bool {
        self.module && !self.placing
    }

    /// Returns the role with what a recorder noted about the phase.
    pub(crate) fn during(mut self, phase: Option<Phase>) -> Role {
        match phase {
            Some(Phase::Forward) => self.module = true,
            // A module that runs there is run again, by checkpointing: what it makes are activations.
            Some(Phase::Backward) if self.module && !self.in_engine => {}
            // In code of the user's own that the engine calls there is Python; it is the backward pass all
            // the same.
            Some(Phase::Backward) => self.without_python = true,
            Some(Phase::Optimizer) => self.optimizer = true,
            None => {}
        }
        self
    }
}

/// The role of every stack.
pub(crate) struct Roles {
    of_stack: Vec<Role>,
    any_convolution: bool,
}

impl Roles {
    pub(crate) fn new(snapshot: &Snapshot, sites: &Sites) -> Roles {
        let frames: Vec<Role> = snapshot
            .stacks
            .all_frames()
            .iter()
            .map(|frame| of_frame(snapshot.strings.get(frame.file), snapshot.strings.get(frame.function)))
            .collect();
        let of_stack: Vec<Role> = (0..snapshot.stacks.len() as u32)
            .map(|stack| {
                let mut role = Role { without_python: true, ..Role::default() };
                // Innermost first: what the user's own code does inside an optimizer (a closure, a hook) is
                // not the optimizer's.
                let (mut inside_users, mut in_users_code) = (false, false);
                for &id in snapshot.stacks.frames(StackId(stack)) {
                    let frame = frames[id.0 as usize];
                    role.optimizer |= frame.optimizer && !inside_users;
                    role.in_optimizer |= frame.optimizer;
                    role.backward |= frame.backward;
                    role.in_engine |= frame.backward && !in_users_code;
                    in_users_code |= sites.is_user(id);
                    role.module |= frame.module;
                    role.placing |= frame.placing;
                    role.convolution |= frame.convolution;
                    role.empty_cache |= frame.empty_cache;
                    role.capture |= frame.capture;
                    role.without_python &= sites.is_native(id);
                    let function = snapshot.stacks.frame(id).function;
                    inside_users |= sites.is_user(id) && snapshot.strings.get(function) != "step";
                }
                role
            })
            .collect();
        let any_convolution = of_stack.iter().any(|role| role.convolution);
        Roles { of_stack, any_convolution }
    }

    /// Whether any stack is inside a convolution.
    pub(crate) fn any_convolution(&self) -> bool {
        self.any_convolution
    }

    #[inline]
    pub(crate) fn of(&self, stack: StackId) -> Role {
        self.of_stack[stack.0 as usize]
    }
}

/// What the code of one frame does, whoever called it.
fn of_frame(file: &str, function: &str) -> Role {
    let file = file.replace('\\', "/");
    let name = file.rsplit('/').next().unwrap_or("");
    let is_torch = file.contains("/torch/");
    let is_module = file.contains("/torch/nn/");
    Role {
        optimizer: is_optimizer(&file, name, function),
        in_optimizer: false,
        backward: is_torch
            && (function == "_engine_run_backward"
                || matches!(function, "backward" | "grad")
                    && (name == "_tensor.py" || file.contains("/torch/autograd/"))),
        module: is_module,
        placing: is_module && matches!(function, "_apply" | "cuda" | "to" | "__init__" | "reset_parameters"),
        convolution: (is_module && name == "conv.py") || matches!(function, "conv1d" | "conv2d" | "conv3d"),
        empty_cache: function == "empty_cache" || function.contains("emptyCache"),
        capture: is_torch && name == "graphs.py",
        in_engine: false,
        without_python: false,
    }
}

/// Code of an installed optimizer, or the parts of a user's own one that make state.
fn is_optimizer(file: &str, name: &str, function: &str) -> bool {
    let is_installed = file.contains("/torch/optim/")
        || ((file.contains("-packages/") || file.contains("/deepspeed/"))
            && (file.contains("/optim") || matches!(name, "optimizer.py" | "optimization.py")));
    let is_named = file.contains("/optim/") || matches!(name, "optimizer.py" | "optimizers.py" | "optim.py");
    let makes_state = matches!(function, "step" | "_step" | "_init_group" | "_init_state");
    function != "zero_grad" && (is_installed || is_named && makes_state)
}
