//! Memory in use on a device, before and after a call.
//!
//! Calls of several threads at the same time cannot be told apart: a window that overlaps another is not
//! used.
//! No lock is held during a call: one thread's free may wait for a kernel that waits for another thread.

use crate::calls::driver_function;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static STARTED: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_MEASURING: Cell<bool> = const { Cell::new(false) };
}

/// What a call has changed.
pub(crate) struct Change {
    /// Device of the calling thread's context.
    pub device: i32,
    /// Bytes that are in use since then; `None` if another thread's call may have changed them.
    pub bytes: Option<i64>,
}

/// Makes a call, and tells what it has changed if the device is known.
pub(crate) fn around(call: impl FnOnce() -> i32) -> (i32, Option<Change>) {
    around_with(in_context, call)
}

/// The same for calls that create or drop contexts, without which the driver does not answer.
pub(crate) fn around_context(device: i32, call: impl FnOnce() -> i32) -> (i32, Option<Change>) {
    let before = by_nvml(device);
    let (status, change) = around_with(|| Some((device, 0)), call);
    // Other processes come and go, so the process's own figure is better; some containers hide it.
    let bytes = before.zip(by_nvml(device)).map(|(before, after)| {
        if after.process > 0 { after.process - before.process } else { after.device - before.device }
    });
    (status, change.map(|change| Change { bytes: change.bytes.and(bytes), ..change }))
}

fn around_with(ask: impl Fn() -> Option<(i32, i64)>, call: impl FnOnce() -> i32) -> (i32, Option<Change>) {
    if IS_MEASURING.replace(true) {
        return (call(), None);
    }
    let before = ask();
    let started = STARTED.fetch_add(1, Ordering::SeqCst);
    let was_alone = started == ENDED.load(Ordering::SeqCst);
    let status = call();
    ENDED.fetch_add(1, Ordering::SeqCst);
    let is_alone = was_alone && STARTED.load(Ordering::SeqCst) == started + 1;
    let after = ask();
    IS_MEASURING.set(false);
    let change = after.or(before).map(|(device, _)| Change {
        device,
        bytes: before.zip(after).filter(|_| is_alone).map(|((_, before), (_, after))| after - before),
    });
    (status, change)
}

/// Marks a call that changes memory and is counted by its size, so that it does not count for another one.
pub(crate) fn beside(call: impl FnOnce() -> i32) -> i32 {
    STARTED.fetch_add(1, Ordering::SeqCst);
    let status = call();
    ENDED.fetch_add(1, Ordering::SeqCst);
    status
}

/// Returns the device of the calling thread's context.
pub(crate) fn device() -> Option<i32> {
    type AskDevice = unsafe extern "C" fn(*mut i32) -> i32;
    static ASK: OnceLock<Option<AskDevice>> = OnceLock::new();
    let ask = (*ASK.get_or_init(|| unsafe { driver_function(c"cuCtxGetDevice") }))?;
    let mut device = 0;
    (unsafe { ask(&raw mut device) } == 0).then_some(device)
}

/// Returns the device of the calling thread's context, and its memory in use.
fn in_context() -> Option<(i32, i64)> {
    type AskMemory = unsafe extern "C" fn(*mut usize, *mut usize) -> i32;
    type ExchangeMode = unsafe extern "C" fn(*mut i32) -> i32;
    static ASK: OnceLock<Option<AskMemory>> = OnceLock::new();
    static EXCHANGE: OnceLock<Option<ExchangeMode>> = OnceLock::new();
    const RELAXED: i32 = 2;
    let device = device()?;
    let ask = (*ASK.get_or_init(|| unsafe { driver_function(c"cuMemGetInfo_v2") }))?;
    let exchange = *EXCHANGE.get_or_init(|| unsafe { driver_function(c"cuThreadExchangeStreamCaptureMode") });
    let (mut free, mut total, mut mode) = (0, 0, RELAXED);
    // While a stream is captured, a call that its mode forbids would end the capture.
    let exchanged = exchange.is_some_and(|exchange| unsafe { exchange(&raw mut mode) } == 0);
    let status = unsafe { ask(&raw mut free, &raw mut total) };
    if let (Some(exchange), true) = (exchange, exchanged) {
        unsafe { exchange(&raw mut mode) };
    }
    (status == 0).then_some((device, total as i64 - free as i64))
}

/// Memory in use on a device, by NVML.
struct Used {
    device: i64,
    /// Of this process; 0 if it is not listed.
    process: i64,
}

/// A process on a device, as `nvmlDeviceGetComputeRunningProcesses_v3` lists it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ListedProcess {
    pid: u32,
    bytes: u64,
    instance: u32,
    compute_instance: u32,
}

#[derive(Clone, Copy)]
struct Nvml {
    handle: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> i32,
    memory: unsafe extern "C" fn(*mut c_void, *mut [u64; 3]) -> i32,
    processes: Option<unsafe extern "C" fn(*mut c_void, *mut u32, *mut ListedProcess) -> i32>,
}

impl Nvml {
    fn load() -> Option<Nvml> {
        type Init = unsafe extern "C" fn() -> i32;
        unsafe {
            let library = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY);
            let init: Init = function_of(library, c"nvmlInit_v2")?;
            (init() == 0).then_some(())?;
            Some(Nvml {
                handle: function_of(library, c"nvmlDeviceGetHandleByPciBusId_v2")?,
                memory: function_of(library, c"nvmlDeviceGetMemoryInfo")?,
                processes: function_of(library, c"nvmlDeviceGetComputeRunningProcesses_v3"),
            })
        }
    }

    fn own_bytes(&self, handle: *mut c_void) -> i64 {
        const MAX_PROCESSES: usize = 256;
        const UNKNOWN: u64 = u64::MAX;
        let mut found = [ListedProcess::default(); MAX_PROCESSES];
        let mut count = MAX_PROCESSES as u32;
        let is_listed = self
            .processes
            .is_some_and(|list| unsafe { list(handle, &raw mut count, found.as_mut_ptr()) } == 0);
        let listed = &found[..if is_listed { (count as usize).min(MAX_PROCESSES) } else { 0 }];
        let own = listed.iter().find(|process| process.pid == std::process::id() && process.bytes != UNKNOWN);
        own.map_or(0, |process| process.bytes as i64)
    }
}

/// Asks NVML, which needs no context.
fn by_nvml(device: i32) -> Option<Used> {
    type BusId = unsafe extern "C" fn(*mut c_char, i32, i32) -> i32;
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = (*NVML.get_or_init(Nvml::load))?;
    let bus_id_of: BusId = unsafe { driver_function(c"cuDeviceGetPCIBusId") }?;
    let mut bus_id: [c_char; 32] = [0; 32];
    let mut handle = ptr::null_mut();
    let mut memory = [0; 3];
    let is_known = unsafe {
        bus_id_of(bus_id.as_mut_ptr(), bus_id.len() as i32, device) == 0
            && (nvml.handle)(bus_id.as_ptr(), &raw mut handle) == 0
            && (nvml.memory)(handle, &raw mut memory) == 0
    };
    let [_, _, used] = memory;
    is_known.then(|| Used { device: used as i64, process: nvml.own_bytes(handle) })
}

/// Returns a function of a library.
///
/// # Safety
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn function_of<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    assert!(size_of::<F>() == size_of::<*mut c_void>());
    if library.is_null() {
        return None;
    }
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
