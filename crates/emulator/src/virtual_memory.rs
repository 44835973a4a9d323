//! The driver's virtual memory, from which expandable segments and symmetric memory are made: address ranges,
//! physical memory, mappings.

use crate::memory::{PhysicalMemory, discard, memory};
use crate::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, StatusCode, put};

/// Start of `CUmemAllocationProp`.
#[repr(C)]
struct AllocationProp {
    kind: i32,
    handle_types: i32,
    location_kind: i32,
    device: i32,
}

/// Handle types: for sharing between processes, a file descriptor; and between machines, which needs hardware
/// that a card alone does not have.
const DESCRIPTOR_HANDLE_TYPE: i32 = 1;
const FABRIC_HANDLE_TYPE: i32 = 8;
const NOT_PERMITTED: StatusCode = 800;

/// Allocation granularity in bytes; PyTorch's segments are multiples of it.
const GRANULARITY_BYTES: usize = 2 << 20;

driver! {
    fn cuMemGetAllocationGranularity(
        to: *mut usize,
        _prop: *const AllocationProp,
        _kind: i32,
    ) -> StatusCode {
        unsafe { put(to, GRANULARITY_BYTES) };
        SUCCESS
    }

    fn cuMemAddressReserve(
        to: *mut u64,
        size: usize,
        _align: usize,
        _at: u64,
        _flags: u64,
    ) -> StatusCode {
        match memory().reserve_virtual(size as u64) {
            Some(at) => {
                unsafe { put(to, at) };
                SUCCESS
            }
            None => OUT_OF_MEMORY,
        }
    }

    fn cuMemAddressFree(at: u64, size: usize) -> StatusCode {
        discard(at, size as u64);
        memory().free_virtual(at, size as u64);
        SUCCESS
    }

    fn cuMemCreate(
        to: *mut u64,
        size: usize,
        prop: *const AllocationProp,
        _flags: u64,
    ) -> StatusCode {
        if prop.is_null() || !size.is_multiple_of(GRANULARITY_BYTES) {
            return INVALID_VALUE;
        }
        let prop = unsafe { &*prop };
        if prop.handle_types == FABRIC_HANDLE_TYPE {
            return NOT_PERMITTED;
        }
        let mut memory = memory();
        if !memory.take(prop.device, size as u64) {
            return OUT_OF_MEMORY;
        }
        let owned = PhysicalMemory { device: prop.device, size: size as u64, is_symmetric: false };
        unsafe { put(to, memory.add_physical(owned)) };
        SUCCESS
    }

    fn cuMemRelease(handle: u64) -> StatusCode {
        if memory().release_physical(handle) { SUCCESS } else { INVALID_VALUE }
    }

    fn cuMemMap(_at: u64, _size: usize, _offset: usize, handle: u64, _flags: u64) -> StatusCode {
        if memory().physical(handle).is_some() { SUCCESS } else { INVALID_VALUE }
    }

    fn cuMemUnmap(at: u64, size: usize) -> StatusCode {
        discard(at, size as u64);
        SUCCESS
    }

    fn cuMemSetAccess(_at: u64, _size: usize, _access: u64, _count: usize) -> StatusCode {
        SUCCESS
    }

    /// Memory that is shared with other processes is symmetric memory. The descriptor says its size; no
    /// process sees what another one has written.
    fn cuMemExportToShareableHandle(to: *mut i32, handle: u64, kind: i32, _flags: u64) -> StatusCode {
        if kind != DESCRIPTOR_HANDLE_TYPE {
            return crate::notes::uncovered("cuMemExportToShareableHandle", NOT_SUPPORTED);
        }
        let mut memory = memory();
        let Some(physical) = memory.physical(handle) else { return INVALID_VALUE };
        let file = unsafe { libc::memfd_create(c"oomph-symmetric-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return OUT_OF_MEMORY;
        }
        if unsafe { libc::ftruncate(file, physical.size as i64) } != 0 {
            unsafe { libc::close(file) };
            return OUT_OF_MEMORY;
        }
        memory.make_symmetric(handle);
        unsafe { put(to, file) };
        SUCCESS
    }

    /// The memory is another process's: it takes none of this one's.
    fn cuMemImportFromShareableHandle(to: *mut u64, file: u64, kind: i32) -> StatusCode {
        if kind != DESCRIPTOR_HANDLE_TYPE {
            return crate::notes::uncovered("cuMemImportFromShareableHandle", NOT_SUPPORTED);
        }
        let imported = PhysicalMemory { device: crate::device::current(), size: 0, is_symmetric: true };
        if unsafe { libc::fcntl(file as i32, libc::F_GETFD) } < 0 {
            return INVALID_VALUE;
        }
        unsafe { put(to, memory().add_physical(imported)) };
        SUCCESS
    }
}
