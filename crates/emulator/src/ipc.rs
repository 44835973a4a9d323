//! Memory and events shared between processes: `torch.multiprocessing` with CUDA tensors.
//!
//! A handle says which process owns the memory and how large it is. A process that opens it gets addresses of
//! the same size, which take no device memory; what the owner has written there is not known to it.

use crate::memory::{discard, memory};
use crate::streams::CudaEvent;
use crate::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, StatusCode, device, put,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`: 64 bytes that only the emulator reads.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle {
    magic: u64,
    process: u64,
    address: u64,
    size: u64,
    rest: [u64; 4],
}

const MEMORY_MAGIC: u64 = u64::from_le_bytes(*b"oomphmem");
const EVENT_MAGIC: u64 = u64::from_le_bytes(*b"oomphevt");

impl IpcHandle {
    fn new(magic: u64, address: u64, size: u64) -> IpcHandle {
        IpcHandle { magic, process: u64::from(std::process::id()), address, size, rest: [0; 4] }
    }

    /// Refuses handles that are not of this kind, and those of this process, as a driver does.
    fn refusal(&self, magic: u64) -> Option<StatusCode> {
        if self.magic != magic {
            return Some(INVALID_HANDLE);
        }
        (self.process == u64::from(std::process::id())).then_some(INVALID_CONTEXT)
    }
}

/// Opened memory: start → size.
fn opened() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    static OPENED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

runtime! {
    fn cudaIpcGetMemHandle(to: *mut IpcHandle, at: u64) -> StatusCode {
        match memory().segment_size(at) {
            Some(size) => {
                unsafe { put(to, IpcHandle::new(MEMORY_MAGIC, at, size)) };
                SUCCESS
            }
            None => device::record_error(INVALID_VALUE),
        }
    }

    fn cudaIpcOpenMemHandle(to: *mut u64, handle: IpcHandle, _flags: u32) -> StatusCode {
        if let Some(status) = handle.refusal(MEMORY_MAGIC) {
            return device::record_error(status);
        }
        let Some(at) = memory().reserve_virtual(handle.size) else {
            return device::record_error(OUT_OF_MEMORY);
        };
        opened().insert(at, handle.size);
        unsafe { put(to, at) };
        SUCCESS
    }

    fn cudaIpcCloseMemHandle(at: u64) -> StatusCode {
        let Some(size) = opened().remove(&at) else { return device::record_error(INVALID_VALUE) };
        discard(at, size);
        memory().free_virtual(at, size);
        SUCCESS
    }

    fn cudaIpcGetEventHandle(to: *mut IpcHandle, event: *const CudaEvent) -> StatusCode {
        if event.is_null() {
            return device::record_error(INVALID_HANDLE);
        }
        unsafe { put(to, IpcHandle::new(EVENT_MAGIC, event as u64, 0)) };
        SUCCESS
    }

    /// Work completes immediately, so an event of another process is complete.
    fn cudaIpcOpenEventHandle(to: *mut *mut CudaEvent, handle: IpcHandle) -> StatusCode {
        if let Some(status) = handle.refusal(EVENT_MAGIC) {
            return device::record_error(status);
        }
        unsafe { put(to, CudaEvent::completed()) };
        SUCCESS
    }
}
