//! Managed memory: `cudaMallocManaged`, which the host and all devices address alike.
//!
//! The driver moves its pages to where they are used. Kernels do nothing here, so pages are counted on a
//! device only where the program has prefetched them.

use crate::card::card;
use crate::memory::memory;
use crate::{INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, StatusCode, device, notes, put, space};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Range of managed memory.
struct ManagedRange {
    size: u64,
    /// Device that was current when it was allocated.
    device: i32,
    /// Device that the range was last prefetched to, and how many bytes of it are there.
    resident: Option<(i32, u64)>,
}

/// Ranges by their starts.
static RANGES: Mutex<BTreeMap<u64, ManagedRange>> = Mutex::new(BTreeMap::new());

fn ranges() -> MutexGuard<'static, BTreeMap<u64, ManagedRange>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Device of managed memory at an address.
pub(crate) fn device_of(at: u64) -> Option<i32> {
    let ranges = ranges();
    let (&start, range) = ranges.range(..=at).next_back()?;
    (at < start + range.size).then_some(range.device)
}

/// Frees a range; returns whether there is one at this address.
pub(crate) fn free(at: u64) -> bool {
    let Some(range) = ranges().remove(&at) else { return false };
    if let Some((device, bytes)) = range.resident {
        memory().release_non_pytorch(device, bytes);
    }
    space::unmap(at, range.size);
    true
}

/// Moves `size` bytes at an address to a device; to the host without one.
fn prefetch(at: u64, size: u64, device: Option<i32>) -> StatusCode {
    if device.is_some_and(|device| !(0..card().devices).contains(&device)) {
        return INVALID_DEVICE;
    }
    let mut ranges = ranges();
    let Some((&start, range)) = ranges.range_mut(..=at).next_back() else { return INVALID_VALUE };
    if at >= start + range.size || size > start + range.size - at {
        return INVALID_VALUE;
    }
    // Which pages move is not tracked: a range is where its last prefetch has put it.
    let before = range.resident.take();
    if let Some((device, bytes)) = before {
        memory().release_non_pytorch(device, bytes);
    }
    range.resident = device.map(|device| {
        let there = before.filter(|(before, _)| *before == device).map_or(0, |(_, bytes)| bytes);
        let mut memory = memory();
        // More than a device has room for stays on the host.
        let bytes = size.max(there).min(memory.free_and_total(device).0);
        memory.take_non_pytorch(device, bytes);
        (device, bytes)
    });
    SUCCESS
}

/// `cudaMemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryLocation {
    kind: i32,
    device: i32,
}

impl MemoryLocation {
    const DEVICE: i32 = 1;
    /// Number of the host among devices, before CUDA 13.
    const HOST: i32 = -1;

    /// MemoryLocation in an argument, which before CUDA 13 is the number of a device.
    fn from_argument(argument: u64) -> MemoryLocation {
        let (low, high) = (argument as i32, (argument >> 32) as i32);
        if device::runtime_version() >= 13000 {
            return MemoryLocation { kind: low, device: high };
        }
        MemoryLocation { kind: if low == Self::HOST { 0 } else { Self::DEVICE }, device: low }
    }

    /// Device, unless the location is the host.
    pub(crate) fn device(self) -> Option<i32> {
        (self.kind == Self::DEVICE).then_some(self.device)
    }
}

fn allocate(to: *mut u64, size: u64) -> StatusCode {
    if to.is_null() || size == 0 {
        return INVALID_VALUE;
    }
    let Some(at) = space::map_host(size) else { return OUT_OF_MEMORY };
    notes::modeled("managed memory (counted on the GPU only where the program prefetches it)");
    ranges().insert(at, ManagedRange { size, device: device::current(), resident: None });
    unsafe { put(to, at) };
    SUCCESS
}

fn recorded(status: StatusCode) -> StatusCode {
    if status == SUCCESS { status } else { device::record_error(status) }
}

runtime! {
    fn cudaMallocManaged(to: *mut u64, size: usize, _flags: u32) -> StatusCode {
        recorded(allocate(to, size as u64))
    }

    fn cudaMemPrefetchAsync(at: u64, size: usize, to: u64) -> StatusCode {
        recorded(prefetch(at, size as u64, MemoryLocation::from_argument(to).device()))
    }

    /// CUDA 12.2 and later.
    fn cudaMemPrefetchAsync_v2(at: u64, size: usize, to: MemoryLocation) -> StatusCode {
        recorded(prefetch(at, size as u64, to.device()))
    }

    /// Advice about where pages should be has no effect.
    fn cudaMemAdvise(at: u64, _size: usize) -> StatusCode {
        recorded(if device_of(at).is_some() { SUCCESS } else { INVALID_VALUE })
    }

    fn cudaMemAdvise_v2(at: u64, size: usize) -> StatusCode {
        unsafe { cudaMemAdvise(at, size) }
    }
}

driver_in_context! {
    fn cuMemAllocManaged(to: *mut u64, size: usize, _flags: u32) -> StatusCode {
        allocate(to, size as u64)
    }

    fn cuMemPrefetchAsync(at: u64, size: usize, to: u64) -> StatusCode {
        prefetch(at, size as u64, MemoryLocation::from_argument(to).device())
    }

    fn cuMemPrefetchAsync_v2(at: u64, size: usize, to: MemoryLocation) -> StatusCode {
        prefetch(at, size as u64, to.device())
    }
}
