//! Functions of the driver that are counted, and how.
//!
//! Arguments are handed on as they come, in as many registers and places on the stack as any of these
//! functions has arguments: all of them are integers or pointers.

use crate::counts::{self, HOST, MemoryOwner, TracedKind};
use crate::in_use::{self, function_of};
use crate::symbols::SymbolTable;
use crate::{caller, physical};
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

const MAX_ARGUMENTS: usize = 12;

type Arguments = [usize; MAX_ARGUMENTS];
type DriverFunction = unsafe extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> i32;

/// One call of a program.
struct Call {
    function: DriverFunction,
    arguments: Arguments,
}

impl Call {
    fn run(&self) -> i32 {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = self.arguments;
        unsafe { (self.function)(a, b, c, d, e, f, g, h, i, j, k, l) }
    }

    /// Reads what an argument points to.
    fn read<T: Copy>(&self, argument: usize) -> Option<T> {
        let at: *const T = ptr::with_exposed_provenance(self.arguments[argument]);
        (!at.is_null()).then(|| unsafe { at.read_unaligned() })
    }
}

/// A function that is counted.
struct TracedFunction {
    name: &'static CStr,
    ours: DriverFunction,
    drivers: &'static AtomicPtr<c_void>,
}

macro_rules! counted {
    ($($name:ident => $count:expr;)*) => {
        const COUNTED: &[TracedFunction] = &[$({
            static DRIVERS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C" fn ours(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
                g: usize, h: usize, i: usize, j: usize, k: usize, l: usize,
            ) -> i32 {
                let function: DriverFunction =
                    unsafe { std::mem::transmute(DRIVERS.load(Ordering::Relaxed)) };
                let count: fn(&Call) -> i32 = $count;
                count(&Call { function, arguments: [a, b, c, d, e, f, g, h, i, j, k, l] })
            }
            let name = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name of a function"),
            };
            TracedFunction { name, ours, drivers: &DRIVERS }
        }),*];
    };
}

counted! {
    cuGetProcAddress => look_up;
    cuGetProcAddress_v2 => look_up;

    cuMemAlloc_v2 => allocate;
    cuMemAllocManaged => allocate;
    cuMemAllocPitch_v2 => allocate;
    cuMemFree_v2 => free;
    cuMemAllocAsync => |call| allocate_from_pool(call, None);
    cuMemAllocAsync_ptsz => |call| allocate_from_pool(call, None);
    cuMemAllocFromPoolAsync => |call| allocate_from_pool(call, Some(2));
    cuMemAllocFromPoolAsync_ptsz => |call| allocate_from_pool(call, Some(2));
    cuMemFreeAsync => |call| in_use::beside(|| call.run());
    cuMemFreeAsync_ptsz => |call| in_use::beside(|| call.run());
    cuMemPoolDestroy => destroy_pool;
    cuArrayCreate_v2 => |call| measure(call, TracedKind::Allocated);
    cuArray3DCreate_v2 => |call| measure(call, TracedKind::Allocated);
    cuMipmappedArrayCreate => |call| measure(call, TracedKind::Allocated);
    cuArrayDestroy => |call| measure(call, TracedKind::Allocated);
    cuMipmappedArrayDestroy => |call| measure(call, TracedKind::Allocated);

    cuMemCreate => create;
    cuMemRelease => release;
    cuMemRetainAllocationHandle => retain;
    cuMemMap => map;
    cuMemUnmap => unmap;

    cuMemHostAlloc => |call| pin(call, TracedKind::Pinned);
    cuMemAllocHost_v2 => |call| pin(call, TracedKind::Pinned);
    cuMemFreeHost => |call| unpin(call, TracedKind::Pinned);
    cuMemHostRegister_v2 => register;
    cuMemHostUnregister => |call| unpin(call, TracedKind::Registered);

    cuDevicePrimaryCtxRetain => retain_context;
    cuDevicePrimaryCtxRelease_v2 => |call| change_context(call, 0);
    cuDevicePrimaryCtxReset_v2 => |call| change_context(call, 0);
    cuCtxCreate_v2 => |call| change_context(call, 2);
    cuCtxCreate_v3 => |call| change_context(call, 4);
    cuCtxCreate_v4 => |call| change_context(call, 3);

    cuModuleLoad => load;
    cuModuleLoadData => load;
    cuModuleLoadDataEx => load;
    cuModuleLoadFatBinary => load;
    cuModuleUnload => load;
    cuModuleGetFunction => load;
    cuModuleGetGlobal_v2 => load;
    cuLibraryLoadData => load;
    cuLibraryLoadFromFile => load;
    cuLibraryUnload => load;
    cuLibraryGetKernel => load;
    cuLibraryGetModule => load;
    cuLibraryGetGlobal => load;
    cuKernelGetFunction => use_kernel::<1>;
    cuKernelGetAttribute => use_kernel::<2>;
    cuKernelSetAttribute => use_kernel::<2>;
    cuFuncLoad => use_kernel::<0>;
    cuFuncGetAttribute => use_kernel::<2>;
    cuFuncSetAttribute => use_kernel::<0>;
    cuOccupancyMaxActiveBlocksPerMultiprocessor => use_kernel::<1>;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags => use_kernel::<1>;
    cuLaunchKernel => use_kernel::<0>;
    cuLaunchKernel_ptsz => use_kernel::<0>;
    cuLaunchKernelEx => use_kernel::<1>;
    cuLaunchKernelEx_ptsz => use_kernel::<1>;
    cuLaunchCooperativeKernel => use_kernel::<0>;
    cuLaunchCooperativeKernel_ptsz => use_kernel::<0>;

    cuGraphInstantiate => |call| measure(call, TracedKind::Graphs);
    cuGraphInstantiate_v2 => |call| measure(call, TracedKind::Graphs);
    cuGraphInstantiateWithFlags => |call| measure(call, TracedKind::Graphs);
    cuGraphInstantiateWithParams => |call| measure(call, TracedKind::Graphs);
    cuGraphInstantiateWithParams_ptsz => |call| measure(call, TracedKind::Graphs);
    cuGraphUpload => |call| measure(call, TracedKind::Graphs);
    cuGraphUpload_ptsz => |call| measure(call, TracedKind::Graphs);
    cuGraphLaunch => launch_graph;
    cuGraphLaunch_ptsz => launch_graph;
    cuGraphExecDestroy => |call| measure(call, TracedKind::Graphs);
    cuGraphExecUpdate_v2 => |call| measure(call, TracedKind::Graphs);

    cuStreamCreate => |call| measure(call, TracedKind::Other);
    cuStreamCreateWithPriority => |call| measure(call, TracedKind::Other);
    cuStreamDestroy_v2 => |call| measure(call, TracedKind::Other);
    cuEventCreate => |call| measure(call, TracedKind::Other);
    cuCtxSetLimit => |call| measure(call, TracedKind::Other);
    cuCtxEnablePeerAccess => |call| measure(call, TracedKind::Other);
    cuMulticastBindMem => |call| measure(call, TracedKind::Other);
}

/// The driver, once it is loaded.
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Loads the driver and redirects what is counted. Returns how many functions that are.
pub(crate) fn install(name: &CStr) -> usize {
    static INSTALLED: OnceLock<usize> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let driver = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        if driver.is_null() {
            return 0;
        }
        DRIVER.store(driver, Ordering::Relaxed);
        let first = unsafe { libc::dlsym(driver, c"cuInit".as_ptr()) };
        let Some(symbols) = SymbolTable::of(first) else { return 0 };
        caller::set_driver(first);
        COUNTED.iter().filter(|counted| counted.install(driver, &symbols)).count()
    })
}

impl TracedFunction {
    fn install(&self, driver: *mut c_void, symbols: &SymbolTable) -> bool {
        let found = unsafe { libc::dlsym(driver, self.name.as_ptr()) };
        self.drivers.store(found, Ordering::Relaxed);
        !found.is_null() && symbols.redirect(self.name, self.ours as *const c_void)
    }
}

/// Returns a function of the driver that is not counted.
///
/// # Safety
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn driver_function<F: Copy>(name: &CStr) -> Option<F> {
    unsafe { function_of(DRIVER.load(Ordering::Relaxed), name) }
}

/// `cuGetProcAddress(name, to, version, flags)`: where the CUDA runtime finds the driver's functions.
fn look_up(call: &Call) -> i32 {
    let status = call.run();
    let to: *mut *mut c_void = ptr::with_exposed_provenance_mut(call.arguments[1]);
    if status == 0 && !to.is_null() {
        let found = unsafe { *to };
        let counted = COUNTED
            .iter()
            .find(|counted| !found.is_null() && counted.drivers.load(Ordering::Relaxed) == found);
        if let Some(counted) = counted {
            unsafe { *to = counted.ours as *mut c_void };
        }
    }
    status
}

/// PyTorch's own allocator counts what it takes.
fn is_pytorch(library: &str) -> bool {
    library.rsplit('/').next().is_some_and(|name| name.starts_with("libc10_cuda"))
}

/// `cuMemAlloc(to, bytes)` and others that begin alike. Small allocations share pages: what counts is what
/// the device has less.
fn allocate(call: &Call) -> i32 {
    let library = caller::library();
    let (status, device, taken) = if is_pytorch(library) {
        (in_use::beside(|| call.run()), in_use::device(), None)
    } else {
        let (status, change) = in_use::around(|| call.run());
        (status, change.as_ref().map(|change| change.device), change.and_then(|change| change.bytes))
    };
    if let (0, Some(device), Some(address)) = (status, device, call.read(0)) {
        let bytes = taken.unwrap_or(call.arguments[1] as i64);
        counts::allocated((device, TracedKind::Allocated, library), address, bytes);
    }
    status
}

/// `cuMemFree(address)`.
fn free(call: &Call) -> i32 {
    let (status, given_back) = if is_pytorch(caller::library()) {
        (in_use::beside(|| call.run()), None)
    } else {
        let (status, change) = in_use::around(|| call.run());
        (status, change.and_then(|change| change.bytes).map(|bytes| -bytes))
    };
    if status == 0 {
        counts::freed(TracedKind::Allocated, call.arguments[0] as u64, given_back);
    }
    status
}

/// Pools of memory, and the library that used each of them first.
static POOLS: Mutex<Vec<(usize, MemoryOwner)>> = Mutex::new(Vec::new());

/// `cuMemAllocAsync(to, bytes, stream)`, and the same with a pool as the argument `pool`.
fn allocate_from_pool(call: &Call, pool: Option<usize>) -> i32 {
    type AskPool = unsafe extern "C" fn(*mut usize, i32) -> i32;
    static ASK: OnceLock<Option<AskPool>> = OnceLock::new();
    let status = in_use::beside(|| call.run());
    let Some(device) = in_use::device() else { return status };
    let of_device = || {
        let ask = (*ASK.get_or_init(|| unsafe { driver_function(c"cuDeviceGetMemPool") }))?;
        let mut pool = 0;
        (unsafe { ask(&raw mut pool, device) } == 0).then_some(pool)
    };
    let pool = pool.map(|argument| call.arguments[argument]).or_else(of_device);
    if let (0, Some(pool), Ok(mut pools)) = (status, pool, POOLS.try_lock())
        && pools.iter().all(|&(known, _)| known != pool)
    {
        pools.push((pool, (device, TracedKind::Pooled, caller::library())));
    }
    status
}

/// `cuMemPoolDestroy(pool)`.
fn destroy_pool(call: &Call) -> i32 {
    if let Ok(mut pools) = POOLS.lock() {
        pools.retain(|&(pool, _)| pool != call.arguments[0]);
    }
    in_use::beside(|| call.run())
}

/// Asks every pool how much memory it has.
pub(crate) fn update_pools() {
    type AskReserved = unsafe extern "C" fn(usize, i32, *mut u64) -> i32;
    const RESERVED: i32 = 5;
    let Ok(pools) = POOLS.try_lock() else { return };
    let Some(ask) = (unsafe { driver_function::<AskReserved>(c"cuMemPoolGetAttribute") }) else { return };
    let mut owners: Vec<(MemoryOwner, i64)> = Vec::new();
    for &(pool, owner) in pools.iter() {
        let mut bytes = 0;
        if unsafe { ask(pool, RESERVED, &raw mut bytes) } != 0 {
            continue;
        }
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, sum)) => *sum += bytes as i64,
            None => owners.push((owner, bytes as i64)),
        }
    }
    for (owner, bytes) in owners {
        counts::set(owner, bytes);
    }
}

/// `cuMemCreate(to, bytes, properties, flags)`.
fn create(call: &Call) -> i32 {
    const DEVICE: i32 = 1;
    let status = in_use::beside(|| call.run());
    // Type of the memory, type of its handles, type of its location, number of the device.
    let properties: Option<[i32; 4]> = call.read(2);
    if let (0, Some(handle), Some([_, _, location, device])) = (status, call.read(0), properties) {
        let device = if location == DEVICE { device } else { HOST };
        physical::created(handle, (device, TracedKind::Mapped, caller::library()), call.arguments[1] as i64);
    }
    status
}

/// `cuMemRelease(handle)`.
fn release(call: &Call) -> i32 {
    let status = in_use::beside(|| call.run());
    if status == 0 {
        physical::released(call.arguments[0] as u64);
    }
    status
}

/// `cuMemRetainAllocationHandle(to, address)`.
fn retain(call: &Call) -> i32 {
    let status = call.run();
    if let (0, Some(handle)) = (status, call.read(0)) {
        physical::retained(handle);
    }
    status
}

/// `cuMemMap(address, bytes, offset, handle, flags)`.
fn map(call: &Call) -> i32 {
    let status = call.run();
    if status == 0 {
        let [address, length, _, handle, ..] = call.arguments;
        physical::mapped(address as u64, length as u64, handle as u64);
    }
    status
}

/// `cuMemUnmap(address, bytes)`.
fn unmap(call: &Call) -> i32 {
    let status = in_use::beside(|| call.run());
    if status == 0 {
        physical::unmapped(call.arguments[0] as u64, call.arguments[1] as u64);
    }
    status
}

/// `cuMemHostAlloc(to, bytes, flags)`.
fn pin(call: &Call, kind: TracedKind) -> i32 {
    let status = call.run();
    if let (0, Some(address)) = (status, call.read(0)) {
        counts::allocated((HOST, kind, caller::library()), address, call.arguments[1] as i64);
    }
    status
}

/// `cuMemHostRegister(address, bytes, flags)`.
fn register(call: &Call) -> i32 {
    let status = call.run();
    if status == 0 {
        let [address, bytes, ..] = call.arguments;
        counts::allocated((HOST, TracedKind::Registered, caller::library()), address as u64, bytes as i64);
    }
    status
}

/// `cuMemFreeHost(address)`.
fn unpin(call: &Call, kind: TracedKind) -> i32 {
    let status = call.run();
    if status == 0 {
        counts::freed(kind, call.arguments[0] as u64, None);
    }
    status
}

/// `cuDevicePrimaryCtxRetain(to, device)`: libraries retain the context that is there again and again.
fn retain_context(call: &Call) -> i32 {
    if has_context(call.arguments[1] as i32) { call.run() } else { change_context(call, 1) }
}

/// Creates or drops a context of the device that an argument names.
fn change_context(call: &Call, device: usize) -> i32 {
    let (status, change) = in_use::around_context(call.arguments[device] as i32, || call.run());
    note(change, TracedKind::Context, caller::library());
    status
}

fn has_context(device: i32) -> bool {
    type AskState = unsafe extern "C" fn(i32, *mut u32, *mut i32) -> i32;
    let ask: Option<AskState> = unsafe { driver_function(c"cuDevicePrimaryCtxGetState") };
    let (mut flags, mut is_active) = (0, 0);
    ask.is_some_and(|ask| unsafe { ask(device, &raw mut flags, &raw mut is_active) } == 0 && is_active != 0)
}

/// Counts what a call takes or gives back.
fn measure(call: &Call, kind: TracedKind) -> i32 {
    let (status, change) = in_use::around(|| call.run());
    note(change, kind, caller::library());
    status
}

/// Loads or unloads code.
fn load(call: &Call) -> i32 {
    measure(call, TracedKind::Kernels)
}

/// Uses a kernel, which is loaded at its first use.
fn use_kernel<const ARGUMENT: usize>(call: &Call) -> i32 {
    if is_known(call.arguments[ARGUMENT]) { call.run() } else { load(call) }
}

/// Launches a graph, which may take memory the first time.
fn launch_graph(call: &Call) -> i32 {
    if is_known(call.arguments[0]) { call.run() } else { measure(call, TracedKind::Graphs) }
}

fn note(change: Option<in_use::Change>, kind: TracedKind, library: &'static str) {
    match change {
        Some(in_use::Change { device, bytes: Some(bytes) }) if bytes != 0 => {
            counts::add((device, kind, library), bytes);
        }
        Some(in_use::Change { bytes: None, .. }) => counts::missed(),
        _ => {}
    }
}

/// Returns whether a handle was seen before. A program with more handles than there are places is no longer
/// measured at each new one.
fn is_known(handle: usize) -> bool {
    const PLACES: usize = 1 << 16;
    const MAX_TRIES: usize = 64;
    static KNOWN: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];
    let start = (handle >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    for step in 0..MAX_TRIES {
        let place = &KNOWN[(start + step) % PLACES];
        if place.load(Ordering::Relaxed) == handle {
            return true;
        }
        match place.compare_exchange(0, handle, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return false,
            Err(known) if known == handle => return true,
            Err(_) => {}
        }
    }
    true
}
