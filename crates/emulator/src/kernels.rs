//! Kernels: they are registered, configured and launched, but do nothing.

use crate::card::card;
use crate::memory::record_kernel_launch;
use crate::{SUCCESS, StatusCode, device, graphs, put};
use std::cell::RefCell;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

/// Launch configuration, between `<<<` and `>>>`.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: u64,
}

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_binary: u64) -> *mut u64 {
    static HANDLE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    HANDLE.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_handle: u64) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: u64) -> i8 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: u64) -> u32 {
    CONFIGURATIONS.with_borrow_mut(|all| all.push(Configuration { grid, block, shared, stream }));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut u64,
) -> StatusCode {
    if let Some(last) = CONFIGURATIONS.with_borrow_mut(Vec::pop) {
        unsafe {
            put(grid, last.grid);
            put(block, last.block);
            put(shared, last.shared);
            put(stream, last.stream);
        }
    }
    SUCCESS
}

runtime! {
    fn __cudaGetKernel(to: *mut u64, function: u64) -> StatusCode {
        unsafe { put(to, function) };
        SUCCESS
    }
}

/// Defines functions that launch a kernel, whatever their arguments.
macro_rules! launches {
    ($($name:ident)*) => {
        runtime! {
            $(fn $name() -> StatusCode {
                graphs::record_work();
                record_kernel_launch();
                SUCCESS
            })*
        }
    };
}

launches! { __cudaLaunchKernel cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel }

/// `cudaFuncAttributes`, up to its reserved fields.
#[repr(C)]
struct FunctionAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    most_threads: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
    cache_mode: i32,
    most_dynamic_shared: i32,
    carveout: i32,
}

/// Registers per thread reported for any kernel: a medium number.
pub(crate) const REGISTERS_PER_THREAD: i32 = 32;

/// Architecture of the code that runs on this card. PyTorch's wheels contain code for 8.6 and 10.0, but not
/// for 8.9 and 10.3.
pub(crate) fn binary_version() -> i32 {
    match (card().major, card().minor) {
        (8, 9) => 86,
        (10, _) => 100,
        (major, minor) => major * 10 + minor,
    }
}

runtime! {
    fn cudaFuncGetAttributes(to: *mut FunctionAttributes, _function: u64) -> StatusCode {
        let attributes = FunctionAttributes {
            shared: 0,
            constant: 0,
            local: 0,
            most_threads: 1024,
            registers: REGISTERS_PER_THREAD,
            ptx_version: binary_version(),
            binary_version: binary_version(),
            cache_mode: 0,
            most_dynamic_shared: card().shared_per_block_optin,
            carveout: -1,
        };
        unsafe { put(to, attributes) };
        SUCCESS
    }
}

no_op! { runtime: cudaFuncSetAttribute }

/// Number of blocks of a kernel that fit on a multiprocessor, by threads and shared memory.
pub(crate) fn occupancy(threads: i32, shared: usize) -> i32 {
    let card = card();
    let by_threads = card.threads_per_multiprocessor / threads.max(1);
    let by_shared = match shared {
        0 => i32::MAX,
        bytes => card.shared_per_multiprocessor / (bytes as i32).saturating_add(device::reserved_shared()),
    };
    by_threads.min(by_shared).min(card.blocks_per_multiprocessor).max(1)
}

runtime! {
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        to: *mut i32,
        _function: u64,
        threads: i32,
        shared: usize,
        _flags: u32,
    ) -> StatusCode {
        unsafe { put(to, occupancy(threads, shared)) };
        SUCCESS
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut i32,
        _function: u64,
        threads: i32,
        shared: usize,
    ) -> StatusCode {
        unsafe { put(to, occupancy(threads, shared)) };
        SUCCESS
    }
}
