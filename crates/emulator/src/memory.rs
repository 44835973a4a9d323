//! Device memory and pinned memory: how much is in use, and where.
//!
//! Device addresses are addresses of the process ([`crate::space`]), so that they can store small values.

use crate::addresses::{Addresses, SEGMENT_ALIGNMENT};
use crate::card::card;
use crate::space::{self, Mapped, virtual_range};
use crate::{
    INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, StatusCode, device, managed, pools, process, put, values,
};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) struct Memory {
    devices: Vec<DeviceMemory>,
    /// Pinned host memory and registered host memory: start → end, and whether this library mapped it.
    pinned: BTreeMap<u64, (u64, bool)>,
    /// Start of the next range of virtual memory.
    virtual_next: u64,
    /// Ranges of virtual memory that were given back, by their start, with their sizes.
    virtual_free: BTreeMap<u64, u64>,
    /// Physical memory by handle.
    physical: BTreeMap<u64, PhysicalMemory>,
    next_handle: u64,
}

/// Physical memory from `cuMemCreate`.
#[derive(Clone, Copy)]
pub(crate) struct PhysicalMemory {
    pub(crate) device: i32,
    /// Bytes; none if the memory is another process's.
    pub(crate) size: u64,
    /// Whether it is symmetric memory, and so not the caching allocator's.
    pub(crate) is_symmetric: bool,
}

#[derive(Default)]
struct DeviceMemory {
    /// Addresses of the device; the context exists from the first use of the device on.
    addresses: Option<Addresses<Mapped>>,
    /// Bytes of segments and of physical memory, rounded to the driver's granularity.
    used: u64,
    /// Bytes of non-PyTorch memory: the context, libraries and symmetric memory.
    non_pytorch: u64,
    /// Bytes of symmetric memory.
    symmetric: u64,
    libraries: Vec<Library>,
}

pub(crate) fn memory() -> MutexGuard<'static, Memory> {
    static MEMORY: OnceLock<Mutex<Memory>> = OnceLock::new();
    MEMORY
        .get_or_init(|| {
            Mutex::new(Memory {
                devices: (0..card().devices).map(|_| DeviceMemory::default()).collect(),
                pinned: BTreeMap::new(),
                virtual_next: virtual_range().0,
                virtual_free: BTreeMap::new(),
                physical: BTreeMap::new(),
                next_handle: 1,
            })
        })
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Takes bytes of free device memory; returns whether enough was free.
    pub(crate) fn take(&mut self, device: i32, size: u64) -> bool {
        let free = self.free_of(device, card().capacity.unwrap_or(card().memory));
        let enough = size.next_multiple_of(SEGMENT_ALIGNMENT) <= free;
        if enough && let Some(memory) = self.devices.get_mut(device as usize) {
            memory.used += size.next_multiple_of(SEGMENT_ALIGNMENT);
        }
        enough
    }

    pub(crate) fn release(&mut self, device: i32, size: u64) {
        if let Some(memory) = self.devices.get_mut(device as usize) {
            memory.used = memory.used.saturating_sub(size.next_multiple_of(SEGMENT_ALIGNMENT));
        }
    }

    /// Takes a segment of device memory; `None` if there is not enough.
    pub(crate) fn place_segment(&mut self, device: i32, size: u64) -> Option<u64> {
        // The context comes first, because it takes memory as well.
        self.addresses(device)?;
        self.take(device, size).then(|| self.addresses(device)?.place(size)).flatten()
    }

    /// Gives a segment of device memory back; returns whether there is one at this address.
    pub(crate) fn release_segment(&mut self, at: u64) -> bool {
        let device = self.device_of(at).unwrap_or(-1);
        let Some(end) = self.addresses(device).and_then(|addresses| addresses.release(at)) else {
            return false;
        };
        self.release(device, end - at);
        if self.device_of(at).is_some() {
            discard(at, end - at);
        } else {
            values::forget(at, end - at);
        }
        true
    }

    /// Counts bytes of a device as memory outside of PyTorch's.
    pub(crate) fn take_non_pytorch(&mut self, device: i32, bytes: u64) {
        if self.addresses(device).is_some() {
            self.devices[device as usize].non_pytorch += bytes;
        }
    }

    pub(crate) fn release_non_pytorch(&mut self, device: i32, bytes: u64) {
        if let Some(device) = self.devices.get_mut(device as usize) {
            device.non_pytorch -= bytes;
        }
    }

    /// Bytes of the segment that starts at an address.
    pub(crate) fn segment_size(&self, at: u64) -> Option<u64> {
        self.devices.iter().find_map(|memory| memory.addresses.as_ref()?.size_of(at))
    }

    pub(crate) fn free_and_total(&self, device: i32) -> (u64, u64) {
        let total = card().memory;
        (self.free_of(device, total), total)
    }

    fn free_of(&self, device: i32, total: u64) -> u64 {
        let mine = self.devices.get(device as usize).map_or(0, |memory| memory.used + memory.non_pytorch);
        total.saturating_sub(card().others + mine)
    }

    /// Addresses of a device; the first use creates its context.
    fn addresses(&mut self, device: i32) -> Option<&mut Addresses<Mapped>> {
        let memory = self.devices.get_mut(device as usize)?;
        Some(memory.addresses.get_or_insert_with(|| {
            memory.non_pytorch += card().context;
            Addresses::new(Mapped::default())
        }))
    }

    /// Device whose memory contains an address.
    fn device_of(&self, at: u64) -> Option<i32> {
        let (low, high) = virtual_range();
        if (low..high).contains(&at) {
            return Some(device::current());
        }
        let holds =
            |memory: &DeviceMemory| memory.addresses.as_ref().is_some_and(|addresses| addresses.contains(at));
        self.devices.iter().position(holds).map(|device| device as i32)
    }

    /// Reserves address space without memory: new space as long as there is some, then the lowest range that
    /// was given back and is large enough.
    pub(crate) fn reserve_virtual(&mut self, size: u64) -> Option<u64> {
        let size = size.checked_next_multiple_of(VIRTUAL_UNIT)?;
        let at = self.virtual_next;
        let next = at.checked_add(size)?;
        if next <= virtual_range().1 {
            self.virtual_next = next;
            return Some(at);
        }
        let (&at, &free) = self.virtual_free.iter().find(|&(_, &free)| free >= size)?;
        self.virtual_free.remove(&at);
        if free > size {
            self.virtual_free.insert(at + size, free - size);
        }
        Some(at)
    }

    /// Physical memory with this handle.
    pub(crate) fn physical(&self, handle: u64) -> Option<PhysicalMemory> {
        self.physical.get(&handle).copied()
    }

    /// Adds physical memory, which has been taken; returns its handle.
    pub(crate) fn add_physical(&mut self, physical: PhysicalMemory) -> u64 {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.physical.insert(handle, physical);
        handle
    }

    /// Gives physical memory back; returns whether it exists.
    pub(crate) fn release_physical(&mut self, handle: u64) -> bool {
        let Some(physical) = self.physical.remove(&handle) else { return false };
        match self.devices.get_mut(physical.device as usize) {
            Some(device) if physical.is_symmetric => {
                device.non_pytorch -= physical.size;
                device.symmetric -= physical.size;
            }
            _ => self.release(physical.device, physical.size),
        }
        true
    }

    /// Counts physical memory as symmetric memory, outside of PyTorch's.
    pub(crate) fn make_symmetric(&mut self, handle: u64) {
        let Some(physical) = self.physical.get_mut(&handle).filter(|physical| !physical.is_symmetric) else {
            return;
        };
        physical.is_symmetric = true;
        let PhysicalMemory { device, size, .. } = *physical;
        self.release(device, size);
        if let Some(device) = self.devices.get_mut(device as usize) {
            device.non_pytorch += size;
            device.symmetric += size;
        }
    }

    /// Gives reserved address space back.
    pub(crate) fn free_virtual(&mut self, at: u64, size: u64) {
        let Some(mut size) = size.checked_next_multiple_of(VIRTUAL_UNIT) else { return };
        let mut at = at;
        if let Some(after) = self.virtual_free.remove(&(at + size)) {
            size += after;
        }
        if let Some((&before, &free)) = self.virtual_free.range(..at).next_back()
            && before + free == at
        {
            (at, size) = (before, free + size);
        }
        self.virtual_free.insert(at, size);
    }
}

/// Address ranges are multiples of this, in bytes.
const VIRTUAL_UNIT: u64 = 1 << 30;

/// Library that takes device memory with its first handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    Cublas,
    Cudnn,
}

/// Takes a library's memory with its first handle on the current device; returns whether the driver allows
/// the handle.
pub(crate) fn take_library_memory(library: Library) -> bool {
    if process::runtime_refusal().is_some() {
        return false;
    }
    let device = device::current();
    let mut memory = memory();
    if memory.addresses(device).is_none() {
        return true;
    }
    let memory = &mut memory.devices[device as usize];
    if memory.libraries.contains(&library) {
        return true;
    }
    memory.libraries.push(library);
    memory.non_pytorch += match library {
        Library::Cublas => card().cublas,
        Library::Cudnn => card().cudnn,
    };
    // cuBLAS takes its memory in one piece, like a segment; cuDNN's was never observed among segments.
    if library == Library::Cublas
        && let Some(addresses) = &mut memory.addresses
    {
        addresses.place(CUBLAS_SEGMENT_BYTES);
    }
    true
}

/// Takes memory of the current device for a library's own buffers.
pub(crate) fn take_outside(bytes: u64) {
    memory().take_non_pytorch(device::current(), bytes);
}

/// Bytes of cuBLAS memory that are placed among segments.
const CUBLAS_SEGMENT_BYTES: u64 = 64 << 20;

/// Records a kernel launch on the current device.
pub(crate) fn record_kernel_launch() {
    static LAUNCHED: AtomicU32 = AtomicU32::new(0);
    let device = device::current();
    let bit = 1u32.checked_shl(device as u32).unwrap_or(0);
    if LAUNCHED.load(Relaxed) & bit == 0 {
        LAUNCHED.fetch_or(bit, Relaxed);
        if let Some(addresses) = memory().addresses(device) {
            addresses.record_first_kernel();
        }
    }
}

pub(crate) fn is_device(at: u64) -> bool {
    memory().device_of(at).is_some()
}

pub(crate) fn allocate(size: u64) -> Result<u64, StatusCode> {
    let place = memory().place_segment(device::current(), size);
    place.ok_or_else(|| device::record_error(OUT_OF_MEMORY))
}

/// Frees memory of any kind.
pub(crate) fn release(at: u64) -> StatusCode {
    if at == 0 || pools::free(at) || managed::free(at) || memory().release_segment(at) {
        return SUCCESS;
    }
    device::record_error(INVALID_VALUE)
}

/// Discards the contents of freed memory.
pub(crate) fn discard(at: u64, size: u64) {
    values::forget(at, size);
    unsafe { libc::madvise(at as *mut c_void, size as usize, libc::MADV_DONTNEED) };
}

runtime! {
    fn cudaMalloc(to: *mut u64, size: usize) -> StatusCode {
        match allocate(size as u64) {
            Ok(at) => {
                unsafe { put(to, at) };
                SUCCESS
            }
            Err(status) => status,
        }
    }

    fn cudaFree(at: u64) -> StatusCode {
        release(at)
    }

    pub(crate) fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> StatusCode {
        let device = device::current();
        let mut memory = memory();
        memory.addresses(device);
        let (free_bytes, total_bytes) = memory.free_and_total(device);
        unsafe {
            put(free, free_bytes as usize);
            put(total, total_bytes as usize);
        }
        SUCCESS
    }
}

/// Bytes of symmetric memory on all devices of the process, for oomph's Python part.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_symmetric() -> u64 {
    memory().devices.iter().map(|memory| memory.symmetric).sum()
}

/// Bytes of non-PyTorch memory (context, libraries, symmetric memory) on a device, for oomph's Python part.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_outside(device: i32) -> u64 {
    memory().devices.get(device as usize).map_or(0, |memory| memory.non_pytorch)
}

runtime! {
    fn cudaHostAlloc(to: *mut u64, size: usize, _flags: u32) -> StatusCode {
        let Some(at) = space::map_host(size as u64) else { return device::record_error(OUT_OF_MEMORY) };
        memory().pinned.insert(at, (at + size.max(1) as u64, true));
        unsafe { put(to, at) };
        SUCCESS
    }

    fn cudaMallocHost(to: *mut u64, size: usize) -> StatusCode {
        unsafe { cudaHostAlloc(to, size, 0) }
    }

    fn cudaFreeHost(at: u64) -> StatusCode {
        match memory().pinned.remove(&at) {
            Some((end, true)) => {
                space::unmap(at, end - at);
                SUCCESS
            }
            _ if at == 0 => SUCCESS,
            _ => device::record_error(INVALID_VALUE),
        }
    }

    fn cudaHostRegister(at: u64, size: usize, _flags: u32) -> StatusCode {
        memory().pinned.insert(at, (at + size as u64, false));
        SUCCESS
    }

    fn cudaHostUnregister(at: u64) -> StatusCode {
        memory().pinned.remove(&at);
        SUCCESS
    }

    fn cudaHostGetDevicePointer(to: *mut u64, at: u64, _flags: u32) -> StatusCode {
        unsafe { put(to, at) };
        SUCCESS
    }
}

/// `struct cudaPointerAttributes`.
#[repr(C)]
struct PointerAttributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
}

/// Managed memory, as a `cudaMemoryType`.
pub(crate) const MANAGED: i32 = 3;

/// Kind of memory at an address, as a `cudaMemoryType`, and its device.
pub(crate) fn kind_of(at: u64) -> (i32, i32) {
    if let Some(device) = managed::device_of(at) {
        return (MANAGED, device);
    }
    let memory = memory();
    if let Some(device) = memory.device_of(at) {
        return (2, device);
    }
    let is_pinned = memory.pinned.range(..=at).next_back().is_some_and(|(_, (end, _))| at < *end);
    if is_pinned { (1, device::current()) } else { (0, -2) }
}

runtime! {
    fn cudaPointerGetAttributes(to: *mut PointerAttributes, at: u64) -> StatusCode {
        let (kind, device) = kind_of(at);
        let device_pointer = if kind == 0 { 0 } else { at };
        let host_pointer = if kind == 2 { 0 } else { at };
        unsafe { put(to, PointerAttributes { kind, device, device_pointer, host_pointer }) };
        SUCCESS
    }
}
