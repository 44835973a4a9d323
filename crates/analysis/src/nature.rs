//! What a leak keeps, as far as its blocks tell, and what to do about it.

use crate::explain::Outline;
use crate::growth::Pile;
use crate::leaks::Cluster;

/// What is being kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nature {
    /// The activations of forward passes that nothing runs backward through.
    Graph,
    /// The activations of forward passes, although `backward()` has run.
    GraphAfterBackward,
    /// One number a step.
    Scalar,
    /// One number a step, and larger blocks with it.
    ScalarWithGraph,
    /// Tensors that the forward pass or the user's own code made.
    Tensors,
    /// What `backward()` made.
    Gradients,
    /// Whole models, or parameters without optimizer state.
    Models,
    /// Parameters and the optimizer's state for them.
    Parameters,
    /// Optimizer state alone.
    States,
    /// One tensor that becomes larger.
    Grows,
}

/// Blocks a step from which on a whole forward pass must be kept.
const GRAPH_BLOCKS: f64 = 6.0;
/// A number takes one block of the smallest size.
const SCALAR: u64 = 512;

impl Nature {
    /// `in_backward` says whether the line named first is the call of a `backward()`.
    pub(crate) fn of(outline: &Outline<'_>, cluster: &Cluster<'_>, in_backward: bool) -> Nature {
        let rises = cluster.rises.len().max(1);
        let role = |pile: &Pile| outline.device.roles.of(pile.stack);
        let blocks: usize = cluster.piles.iter().map(|pile| pile.lives.len()).sum();
        let from_modules: usize = cluster
            .piles
            .iter()
            .filter(|pile| !pile.in_backward && role(pile).module)
            .map(|pile| pile.lives.len())
            .sum();
        let is_graph = from_modules as f64 / rises as f64 >= GRAPH_BLOCKS;
        let is_scalar = |pile: &&Pile| pile.bytes() <= SCALAR * pile.lives.len() as u64;
        let all = |wanted: &dyn Fn(&&Pile) -> bool| cluster.piles.iter().all(wanted);
        let any = |wanted: &dyn Fn(&&Pile) -> bool| cluster.piles.iter().any(wanted);
        match () {
            () if all(&|pile| role(pile).optimizer) => Nature::States,
            () if any(&|pile| role(pile).optimizer) => Nature::Parameters,
            () if any(&|pile| role(pile).placing) => Nature::Models,
            () if in_backward => Nature::Gradients,
            () if blocks * 2 < rises => Nature::Grows,
            () if is_graph && is_waited_for(outline, cluster) => Nature::GraphAfterBackward,
            () if is_graph => Nature::Graph,
            () if all(&is_scalar) => Nature::Scalar,
            () if any(&is_scalar) => Nature::ScalarWithGraph,
            () => Nature::Tensors,
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Nature::Graph => {
                "the activations of a forward pass whose graph stays alive, because grad mode is on and its output is kept"
            }
            Nature::GraphAfterBackward => {
                "activations that no `backward()` has freed: `retain_graph=True` kept them, it did not run through this part \
                 of the graph, or a hook or a list stores them"
            }
            Nature::Scalar => {
                "a number such as the loss, kept as a tensor; its graph is gone, so this is one small block each time"
            }
            Nature::ScalarWithGraph => {
                "a number and larger tensors: a loss or a metric that is kept with what it was computed from, or both in \
                 one record"
            }
            Nature::Tensors => {
                "tensors that something keeps: a list, a dict, a cache, an attribute, a stored exception or a reference cycle"
            }
            Nature::Gradients => {
                "made inside `backward()`: gradients that are kept, or the gradient of an input"
            }
            Nature::Models => {
                "parameters, or whole models, that are made again and again while the old ones stay"
            }
            Nature::Parameters => "new parameters, and the optimizer's state for them",
            Nature::States => "optimizer state for parameters that it had none for",
            Nature::Grows => "one tensor that becomes larger, for example by `torch.cat`",
        }
    }

    /// What to change, in terms of the line that is named.
    pub(crate) fn fix(self, line: &str, is_cpu: bool) -> String {
        match self {
            // On the CPU there is no other memory to move results to.
            Nature::Graph if is_cpu => format!(
                "run {line} under `torch.inference_mode()`, or keep `.detach()` of the outputs; stored exceptions keep such graphs \
                 too: store `str(e)`"
            ),
            Nature::GraphAfterBackward if is_cpu => format!(
                "`.detach()` what is carried from step to step (a hidden state, a running total), then drop `retain_graph=True`; \
                 store `.item()` of results of {line}; bound what a hook appends"
            ),
            Nature::ScalarWithGraph if is_cpu => format!(
                "store `.item()` of the loss or metric: the number keeps its graph, and the graph the tensors of {line}. If those \
                 are stored themselves, bound what stores them"
            ),
            Nature::Tensors if is_cpu => format!(
                "bound or empty what keeps the results of {line} (`deque(maxlen=…)`, clear it each epoch); `.detach()` does not \
                 help where the tensors themselves are stored. If nothing stores them on purpose, look for stored exceptions \
                 (store `str(e)`) and reference cycles (`gc.collect()` frees those)"
            ),
            Nature::Gradients if is_cpu => format!(
                "do not keep gradients of {line} from step to step: store their norms, or set the input's `.grad` to `None`; \
                 losses kept as tensors keep the inputs' gradients alive too"
            ),
            Nature::Grows if is_cpu => {
                format!(
                    "{line} makes it larger each time: write into a buffer of fixed size, or drop the older part"
                )
            }
            Nature::Graph => format!(
                "run {line} under `torch.inference_mode()`, and keep `.cpu()` copies of the outputs; `.detach()` alone frees the \
                 graph but leaves every output on the GPU. Stored exceptions keep such graphs too: store `str(e)`"
            ),
            Nature::GraphAfterBackward => format!(
                "`.detach()` what is carried from step to step (a hidden state, a running total), then drop `retain_graph=True`; \
                 store `.item()` or `.cpu()` copies of results of {line}; bound what a hook appends, where `.detach()` does \
                 not help"
            ),
            Nature::Scalar => format!(
                "keep a Python number: `.item()` on the result of {line}; `.detach()` would keep the same block"
            ),
            Nature::ScalarWithGraph => format!(
                "store `.item()` of the loss or metric: the number keeps its graph, and the graph the tensors of {line}. If those \
                 are stored themselves, bound what stores them or keep `.cpu()` copies"
            ),
            Nature::Tensors => format!(
                "bound or empty what keeps the results of {line} (`deque(maxlen=…)`, clear it each epoch), or keep `.cpu()` \
                 copies; `.detach()` does not help where the tensors themselves are stored. If nothing stores them on \
                 purpose, look for stored exceptions (store `str(e)`) and reference cycles (`gc.collect()` frees those)"
            ),
            Nature::Gradients => format!(
                "do not keep gradients of {line} from step to step: store their norms, `.cpu()` copies, or set the input's \
                 `.grad` to `None`; losses kept as tensors keep the inputs' gradients alive too"
            ),
            Nature::Models => format!(
                "make them once, before the loop, or let go of the old ones: something still refers to what {line} made (a list, \
                 a closure, a reference cycle; `gc.collect()` frees the last)"
            ),
            Nature::Parameters => format!(
                "make the parameters once, before the loop: {line} makes new ones each time and the optimizer keeps state for all"
            ),
            Nature::States => {
                format!(
                    "expected when parameters are trained for the first time at {line}; give the optimizer no others"
                )
            }
            Nature::Grows => format!(
                "{line} makes it larger each time: write into a buffer of fixed size, or move the older part to the CPU"
            ),
        }
    }
}

/// Whether most of the kept blocks were there when a `backward()` of their own step began.
fn is_waited_for(outline: &Outline<'_>, cluster: &Cluster<'_>) -> bool {
    let device = outline.device;
    let (mut waited, mut all) = (0, 0);
    for &row in cluster.piles.iter().flat_map(|pile| &pile.lives) {
        let Some(born) = device.history.lives[row as usize].born() else { continue };
        let Some(step) = device.steps.of_event(born) else { continue };
        all += 1;
        let next = device.backward.next_after(born);
        waited += usize::from(next.is_some_and(|begins| begins < device.steps.events(step).end));
    }
    waited * 2 > all
}
