//! Memory use of a device, in total and by process.

use super::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, SUCCESS, StatusCode, index};
use crate::card::card;
use crate::memory::memory;

/// `nvmlMemory_t`.
#[repr(C)]
pub(super) struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

impl NvmlMemory {
    pub(super) fn of(device: i32) -> NvmlMemory {
        let (free, total) = memory().free_and_total(device);
        NvmlMemory { total, free, used: total - free }
    }

    /// Window through which the host sees the memory: all of it, rounded to a power of two.
    pub(super) fn bar1() -> NvmlMemory {
        let total = card().memory.next_power_of_two();
        NvmlMemory { total, free: total, used: 0 }
    }
}

/// `nvmlMemory_v2_t`, in which the caller has filled in the version.
#[repr(C)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: u64, to: *mut MemoryV2) -> StatusCode {
    let (Some(device), false) = (index(handle), to.is_null()) else { return INVALID_ARGUMENT };
    let NvmlMemory { total, free, used } = NvmlMemory::of(device);
    unsafe {
        let version = (*to).version;
        to.write(MemoryV2 { version, total, reserved: 0, free, used });
    }
    SUCCESS
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
struct NvmlProcess {
    id: u32,
    used: u64,
}

/// `nvmlProcessInfo_t` since its second version.
#[repr(C)]
struct ProcessV2 {
    id: u32,
    used: u64,
    instance: u32,
    compute_instance: u32,
}

/// Instance ID of a process that does not run in a MIG instance.
const NO_INSTANCE: u32 = u32::MAX;

/// Lists the processes that use memory: this one. Only the total is known for the others.
unsafe fn processes<T>(
    handle: u64,
    count: *mut u32,
    to: *mut T,
    entry: impl Fn(u32, u64) -> T,
) -> StatusCode {
    let (Some(device), false) = (index(handle), count.is_null()) else { return INVALID_ARGUMENT };
    let used = NvmlMemory::of(device).used.saturating_sub(card().others);
    unsafe {
        let room = count.replace(1);
        if room == 0 || to.is_null() {
            return INSUFFICIENT_SIZE;
        }
        to.write(entry(std::process::id(), used));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    handle: u64,
    count: *mut u32,
    to: *mut NvmlProcess,
) -> StatusCode {
    unsafe { processes(handle, count, to, |id, used| NvmlProcess { id, used }) }
}

/// Later versions, whose structures do not differ in the fields filled in here.
macro_rules! later_versions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: u64, count: *mut u32, to: *mut ProcessV2) -> StatusCode {
            let entry =
                |id, used| ProcessV2 { id, used, instance: NO_INSTANCE, compute_instance: NO_INSTANCE };
            unsafe { processes(handle, count, to, entry) }
        }
    )*};
}

later_versions! { nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetComputeRunningProcesses_v3 }

/// Lists of processes that are always empty: graphics, and multi-process service.
macro_rules! no_processes {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: u64, count: *mut u32, _to: u64) -> StatusCode {
            if index(handle).is_none() || count.is_null() {
                return INVALID_ARGUMENT;
            }
            unsafe { count.write(0) };
            SUCCESS
        }
    )*};
}

no_processes! {
    nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetGraphicsRunningProcesses_v2
    nvmlDeviceGetGraphicsRunningProcesses_v3
    nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2
    nvmlDeviceGetMPSComputeRunningProcesses_v3
}
