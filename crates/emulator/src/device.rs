//! Devices: the current device, device properties, and the runtime's error state.

use crate::card::card;
use crate::{INVALID_DEVICE, INVALID_VALUE, SUCCESS, StatusCode, contexts, pools, put};
use std::cell::Cell;
use std::ffi::{CStr, c_char};

/// Priority of streams that go first; the lowest is 0.
pub(crate) const HIGHEST_STREAM_PRIORITY: i32 = -5;

thread_local! {
    static CURRENT: Cell<i32> = const { Cell::new(0) };
    static LAST_ERROR: Cell<StatusCode> = const { Cell::new(SUCCESS) };
}

/// Current device of this thread.
pub(crate) fn current() -> i32 {
    CURRENT.get()
}

pub(crate) fn set_current(device: i32) {
    CURRENT.set(device);
}

/// Stores an error for `cudaGetLastError` and returns it.
pub(crate) fn record_error(status: StatusCode) -> StatusCode {
    LAST_ERROR.set(status);
    status
}

runtime_query! {
    fn cudaGetDeviceCount(to: *mut i32) -> StatusCode {
        unsafe { put(to, card().devices) };
        SUCCESS
    }
}

runtime_without_context! {
    fn cudaGetDevice(to: *mut i32) -> StatusCode {
        unsafe { put(to, current()) };
        SUCCESS
    }

    fn cudaSetDevice(device: i32) -> StatusCode {
        if device < 0 || device >= card().devices {
            return record_error(INVALID_DEVICE);
        }
        set_current(device);
        contexts::use_device();
        SUCCESS
    }

    fn cudaDeviceCanAccessPeer(to: *mut i32, _device: i32, _peer: i32) -> StatusCode {
        unsafe { put(to, 0) };
        SUCCESS
    }
}

runtime! {
    fn cudaDeviceSynchronize() -> StatusCode {
        pools::synchronize();
        SUCCESS
    }

    fn cudaDeviceEnablePeerAccess(_peer: i32, _flags: u32) -> StatusCode {
        SUCCESS
    }

    fn cudaDeviceGetStreamPriorityRange(lowest: *mut i32, highest: *mut i32) -> StatusCode {
        unsafe {
            put(lowest, 0);
            put(highest, HIGHEST_STREAM_PRIORITY);
        }
        SUCCESS
    }
}

/// PCI bus number of a device.
pub(crate) fn bus_of(device: i32) -> i32 {
    device + 1
}

/// PCI bus ID of a device, as text.
pub(crate) fn bus_id(device: i32) -> String {
    format!("0000:{:02X}:00.0", bus_of(device))
}

runtime_without_context! {
    fn cudaDeviceGetPCIBusId(to: *mut c_char, size: i32, device: i32) -> StatusCode {
        let text = bus_id(device);
        if size <= text.len() as i32 {
            return record_error(INVALID_VALUE);
        }
        unsafe {
            std::ptr::copy(text.as_ptr().cast(), to, text.len());
            to.add(text.len()).write(0);
        }
        SUCCESS
    }
}

runtime_query! {
    /// Reports a driver just new enough for the runtime that this PyTorch was built with.
    fn cudaDriverGetVersion(to: *mut i32) -> StatusCode {
        unsafe { put(to, runtime_version()) };
        SUCCESS
    }
}

/// Version of the real runtime, which it knows without a driver. The function is found in the global scope
/// because this library does not define it; `RTLD_NEXT` does not find libraries loaded later.
pub(crate) fn runtime_version() -> i32 {
    type Ask = unsafe extern "C" fn(*mut i32) -> StatusCode;
    let mut version = 0;
    let ask = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cudaRuntimeGetVersion".as_ptr()) };
    if !ask.is_null() {
        unsafe { std::mem::transmute::<*mut libc::c_void, Ask>(ask)(&raw mut version) };
    }
    if version == 0 { 13000 } else { version }
}

runtime_query! {
    fn cudaGetLastError() -> StatusCode {
        LAST_ERROR.replace(SUCCESS)
    }

    fn cudaPeekAtLastError() -> StatusCode {
        LAST_ERROR.get()
    }
}

/// Names of an error in the runtime and in the driver, and its description.
pub(crate) struct ErrorTexts {
    pub(crate) runtime: &'static CStr,
    pub(crate) driver: &'static CStr,
    pub(crate) description: &'static CStr,
}

/// Names and description of the errors that the emulator returns.
pub(crate) fn error_texts(status: StatusCode) -> ErrorTexts {
    let (runtime, driver, description) = match status {
        0 => (c"cudaSuccess", c"CUDA_SUCCESS", c"no error"),
        1 => (c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        101 => (c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        201 => (c"cudaErrorDeviceUninitialized", c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        400 => (c"cudaErrorInvalidResourceHandle", c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        500 => (c"cudaErrorSymbolNotFound", c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        600 => (c"cudaErrorNotReady", c"CUDA_ERROR_NOT_READY", c"device not ready"),
        800 => (c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
        801 => (
            c"cudaErrorNotSupported",
            c"CUDA_ERROR_NOT_SUPPORTED",
            c"operation not supported (on oomph's emulated GPU)",
        ),
        900 => (
            c"cudaErrorStreamCaptureUnsupported",
            c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            c"operation not permitted when stream is capturing",
        ),
        901 => (
            c"cudaErrorStreamCaptureInvalidated",
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation record_error due to a previous error during capture",
        ),
        _ => (c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"unknown error (on oomph's emulated GPU)"),
    };
    ErrorTexts { runtime, driver, description }
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(status: StatusCode) -> *const c_char {
    error_texts(status).runtime.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(status: StatusCode) -> *const c_char {
    error_texts(status).description.as_ptr()
}

/// Device attribute; `cudaDeviceGetAttribute` and `cuDeviceGetAttribute` use the same numbers.
pub(crate) fn attribute(which: i32) -> i32 {
    let card = card();
    match which {
        1..=3 => 1024,      // threads per block, block dimensions
        4 => 64,            // z of a block
        5 | 11 => i32::MAX, // x of a grid, pitch
        6 | 7 => 65535,     // y and z of a grid
        8 => 48 << 10,      // shared memory per block
        9 => 64 << 10,      // constant memory
        10 => 32,           // warp
        12 | 82 => 65536,   // registers per block and per multiprocessor
        13 => card.clock_khz,
        14 => 512, // texture alignment
        16 => card.multiprocessors,
        33 => bus_of(current()),
        36 => card.memory_clock_khz,
        37 => card.bus_bits,
        38 => card.l2,
        39 => card.threads_per_multiprocessor,
        40 => 3,  // copy engines
        51 => 32, // texture pitch alignment
        75 => card.major,
        76 => card.minor,
        81 => card.shared_per_multiprocessor,
        97 => card.shared_per_block_optin,
        106 => card.blocks_per_multiprocessor,
        111 => reserved_shared(),
        120 => i32::from(card.major >= 9), // clusters
        // Overlap, mapped host memory, concurrent kernels, unified addresses, stream priorities, caches,
        // managed memory, preemption, cooperative launch, host registration, virtual memory, memory pools,
        // IPC events.
        15 | 19 | 31 | 41 | 78..=80 | 83 | 89 | 90 | 95 | 99 | 102 | 103 | 115 | 125 => 1,
        _ => 0,
    }
}

/// Bytes of shared memory that the driver reserves in each block.
pub(crate) fn reserved_shared() -> i32 {
    if card().major >= 8 { 1024 } else { 0 }
}

runtime_without_context! {
    fn cudaDeviceGetAttribute(to: *mut i32, which: i32, device: i32) -> StatusCode {
        if device < 0 || device >= card().devices {
            return record_error(INVALID_DEVICE);
        }
        unsafe { put(to, attribute(which)) };
        SUCCESS
    }
}

/// Consecutive fields of a C structure.
struct StructBytes(Vec<u8>);

impl StructBytes {
    fn ints(&mut self, values: &[i32]) {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    fn zeros(&mut self, count: usize) {
        self.ints(&vec![0; count]);
    }

    fn size(&mut self, value: u64) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
    }
}

/// `cudaDeviceProp`, up to the reserved fields at its end. CUDA 13 removed eight fields of CUDA 12.
fn properties(device: i32, is_cuda12: bool) -> Vec<u8> {
    let card = card();
    let mut to = StructBytes(Vec::with_capacity(1024));
    let old = |to: &mut StructBytes, value: i32| {
        if is_cuda12 {
            to.ints(&[value]);
        }
    };
    to.0.extend(card.name.bytes().take(255));
    to.0.resize(256, 0);
    to.0.extend(uuid(device));
    to.zeros(3); // luid and its mask
    to.size(card.memory);
    to.size(attribute(8) as u64);
    to.ints(&[attribute(12), 32]); // registers, warp
    to.size(attribute(11) as u64);
    to.ints(&[1024, 1024, 1024, 64, i32::MAX, 65535, 65535]); // threads, block, grid
    old(&mut to, card.clock_khz);
    to.size(attribute(9) as u64);
    to.ints(&[card.major, card.minor]);
    to.size(attribute(14) as u64);
    to.size(attribute(51) as u64);
    old(&mut to, 1); // overlap
    to.ints(&[card.multiprocessors]);
    old(&mut to, 0); // timeout of kernels
    to.ints(&[0, 1]); // integrated, maps host memory
    old(&mut to, 0); // compute mode
    to.zeros(2); // textures from here on
    old(&mut to, 0);
    to.zeros(37);
    to.size(512); // surfaces
    // Concurrent kernels, ECC, bus, device, domain, TCC, copy engines, unified addresses.
    to.ints(&[1, 0, bus_of(device), 0, 0, 0, 3, 1]);
    old(&mut to, card.memory_clock_khz);
    to.ints(&[card.bus_bits, card.l2, 0, card.threads_per_multiprocessor, 1, 1, 1]);
    to.size(card.shared_per_multiprocessor as u64);
    to.ints(&[65536, 1, 0, 0, 0]); // registers, managed, boards, native atomics
    old(&mut to, 2); // single to double
    // Pageable access, managed access, preemption, host pointers, cooperative launch.
    to.ints(&[0, 1, 1, 0, 1]);
    old(&mut to, 1); // on several devices
    to.size(card.shared_per_block_optin as u64);
    to.ints(&[0, 0, card.blocks_per_multiprocessor, 0]);
    to.size(reserved_shared() as u64);
    // Host registration … memory pools … IPC events, clusters.
    to.ints(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, attribute(120), 0]);
    to.0
}

/// UUID that no real device has.
pub(crate) fn uuid(device: i32) -> [u8; 16] {
    let mut uuid = *b"oomph-emulator00";
    uuid[15] += device as u8;
    uuid
}

unsafe fn write_properties(to: *mut u8, device: i32, is_cuda12: bool) -> StatusCode {
    if device < 0 || device >= card().devices {
        return record_error(INVALID_DEVICE);
    }
    let bytes = properties(device, is_cuda12);
    unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
    SUCCESS
}

runtime_query! {
    /// CUDA 13.
    fn cudaGetDeviceProperties(to: *mut u8, device: i32) -> StatusCode {
        unsafe { write_properties(to, device, false) }
    }

    /// CUDA 12.
    fn cudaGetDeviceProperties_v2(to: *mut u8, device: i32) -> StatusCode {
        unsafe { write_properties(to, device, true) }
    }
}

runtime_query! {
    fn cudaProfilerStart() -> StatusCode {
        SUCCESS
    }

    fn cudaProfilerStop() -> StatusCode {
        SUCCESS
    }
}
