//! NVML (`libnvidia-ml.so.1`): the number of devices and their memory use.
//!
//! PyTorch queries the number of devices and, when memory runs out, the processes that use it; programs query
//! what `nvidia-smi` shows. Values that have no meaning without a card, such as its utilization, are those of
//! an idle card.

mod memory;
mod unsupported;

use crate::card::{CardProperties, card};
use crate::{StatusCode, device, put};
use memory::NvmlMemory;
use std::ffi::{CStr, c_char};

const SUCCESS: StatusCode = 0;
const INVALID_ARGUMENT: StatusCode = 2;
const NOT_SUPPORTED: StatusCode = 3;
const NOT_FOUND: StatusCode = 6;
const INSUFFICIENT_SIZE: StatusCode = 7;

/// Handle of device 0; those of other devices follow. None is null.
const FIRST_HANDLE: u64 = 0x5000_0000;

no_op! { nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown }

/// Device of a handle.
fn index(handle: u64) -> Option<i32> {
    (0..card().devices).find(|&device| handle == FIRST_HANDLE + device as u64)
}

/// Writes a text and its terminating zero.
unsafe fn put_text(to: *mut c_char, size: u32, text: &str) -> StatusCode {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() >= size as usize {
        return INSUFFICIENT_SIZE;
    }
    unsafe {
        std::ptr::copy(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(status: StatusCode) -> *const c_char {
    let text: &CStr = match status {
        SUCCESS => c"Success",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// A driver version that fits the runtime; NVIDIA numbers drivers separately.
const DRIVER_VERSION: &str = "580.00.00";

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, size: u32) -> StatusCode {
    unsafe { put_text(to, size, DRIVER_VERSION) }
}

/// Functions that return a number of the system.
macro_rules! system_queries {
    ($($name:ident = $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(to: *mut i32) -> StatusCode {
            unsafe { put(to, $answer) };
            SUCCESS
        }
    )*};
}

/// Functions that return a property of a device, some with a further argument.
macro_rules! device_queries {
    ($($name:ident($($which:ident)?) -> $type:ty = |$device:pat_param| $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: u64, $($which: i32,)? to: *mut $type) -> StatusCode {
            let Some($device) = index(handle) else { return INVALID_ARGUMENT };
            unsafe { put(to, $answer) };
            SUCCESS
        }
    )*};
}

const KHZ_PER_MHZ: i32 = 1000;

/// Values of an idle card: milliwatts, degrees Celsius, and the lowest performance state.
const IDLE_POWER_MW: i32 = 70_000;
const POWER_LIMIT_MW: i32 = 700_000;
const IDLE_TEMPERATURE_C: i32 = 30;
const IDLE_PERFORMANCE_STATE: i32 = 8;

system_queries! {
    nvmlSystemGetCudaDriverVersion = device::runtime_version();
    nvmlSystemGetCudaDriverVersion_v2 = device::runtime_version();
    nvmlUnitGetCount = 0;
    nvmlGetExcludedDeviceCount = 0;
    nvmlDeviceGetCount = card().devices;
    nvmlDeviceGetCount_v2 = card().devices;
}

device_queries! {
    nvmlDeviceGetIndex() -> i32 = |device| device;
    nvmlDeviceGetMinorNumber() -> i32 = |device| device;
    nvmlDeviceGetBrand() -> i32 = |_| brand(card());
    nvmlDeviceGetArchitecture() -> i32 = |_| architecture(card());
    nvmlDeviceGetNumGpuCores() -> i32 = |_| card().multiprocessors * cores_per_multiprocessor(card());
    nvmlDeviceGetMemoryBusWidth() -> i32 = |_| card().bus_bits;
    nvmlDeviceGetBoardId() -> i32 = |device| device::bus_of(device) << 8;
    nvmlDeviceGetMultiGpuBoard() -> i32 = |_| 0;
    nvmlDeviceGetComputeMode() -> i32 = |_| 0;
    nvmlDeviceGetPersistenceMode() -> i32 = |_| 0;
    nvmlDeviceGetDisplayMode() -> i32 = |_| 0;
    nvmlDeviceGetDisplayActive() -> i32 = |_| 0;
    nvmlDeviceGetVirtualizationMode() -> i32 = |_| 0;
    nvmlDeviceGetMaxMigDeviceCount() -> i32 = |_| 0;
    nvmlDeviceIsMigDeviceHandle() -> i32 = |_| 0;
    nvmlDeviceGetCurrPcieLinkGeneration() -> i32 = |_| pcie_generation(card());
    nvmlDeviceGetMaxPcieLinkGeneration() -> i32 = |_| pcie_generation(card());
    nvmlDeviceGetGpuMaxPcieLinkGeneration() -> i32 = |_| pcie_generation(card());
    nvmlDeviceGetCurrPcieLinkWidth() -> i32 = |_| PCIE_LANES;
    nvmlDeviceGetMaxPcieLinkWidth() -> i32 = |_| PCIE_LANES;
    nvmlDeviceGetPcieThroughput(_counter) -> i32 = |_| 0;
    nvmlDeviceGetPcieReplayCounter() -> i32 = |_| 0;
    nvmlDeviceGetCurrentClocksThrottleReasons() -> u64 = |_| IDLE_CLOCKS;
    nvmlDeviceGetCurrentClocksEventReasons() -> u64 = |_| IDLE_CLOCKS;
    nvmlDeviceGetSupportedClocksThrottleReasons() -> u64 = |_| IDLE_CLOCKS;
    nvmlDeviceGetSupportedClocksEventReasons() -> u64 = |_| IDLE_CLOCKS;
    nvmlDeviceGetPowerManagementDefaultLimit() -> i32 = |_| POWER_LIMIT_MW;
    nvmlDeviceGetPowerState() -> i32 = |_| IDLE_PERFORMANCE_STATE;
    nvmlDeviceGetApplicationsClock(which) -> i32 = |_| clock(which);
    nvmlDeviceGetDefaultApplicationsClock(which) -> i32 = |_| clock(which);
    nvmlDeviceGetMaxCustomerBoostClock(which) -> i32 = |_| clock(which);
    nvmlDeviceGetBAR1MemoryInfo() -> NvmlMemory = |_| NvmlMemory::bar1();
    nvmlDeviceGetPowerUsage() -> i32 = |_| IDLE_POWER_MW;
    nvmlDeviceGetEnforcedPowerLimit() -> i32 = |_| POWER_LIMIT_MW;
    nvmlDeviceGetPowerManagementLimit() -> i32 = |_| POWER_LIMIT_MW;
    nvmlDeviceGetPerformanceState() -> i32 = |_| IDLE_PERFORMANCE_STATE;
    nvmlDeviceGetTemperature(_sensor) -> i32 = |_| IDLE_TEMPERATURE_C;
    nvmlDeviceGetClockInfo(which) -> i32 = |_| clock(which);
    nvmlDeviceGetMaxClockInfo(which) -> i32 = |_| clock(which);
    nvmlDeviceGetUtilizationRates() -> Utilization = |_| Utilization { kernels: 0, memory: 0 };
    nvmlDeviceGetMemoryInfo() -> NvmlMemory = |device| NvmlMemory::of(device);
    nvmlDeviceGetPciInfo_v3() -> PciInfo = |device| PciInfo::of(device);
}

const PCIE_LANES: i32 = 16;

/// `nvmlClocksEventReasonGpuIdle`.
const IDLE_CLOCKS: u64 = 1;

/// `nvmlBrandType_t`.
fn brand(card: &CardProperties) -> i32 {
    const TESLA: i32 = 2;
    const GEFORCE: i32 = 5;
    const NVIDIA_RTX: i32 = 13;
    const NVIDIA: i32 = 14;
    [("Tesla", TESLA), ("GeForce", GEFORCE), ("RTX", NVIDIA_RTX)]
        .into_iter()
        .find_map(|(word, brand)| card.name.contains(word).then_some(brand))
        .unwrap_or(NVIDIA)
}

/// `nvmlDeviceArchitecture_t`.
fn architecture(card: &CardProperties) -> i32 {
    match (card.major, card.minor) {
        (7, 5) => 6, // Turing
        (7, _) => 5, // Volta
        (8, 9) => 8, // Ada
        (8, _) => 7, // Ampere
        (9, _) => 9, // Hopper
        _ => 10,     // Blackwell
    }
}

/// Single-precision cores of a multiprocessor.
fn cores_per_multiprocessor(card: &CardProperties) -> i32 {
    if matches!((card.major, card.minor), (7, _) | (8, 0)) { 64 } else { 128 }
}

fn pcie_generation(card: &CardProperties) -> i32 {
    match card.major {
        7 => 3,
        8 => 4,
        _ => 5,
    }
}

/// Functions that return two numbers of a device.
macro_rules! device_pairs {
    ($($name:ident = $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: u64, first: *mut i32, second: *mut i32) -> StatusCode {
            if index(handle).is_none() {
                return INVALID_ARGUMENT;
            }
            let (one, two): (i32, i32) = $answer;
            unsafe {
                put(first, one);
                put(second, two);
            }
            SUCCESS
        }
    )*};
}

// Video engines have a utilization and the microseconds over which it was sampled.
device_pairs! {
    nvmlDeviceGetCudaComputeCapability = (card().major, card().minor);
    nvmlDeviceGetPowerManagementLimitConstraints = (POWER_LIMIT_MW, POWER_LIMIT_MW);
    nvmlDeviceGetEncoderUtilization = (0, 0);
    nvmlDeviceGetDecoderUtilization = (0, 0);
    nvmlDeviceGetJpgUtilization = (0, 0);
    nvmlDeviceGetOfaUtilization = (0, 0);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClock(handle: u64, which: i32, _kind: i32, to: *mut i32) -> StatusCode {
    unsafe { nvmlDeviceGetClockInfo(handle, which, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(to: *mut c_char, size: u32) -> StatusCode {
    let cuda_major = device::runtime_version() / 1000;
    unsafe { put_text(to, size, &format!("{cuda_major}.{DRIVER_VERSION}")) }
}

/// Command of a process, as far as there is room.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(process: u32, to: *mut c_char, size: u32) -> StatusCode {
    let Ok(command) = std::fs::read(format!("/proc/{process}/cmdline")) else { return NOT_FOUND };
    let program =
        String::from_utf8_lossy(command.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned();
    let room = (size as usize).saturating_sub(1).min(program.len());
    let end = (0..=room).rev().find(|&end| program.is_char_boundary(end)).unwrap_or_default();
    unsafe { put_text(to, size, &program[..end]) }
}

/// `nvmlUtilization_t`: percentage of time in which kernels and copies ran.
#[repr(C)]
struct Utilization {
    kernels: u32,
    memory: u32,
}

/// Clock of graphics, multiprocessors, memory or video, in MHz; all except memory run at the card's clock.
fn clock(which: i32) -> i32 {
    const MEMORY: i32 = 2;
    (if which == MEMORY { card().memory_clock_khz } else { card().clock_khz }) / KHZ_PER_MHZ
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, to: *mut u64) -> StatusCode {
    if index >= card().devices as u32 {
        return INVALID_ARGUMENT;
    }
    unsafe { put(to, FIRST_HANDLE + u64::from(index)) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex(index: u32, to: *mut u64) -> StatusCode {
    unsafe { nvmlDeviceGetHandleByIndex_v2(index, to) }
}

/// Finds the device that a text names, by one of its names.
unsafe fn by_text(text: *const c_char, to: *mut u64, name: impl Fn(i32) -> String) -> StatusCode {
    if text.is_null() {
        return INVALID_ARGUMENT;
    }
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().to_uppercase();
    // A bus ID may have a domain of four or of eight digits.
    match (0..card().devices).find(|&device| text.ends_with(&name(device).to_uppercase())) {
        Some(device) => unsafe { nvmlDeviceGetHandleByIndex_v2(device as u32, to) },
        None => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, to: *mut u64) -> StatusCode {
    unsafe { by_text(bus_id, to, device::bus_id) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut u64) -> StatusCode {
    unsafe { by_text(uuid, to, uuid_of) }
}

/// UUID as text, from the same bytes as in `cudaDeviceProp`.
fn uuid_of(device: i32) -> String {
    let hex: String = device::uuid(device).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(handle: u64, to: *mut c_char, size: u32) -> StatusCode {
    index(handle).map_or(INVALID_ARGUMENT, |device| unsafe { put_text(to, size, &uuid_of(device)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(handle: u64, to: *mut c_char, size: u32) -> StatusCode {
    index(handle).map_or(INVALID_ARGUMENT, |_| unsafe { put_text(to, size, &card().name) })
}

/// `nvmlTemperature_v1_t`, in which the caller has filled in everything except the answer.
#[repr(C)]
struct Temperature {
    version: u32,
    sensor: u32,
    degrees: i32,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperatureV(handle: u64, to: *mut Temperature) -> StatusCode {
    if index(handle).is_none() || to.is_null() {
        return INVALID_ARGUMENT;
    }
    unsafe { (*to).degrees = IDLE_TEMPERATURE_C };
    SUCCESS
}

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy_bus_id: [c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_and_vendor: u32,
    subsystem: u32,
    bus_id: [c_char; 32],
}

impl PciInfo {
    fn of(device: i32) -> PciInfo {
        const NVIDIA: u32 = 0x10de;
        let text = device::bus_id(device);
        let mut info = PciInfo {
            legacy_bus_id: [0; 16],
            domain: 0,
            bus: device::bus_of(device) as u32,
            device: 0,
            device_and_vendor: NVIDIA,
            subsystem: NVIDIA,
            bus_id: [0; 32],
        };
        unsafe {
            put_text(info.legacy_bus_id.as_mut_ptr(), info.legacy_bus_id.len() as u32, &text);
            put_text(info.bus_id.as_mut_ptr(), info.bus_id.len() as u32, &format!("0000{text}"));
        }
        info
    }
}

/// The part of `nvmlGpuFabricInfo_v2_t` that both versions share; the caller has filled in the version.
#[repr(C)]
struct FabricInfo {
    version: u32,
    cluster: [u8; 16],
    status: StatusCode,
    clique: u32,
    state: u8,
}

/// PyTorch asks whether the card belongs to a fabric of several machines.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(handle: u64, to: *mut FabricInfo) -> StatusCode {
    const NO_FABRIC: u8 = 0;
    if index(handle).is_none() || to.is_null() {
        return INVALID_ARGUMENT;
    }
    unsafe {
        let version = (*to).version;
        to.write(FabricInfo { version, cluster: [0; 16], status: SUCCESS, clique: 0, state: NO_FABRIC });
    }
    SUCCESS
}
