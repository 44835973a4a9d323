//! Who keeps blocks alive, where a recorder wrote down the references of the process.
//!
//! A block and a storage are one where the block was alive at the storage's address when the references were written down.

use crate::device::Device;
use crate::order::Order;
use crate::recording::{Counted, HeapDump, Recording};
use crate::site::is_user_file;
use crate::words::{counted, listed, printable};
use heap::{Cycle, Habit, Heap, Holder, Holdings, Link, Path, Root, Storage};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, DeviceKind, History};
use std::sync::{Arc, OnceLock};

/// What the first holder does not hold is told as well, if it is more than this share.
const REST: f64 = 0.1;
/// What is less than this share of all is told to be a part.
const ALL: f64 = 0.9;
/// The share of a finding's bytes that has to be seen in the references before anybody is named.
const SEEN: f64 = 0.2;

/// Variables that are told where several keep something together.
const TOGETHER: usize = 6;
const CYCLE: &str = "reference cycle ";

/// Who keeps the memory of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The way to a typical block: `__main__.history[…].grad_fn…_saved_self`.
    pub by: String,
    /// The way to the object that keeps them: `__main__.history`.
    pub holder: String,
    /// Other ways to the same object: it is not gone before these are.
    pub also: Vec<String>,
    /// Its class.
    pub class: String,
    /// What else is known of it: a tensor's type and shape.
    pub text: String,
    /// Whether what it keeps is a small part of a tensor, whose memory is all kept.
    pub is_small_view: bool,
    /// How it came to keep them.
    pub habit: Habit,
    /// Its references that lead to such blocks.
    pub entries: u64,
    /// How many objects of this kind do the same.
    pub alike: u64,
    /// Bytes of the finding that are held by it.
    pub bytes: Bytes,
    /// What would be free on this device without it.
    pub retained: Bytes,
    /// Variables that keep it only together, where no object keeps most of it alone: it is free when all of them are gone.
    pub together: Vec<String>,
    /// What it does not hold, and who does.
    pub rest: Vec<(Bytes, String)>,
    /// Where its code may be found.
    pub store: Store,
    /// Who keeps it, as a sentence without a full stop.
    pub sentence: String,
    /// What to change.
    pub advice: String,
}

/// What to look for in the source to find the line that stores the reference.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Store {
    /// Names of the variable or attribute.
    pub names: Vec<String>,
    /// Files, the likeliest first.
    pub files: Vec<String>,
}

/// The references of one device's tensors.
pub struct Holders<'a> {
    dumps: Vec<Joined<'a>>,
}

/// References, and which of the storages are which blocks.
struct Joined<'a> {
    dump: &'a HeapDump,
    /// Just after the last allocation before the dump: a count tells no more.
    position: usize,
    /// Just before the next one.
    before_next: usize,
    /// Nodes of storages on this device by address.
    nodes: FxHashMap<u64, u32>,
    /// What the allocator has given to each of these nodes.
    sizes: FxHashMap<u32, Bytes>,
    holdings: OnceLock<Holdings>,
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
        let name = if kind == DeviceKind::Cpu { "cpu" } else { "cuda" };
        let joined = |dump: &'a Arc<HeapDump>| {
            let count = dump.allocations.of(order.device)?;
            let (position, before_next) = counted.as_ref()?.at(count)?.into_inner();
            let is_here =
                |storage: &&Storage| storage.device.kind == name && storage.device.index == order.device;
            let here = dump.heap.storages.iter().filter(is_here);
            let nodes: FxHashMap<u64, u32> = here.map(|storage| (storage.address, storage.node)).collect();
            let alive = history.lives.iter().filter(|life| life.is_allocated_at(position));
            let sizes = alive.filter_map(|life| Some((*nodes.get(&life.addr)?, life.size))).collect();
            Some(Joined { dump, position, before_next, nodes, sizes, holdings: OnceLock::new() })
        };
        Holders { dumps: recording.heaps.iter().filter_map(joined).collect() }
    }

    /// What the allocator gave for storages of a dump, by their nodes.
    pub fn sizes(&self, dump: &HeapDump) -> impl Iterator<Item = (u32, Bytes)> {
        let of = self.dumps.iter().filter(move |joined| std::ptr::eq(joined.dump, dump));
        of.flat_map(|joined| joined.sizes.iter().map(|(&node, &size)| (node, size)))
    }

    /// How many events had happened when a dump was written: at least, and at most.
    pub fn moment(&self, dump: &HeapDump) -> Option<(usize, usize)> {
        let joined = self.dumps.iter().find(|joined| std::ptr::eq(joined.dump, dump))?;
        Some((joined.position, joined.before_next))
    }
}

impl Joined<'_> {
    fn holdings(&self) -> &Holdings {
        self.holdings.get_or_init(|| {
            let bytes_of =
                |storage: &Storage| self.sizes.get(&storage.node).map_or(storage.bytes, |size| size.0);
            Holdings::new(&self.dump.heap, is_own, bytes_of)
        })
    }
}

impl Device<'_> {
    /// Who keeps the blocks of these rows of [`History::lives`].
    pub fn held(&self, rows: impl Iterator<Item = usize> + Clone) -> Option<Held> {
        let total: Bytes = rows.clone().map(|row| self.history.lives[row].size).sum();
        let seen = |joined: &Joined<'_>| -> Vec<(u32, u64)> {
            let lives = rows.clone().map(|row| &self.history.lives[row]);
            lives
                .filter(|life| life.is_allocated_at(joined.position))
                .filter_map(|life| Some((*joined.nodes.get(&life.addr)?, life.size.0)))
                .collect()
        };
        let bytes = |wanted: &[(u32, u64)]| wanted.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let dumps = self.holders.dumps.iter().map(|joined| (joined, seen(joined)));
        // The moment at which most of them were there.
        let (joined, wanted) = dumps.max_by_key(|(_, wanted)| bytes(wanted))?;
        if (bytes(&wanted) as f64) < SEEN * total.0 as f64 {
            return None;
        }
        let holdings = joined.holdings();
        let holders = holdings.holders(&wanted, REST);
        let mut holders = holders.iter().map(|of| {
            // What a program leaves behind when it fails is not what it did wrong.
            match of.habit {
                Habit::LastError => before_error(holdings, of, self.is_cpu()),
                _ => held(holdings, of, self.is_cpu()),
            }
        });
        let mut held = holders.next()?;
        held.rest = holders.map(|other| (other.bytes, other.by)).collect();
        let others: Vec<String> = held
            .rest
            .iter()
            .map(|(bytes, by)| format!("{bytes} by `{}`", by.trim_start_matches(CYCLE)))
            .collect();
        if !others.is_empty() {
            held.sentence += &format!("; of the rest, {}", listed(&others));
        }
        let seen = Bytes(bytes(&wanted));
        if (seen.0 as f64) < ALL * total.0 as f64 {
            held.sentence += &format!(
                "; of {total} only {seen} was there when this was looked at{}: the rest came later or was held by what is gone, \
                 such as a variable of a function that had returned",
                if joined.dump.dumped == "growing" { ", while memory grew" } else { "" }
            );
        }
        Some(held)
    }
}

/// Whether a root is the user's own code.
pub fn is_own(root: &Root) -> bool {
    match root {
        Root::Module { name, file } => {
            name == "__main__" || name.starts_with("__main__.") || is_user_file(file)
        }
        Root::Frame { file, .. } => is_user_file(file),
        Root::Recorder | Root::Outside | Root::Garbage => false,
    }
}

/// A holder in words.
pub fn held(holdings: &Holdings, holder: &Holder, is_cpu: bool) -> Held {
    held_as(holdings, holder, holder.habit, is_cpu)
}

/// A holder as it was when the program failed: of the traceback, the function that ran is what counts.
fn before_error(holdings: &Holdings, holder: &Holder, is_cpu: bool) -> Held {
    let mut held = held_as(holdings, holder, holdings.habit_before_error(holder), is_cpu);
    let (full, short) = (held.holder.clone(), from_innermost_frame(holdings, &holder.path));
    held.by = held.by.replacen(&full, &short, 1);
    held.sentence = held.sentence.replace(&full, &short);
    held.advice = held.advice.replace(&full, &short);
    held.holder = short;
    held
}

/// `frame step (train.py:40) local kept`
fn from_innermost_frame(holdings: &Holdings, path: &Path) -> String {
    let nodes = path.nodes(&holdings.heap, &holdings.roots);
    let innermost = nodes.iter().rposition(|&node| holdings.heap.class(node) == "frame").unwrap_or(0);
    let frame = Root::Frame { thread: String::new(), file: String::new(), line: 0 };
    let rest = Path { root: 0, edges: path.edges[innermost..].to_vec() };
    let text = heap::words::path(&holdings.heap, &[(nodes[innermost], frame)], &rest, |_| false);
    printable(&text).into_owned()
}

fn held_as(holdings: &Holdings, holder: &Holder, habit: Habit, is_cpu: bool) -> Held {
    let heap = &holdings.heap;
    let kind = if is_cpu { "cpu" } else { "cuda" };
    let retained =
        holder.retained.iter().filter(|(device, _)| device.kind == kind).map(|(_, bytes)| Bytes(*bytes));
    let written =
        |path: &Path| printable(&heap::words::path(heap, &holdings.roots, path, |_| false)).into_owned();
    let mut held = Held {
        by: printable(&holdings.held_by(holder)).into_owned(),
        holder: written(&holder.path),
        also: holder.also.iter().map(written).collect(),
        class: printable(heap.class(holder.node)).into_owned(),
        text: if holdings.is_tensor(holder.node) { heap.text(holder.node).to_owned() } else { String::new() },
        is_small_view: is_small_view(holdings, holder),
        habit,
        together: together(holdings, holder),
        entries: holder.entries as u64,
        alike: holder.alike as u64,
        bytes: Bytes(holder.bytes),
        retained: retained.sum(),
        rest: Vec::new(),
        store: store(holdings, holder),
        sentence: String::new(),
        advice: String::new(),
    };
    if habit == Habit::Cycle {
        name_cycle(holdings, holder, &mut held);
    }
    held.sentence = sentence(&held, holder.keeps_history);
    held.advice = advice(&held, holder.keeps_history, is_cpu);
    held
}

/// Whether the tensor at the end of the way is much smaller than its memory.
fn is_small_view(holdings: &Holdings, holder: &Holder) -> bool {
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

/// The variables that lead to what a holder holds, if it does not hang on it.
fn together(holdings: &Holdings, holder: &Holder) -> Vec<String> {
    let retained: u64 = holder.retained.iter().map(|(_, bytes)| bytes).sum();
    if holder.alike > 1 || 2 * retained >= holder.bytes {
        return Vec::new();
    }
    let Some(&storage) = holder.example.nodes(&holdings.heap, &holdings.roots).last() else {
        return Vec::new();
    };
    let ways = holdings.ways(storage, TOGETHER);
    // The variable is what can be let go, not the way from it.
    let mut names: Vec<String> = ways
        .iter()
        .map(|way| heap::words::path(&holdings.heap, &holdings.roots, &way.until(1), |_| false))
        .map(|name| printable(&name).into_owned())
        .collect();
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// A cycle has no way to it: it is named by its links.
fn name_cycle(holdings: &Holdings, holder: &Holder, held: &mut Held) {
    let cycles = holdings.cycles();
    let nodes = holder.example.nodes(&holdings.heap, &holdings.roots);
    let leads_through = |cycle: &Cycle| cycle.members.iter().any(|member| nodes.contains(member));
    let Some(cycle) = cycles.iter().find(|cycle| cycle.is_garbage && leads_through(cycle)) else { return };
    held.holder = printable(&holdings.shape(&cycle.around)).into_owned();
    held.by = format!("{CYCLE}{}", held.holder);
    held.alike = cycle.count as u64;
    let names = cycle.around.iter().map(|&position| holdings.heap.name(position));
    held.store.names =
        names.filter(|name| name.link == Link::Attribute).map(|name| name.text.clone()).collect();
    held.store.names.dedup();
    let bytes = cycle.retained.iter().map(|(_, bytes)| Bytes(*bytes));
    held.retained = bytes.sum();
}

fn store(holdings: &Holdings, holder: &Holder) -> Store {
    let heap = &holdings.heap;
    let edges = &holder.path.edges;
    let named = |link: Link| matches!(link, Link::Attribute | Link::Local | Link::Closure);
    let last = edges.iter().rev().map(|&position| heap.name(position)).find(|name| named(name.link));
    let mut files: Vec<String> = Vec::new();
    match &holdings.roots[holder.path.root].1 {
        Root::Module { file, .. } | Root::Frame { file, .. } => files.push(file.clone()),
        Root::Recorder | Root::Outside | Root::Garbage => {}
    }
    let nodes = holder.example.nodes(heap, &holdings.roots);
    let modules = nodes.iter().filter_map(|&node| file_of(heap, node));
    files.extend(modules);
    files.retain(|file| is_user_file(file));
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| seen.insert(file.clone()));
    Store { names: last.map(|name| name.text.clone()).into_iter().collect(), files }
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

fn sentence(held: &Held, keeps_history: bool) -> String {
    let also: Vec<String> = held.also.iter().map(|way| format!("`{way}`")).collect();
    let also =
        if also.is_empty() { String::new() } else { format!("; the same object is also {}", listed(&also)) };
    if held.together.len() > 1 {
        let names: Vec<String> = held.together.iter().map(|name| format!("`{name}`")).collect();
        return format!(
            "{} keep it together: it is free when all of them are gone or detached",
            listed(&names)
        );
    }
    format!("{}{also}", who(held, keeps_history))
}

fn who(held: &Held, keeps_history: bool) -> String {
    let Held { holder, class, retained, alike, entries, .. } = held;
    let class = class.rsplit('.').next().unwrap_or(class);
    let what = if keeps_history { " with the graphs that made them" } else { "" };
    match held.habit {
        Habit::Cycle if *alike > 1 => format!(
            "{} keep {retained} that nothing else refers to: `{holder}`; only the garbage collector frees them",
            counted(*alike, "reference cycle")
        ),
        Habit::Cycle => format!(
            "a reference cycle keeps {retained} that nothing else refers to: `{holder}`; only the garbage collector frees it"
        ),
        Habit::Outside => format!(
            "no Python object is known to hold it: C code refers to {}",
            if *alike > 1 { format!("{} objects of class {class}", alike) } else { format!("`{holder}`") }
        ),
        Habit::Chain if held.together.len() > 1 => {
            "`.detach()` the one of them that is carried from step to step (a hidden state, a running total) before the next step: \
             with its graph it keeps what every step before has saved; `retain_graph=True` is then not needed"
                .to_owned()
        }
        Habit::Chain => format!(
            "`{holder}` keeps it: its history reaches back through the steps; {retained} would be free without it"
        ),
        _ if *entries > 1 => format!(
            "`{holder}` keeps it: a {class} with {} to tensors{what}; {retained} would be free without it",
            counted(*entries, "reference")
        ),
        _ => format!("`{holder}` keeps it (`{}`); {retained} would be free without it", held.by),
    }
}

/// What to change, by what keeps it.
fn advice(held: &Held, keeps_history: bool, is_cpu: bool) -> String {
    let Held { holder, by, .. } = held;
    let name = held.store.names.first().map_or(holder.as_str(), String::as_str);
    let bound = match held.class.as_str() {
        "list" | "collections.deque" => "bound it (`deque(maxlen=…)`) or empty it",
        _ => "let old entries go, or empty it",
    };
    let (copies, or_copies) =
        if is_cpu { ("", "") } else { (", `.cpu()` for large ones", ", or store `.cpu()` copies") };
    match held.habit {
        Habit::Container if keeps_history => format!(
            "store numbers or tensors without their graphs in `{holder}`: `.item()`, or `.detach()`{copies}; and {bound} when it \
             has been used"
        ),
        Habit::Container if held.is_small_view => format!(
            "store `.clone()` of what goes into `{holder}`: it is a small view, and keeps all of the memory that it is a view of; \
             `.detach()` does not help"
        ),
        Habit::Container => format!(
            "`{holder}`: {bound} when it has been used{or_copies}; `.detach()` does not help: the tensors themselves are stored"
        ),
        Habit::Chain if held.together.len() > 1 => {
            "`.detach()` the one of them that is carried from step to step (a hidden state, a running total) before the next step: \
             with its graph it keeps what every step before has saved; `retain_graph=True` is then not needed"
                .to_owned()
        }
        Habit::Chain => format!(
            "`.detach()` what goes into `{name}`, or keep `.item()`: with its graph it keeps what every step before it has saved; \
             `retain_graph=True` is then not needed"
        ),
        Habit::Cycle => format!(
            "break the cycle: make one of its links a `weakref.ref`, or set it to `None` when it is done with (`{holder}`); until \
             then `gc.collect()` frees it"
        ),
        Habit::Exception => format!(
            "store `str(e)`, or `e.with_traceback(None)`: an exception keeps its traceback, that the frames, and those their \
             variables (`{by}`)"
        ),
        Habit::LastError => format!(
            "`{holder}` keeps the frames of the last error at the prompt, with their variables: `del sys.last_traceback, \
             sys.last_value` (and `sys.last_exc`), or restart"
        ),
        Habit::Notebook => format!(
            "the notebook keeps what it has shown (`{holder}`): end such a line with `;`, or `%reset -f out`; at Python's own \
             prompt `_ = None`"
        ),
        Habit::Cache => format!(
            "`functools.lru_cache` keeps every result, and its arguments (`{holder}`): give it a small `maxsize`, call \
             `cache_clear()`, or do not cache what has tensors; on a method it also keeps every `self`"
        ),
        Habit::Hook => format!(
            "the hook keeps what it is given (`{by}`): overwrite instead of appending, clear it after use, or `remove()` the \
             handle"
        ),
        Habit::Closure => format!(
            "a function keeps it as a variable from around it (`{by}`): drop the function, or give it what it needs as an argument"
        ),
        Habit::Context => format!(
            "use `ctx.save_for_backward()` instead of an attribute of `ctx` (`{by}`): `backward()` frees what was saved, \
             attributes stay, and one that is the output makes a cycle"
        ),
        Habit::Logger => format!(
            "give the logger numbers or text instead of tensors (`.item()`): `{holder}` keeps what it is given"
        ),
        Habit::Generator => format!(
            "run it to its end, `close()` the generator or cancel the task: it keeps the variables that it stopped with (`{by}`)"
        ),
        Habit::Variable => format!("set `{holder}` to `None`, or `del` it, once it is done with"),
        Habit::Outside => {
            "look for what hands tensors to C++ code: a hook of a graph node, a communication buffer, an \
             extension"
                .to_owned()
        }
    }
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
