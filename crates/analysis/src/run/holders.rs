//! Holders of blocks, where a recorder dumped the references of the process.
//!
//! A block belongs to a storage if it was live at the storage's address when the references were dumped.

use crate::run::device::Device;
use crate::run::holder_words::{advice, sentence};
use crate::trace::counted::Counted;
use crate::trace::order::Order;
use crate::trace::site::is_user_file;
use crate::words::{listed, printable};
use heap::{
    AnalyzedHeap, Cycle, Heap, Holder, HolderDescription, HolderKind, Path, ReferenceKind, Root, Storage,
};
use recording::{DumpReason, HeapDump, Recording};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Allocation, Bytes, DeviceKind, History, StackId};
use std::sync::{Arc, OnceLock};

/// Other holders are reported if they hold more than this share.
const MIN_SHARE_OF_OTHER_HOLDER: f64 = 0.1;
/// Below this share, the sentence says how much of the memory was seen.
const COMPLETE_SHARE: f64 = 0.9;
/// Share of a finding's bytes that has to be in the references before a holder is named; less is enough where
/// the later references show only garbage.
const MIN_SEEN_SHARE: f64 = 0.2;
const MIN_SEEN_SHARE_BEFORE_GARBAGE: f64 = 0.05;
/// Blocks of a leak that references dumped early in its growth have to show: what holds these holds the later
/// ones.
const MIN_SEEN_BLOCKS_OF_GROWTH: usize = 3;

/// Most variables that are named where several hold something together.
const MAX_JOINT_HOLDERS: usize = 6;
/// Most blocks whose reference paths are followed to see through which attributes an object keeps them.
const MAX_SAMPLED_BLOCKS: usize = 64;
const CYCLE: &str = "reference cycle ";

/// Holder of the memory of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Reference path to a typical block: `__main__.history[…].grad_fn…_saved_self`.
    pub by: String,
    /// Reference path to the object that keeps them: `__main__.history`.
    pub holder: String,
    /// Other reference paths to the same object, which keep it alive too.
    pub also: Vec<String>,
    /// Class of the holder.
    pub class: String,
    /// What else is known of it: a tensor's type and shape.
    pub text: String,
    /// Class of the object that it belongs to, if it is a container; otherwise its own.
    pub owner: String,
    /// Whether what it keeps is a small part of a tensor, whose memory is all kept.
    pub is_small_view: bool,
    /// Kind of holder.
    pub kind: HolderKind,
    /// Whether it keeps the tensors through the graphs that made them.
    pub keeps_graph: bool,
    /// Whether it is a cycle of parameters and their gradients, as `backward(create_graph=True)` makes them.
    pub is_gradient_cycle: bool,
    /// Number of its references that lead to such blocks; of a container, to any tensors on the device.
    pub entries: u64,
    /// Names of its attributes that are containers with such blocks, where it has several.
    pub parts: Vec<String>,
    /// Most entries that it can have: `maxlen` of a deque.
    pub max_entries: Option<u64>,
    /// Number of objects of this class that do the same.
    pub alike: u64,
    /// Bytes of the finding that are held by it.
    pub bytes: Bytes,
    /// What would be free on this device without it.
    pub retained: Bytes,
    /// Variables that keep it only together, where no object keeps most of it alone: it is free when all of
    /// them are gone.
    pub together: Vec<String>,
    /// What it does not hold, and who does.
    pub rest: Vec<(Bytes, String)>,
    /// Where its code may be found.
    pub store: StoreHint,
    /// What holds the memory, as a sentence without a full stop.
    pub sentence: String,
    /// What to change.
    pub advice: String,
}

impl Held {
    /// Whether it is a variable or a container: it keeps what the program has put there.
    pub(crate) fn keeps_tensors(&self) -> bool {
        matches!(self.kind, HolderKind::Container | HolderKind::Chain | HolderKind::Variable)
    }
}

/// What to look for in the source to find the line that stores the reference.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StoreHint {
    /// Names of the variable or attribute.
    pub names: Vec<String>,
    /// Files, the likeliest first.
    pub files: Vec<String>,
}

/// Holders of one device's tensors, by the references that a recorder wrote down.
pub struct Holders<'a> {
    dumps: Vec<Joined<'a>>,
}

/// References, and which of the storages are which blocks.
struct Joined<'a> {
    dump: &'a HeapDump,
    /// Just after the last allocation before the dump, as far as its count determines it.
    position: usize,
    /// Just before the next one.
    before_next: usize,
    /// Nodes of storages on this device by address.
    nodes: FxHashMap<u64, u32>,
    /// What the allocator has given to each of these nodes.
    sizes: FxHashMap<u32, Bytes>,
    holdings: OnceLock<AnalyzedHeap>,
}

impl<'a> Holders<'a> {
    pub(crate) fn new(
        history: &History,
        order: &Order<'_>,
        recording: &'a Recording,
        kind: DeviceKind,
    ) -> Holders<'a> {
        if recording.heaps.is_empty() {
            return Holders { dumps: Vec::new() };
        }
        let counted = Counted::new(order, recording);
        let name = if kind == DeviceKind::Gpu { "cuda" } else { "cpu" };
        let joined = |dump: &'a Arc<HeapDump>| {
            let count = dump.allocations.of(order.device)?;
            let (position, before_next) = counted.as_ref()?.at(count)?.into_inner();
            let is_here =
                |storage: &&Storage| storage.device.kind == name && storage.device.index == order.device;
            let here = dump.heap.storages.iter().filter(is_here);
            let nodes: FxHashMap<u64, u32> = here.map(|storage| (storage.address, storage.node)).collect();
            let alive = history.allocations.iter().filter(|allocation| allocation.is_allocated_at(position));
            let sizes = alive
                .filter_map(|allocation| Some((*nodes.get(&allocation.addr)?, allocation.size)))
                .collect();
            Some(Joined { dump, position, before_next, nodes, sizes, holdings: OnceLock::new() })
        };
        Holders { dumps: recording.heaps.iter().filter_map(joined).collect() }
    }

    /// What the allocator gave for storages of a dump, by their nodes.
    pub fn sizes(&self, dump: &HeapDump) -> impl Iterator<Item = (u32, Bytes)> {
        let of = self.dumps.iter().filter(move |joined| std::ptr::eq(joined.dump, dump));
        of.flat_map(|joined| joined.sizes.iter().map(|(&node, &size)| (node, size)))
    }

    /// Number of events that had happened when a dump was written: at least, and at most.
    pub fn moment(&self, dump: &HeapDump) -> Option<(usize, usize)> {
        let joined = self.dumps.iter().find(|joined| std::ptr::eq(joined.dump, dump))?;
        Some((joined.position, joined.before_next))
    }
}

impl Joined<'_> {
    /// Nodes and bytes of those allocations, all of them alive at the dump, that it has storages of.
    fn wanted<'a>(&self, alive: impl Iterator<Item = &'a Allocation>) -> Vec<(u32, u64)> {
        alive.filter_map(|allocation| Some((*self.nodes.get(&allocation.addr)?, allocation.size.0))).collect()
    }

    fn holdings(&self) -> &AnalyzedHeap {
        self.holdings.get_or_init(|| {
            let bytes_of =
                |storage: &Storage| self.sizes.get(&storage.node).map_or(storage.bytes, |size| size.0);
            AnalyzedHeap::new(&self.dump.heap, is_own, bytes_of)
        })
    }
}

impl Device<'_> {
    /// Whether a recorder listed the storages while a block was live, and the block was none of them: a
    /// library holds it.
    pub(crate) fn is_no_storage(&self, allocation: &Allocation) -> bool {
        let is_there = |joined: &&Joined<'_>| allocation.is_allocated_at(joined.position);
        let mut dumps = self.holders.dumps.iter().filter(is_there).peekable();
        dumps.peek().is_some() && dumps.all(|joined| !joined.nodes.contains_key(&allocation.addr))
    }

    /// Who keeps the blocks of these rows of [`History::allocations`].
    pub fn held(&self, rows: impl Iterator<Item = usize> + Clone) -> Option<Held> {
        let total: Bytes = rows.clone().map(|row| self.history.allocations[row].size).sum();
        let dumps = self.holders.dumps.iter().map(|joined| {
            let there = rows.clone().map(|row| &self.history.allocations[row]);
            let there = there.filter(|allocation| allocation.is_allocated_at(joined.position));
            let wanted = joined.wanted(there.clone());
            // All blocks that were there, although most came later.
            let is_early = joined.dump.reason == Some(DumpReason::Growing)
                && wanted.len() >= MIN_SEEN_BLOCKS_OF_GROWTH
                && wanted.len() == there.count();
            (joined, wanted, is_early)
        });
        let bytes = |wanted: &[(u32, u64)]| wanted.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let has_seen = |wanted: &[(u32, u64)], share: f64| bytes(wanted) as f64 >= share * total.0 as f64;
        let mut dumps: Vec<_> = dumps
            .filter(|(_, wanted, is_early)| *is_early || has_seen(wanted, MIN_SEEN_SHARE_BEFORE_GARBAGE))
            .collect();
        // First the moment at which most of them were there.
        dumps.sort_by_key(|(_, wanted, _)| std::cmp::Reverse(bytes(wanted)));
        let (_, wanted, is_early) = dumps.first()?;
        if !is_early && !has_seen(wanted, MIN_SEEN_SHARE) {
            return None;
        }
        let mut answers = dumps.iter().filter_map(|(joined, wanted, _)| self.held_at(joined, wanted, total));
        let first = answers.next()?;
        // What held them while the program ran may be garbage at its end, with all that it held.
        let is_garbage = first.kind == HolderKind::Cycle && !first.is_gradient_cycle;
        let earlier = if is_garbage { answers.find(|held| held.kind != HolderKind::Cycle) } else { None };
        Some(earlier.unwrap_or(first))
    }

    /// Who kept other blocks of the same stacks: earlier ones, while memory grew, or what has replaced them
    /// since.
    pub(crate) fn held_earlier(&self, stacks: &[StackId], total: Bytes) -> Option<Held> {
        let wanted = |joined: &Joined<'_>| -> Vec<(u32, u64)> {
            let alive = self.history.allocations.iter().filter(|allocation| {
                allocation.is_allocated_at(joined.position) && stacks.contains(&allocation.stack)
            });
            joined.wanted(alive)
        };
        let bytes = |wanted: &[(u32, u64)]| wanted.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let dumps = self.holders.dumps.iter().map(|joined| (joined, wanted(joined)));
        let mut dumps: Vec<_> = dumps
            .filter(|(joined, wanted)| {
                // After the loop, little that is left of these stacks may be held by something else.
                let is_most = bytes(wanted) as f64 >= COMPLETE_SHARE * total.0 as f64;
                !wanted.is_empty() && (is_most || joined.dump.reason == Some(DumpReason::Growing))
            })
            .collect();
        dumps.sort_by_key(|(_, wanted)| std::cmp::Reverse(bytes(wanted)));
        dumps.iter().find_map(|(joined, wanted)| self.held_at(joined, wanted, total))
    }

    /// Who keeps some storages of a dump, with their bytes, of `total` bytes in all.
    fn held_at(&self, joined: &Joined<'_>, wanted: &[(u32, u64)], total: Bytes) -> Option<Held> {
        let holdings = joined.holdings();
        let holders = holdings.holders(wanted, MIN_SHARE_OF_OTHER_HOLDER);
        let mut holders = holders.iter().map(|of| {
            // The frames of the final error are not the cause of the leak.
            let called = match of.kind {
                HolderKind::LastError => holdings.describe_before_error(of),
                _ => holdings.describe(of),
            };
            in_words(holdings, of, called, self.is_cpu())
        });
        let mut held = holders.next()?;
        // What lies below the first holder and something else besides is held by it all the same.
        let is_below = |path: &str| {
            path.strip_prefix(held.holder.as_str()).is_some_and(|rest| rest.starts_with(['[', '.', '(']))
        };
        let others = holders.filter(|other| !is_below(&other.by));
        let rest = others.map(|other| (other.bytes, other.by)).collect();
        held.rest = rest;
        let others: Vec<String> = held
            .rest
            .iter()
            .map(|(bytes, by)| format!("{bytes} is held by `{}`", by.trim_start_matches(CYCLE)))
            .collect();
        if !others.is_empty() {
            held.sentence += &format!(". {}", listed(&others));
        }
        let seen = Bytes(wanted.iter().map(|(_, bytes)| bytes).sum());
        if (seen.0 as f64) < COMPLETE_SHARE * total.0 as f64 {
            held.sentence += &match joined.dump.reason {
                Some(DumpReason::Growing) => {
                    format!(" (as of an early look at the references, when {seen} of the {total} was there)")
                }
                _ => format!("; for {} of {total} no holder was left at the end", total.saturating_sub(seen)),
            };
        }
        Some(held)
    }
}

/// Whether a root of references is the user's own code.
pub(crate) fn is_own(root: &Root) -> bool {
    match root {
        Root::Module { name, file } => {
            name == "__main__" || name.starts_with("__main__.") || is_user_file(file)
        }
        Root::Frame { file, .. } => is_user_file(file),
        Root::Recorder | Root::Outside | Root::Garbage => false,
    }
}

/// Describes a holder in words.
pub(crate) fn held(holdings: &AnalyzedHeap, holder: &Holder, is_cpu: bool) -> Held {
    in_words(holdings, holder, holdings.describe(holder), is_cpu)
}

fn in_words(holdings: &AnalyzedHeap, holder: &Holder, called: HolderDescription, is_cpu: bool) -> Held {
    let heap = &holdings.heap;
    let kind = if is_cpu { "cpu" } else { "cuda" };
    let retained =
        holder.retained.iter().filter(|(device, _)| device.kind == kind).map(|(_, bytes)| Bytes(*bytes));
    let holder_name = through_own_object(holdings, holder).unwrap_or(called.path);
    let mut held = Held {
        by: printable(&called.held_by).into_owned(),
        holder: printable(&holder_name).into_owned(),
        also: holder.also.iter().map(|path| written(holdings, path)).collect(),
        class: printable(heap.class(holder.node)).into_owned(),
        text: if holdings.is_tensor(holder.node) { heap.text(holder.node).to_owned() } else { String::new() },
        is_small_view: is_small_view(holdings, holder),
        kind: called.kind,
        keeps_graph: holder.keeps_history,
        is_gradient_cycle: false,
        together: together(holdings, holder),
        entries: entries(holdings, holder, kind),
        parts: parts(holdings, holder),
        owner: owner(holdings, holder),
        max_entries: heap.text(holder.node).strip_prefix("maxlen=").and_then(|most| most.parse().ok()),
        alike: holder.similar as u64,
        bytes: Bytes(holder.bytes),
        retained: retained.sum(),
        rest: Vec::new(),
        store: store(holdings, holder),
        sentence: String::new(),
        advice: String::new(),
    };
    if held.kind == HolderKind::Cycle {
        name_cycle(holdings, holder, &mut held);
    }
    if held.parts.len() > 1 {
        let names = held.parts.iter().cloned().chain(held.store.names);
        held.store.names = names.collect();
    }
    held.sentence = sentence(&held);
    held.advice = advice(&held, is_cpu);
    held
}

/// The path from an object of the user's own class, `Tagger.predictions`, where it begins in a library or
/// leads through a library's objects: how the library refers to the object says nothing to the user.
fn through_own_object(holdings: &AnalyzedHeap, holder: &Holder) -> Option<String> {
    let heap = &holdings.heap;
    let begins_in_library = match &holdings.roots[holder.path.root].1 {
        Root::Frame { file, .. } => !is_user_file(file),
        _ => false,
    };
    let nodes = holder.path.nodes(heap, &holdings.roots);
    let is_code = |node: u32| matches!(heap.class(node), "function" | "frame");
    let is_object_of = |node: u32, of_user: bool| {
        !is_code(node) && file_of(heap, node).is_some_and(|file| is_user_file(&file) == of_user)
    };
    let own = nodes.iter().position(|&node| is_object_of(node, true))?;
    let leads_through_library = nodes[..own].iter().any(|&node| is_object_of(node, false));
    let is_self =
        |edge: &usize| heap.name(*edge).link == ReferenceKind::Local && heap.name(*edge).text == "self";
    let is_of_method = own == 1 && holder.path.edges.first().is_some_and(is_self);
    if !begins_in_library && !leads_through_library && !is_of_method {
        return None;
    }
    let edges = holder.path.edges.get(own..).filter(|edges| !edges.is_empty())?;
    Some(holdings.shape(edges))
}

fn written(holdings: &AnalyzedHeap, path: &Path) -> String {
    printable(&heap::path_text::path(&holdings.heap, &holdings.roots, path, |_| false)).into_owned()
}

/// Whether an object is a container of Python's own.
fn is_container(heap: &Heap, node: u32) -> bool {
    matches!(
        heap.class(node),
        "list"
            | "dict"
            | "set"
            | "tuple"
            | "deque"
            | "collections.deque"
            | "defaultdict"
            | "collections.defaultdict"
            | "OrderedDict"
            | "collections.OrderedDict"
    )
}

/// Whether an object has tensors on a kind of device.
fn has_memory(holdings: &AnalyzedHeap, node: u32, device: &str) -> bool {
    let is_on = |to: &u32| holdings.heap.storage(*to).is_some_and(|storage| storage.device.kind == device);
    holdings.retained(node).iter().any(|(on, bytes)| on.kind == device && *bytes > 0)
        || holdings.is_tensor(node) && holdings.heap.edges.of(node).iter().any(is_on)
}

/// The references that lead to memory: for a container all of them, also those to tensors that others
/// refer to as well.
fn entries(holdings: &AnalyzedHeap, holder: &Holder, device: &str) -> u64 {
    let heap = &holdings.heap;
    if !is_container(heap, holder.node) {
        return holder.entries as u64;
    }
    let values = heap.references(holder.node).filter(|(name, _)| name.link != ReferenceKind::Key);
    let all = values.filter(|&(_, to)| has_memory(holdings, to, device)).count();
    all.max(holder.entries) as u64
}

/// The attributes of an instance through which it keeps the memory, if they are several containers.
fn parts(holdings: &AnalyzedHeap, holder: &Holder) -> Vec<String> {
    let heap = &holdings.heap;
    if holder.similar > 1 || is_container(heap, holder.node) || holdings.is_tensor(holder.node) {
        return Vec::new();
    }
    let sampled = holder.held.iter().step_by(holder.held.len().div_ceil(MAX_SAMPLED_BLOCKS).max(1));
    let through = sampled.map(|&block| {
        let path = holdings.path(block);
        let from = path.nodes(heap, &holdings.roots).iter().position(|&node| node == holder.node)?;
        let attribute =
            path.edges[from..].iter().find(|&&edge| heap.name(edge).link != ReferenceKind::Inside)?;
        let to = heap.edges.targets()[*attribute];
        let is_part = heap.name(*attribute).link == ReferenceKind::Attribute && is_container(heap, to);
        is_part.then(|| printable(&heap.name(*attribute).text).into_owned())
    });
    let names: Option<Vec<String>> = through.collect();
    let mut names = distinct(names.unwrap_or_default().into_iter());
    names.sort_unstable();
    if (2..=MAX_JOINT_HOLDERS).contains(&names.len()) { names } else { Vec::new() }
}

/// Class of the object that a holder belongs to: itself, or what the container is an attribute of.
fn owner(holdings: &AnalyzedHeap, holder: &Holder) -> String {
    let heap = &holdings.heap;
    let nodes = holder.path.nodes(heap, &holdings.roots);
    let owner = nodes.iter().rev().find(|&&node| !is_container(heap, node));
    owner.map(|&node| printable(heap.class(node)).into_owned()).unwrap_or_default()
}

/// The texts in their order, without duplicates.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = FxHashSet::default();
    texts.filter(|text| seen.insert(text.clone())).collect()
}

/// Whether the tensor at the end of the path is much smaller than its storage.
fn is_small_view(holdings: &AnalyzedHeap, holder: &Holder) -> bool {
    let nodes = holder.example.nodes(&holdings.heap, &holdings.roots);
    let [.., tensor, storage] = nodes[..] else { return false };
    let memory = holdings.heap.storage(storage).map_or(0, |storage| storage.bytes);
    bytes_of(holdings.heap.text(tensor)).is_some_and(|bytes| bytes.saturating_mul(4) < memory)
}

/// The bytes of a tensor that is described as `float32 (64, 128)`.
fn bytes_of(text: &str) -> Option<u64> {
    let (dtype, shape) = text.split_once(" (")?;
    let digits: String = dtype
        .chars()
        .skip_while(|letter| !letter.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    let bits: u64 = if dtype == "bool" { 8 } else { digits.parse().ok()? };
    let sizes = shape.trim_end_matches([')', ',']).split(", ").filter(|size| !size.is_empty());
    let count = sizes
        .map(|size| size.trim_end_matches(',').parse::<u64>().ok())
        .try_fold(1u64, |all, size| all.checked_mul(size?))?;
    Some(count.saturating_mul(bits) / 8)
}

/// The variables that lead to what a holder holds, if it does not retain most of it alone.
fn together(holdings: &AnalyzedHeap, holder: &Holder) -> Vec<String> {
    let retained: u64 = holder.retained.iter().map(|(_, bytes)| bytes).sum();
    if holder.similar > 1 || 2 * retained >= holder.bytes {
        return Vec::new();
    }
    let Some(&storage) = holder.example.nodes(&holdings.heap, &holdings.roots).last() else {
        return Vec::new();
    };
    let paths = holdings.reference_paths(storage, MAX_JOINT_HOLDERS);
    // The variable can be deleted, not the path from it.
    distinct(paths.iter().map(|path| written(holdings, &path.until(1))))
}

/// Names a cycle by its links, since no reference path leads to it.
fn name_cycle(holdings: &AnalyzedHeap, holder: &Holder, held: &mut Held) {
    let cycles = holdings.cycles();
    let nodes = holder.example.nodes(&holdings.heap, &holdings.roots);
    let leads_through = |cycle: &Cycle| cycle.members.iter().any(|member| nodes.contains(member));
    let Some(cycle) = cycles.iter().find(|cycle| cycle.is_garbage && leads_through(cycle)) else { return };
    held.holder = printable(&holdings.shape(&cycle.around)).into_owned();
    held.by = format!("{CYCLE}{}", held.holder);
    held.alike = cycle.count as u64;
    let names = cycle.around.iter().map(|&position| holdings.heap.name(position));
    held.store.names =
        names.filter(|name| name.link == ReferenceKind::Attribute).map(|name| name.text.clone()).collect();
    let has = |link: &str| held.store.names.iter().any(|name| name == link);
    held.is_gradient_cycle = has("grad") && has("grad_fn") && held.holder.contains("AccumulateGrad");
    held.store.names.dedup();
    let bytes = cycle.retained.iter().map(|(_, bytes)| Bytes(*bytes));
    held.retained = bytes.sum();
}

fn store(holdings: &AnalyzedHeap, holder: &Holder) -> StoreHint {
    let heap = &holdings.heap;
    let edges = &holder.path.edges;
    let named = |link: ReferenceKind| {
        matches!(link, ReferenceKind::Attribute | ReferenceKind::Local | ReferenceKind::Closure)
    };
    let last = edges.iter().rev().map(|&position| heap.name(position)).find(|name| named(name.link));
    let of_root = match &holdings.roots[holder.path.root].1 {
        Root::Module { file, .. } | Root::Frame { file, .. } => Some(file.clone()),
        Root::Recorder | Root::Outside | Root::Garbage => None,
    };
    let nodes = holder.example.nodes(heap, &holdings.roots);
    let files = of_root.into_iter().chain(nodes.iter().filter_map(|&node| file_of(heap, node)));
    let files = distinct(files.filter(|file| is_user_file(file)));
    StoreHint { names: last.map(|name| name.text.clone()).into_iter().collect(), files }
}

/// The source of an object's class, or of a function.
fn file_of(heap: &Heap, node: u32) -> Option<String> {
    let class = heap.class(node);
    if let Some((_, place)) = heap.text(node).rsplit_once(" (") {
        let file = place.trim_end_matches(')').rsplit_once(':').map(|(file, _)| file.to_owned());
        if matches!(class, "function" | "frame") {
            return file;
        }
    }
    // `package.module.Outer.Inner`: the longest beginning that is a module.
    let mut module = class;
    while let Some((before, _)) = module.rsplit_once('.') {
        if let Some(file) = heap.file(before) {
            return Some(file.to_owned());
        }
        module = before;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::bytes_of;

    #[test]
    fn a_tensors_size_is_in_its_description() {
        let sizes =
            ["float32 (64, 128)", "bfloat16 (8,)", "bool (3, 3)", "int64 ()", "float32", "quint8 (x)"]
                .map(bytes_of);
        assert_eq!(sizes, [Some(32768), Some(16), Some(9), Some(8), None, None]);
    }
}
