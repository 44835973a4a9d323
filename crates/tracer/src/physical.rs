//! Physical memory from `cuMemCreate`. It is in use until it has neither a handle nor a mapping.

use crate::counts::{self, MemoryOwner};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

struct CreatedMemory {
    owner: MemoryOwner,
    bytes: i64,
    references: u32,
    mappings: u32,
}

#[derive(Default)]
struct Handles {
    process: u32,
    memory: BTreeMap<u64, CreatedMemory>,
    /// Length and handle of each mapping, by address.
    mapped: BTreeMap<u64, (u64, u64)>,
}

static HANDLES: Mutex<Handles> =
    Mutex::new(Handles { process: 0, memory: BTreeMap::new(), mapped: BTreeMap::new() });

fn handles() -> Option<MutexGuard<'static, Handles>> {
    let mut handles = HANDLES.lock().ok()?;
    let process = std::process::id();
    if handles.process != process {
        *handles = Handles { process, ..Handles::default() };
    }
    Some(handles)
}

/// Physical memory was created.
pub(crate) fn created(handle: u64, owner: MemoryOwner, bytes: i64) {
    let Some(mut handles) = handles() else { return };
    handles.memory.insert(handle, CreatedMemory { owner, bytes, references: 1, mappings: 0 });
    counts::add(owner, bytes);
}

/// A handle was asked for again.
pub(crate) fn retained(handle: u64) {
    let Some(mut handles) = handles() else { return };
    if let Some(memory) = handles.memory.get_mut(&handle) {
        memory.references += 1;
    }
}

/// A handle was released.
pub(crate) fn released(handle: u64) {
    let Some(mut handles) = handles() else { return };
    if let Some(memory) = handles.memory.get_mut(&handle) {
        memory.references = memory.references.saturating_sub(1);
        handles.drop_unused(handle);
    }
}

/// Physical memory was mapped.
pub(crate) fn mapped(address: u64, length: u64, handle: u64) {
    let Some(mut handles) = handles() else { return };
    if let Some(memory) = handles.memory.get_mut(&handle) {
        memory.mappings += 1;
        handles.mapped.insert(address, (length, handle));
    }
}

/// All mappings in a range were removed.
pub(crate) fn unmapped(address: u64, length: u64) {
    let Some(mut handles) = handles() else { return };
    let within: Vec<(u64, u64)> = handles
        .mapped
        .range(address..address.saturating_add(length))
        .map(|(&at, &(_, of))| (at, of))
        .collect();
    for (address, handle) in within {
        handles.mapped.remove(&address);
        if let Some(memory) = handles.memory.get_mut(&handle) {
            memory.mappings = memory.mappings.saturating_sub(1);
            handles.drop_unused(handle);
        }
    }
}

impl Handles {
    fn drop_unused(&mut self, handle: u64) {
        if self.memory.get(&handle).is_some_and(|memory| memory.references == 0 && memory.mappings == 0)
            && let Some(memory) = self.memory.remove(&handle)
        {
            counts::add(memory.owner, -memory.bytes);
        }
    }
}
