//! What was counted: bytes by device, kind of memory and library.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard};

/// Device of memory that is not on one.
pub(crate) const HOST: i32 = -1;

/// Why memory is in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum TracedKind {
    /// `cuMemAlloc` and arrays.
    Allocated,
    /// Physical memory from `cuMemCreate`.
    Mapped,
    /// Pools of `cuMemAllocAsync`.
    Pooled,
    /// Contexts.
    Context,
    /// Modules and kernels.
    Kernels,
    /// CUDA graphs.
    Graphs,
    /// Streams, events, limits of a context, peers.
    Other,
    /// Pinned host memory.
    Pinned,
    /// Host memory of the program that was pinned later.
    Registered,
}

impl TracedKind {
    fn name(self) -> &'static str {
        match self {
            TracedKind::Allocated => "allocated",
            TracedKind::Mapped => "mapped",
            TracedKind::Pooled => "pooled",
            TracedKind::Context => "context",
            TracedKind::Kernels => "kernels",
            TracedKind::Graphs => "graphs",
            TracedKind::Other => "other",
            TracedKind::Pinned => "pinned",
            TracedKind::Registered => "registered",
        }
    }
}

/// Whose memory.
pub(crate) type MemoryOwner = (i32, TracedKind, &'static str);

#[derive(Clone, Copy, Default)]
struct Count {
    bytes: i64,
    peak: i64,
    calls: u64,
}

/// An allocation with an address.
#[derive(Clone, Copy)]
struct CountedAllocation {
    owner: MemoryOwner,
    bytes: i64,
}

#[derive(Default)]
struct State {
    process: u32,
    counts: BTreeMap<MemoryOwner, Count>,
    allocations: BTreeMap<(TracedKind, u64), CountedAllocation>,
    missed: u64,
}

static STATE: Mutex<State> =
    Mutex::new(State { process: 0, counts: BTreeMap::new(), allocations: BTreeMap::new(), missed: 0 });

/// Returns the state, empty in a new process. `None` if another thread has kept it too long: it may be one
/// that a fork has left behind.
fn state() -> Option<MutexGuard<'static, State>> {
    const TRIES: usize = 10_000;
    let mut state = (0..TRIES).find_map(|_| {
        let state = STATE.try_lock().ok();
        if state.is_none() {
            std::thread::yield_now();
        }
        state
    })?;
    let process = std::process::id();
    if state.process != process {
        *state = State { process, ..State::default() };
    }
    Some(state)
}

/// Adds to what a library has.
pub(crate) fn add(owner: MemoryOwner, bytes: i64) {
    let Some(mut state) = state() else { return };
    state.add(owner, bytes);
}

/// Says what a library has.
pub(crate) fn set(owner: MemoryOwner, bytes: i64) {
    let Some(mut state) = state() else { return };
    let before = state.counts.get(&owner).map_or(0, |count| count.bytes);
    state.add(owner, bytes - before);
}

/// Adds an allocation that is freed by its address.
pub(crate) fn allocated(owner: MemoryOwner, address: u64, bytes: i64) {
    let Some(mut state) = state() else { return };
    state.add(owner, bytes);
    state.allocations.insert((owner.1, address), CountedAllocation { owner, bytes });
}

/// Takes an allocation back. `bytes`: what the device got back, if that is known.
pub(crate) fn freed(kind: TracedKind, address: u64, bytes: Option<i64>) {
    let Some(mut state) = state() else { return };
    if let Some(allocation) = state.allocations.remove(&(kind, address)) {
        state.add(allocation.owner, -bytes.unwrap_or(allocation.bytes));
    }
}

/// Notes a call that overlapped with a call of another thread, so that its memory is unknown.
pub(crate) fn missed() {
    if let Some(mut state) = state() {
        state.missed += 1;
    }
}

impl State {
    fn add(&mut self, owner: MemoryOwner, bytes: i64) {
        let count = self.counts.entry(owner).or_default();
        count.bytes += bytes;
        count.peak = count.peak.max(count.bytes);
        count.calls += 1;
    }
}

/// Returns everything as one JSON object.
pub(crate) fn as_json() -> String {
    let mut text = String::from("{\"entries\":[");
    let Some(state) = state() else { return text + "],\"missed\":0}" };
    for (index, ((device, kind, library), count)) in state.counts.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let Count { bytes, peak, calls } = count;
        let _ = write!(text, "{separator}{{\"device\":{device},\"kind\":\"{}\",", kind.name());
        let _ = write!(text, "\"bytes\":{bytes},\"peak\":{peak},\"calls\":{calls},\"library\":\"");
        for character in library.chars() {
            match character {
                '"' | '\\' => text.extend(['\\', character]),
                character if character < ' ' => _ = write!(text, "\\u{:04x}", character as u32),
                character => text.push(character),
            }
        }
        text.push_str("\"}");
    }
    let _ = write!(text, "],\"missed\":{}}}", state.missed);
    text
}
