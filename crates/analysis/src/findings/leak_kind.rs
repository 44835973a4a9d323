//! Leak kinds: what a leak keeps, judged by its blocks, and what to do about it.

use super::leak::SiteCluster;
use crate::run::categories::Category;
use crate::run::growth::GrowingSite;
use crate::run::holders::Held;
use crate::run::model::RunModel;

/// What is being kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeakKind {
    /// The activations of forward passes that nothing runs backward through.
    Graph,
    /// The activations of forward passes, although `backward()` has run.
    GraphAfterBackward,
    /// One number per step.
    Scalar,
    /// One number per step, and larger blocks with it.
    ScalarWithGraph,
    /// Tensors that the forward pass or the user's own code made.
    Tensors,
    /// What `backward()` made.
    Gradients,
    /// Parameters and gradients that refer to each other.
    GradientCycle,
    /// Whole models, or parameters without optimizer state.
    Models,
    /// Parameters and the optimizer's state for them.
    Parameters,
    /// Optimizer state alone.
    States,
    /// One tensor that becomes larger.
    Grows,
}

/// Blocks per step from which a whole forward pass must be kept.
const MIN_BLOCKS_OF_GRAPH: f64 = 6.0;
/// A number takes one block of the smallest size.
const SCALAR_BLOCK_BYTES: u64 = 512;

impl LeakKind {
    /// `in_backward` says whether the line named first is the call of a `backward()`, `held` what holds the
    /// blocks, where that is known.
    pub(crate) fn of(
        model: &RunModel<'_>,
        cluster: &SiteCluster<'_>,
        in_backward: bool,
        held: Option<&Held>,
    ) -> LeakKind {
        let rises = cluster.rises.len().max(1);
        let role = |site: &GrowingSite| model.device.roles.of(site.stack);
        let blocks: usize = cluster.sites.iter().map(|site| site.allocations.len()).sum();
        let from_modules: usize = cluster
            .sites
            .iter()
            .filter(|site| !site.in_backward && role(site).module)
            .map(|site| site.allocations.len())
            .sum();
        let is_graph = from_modules as f64 / rises as f64 >= MIN_BLOCKS_OF_GRAPH
            && held.map_or_else(|| keeps_most_of_forward(model, cluster), |held| held.keeps_graph);
        let is_scalar =
            |site: &&GrowingSite| site.bytes() <= SCALAR_BLOCK_BYTES * site.allocations.len() as u64;
        let all = |wanted: &dyn Fn(&&GrowingSite) -> bool| cluster.sites.iter().all(wanted);
        let any = |wanted: &dyn Fn(&&GrowingSite) -> bool| cluster.sites.iter().any(wanted);
        if held.is_some_and(|held| held.is_gradient_cycle) {
            LeakKind::GradientCycle
        } else if all(&|site| role(site).optimizer) {
            LeakKind::States
        } else if any(&|site| role(site).optimizer) {
            LeakKind::Parameters
        } else if any(&|site| role(site).placing) {
            LeakKind::Models
        } else if in_backward {
            LeakKind::Gradients
        } else if blocks * 2 < rises {
            LeakKind::Grows
        } else if is_graph && is_waited_for(model, cluster) {
            LeakKind::GraphAfterBackward
        } else if is_graph {
            LeakKind::Graph
        } else if all(&is_scalar) {
            LeakKind::Scalar
        } else if any(&is_scalar) {
            LeakKind::ScalarWithGraph
        } else {
            LeakKind::Tensors
        }
    }

    /// Whether graphs keep the activations of whole forward passes.
    pub(crate) fn is_graph(self) -> bool {
        matches!(self, LeakKind::Graph | LeakKind::GraphAfterBackward)
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            LeakKind::Graph => {
                "the activations of a forward pass whose graph stays alive, because grad mode is on and its \
                 output is kept"
            }
            LeakKind::GraphAfterBackward => {
                "activations that no `backward()` has freed, because `retain_graph=True` kept them, it did \
                 not run through this part of the graph, or a hook or a list stores them"
            }
            LeakKind::Scalar => {
                "a number such as the loss, kept as a tensor; its graph is gone, so this is one small block \
                 each time"
            }
            LeakKind::ScalarWithGraph => {
                "a number and larger tensors, such as a loss or a metric that is kept with what it was \
                 computed from, or both in one record"
            }
            LeakKind::Tensors => {
                "tensors kept by a list, a dict, a cache, an attribute, a stored exception or a reference \
                 cycle"
            }
            LeakKind::Gradients => "kept gradients, or the gradient of an input, made inside `backward()`",
            LeakKind::GradientCycle => "parameters, their gradients and the graphs between them",
            LeakKind::Models => {
                "parameters, or whole models, that are created repeatedly while the old ones stay"
            }
            LeakKind::Parameters => "new parameters, and the optimizer's state for them",
            LeakKind::States => "optimizer state for parameters that had none before",
            LeakKind::Grows => "one tensor that becomes larger, for example by `torch.cat`",
        }
    }

    /// What to change, in terms of the line that is named.
    pub(crate) fn fix(self, line: &str, is_cpu: bool) -> String {
        // On the CPU there is no other memory to move results to.
        let on_cpu = if is_cpu { self.fix_on_cpu(line) } else { None };
        on_cpu.unwrap_or_else(|| self.fix_on_gpu(line))
    }

    /// What to change on the CPU, where that differs from a GPU.
    fn fix_on_cpu(self, line: &str) -> Option<String> {
        Some(match self {
            LeakKind::Graph => format!(
                "run {line} under `torch.inference_mode()`, or keep `.detach()` of the outputs; stored \
                 exceptions keep such graphs too: store `str(e)`"
            ),
            LeakKind::GraphAfterBackward => format!(
                "`.detach()` what is carried from step to step (a hidden state, a running total), then drop \
                 `retain_graph=True`; store `.item()` of results of {line}; bound what a hook \
                 appends"
            ),
            LeakKind::ScalarWithGraph => format!(
                "store `.item()` of the loss or metric: the number keeps its graph, and the graph the \
                 tensors of {line}. If those are stored themselves, bound what stores them"
            ),
            LeakKind::Tensors => format!(
                "bound or empty what keeps the results of {line} (`deque(maxlen=…)`, clear it each epoch); \
                 `.detach()` does not help where the tensors themselves are stored. If nothing \
                 stores them on purpose, look for stored exceptions (store `str(e)`) and reference \
                 cycles (`gc.collect()` frees those)"
            ),
            LeakKind::Gradients => format!(
                "do not keep gradients of {line} from step to step: store their norms, or set the input's \
                 `.grad` to `None`; losses kept as tensors keep the inputs' gradients alive too"
            ),
            LeakKind::Grows => {
                format!(
                    "{line} makes it larger each time: write into a buffer of fixed size, or drop the older \
                     part"
                )
            }
            _ => return None,
        })
    }

    fn fix_on_gpu(self, line: &str) -> String {
        match self {
            LeakKind::Graph => format!(
                "run {line} under `torch.inference_mode()`, and keep `.cpu()` copies of the outputs; \
                 `.detach()` alone frees the graph but leaves every output on the GPU. Stored \
                 exceptions keep such graphs too: store `str(e)`"
            ),
            LeakKind::GraphAfterBackward => format!(
                "`.detach()` what is carried from step to step (a hidden state, a running total), then drop \
                 `retain_graph=True`; store `.item()` or `.cpu()` copies of results of {line}; \
                 bound what a hook appends, where `.detach()` does not help"
            ),
            LeakKind::Scalar => format!(
                "keep a Python number: `.item()` on the result of {line}; `.detach()` would keep the same \
                 block"
            ),
            LeakKind::ScalarWithGraph => format!(
                "store `.item()` of the loss or metric: the number keeps its graph, and the graph the \
                 tensors of {line}. If those are stored themselves, bound what stores them or keep \
                 `.cpu()` copies"
            ),
            LeakKind::Tensors => format!(
                "bound or empty what keeps the results of {line} (`deque(maxlen=…)`, clear it each epoch), \
                 or keep `.cpu()` copies; `.detach()` does not help where the tensors themselves \
                 are stored. If nothing stores them on purpose, look for stored exceptions (store \
                 `str(e)`) and reference cycles (`gc.collect()` frees those)"
            ),
            LeakKind::Gradients => format!(
                "do not keep gradients of {line} from step to step: store their norms, `.cpu()` copies, or \
                 set the input's `.grad` to `None`; losses kept as tensors keep the inputs' \
                 gradients alive too"
            ),
            LeakKind::GradientCycle => {
                format!("set the `.grad` of every parameter to `None` after {line}")
            }
            LeakKind::Models => format!(
                "make them once, before the loop, or let go of the old ones: something still refers to what \
                 {line} made (a list, a closure, a reference cycle; `gc.collect()` frees the last)"
            ),
            LeakKind::Parameters => format!(
                "make the parameters once, before the loop: {line} makes new ones each time and the \
                 optimizer keeps state for all"
            ),
            LeakKind::States => {
                format!(
                    "expected when parameters are trained for the first time at {line}; give the optimizer \
                     no others"
                )
            }
            LeakKind::Grows => format!(
                "{line} makes it larger each time: write into a buffer of fixed size, or move the older \
                 part to the CPU"
            ),
        }
    }
}

/// Whether most blocks that modules made in the last step with growth are kept. A graph keeps what its layers
/// need; keys and values that are stored are a few of many.
fn keeps_most_of_forward(model: &RunModel<'_>, cluster: &SiteCluster<'_>) -> bool {
    let device = model.device;
    let kept = cluster.sites.iter().flat_map(|site| &site.allocations).map(|&row| row as usize);
    let Some(step) = kept
        .clone()
        .filter_map(|row| device.steps.of_event(device.history.allocations[row].alloc_event()?))
        .max()
    else {
        return true;
    };
    let events = device.steps.events(step);
    let first_from = |event: usize| device.history.first_allocated_from(event);
    let made = first_from(events.start)..first_from(events.end);
    let by_module = |row: &usize| {
        let stack = device.history.allocations[*row].stack;
        device.roles.of(stack).module && model.categories.of(*row) != Category::Workspace
    };
    let of_step = kept.filter(|row| made.contains(row)).filter(by_module).count();
    2 * of_step >= made.clone().filter(by_module).count()
}

/// Whether most of the kept blocks were there when a `backward()` of their own step began.
fn is_waited_for(model: &RunModel<'_>, cluster: &SiteCluster<'_>) -> bool {
    let device = model.device;
    let (mut waited, mut all) = (0, 0);
    for &row in cluster.sites.iter().flat_map(|site| &site.allocations) {
        let Some(alloc_event) = device.history.allocations[row as usize].alloc_event() else { continue };
        let Some(step) = device.steps.of_event(alloc_event) else { continue };
        all += 1;
        let next = device.backward.next_after(alloc_event);
        waited += usize::from(next.is_some_and(|begins| begins < device.steps.events(step).end));
    }
    waited * 2 > all
}
