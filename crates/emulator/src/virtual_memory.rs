//! The driver's virtual memory, from which expandable segments are made: address ranges, physical memory,
//! mappings.

use crate::memory::{discard, memory};
use crate::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, StatusCode, put};

/// Start of `CUmemAllocationProp`.
#[repr(C)]
struct AllocationProp {
    kind: i32,
    handle_types: i32,
    location_kind: i32,
    device: i32,
}

/// Handle type for sharing between machines, which needs hardware that a card alone does not have.
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
        let handle = memory.next_handle;
        memory.next_handle += 1;
        memory.physical.insert(handle, (prop.device, size as u64));
        unsafe { put(to, handle) };
        SUCCESS
    }

    fn cuMemRelease(handle: u64) -> StatusCode {
        let mut memory = memory();
        match memory.physical.remove(&handle) {
            Some((device, size)) => {
                memory.release(device, size);
                SUCCESS
            }
            None => INVALID_VALUE,
        }
    }

    fn cuMemMap(_at: u64, _size: usize, _offset: usize, handle: u64, _flags: u64) -> StatusCode {
        if memory().physical.contains_key(&handle) { SUCCESS } else { INVALID_VALUE }
    }

    fn cuMemUnmap(at: u64, size: usize) -> StatusCode {
        discard(at, size as u64);
        SUCCESS
    }

    fn cuMemSetAccess(_at: u64, _size: usize, _access: u64, _count: usize) -> StatusCode {
        SUCCESS
    }

    /// Sharing memory between processes by handle is not supported.
    fn cuMemExportToShareableHandle(_to: u64, _handle: u64, _kind: i32, _flags: u64) -> StatusCode {
        crate::notes::uncovered("cuMemExportToShareableHandle", NOT_SUPPORTED)
    }

    fn cuMemImportFromShareableHandle(_to: u64, _handle: u64, _kind: i32) -> StatusCode {
        crate::notes::uncovered("cuMemImportFromShareableHandle", NOT_SUPPORTED)
    }
}
