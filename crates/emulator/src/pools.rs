//! Memory pools of the driver: `cudaMallocAsync` and its relatives.
//!
//! A pool takes memory from the device in chunks, and keeps what is freed until a synchronization finds more
//! than its release threshold. Work completes immediately here, so a freed block can be reused at once, on
//! any stream. None of this is documented. Chunks have the size measured on an H200; how blocks are rounded
//! and that none lies across two chunks is a model (docs/explanation/emulation.md).
//!
//! PyTorch keeps no history with this allocator, so the pools keep one for oomph's Python part.

mod pool;

use crate::card::card;
use crate::managed::MemoryLocation;
use crate::memory::memory;
use crate::{
    INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, StatusCode, device, notes, put,
    values,
};
use pool::Pool;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Chunks and blocks are multiples of these, in bytes.
const CHUNK_BYTES: u64 = 32 << 20;
const BLOCK_BYTES: u64 = 512;

/// Handle of the default pool of device 0; those of other devices follow, then those of the program.
const FIRST_HANDLE: u64 = 0x3900_0000;

/// What happened to a pool.
#[derive(Clone, Copy)]
#[repr(i32)]
enum PoolAction {
    AddChunk = 0,
    RemoveChunk = 1,
    Allocate = 2,
    Free = 3,
}

/// Event of the history, or part of the present state, for oomph's Python part.
#[derive(Clone, Copy)]
#[repr(C)]
struct PoolEvent {
    action: PoolAction,
    device: i32,
    address: u64,
    size: u64,
    time_us: u64,
}

/// Counters of a device, for oomph's Python part.
#[derive(Default, Clone, Copy)]
#[repr(C)]
struct PoolCounters {
    allocated: u64,
    peak: u64,
    reserved: u64,
    allocations: u64,
    all_allocated: u64,
    chunks: u64,
    failures: u64,
}

struct Pools {
    by_handle: BTreeMap<u64, Pool>,
    next_handle: u64,
    /// Pool that `cudaMallocAsync` uses on each device.
    current: Vec<u64>,
    counters: Vec<PoolCounters>,
    history: VecDeque<PoolEvent>,
    /// Most events to keep; none until oomph asks for them.
    max_events: usize,
}

/// Whether any pool has memory: programs without one do not wait for the lock.
static ARE_USED: AtomicBool = AtomicBool::new(false);

fn pools() -> MutexGuard<'static, Pools> {
    static POOLS: OnceLock<Mutex<Pools>> = OnceLock::new();
    POOLS
        .get_or_init(|| Mutex::new(Pools::new(card().devices)))
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Pools {
    fn new(devices: i32) -> Pools {
        let handles = |devices: i32| (0..devices).map(|device| FIRST_HANDLE + device as u64);
        Pools {
            by_handle: handles(devices)
                .zip(0..)
                .map(|(handle, device)| (handle, Pool::new(device)))
                .collect(),
            next_handle: FIRST_HANDLE + devices as u64,
            current: handles(devices).collect(),
            counters: vec![PoolCounters::default(); devices as usize],
            history: VecDeque::new(),
            max_events: 0,
        }
    }

    fn record(&mut self, action: PoolAction, device: i32, address: u64, size: u64) {
        if let Some(counters) = self.counters.get_mut(device as usize) {
            match action {
                PoolAction::AddChunk => {
                    counters.reserved += size;
                    counters.chunks += 1;
                }
                PoolAction::RemoveChunk => counters.reserved -= size,
                PoolAction::Allocate => {
                    counters.allocated += size;
                    counters.peak = counters.peak.max(counters.allocated);
                    counters.allocations += 1;
                    counters.all_allocated += size;
                }
                PoolAction::Free => counters.allocated -= size,
            }
        }
        if self.max_events > 0 {
            if self.history.len() == self.max_events {
                self.history.pop_front();
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let time_us = now.as_micros() as u64;
            self.history.push_back(PoolEvent { action, device, address, size, time_us });
        }
    }

    /// Allocates a block; the pool takes another chunk from the device if none of its own has room.
    fn allocate(&mut self, handle: u64, size: u64) -> Result<u64, StatusCode> {
        ARE_USED.store(true, Relaxed);
        notes::modeled("memory pools of the driver (cudaMallocAsync), for which no lines are recorded");
        let size = size.max(1).checked_next_multiple_of(BLOCK_BYTES).ok_or(OUT_OF_MEMORY)?;
        let pool = self.by_handle.get_mut(&handle).ok_or(INVALID_VALUE)?;
        let device = pool.device;
        let mut place = pool.take(size);
        if place.is_none() {
            let chunk = size.checked_next_multiple_of(CHUNK_BYTES).ok_or(OUT_OF_MEMORY)?;
            let mut at = memory().place_segment(device, chunk);
            if at.is_none() {
                self.trim_device(device);
                at = memory().place_segment(device, chunk);
            }
            let Some(at) = at else {
                if let Some(counters) = self.counters.get_mut(device as usize) {
                    counters.failures += 1;
                }
                return Err(OUT_OF_MEMORY);
            };
            self.record(PoolAction::AddChunk, device, at, chunk);
            let pool = self.by_handle.get_mut(&handle).ok_or(INVALID_VALUE)?;
            pool.add_chunk(at, chunk);
            place = pool.take(size);
        }
        let at = place.ok_or(OUT_OF_MEMORY)?;
        self.record(PoolAction::Allocate, device, at, size);
        Ok(at)
    }

    /// Frees a block; returns whether it is one of a pool.
    fn free(&mut self, at: u64) -> bool {
        let found = self.by_handle.values_mut().find_map(|pool| Some((pool.device, pool.give_back(at)?)));
        let Some((device, size)) = found else { return false };
        values::forget(at, size);
        self.record(PoolAction::Free, device, at, size);
        true
    }

    /// Returns the chunks of a pool that have no block to the device, until the pool has `keep` bytes.
    fn trim(&mut self, handle: u64, keep: u64) {
        let Some(pool) = self.by_handle.get_mut(&handle) else { return };
        let device = pool.device;
        for (at, size) in pool.trim(keep) {
            memory().release_segment(at);
            self.record(PoolAction::RemoveChunk, device, at, size);
        }
    }

    fn trim_device(&mut self, device: i32) {
        let of_device = |(&handle, pool): (&u64, &Pool)| (pool.device == device).then_some(handle);
        let handles: Vec<u64> = self.by_handle.iter().filter_map(of_device).collect();
        handles.into_iter().for_each(|handle| self.trim(handle, 0));
    }
}

/// Frees a block of a pool; returns whether it is one.
pub(crate) fn free(at: u64) -> bool {
    ARE_USED.load(Relaxed) && pools().free(at)
}

/// Has all pools return what is above their release thresholds.
pub(crate) fn synchronize() {
    if !ARE_USED.load(Relaxed) {
        return;
    }
    let mut pools = pools();
    let excess = |(&handle, pool): (&u64, &Pool)| {
        (pool.reserved.now > pool.threshold).then_some((handle, pool.threshold))
    };
    let above: Vec<(u64, u64)> = pools.by_handle.iter().filter_map(excess).collect();
    above.into_iter().for_each(|(handle, keep)| pools.trim(handle, keep));
}

fn status(answer: Result<(), StatusCode>) -> StatusCode {
    answer.map_or_else(device::record_error, |()| SUCCESS)
}

fn is_device(device: i32) -> bool {
    (0..card().devices).contains(&device)
}

unsafe fn allocate(to: *mut u64, size: usize, handle: Option<u64>) -> StatusCode {
    let mut pools = pools();
    let current = device::current() as usize;
    let handle = handle.or_else(|| pools.current.get(current).copied()).unwrap_or_default();
    status(pools.allocate(handle, size as u64).map(|at| unsafe { put(to, at) }))
}

/// Values of `cudaMemPoolAttr`.
const FIRST_REUSE: i32 = 1;
const LAST_REUSE: i32 = 3;
const RELEASE_THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED: i32 = 7;
const USED_HIGH: i32 = 8;

unsafe fn attribute(handle: u64, which: i32, to: *mut u64) -> Result<(), StatusCode> {
    let pools = pools();
    let pool = pools.by_handle.get(&handle).ok_or(INVALID_VALUE)?;
    let value = match which {
        FIRST_REUSE..=LAST_REUSE => {
            unsafe { put(to.cast::<i32>(), pool.reuse[(which - FIRST_REUSE) as usize]) };
            return Ok(());
        }
        RELEASE_THRESHOLD => pool.threshold,
        RESERVED => pool.reserved.now,
        RESERVED_HIGH => pool.reserved.high,
        USED => pool.used.now,
        USED_HIGH => pool.used.high,
        _ => return Err(INVALID_VALUE),
    };
    unsafe { put(to, value) };
    Ok(())
}

unsafe fn set_attribute(handle: u64, which: i32, from: *const u64) -> Result<(), StatusCode> {
    let mut pools = pools();
    let pool = pools.by_handle.get_mut(&handle).filter(|_| !from.is_null()).ok_or(INVALID_VALUE)?;
    match which {
        FIRST_REUSE..=LAST_REUSE => {
            pool.reuse[(which - FIRST_REUSE) as usize] = unsafe { from.cast::<i32>().read() };
        }
        RELEASE_THRESHOLD => pool.threshold = unsafe { from.read() },
        // The highest values can only be reset.
        RESERVED_HIGH if unsafe { from.read() } == 0 => pool.reserved.high = pool.reserved.now,
        USED_HIGH if unsafe { from.read() } == 0 => pool.used.high = pool.used.now,
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

/// Start of `cudaMemPoolProps`.
#[repr(C)]
struct PoolProps {
    allocation_kind: i32,
    handle_types: i32,
    location: MemoryLocation,
}

runtime! {
    fn cudaMallocAsync(to: *mut u64, size: usize, _stream: u64) -> StatusCode {
        unsafe { allocate(to, size, None) }
    }

    fn cudaMallocFromPoolAsync(to: *mut u64, size: usize, pool: u64, _stream: u64) -> StatusCode {
        unsafe { allocate(to, size, Some(pool)) }
    }

    fn cudaFreeAsync(at: u64, _stream: u64) -> StatusCode {
        crate::memory::release(at)
    }

    fn cudaDeviceGetDefaultMemPool(to: *mut u64, device: i32) -> StatusCode {
        if !is_device(device) {
            return device::record_error(INVALID_DEVICE);
        }
        unsafe { put(to, FIRST_HANDLE + device as u64) };
        SUCCESS
    }

    fn cudaDeviceGetMemPool(to: *mut u64, device: i32) -> StatusCode {
        match pools().current.get(device as usize) {
            Some(&pool) => {
                unsafe { put(to, pool) };
                SUCCESS
            }
            None => device::record_error(INVALID_DEVICE),
        }
    }

    fn cudaDeviceSetMemPool(device: i32, pool: u64) -> StatusCode {
        let mut pools = pools();
        let is_of_device = pools.by_handle.get(&pool).is_some_and(|pool| pool.device == device);
        match pools.current.get_mut(device as usize).filter(|_| is_of_device) {
            Some(current) => {
                *current = pool;
                SUCCESS
            }
            None => device::record_error(INVALID_VALUE),
        }
    }

    fn cudaMemPoolCreate(to: *mut u64, props: *const PoolProps) -> StatusCode {
        let Some(props) = (unsafe { props.as_ref() }) else { return device::record_error(INVALID_VALUE) };
        let Some(device) = props.location.device() else {
            return device::record_error(notes::uncovered("cudaMemPoolCreate (host memory)", NOT_SUPPORTED));
        };
        if !is_device(device) {
            return device::record_error(INVALID_VALUE);
        }
        let mut pools = pools();
        let handle = pools.next_handle;
        pools.next_handle += 1;
        pools.by_handle.insert(handle, Pool::new(device));
        unsafe { put(to, handle) };
        SUCCESS
    }

    /// A real pool lives until its last block is freed; then its memory is returned.
    fn cudaMemPoolDestroy(pool: u64) -> StatusCode {
        let mut pools = pools();
        let is_default = pool < FIRST_HANDLE + card().devices as u64;
        if is_default || !pools.by_handle.contains_key(&pool) {
            return device::record_error(INVALID_VALUE);
        }
        pools.trim(pool, 0);
        match pools.by_handle.get_mut(&pool) {
            Some(left) if !left.blocks.is_empty() => left.threshold = 0,
            _ => drop(pools.by_handle.remove(&pool)),
        }
        for (current, default) in pools.current.iter_mut().zip(FIRST_HANDLE..) {
            if *current == pool {
                *current = default;
            }
        }
        SUCCESS
    }

    fn cudaMemPoolGetAttribute(pool: u64, which: i32, to: *mut u64) -> StatusCode {
        status(unsafe { attribute(pool, which, to) })
    }

    fn cudaMemPoolSetAttribute(pool: u64, which: i32, from: *const u64) -> StatusCode {
        status(unsafe { set_attribute(pool, which, from) })
    }

    fn cudaMemPoolTrimTo(pool: u64, keep: usize) -> StatusCode {
        pools().trim(pool, keep as u64);
        SUCCESS
    }

    fn cudaMemPoolGetAccess(to: *mut i32, pool: u64, location: *const MemoryLocation) -> StatusCode {
        const READ_AND_WRITE: i32 = 3;
        let pools = pools();
        let (Some(pool), Some(location)) = (pools.by_handle.get(&pool), unsafe { location.as_ref() }) else {
            return device::record_error(INVALID_VALUE);
        };
        let is_own = location.device() == Some(pool.device);
        unsafe { put(to, if is_own { READ_AND_WRITE } else { 0 }) };
        SUCCESS
    }
}

// Blocks are accessible from every device; memory of graphs is that of pools.
no_op! { runtime: cudaMemPoolSetAccess cudaDeviceGraphMemTrim }

/// For oomph's Python part: keeps a history of at most this many events from now on.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_pool_record(max_events: u64) {
    let mut pools = pools();
    pools.max_events = max_events as usize;
    pools.history.clear();
}

unsafe fn write_events(
    events: impl ExactSizeIterator<Item = PoolEvent>,
    to: *mut PoolEvent,
    room: u64,
) -> u64 {
    let count = events.len() as u64;
    for (index, event) in events.take(room as usize).enumerate() {
        unsafe { to.add(index).write(event) };
    }
    count
}

/// For oomph's Python part: copies up to `room` events of the history, and returns how many there are.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_pool_history(to: *mut PoolEvent, room: u64) -> u64 {
    unsafe { write_events(pools().history.iter().copied(), to, room) }
}

/// For oomph's Python part: copies up to `room` parts of the present state, and returns how many there are:
/// each chunk as it was added, followed by its blocks as they were allocated.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_pool_state(to: *mut PoolEvent, room: u64) -> u64 {
    let pools = pools();
    let mut parts = Vec::new();
    for pool in pools.by_handle.values() {
        let part =
            |action, address, size| PoolEvent { action, device: pool.device, address, size, time_us: 0 };
        for (&start, &size) in &pool.chunks {
            parts.push(part(PoolAction::AddChunk, start, size));
            let blocks = pool.blocks.range(start..start + size);
            parts.extend(blocks.map(|(&at, &size)| part(PoolAction::Allocate, at, size)));
        }
    }
    unsafe { write_events(parts.into_iter(), to, room) }
}

/// For oomph's Python part: the counters of a device.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_pool_counters(device: i32, to: *mut PoolCounters) {
    let counters = pools().counters.get(device as usize).copied().unwrap_or_default();
    unsafe { put(to, counters) };
}
