//! Contexts: each device has its primary one, and each thread has at most one that is current.
//!
//! The runtime makes the context of its device current with the first call that uses the device. The driver does not: a
//! thread that calls nothing but the driver has to set one.

use crate::card::card;
use crate::{INVALID_CONTEXT, INVALID_DEVICE, SUCCESS, Status, device, put};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Handles of primary contexts: this and the index of the device.
const FIRST_HANDLE: u64 = 0x3800_0000;

/// The devices whose primary context exists, as bits.
static EXISTING: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The device whose context is current.
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
    /// What was current before each context that the driver's caller has pushed.
    static BELOW: RefCell<Vec<Option<i32>>> = const { RefCell::new(Vec::new()) };
}

/// The device whose context is current for this thread.
pub(crate) fn current() -> Option<i32> {
    CURRENT.get()
}

/// Makes the context of the runtime's device current.
pub(crate) fn use_device() {
    let device = device::current();
    if CURRENT.get() != Some(device) {
        create(device);
        CURRENT.set(Some(device));
    }
}

fn create(device: i32) {
    EXISTING.fetch_or(bit(device), Relaxed);
}

fn bit(device: i32) -> u64 {
    1u64.checked_shl(device as u32).unwrap_or(0)
}

fn handle(device: Option<i32>) -> u64 {
    device.map_or(0, |device| FIRST_HANDLE + device as u64)
}

/// The device of a context; none for the null handle.
fn device_of(handle: u64) -> Result<Option<i32>, Status> {
    match handle.checked_sub(FIRST_HANDLE) {
        Some(device) if device < card().devices as u64 => Ok(Some(device as i32)),
        None if handle == 0 => Ok(None),
        _ => Err(INVALID_CONTEXT),
    }
}

/// The runtime follows the driver: its device is that of the current context.
fn set(context: Option<i32>) {
    CURRENT.set(context);
    if let Some(device) = context {
        device::set_current(device);
    }
}

fn is_device(device: i32) -> bool {
    (0..card().devices).contains(&device)
}

driver! {
    fn cuCtxGetCurrent(to: *mut u64) -> Status {
        unsafe { put(to, handle(current())) };
        SUCCESS
    }

    fn cuCtxSetCurrent(context: u64) -> Status {
        match device_of(context) {
            Ok(context) => {
                set(context);
                SUCCESS
            }
            Err(status) => status,
        }
    }

    fn cuCtxPushCurrent_v2(context: u64) -> Status {
        match device_of(context) {
            Ok(Some(device)) => {
                BELOW.with_borrow_mut(|below| below.push(current()));
                set(Some(device));
                SUCCESS
            }
            _ => INVALID_CONTEXT,
        }
    }

    fn cuDevicePrimaryCtxRetain(to: *mut u64, device: i32) -> Status {
        if !is_device(device) {
            return INVALID_DEVICE;
        }
        create(device);
        unsafe { put(to, handle(Some(device))) };
        SUCCESS
    }

    /// PyTorch asks whether a context exists before it makes one.
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> Status {
        if !is_device(device) {
            return INVALID_DEVICE;
        }
        unsafe {
            put(flags, 0);
            put(active, i32::from(EXISTING.load(Relaxed) & bit(device) != 0));
        }
        SUCCESS
    }
}

// The primary context lives as long as the process: the runtime holds it.
does_nothing! { driver: cuDevicePrimaryCtxRelease_v2 }

driver_in_context! {
    fn cuCtxPopCurrent_v2(to: *mut u64) -> Status {
        unsafe { put(to, handle(current())) };
        set(BELOW.with_borrow_mut(Vec::pop).flatten());
        SUCCESS
    }

    fn cuCtxGetDevice(to: *mut i32) -> Status {
        unsafe { put(to, device::current()) };
        SUCCESS
    }

    /// The limits of a context: stack and heap of kernels.
    fn cuCtxGetLimit(to: *mut usize, _which: i32) -> Status {
        unsafe { put(to, 1024) };
        SUCCESS
    }
}

does_nothing! { driver_in_context: cuCtxSetLimit cuCtxSynchronize }

/// Status of a function that is given a stream: the default stream is that of the current context, others know theirs,
/// even in a forked process.
fn refuses_stream(stream: u64) -> Option<Status> {
    if stream == 0 { crate::process::driver_refuses_without_context() } else { None }
}

entry_points! { refuses_stream(stream);
    fn cuStreamGetCtx(stream: u64, to: *mut u64) -> Status {
        unsafe { put(to, handle(Some(device::current()))) };
        SUCCESS
    }

    fn cuStreamSynchronize(stream: u64) -> Status {
        SUCCESS
    }
}
