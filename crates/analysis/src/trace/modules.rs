//! Where the program was when it allocated: in which module's forward pass, in whose backward pass, in the
//! optimizer.
//!
//! Oomph's recorder writes that into the `user_metadata` of each event: `forward GPT.h.3.mlp`, or a number
//! that stands for the module. There are few such texts, however many events.
//!
//! In a steady loop the recorder follows `backward()` in a few steps only. The others make the same requests,
//! so they are in the same modules.

use crate::trace::order::Order;
use crate::trace::site::{Site, Sites};
use crate::trace::steps::Steps;
use recording::{Label, LabeledTensor, Recording};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use snapshot::{Bytes, FrameId, Snapshot, StackId, StrId};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// What a program does in a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// A module's forward pass.
    Forward,
    /// Inside `backward()`.
    Backward,
    /// Inside the `step()` of an optimizer.
    Optimizer,
}

impl Phase {
    /// All phases, in the order of a step.
    pub const ALL: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Optimizer];

    /// Name in sidecar files and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
        }
    }
}

/// A module: a row of [`Modules`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub u32);

/// What a program was executing at an event: the phase of a step, and the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExecutionScope {
    /// Phase of the step; `None` outside of all phases, or where no recorder noted it.
    pub phase: Option<Phase>,
    /// The module that ran, or whose backward pass did.
    pub module: Option<ModuleId>,
}

struct Module {
    path: String,
    parent: Option<ModuleId>,
    depth: u32,
    /// The user's lines that most of its forward pass's memory was allocated at, in order.
    lines: Vec<ForwardLine>,
}

/// File and name of a function.
type FunctionName = (StrId, StrId);

/// What the forward passes of a module have allocated at each line since another function called it.
#[derive(Default)]
struct ForwardPass {
    /// The user's function that calls the model.
    caller: Option<FunctionName>,
    bytes: FxHashMap<FrameId, u64>,
    most: Option<(u64, FrameId)>,
}

/// Every module that is named, with all that it is in.
pub struct Modules {
    modules: Vec<Module>,
    by_path: FxHashMap<String, ModuleId>,
    of_context: Vec<ExecutionScope>,
    of_tensor: Vec<Option<ModuleId>>,
    /// For each event of a `backward()` that was not followed, its module in another step; empty if all were
    /// followed.
    filled_in: Vec<u32>,
    any_phase: bool,
}

const NONE: u32 = u32::MAX;
/// Longer paths are cut: no model has them, and each of their parts is kept.
const MAX_PATH_BYTES: usize = 400;

impl Modules {
    pub(crate) fn new(snapshot: &Snapshot, recording: &Recording) -> Modules {
        let labels = &recording.labels;
        let mut modules = Modules {
            modules: Vec::new(),
            by_path: FxHashMap::default(),
            of_context: Vec::new(),
            of_tensor: Vec::new(),
            filled_in: Vec::new(),
            any_phase: false,
        };
        for context in snapshot.events.contexts() {
            let place = parse(snapshot.strings.get(context.user_metadata));
            modules.any_phase |= place.is_some();
            let place = place.map_or_else(ExecutionScope::default, |(phase, path)| ExecutionScope {
                phase: Some(phase),
                module: path.and_then(|path| match path.parse::<usize>() {
                    Ok(number) => recording.modules.get(number).map(|path| modules.intern(path)),
                    Err(_) => Some(modules.intern(path)),
                }),
            });
            modules.of_context.push(place);
        }
        let parameters: FxHashSet<(&str, &str)> = labels
            .tensors
            .iter()
            .filter(|tensor| tensor.label == Label::Parameter)
            .map(|tensor| (tensor.root.as_str(), tensor.name.as_str()))
            .collect();
        modules.of_tensor = labels
            .tensors
            .iter()
            .map(|tensor| owner(tensor, &parameters).map(|path| modules.intern(&path)))
            .collect();
        modules
    }

    fn intern(&mut self, path: &str) -> ModuleId {
        let path = &path[..path.floor_char_boundary(MAX_PATH_BYTES)];
        if let Some(&known) = self.by_path.get(path) {
            return known;
        }
        let parent = path.rsplit_once('.').map(|(parent, _)| self.intern(parent));
        let depth = parent.map_or(0, |parent| self.modules[parent.0 as usize].depth + 1);
        let id = ModuleId(self.modules.len() as u32);
        self.modules.push(Module { path: path.to_owned(), parent, depth, lines: Vec::new() });
        self.by_path.insert(path.to_owned(), id);
        id
    }

    /// Finds out at which lines forward passes run. A module may run in a training loop and in an evaluation:
    /// a `backward()` belongs to the forward pass before it.
    pub(crate) fn find_lines(&mut self, order: &Order<'_>, sites: &Sites) {
        if self.modules.is_empty() {
            return;
        }
        let mut passes: FxHashMap<ModuleId, ForwardPass> = FxHashMap::default();
        let mut callers: FxHashMap<StackId, Option<FunctionName>> = FxHashMap::default();
        for (event, stack) in order.allocations(0..order.len()) {
            let place = self.of_context[order.context(event) as usize];
            if let (Some(Phase::Forward), Some(module), Site::User(frame)) =
                (place.phase, place.module, sites.of(stack))
            {
                let caller =
                    *callers.entry(stack).or_insert_with(|| caller_of_model(order.snapshot, sites, stack));
                let pass = passes.entry(module).or_default();
                if pass.caller != caller {
                    // Another function calls it from here on.
                    *pass = ForwardPass { caller, ..ForwardPass::default() };
                }
                let bytes = pass.bytes.entry(frame).or_default();
                *bytes = bytes.saturating_add(order.size(event).0);
                if pass.most.is_none_or(|(most, best)| (*bytes, frame) > (most, best)) {
                    let changes = pass.most.is_none_or(|(_, best)| best != frame);
                    pass.most = Some((*bytes, frame));
                    let lines = &mut self.modules[module.0 as usize].lines;
                    if changes && lines.last().is_none_or(|last| last.frame != frame) {
                        lines.push(ForwardLine { from: event, frame, caller });
                    }
                }
            }
        }
    }

    /// Gives steps in which `backward()` was not followed the modules of one that made the same requests.
    pub(crate) fn fill_in(&mut self, order: &Order<'_>, steps: &Steps) {
        if self.modules.is_empty() || steps.count() == 0 {
            return;
        }
        let place = |event: usize| self.of_context[order.context(event) as usize];
        let requests =
            |events: Range<usize>| order.allocations(events).map(|(event, _)| (event, order.size(event)));
        let is_backward = |event: usize| place(event).phase == Some(Phase::Backward);
        // The step that was followed best for each sequence of requests, and the best of all. What
        // checkpointing runs again is known in every step, so some modules are known even where it was not
        // followed.
        let mut best: FxHashMap<u64, (usize, Range<usize>)> = FxHashMap::default();
        let mut best_of_all: (usize, Range<usize>) = (0, 0..0);
        let mut others: Vec<(Option<u64>, Range<usize>)> = Vec::new();
        for events in (0..steps.count()).map(|step| steps.events(step)) {
            let mut hasher = FxHasher::default();
            let mut known = 0;
            for (event, size) in requests(events.clone()) {
                size.0.hash(&mut hasher);
                known += usize::from(is_backward(event) && place(event).module.is_some());
            }
            let hash = hasher.finish();
            let so_far = best.entry(hash).or_default();
            for so_far in [so_far, &mut best_of_all] {
                if known >= so_far.0 {
                    *so_far = (known, events.clone());
                }
            }
            others.push((Some(hash), events));
        }
        // The step in which the record ends is compared as far as it goes.
        others.extend(steps.bounds.last().map(|&end| (None, end..order.len())));
        let mut filled_in = vec![NONE; order.len()];
        for (hash, events) in others {
            let like = hash.and_then(|hash| best.get(&hash)).unwrap_or(&best_of_all).1.clone();
            if like == events {
                continue;
            }
            let alike = requests(events).zip(requests(like)).take_while(|(one, other)| one.1 == other.1);
            for ((event, _), (other, _)) in alike {
                if is_backward(event)
                    && is_backward(other)
                    && let Some(module) = place(other).module
                {
                    filled_in[event] = module.0;
                }
            }
        }
        self.filled_in = filled_in;
    }

    /// Whether a recorder noted where the program was.
    pub fn any_phase(&self) -> bool {
        self.any_phase
    }

    /// Where the program was at an event with this context.
    #[inline]
    pub(crate) fn of_event(&self, event: usize, context: u32) -> ExecutionScope {
        let mut place = self.of_context[context as usize];
        if place.phase == Some(Phase::Backward) && place.module.is_none() {
            let filled_in = self.filled_in.get(event).copied().filter(|&module| module != NONE);
            place.module = filled_in.map(ModuleId);
        }
        place
    }

    /// Where the program was, according to the context of an event.
    #[inline]
    pub(crate) fn of_context(&self, context: u32) -> ExecutionScope {
        self.of_context[context as usize]
    }

    /// The module that a tensor of the recording belongs to.
    pub(crate) fn of_tensor(&self, tensor: usize) -> Option<ModuleId> {
        self.of_tensor.get(tensor).copied().flatten()
    }

    /// `GPT.h.3.mlp`
    pub fn path(&self, module: ModuleId) -> &str {
        &self.modules[module.0 as usize].path
    }

    /// The paths of all, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(|module| module.path.as_str())
    }

    /// Number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// The line that ran a module's forward pass last before an event; failing that, the one of what it is
    /// in. `None` if several functions have called it since `since`: which of them made the graph is not
    /// known.
    pub(crate) fn line(&self, module: ModuleId, event: usize, since: usize) -> Option<FrameId> {
        let lines_of = |module: ModuleId| &self.modules[module.0 as usize].lines;
        let lines = self.upwards(module).map(lines_of).find(|lines| !lines.is_empty())?;
        let begun = &lines[..lines.partition_point(|line| line.from <= event)];
        let mut recent = begun.iter().rev().take_while(|line| line.from >= since).map(|line| line.caller);
        let latest = recent.next();
        if recent.any(|caller| Some(caller) != latest) {
            return None;
        }
        begun.last().or(lines.first()).map(|line| line.frame)
    }

    /// The innermost module that both are in.
    pub(crate) fn common(&self, a: ModuleId, b: ModuleId) -> Option<ModuleId> {
        let (mut a, mut b) = (a, b);
        while a != b {
            let depth = |module: ModuleId| self.modules[module.0 as usize].depth;
            let (deeper, other) = if depth(a) >= depth(b) { (a, b) } else { (b, a) };
            (a, b) = (self.modules[deeper.0 as usize].parent?, other);
        }
        Some(a)
    }

    /// The outermost numbered layer that a module is in (`GPT.h.3` of `GPT.h.3.mlp.c_fc`), or the module
    /// itself.
    pub(crate) fn layer(&self, module: ModuleId) -> ModuleId {
        let is_numbered = |module: &ModuleId| {
            let name = self.path(*module).rsplit('.').next().unwrap_or("");
            !name.is_empty() && name.bytes().all(|letter| letter.is_ascii_digit())
        };
        self.upwards(module).filter(is_numbered).last().unwrap_or(module)
    }

    /// A module and all that it is in, from the inside.
    fn upwards(&self, module: ModuleId) -> impl Iterator<Item = ModuleId> + '_ {
        std::iter::successors(Some(module), |module| self.modules[module.0 as usize].parent)
    }
}

/// A line that runs a module's forward pass.
struct ForwardLine {
    /// The first event of it.
    from: usize,
    frame: FrameId,
    /// The user's function that calls the outermost module.
    caller: Option<FunctionName>,
}

/// The user's function that calls the outermost module of a stack.
fn caller_of_model(snapshot: &Snapshot, sites: &Sites, stack: StackId) -> Option<FunctionName> {
    let frame = snapshot.stacks.frame(line_that_calls_model(snapshot, sites, stack)?);
    Some((frame.file, frame.function))
}

/// The user's line that calls the outermost module of a stack.
pub(crate) fn line_that_calls_model(snapshot: &Snapshot, sites: &Sites, stack: StackId) -> Option<FrameId> {
    let mut caller = None;
    for &id in snapshot.stacks.frames(stack).iter().rev() {
        let file = snapshot.stacks.frame(id).file;
        if snapshot.strings.get(file).ends_with("nn/modules/module.py") {
            return caller;
        }
        if sites.is_user(id) {
            caller = Some(id);
        }
    }
    None
}

/// `forward GPT.h.3.mlp`; anything that does not begin with a phase is the program's own.
pub(crate) fn parse(metadata: &str) -> Option<(Phase, Option<&str>)> {
    Phase::ALL.into_iter().find_map(|phase| {
        let rest = metadata.strip_prefix(phase.name())?;
        match rest.strip_prefix(' ') {
            None => rest.is_empty().then_some((phase, None)),
            Some(path) => Some((phase, Some(path).filter(|path| !path.is_empty()))),
        }
    })
}

/// The module that a tensor belongs to. What a program passes in belongs to none.
fn owner(tensor: &LabeledTensor, parameters: &FxHashSet<(&str, &str)>) -> Option<String> {
    let name = match tensor.label {
        Label::Input => return None,
        Label::Parameter | Label::Buffer | Label::Gradient => tensor.name.as_str(),
        // The state has the name of its parameter, and its own behind it.
        Label::Optimizer => {
            let mut names =
                std::iter::successors(tensor.name.rsplit_once('.'), |(name, _)| name.rsplit_once('.'));
            let known = names.find(|(name, _)| parameters.contains(&(tensor.root.as_str(), *name)));
            known.or_else(|| tensor.name.rsplit_once('.')).map_or("", |(name, _)| name)
        }
    };
    let within = name.rsplit_once('.').map_or("", |(module, _)| module);
    match (tensor.root.as_str(), within) {
        ("", "") => None,
        ("", within) => Some(within.to_owned()),
        (root, "") => Some(root.to_owned()),
        (root, within) => Some(format!("{root}.{within}")),
    }
}

/// Share of some blocks that has to be in modules for one of these to be named.
const MIN_SHARE_IN_MODULES: f64 = 0.9;

/// The innermost module that some blocks have in common.
#[derive(Clone, Copy, Default)]
pub(crate) struct Common {
    /// `Some(None)`: they have none in common.
    module: Option<Option<ModuleId>>,
    inside: Bytes,
    all: Bytes,
}

impl Common {
    pub(crate) fn add(&mut self, modules: &Modules, module: Option<ModuleId>, bytes: Bytes) {
        self.all += bytes;
        let Some(module) = module else { return };
        self.inside += bytes;
        self.module = Some(match self.module {
            None => Some(module),
            Some(before) => before.and_then(|before| modules.common(before, module)),
        });
    }

    /// The module, if nearly all of the blocks are in it.
    pub(crate) fn module(&self) -> Option<ModuleId> {
        self.module.flatten().filter(|_| self.inside.0 as f64 >= MIN_SHARE_IN_MODULES * self.all.0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_metadata_is_understood() {
        for (text, expected) in [
            ("", None),
            ("forward", Some((Phase::Forward, None))),
            ("forward GPT.h.3", Some((Phase::Forward, Some("GPT.h.3")))),
            ("backward ", Some((Phase::Backward, None))),
            ("optimizer", Some((Phase::Optimizer, None))),
            ("forwards", None),
            ("epoch 3 forward", None),
            ("Forward GPT", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_tensor_belongs_to_the_module_that_holds_its_parameter() {
        let parameters = FxHashSet::from_iter([("GPT", "h.0.attn.weight"), ("Net", "weight")]);
        for (label, name, root, expected) in [
            (Label::Parameter, "h.0.attn.weight", "GPT", Some("GPT.h.0.attn")),
            (Label::Gradient, "h.0.attn.weight", "GPT", Some("GPT.h.0.attn")),
            (Label::Buffer, "mask", "GPT", Some("GPT")),
            (Label::Optimizer, "h.0.attn.weight.exp_avg", "GPT", Some("GPT.h.0.attn")),
            (Label::Optimizer, "h.0.attn.weight.state.v", "GPT", Some("GPT.h.0.attn")),
            (Label::Optimizer, "weight.exp_avg", "Net", Some("Net")),
            (Label::Optimizer, "other.bias.exp_avg", "Net", Some("Net.other")),
            (Label::Input, "input_ids", "GPT", None),
            (Label::Parameter, "weight", "", None),
            (Label::Parameter, "a.weight", "", Some("a")),
        ] {
            let tensor = LabeledTensor { label, name: name.to_owned(), root: root.to_owned() };
            assert_eq!(owner(&tensor, &parameters).as_deref(), expected, "{name}");
        }
    }
}
