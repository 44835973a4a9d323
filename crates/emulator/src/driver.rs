//! The driver's public functions, for callers that look them up by name: NVRTC's loader, cuDNN's compiled
//! engines, Triton.
//!
//! Modules, kernels and links are handles with nothing behind them. `cuGetExportTable` is refused: it leads
//! to undocumented tables, among them the check that NVIDIA's own runtime uses to verify that the driver is
//! genuine.

use crate::card::card;
use crate::kernels::{REGISTERS_PER_THREAD, binary_version, occupancy};
use crate::macros::HANDLE;
use crate::memory::MANAGED;
use crate::{INVALID_DEVICE, NOT_FOUND, SUCCESS, StatusCode, device, process, put};
use std::ffi::{CStr, c_char, c_void};

no_op! { driver:
    cuFuncSetAttribute cuFuncSetCacheConfig cuKernelSetAttribute
    cuLibraryUnload cuModuleUnload cuLinkAddData_v2 cuLinkDestroy
    cuTensorMapEncodeTiled cuTensorMapEncodeIm2col
}

does_work! { driver_in_context: cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel }

no_op! { cuLogsUnregisterCallback }

returns_handle! { driver:
    cuModuleGetFunction cuLibraryLoadData cuLibraryLoadFromFile cuLibraryGetKernel
}

returns_handle! { driver_in_context:
    cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuLibraryGetModule cuKernelGetFunction
}

entry_points! { process::initialize_driver();
    fn cuInit(_flags: u32) -> StatusCode {
        SUCCESS
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(to: *mut i32) -> StatusCode {
    unsafe { put(to, device::runtime_version()) };
    SUCCESS
}

driver! {
    fn cuDeviceGetCount(to: *mut i32) -> StatusCode {
        unsafe { put(to, card().devices) };
        SUCCESS
    }

    fn cuDeviceGet(to: *mut i32, index: i32) -> StatusCode {
        if index < 0 || index >= card().devices {
            return INVALID_DEVICE;
        }
        unsafe { put(to, index) };
        SUCCESS
    }

    fn cuDeviceGetAttribute(to: *mut i32, which: i32, _device: i32) -> StatusCode {
        unsafe { put(to, device::attribute(which)) };
        SUCCESS
    }

    fn cuDeviceGetName(to: *mut c_char, size: i32, _device: i32) -> StatusCode {
        let name = card().name.bytes().take((size - 1).max(0) as usize);
        for (at, byte) in name.chain([0]).enumerate() {
            unsafe { put(to.add(at), byte as c_char) };
        }
        SUCCESS
    }

    fn cuDeviceTotalMem_v2(to: *mut usize, _device: i32) -> StatusCode {
        unsafe { put(to, card().memory as usize) };
        SUCCESS
    }
}

driver_in_context! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> StatusCode {
        unsafe { crate::memory::cudaMemGetInfo(free, total) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(status: StatusCode, to: *mut *const c_char) -> StatusCode {
    unsafe { put(to, device::error_texts(status).description.as_ptr()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(status: StatusCode, to: *mut *const c_char) -> StatusCode {
    unsafe { put(to, device::error_texts(status).driver.as_ptr()) };
    SUCCESS
}

fn function_attribute(which: i32) -> i32 {
    match which {
        0 => 1024, // threads per block
        4 => REGISTERS_PER_THREAD,
        5 | 6 => binary_version(),
        8 => card().shared_per_block_optin,
        _ => 0,
    }
}

driver! {
    fn cuFuncGetAttribute(to: *mut i32, which: i32, _function: u64) -> StatusCode {
        unsafe { put(to, function_attribute(which)) };
        SUCCESS
    }

    fn cuKernelGetAttribute(to: *mut i32, which: i32, _kernel: u64, _device: i32) -> StatusCode {
        unsafe { put(to, function_attribute(which)) };
        SUCCESS
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut i32,
        _function: u64,
        threads: i32,
        shared: usize,
    ) -> StatusCode {
        unsafe { put(to, occupancy(threads, shared)) };
        SUCCESS
    }

    /// Number of blocks in a cluster.
    fn cuOccupancyMaxPotentialClusterSize(
        to: *mut i32,
        _function: u64,
        _configuration: u64,
    ) -> StatusCode {
        unsafe { put(to, 8) };
        SUCCESS
    }

    fn cuOccupancyMaxActiveClusters(
        to: *mut i32,
        _function: u64,
        _configuration: u64,
    ) -> StatusCode {
        unsafe { put(to, card().multiprocessors / 2) };
        SUCCESS
    }
}

driver_in_context! {
    fn cuLinkCreate_v2(_count: u32, _options: u64, _values: u64, to: *mut u64) -> StatusCode {
        unsafe { put(to, HANDLE) };
        SUCCESS
    }
}

driver! {
    /// Image that a link would produce.
    fn cuLinkComplete(_link: u64, image: *mut *const u8, size: *mut usize) -> StatusCode {
        static IMAGE: [u8; 16] = [0; 16];
        unsafe {
            put(image, IMAGE.as_ptr());
            put(size, IMAGE.len());
        }
        SUCCESS
    }
}

/// The driver's log, which PyTorch reads for the reason of an error; it is always empty.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLogsRegisterCallback(_call: u64, _data: u64, to: *mut u64) -> StatusCode {
    unsafe { put(to, HANDLE) };
    SUCCESS
}

driver! {
    /// Callers only ask for the kind of memory.
    fn cuPointerGetAttribute(to: *mut u64, which: i32, at: u64) -> StatusCode {
        const MEMORY_TYPE: i32 = 2;
        const IS_MANAGED: i32 = 8;
        const DEVICE_ORDINAL: i32 = 9;
        const DEVICE_MEMORY: u32 = 2;
        let (kind, device) = crate::memory::kind_of(at);
        unsafe {
            match which {
                // To the driver, managed memory is device memory.
                MEMORY_TYPE if kind == MANAGED => put(to.cast::<u32>(), DEVICE_MEMORY),
                MEMORY_TYPE => put(to.cast::<u32>(), kind as u32),
                IS_MANAGED => put(to.cast::<u32>(), u32::from(kind == MANAGED)),
                DEVICE_ORDINAL => put(to.cast::<i32>(), device),
                _ => put(to, at),
            }
        }
        SUCCESS
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetExportTable(to: *mut u64, _id: u64) -> StatusCode {
    unsafe { put(to, 0) };
    NOT_FOUND
}

/// NVIDIA's own static runtimes would continue from here to the tables above; nothing else needs it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    _name: u64,
    to: *mut u64,
    _version: i32,
    _flags: u64,
    status: *mut i32,
) -> StatusCode {
    const SYMBOL_NOT_FOUND: i32 = 1;
    unsafe {
        put(to, 0);
        put(status, SYMBOL_NOT_FOUND);
    }
    NOT_FOUND
}

/// Looks up one of the emulator's own driver functions by name.
fn lookup(name: &CStr) -> *mut c_void {
    let mut own: libc::Dl_info = unsafe { std::mem::zeroed() };
    let found = unsafe { libc::dladdr(cuInit as *const c_void, &raw mut own) };
    if found == 0 {
        return std::ptr::null_mut();
    }
    let library = unsafe { libc::dlopen(own.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return std::ptr::null_mut();
    }
    // Try versions of a function first, newest first.
    let text = name.to_string_lossy();
    [text.to_string(), format!("{text}_v2")]
        .iter()
        .filter_map(|spelling| std::ffi::CString::new(spelling.as_str()).ok())
        .map(|spelling| unsafe { libc::dlsym(library, spelling.as_ptr()) })
        .find(|function| {
            let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
            // A library's handle also finds what its dependencies define.
            !function.is_null()
                && unsafe { libc::dladdr(*function, &raw mut info) } != 0
                && info.dli_fbase == own.dli_fbase
        })
        .unwrap_or(std::ptr::null_mut())
}

runtime_without_context! {
    fn cudaGetDriverEntryPointByVersion(
        name: *const c_char,
        to: *mut *mut c_void,
        _version: u32,
        _flags: u64,
        status: *mut i32,
    ) -> StatusCode {
        const FOUND: i32 = 0;
        const SYMBOL_NOT_FOUND: i32 = 1;
        let name = unsafe { CStr::from_ptr(name) };
        let function = lookup(name);
        let function = if function.is_null() { crate::uncovered::entry_point(name) } else { function };
        unsafe {
            put(to, function);
            put(status, if function.is_null() { SYMBOL_NOT_FOUND } else { FOUND });
        }
        SUCCESS
    }

    fn cudaGetDriverEntryPoint(
        name: *const c_char,
        to: *mut *mut c_void,
        flags: u64,
        status: *mut i32,
    ) -> StatusCode {
        unsafe { cudaGetDriverEntryPointByVersion(name, to, 0, flags, status) }
    }
}
