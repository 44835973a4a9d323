//! Contexts: each device has a primary context, and each thread has at most one current context.
//!
//! The runtime makes the context of its device current with the first call that uses the device. The driver
//! does not: a thread that only calls the driver has to set a context itself.

use crate::card::card;
use crate::{INVALID_CONTEXT, INVALID_DEVICE, SUCCESS, StatusCode, device, notes, put};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Handle of the primary context of device 0; those of other devices follow.
const FIRST_HANDLE: u64 = 0x3800_0000;

/// Bit set of the devices whose primary context exists.
static EXISTING_CONTEXTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Device whose context is current.
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
    /// Contexts that were current before each `cuCtxPushCurrent`.
    static PUSHED_OVER: RefCell<Vec<Option<i32>>> = const { RefCell::new(Vec::new()) };
}

/// Device whose context is current for this thread.
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
    if EXISTING_CONTEXTS.fetch_or(bit(device), Relaxed) == 0 {
        notes::note("cuda", "a context was created");
    }
}

fn bit(device: i32) -> u64 {
    1u64.checked_shl(device as u32).unwrap_or(0)
}

fn handle(device: Option<i32>) -> u64 {
    device.map_or(0, |device| FIRST_HANDLE + device as u64)
}

/// Device of a context; `None` for the null handle.
fn device_of(handle: u64) -> Result<Option<i32>, StatusCode> {
    match handle.checked_sub(FIRST_HANDLE) {
        Some(device) if device < card().devices as u64 => Ok(Some(device as i32)),
        None if handle == 0 => Ok(None),
        _ => Err(INVALID_CONTEXT),
    }
}

/// Sets the current context. The runtime follows the driver: its device is that of the current context.
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
    fn cuCtxGetCurrent(to: *mut u64) -> StatusCode {
        unsafe { put(to, handle(current())) };
        SUCCESS
    }

    fn cuCtxSetCurrent(context: u64) -> StatusCode {
        match device_of(context) {
            Ok(context) => {
                set(context);
                SUCCESS
            }
            Err(status) => status,
        }
    }

    fn cuCtxPushCurrent_v2(context: u64) -> StatusCode {
        match device_of(context) {
            Ok(Some(device)) => {
                PUSHED_OVER.with_borrow_mut(|below| below.push(current()));
                set(Some(device));
                SUCCESS
            }
            _ => INVALID_CONTEXT,
        }
    }

    fn cuDevicePrimaryCtxRetain(to: *mut u64, device: i32) -> StatusCode {
        if !is_device(device) {
            return INVALID_DEVICE;
        }
        create(device);
        unsafe { put(to, handle(Some(device))) };
        SUCCESS
    }

    /// PyTorch checks whether a context exists before it creates one.
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> StatusCode {
        if !is_device(device) {
            return INVALID_DEVICE;
        }
        unsafe {
            put(flags, 0);
            put(active, i32::from(EXISTING_CONTEXTS.load(Relaxed) & bit(device) != 0));
        }
        SUCCESS
    }
}

// The runtime holds the primary context, so it lives as long as the process.
no_op! { driver: cuDevicePrimaryCtxRelease_v2 }

driver_in_context! {
    fn cuCtxPopCurrent_v2(to: *mut u64) -> StatusCode {
        unsafe { put(to, handle(current())) };
        set(PUSHED_OVER.with_borrow_mut(Vec::pop).flatten());
        SUCCESS
    }

    fn cuCtxGetDevice(to: *mut i32) -> StatusCode {
        unsafe { put(to, device::current()) };
        SUCCESS
    }

    /// Limits of a context: stack and heap of kernels.
    fn cuCtxGetLimit(to: *mut usize, _which: i32) -> StatusCode {
        unsafe { put(to, 1024) };
        SUCCESS
    }
}

no_op! { driver_in_context: cuCtxSetLimit cuCtxSynchronize }

/// Status of a function that takes a stream. The default stream belongs to the current context; others know
/// their context, even in a forked process.
fn stream_refusal(stream: u64) -> Option<StatusCode> {
    if stream == 0 { crate::process::driver_refusal_without_context() } else { None }
}

entry_points! { stream_refusal(stream);
    fn cuStreamGetCtx(stream: u64, to: *mut u64) -> StatusCode {
        unsafe { put(to, handle(Some(device::current()))) };
        SUCCESS
    }

    fn cuStreamSynchronize(stream: u64) -> StatusCode {
        SUCCESS
    }
}
