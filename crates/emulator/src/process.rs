//! Whether this process may use CUDA. A driver refuses a process that has not initialized it, and a process
//! forked from one that has.
//!
//! Observed on an H200 (driver 580, CUDA 13.0): every runtime call initializes the driver, even
//! `cudaGetLastError`; NVML calls do not. In a process forked afterwards, every function that needs the
//! device returns status 3, permanently, including `cuInit`. The runtime still answers what it knows without
//! the driver, and NVML works. None of this can be turned off: a program refused here is also refused by a
//! real GPU.

use crate::{INVALID_CONTEXT, NOT_INITIALIZED, StatusCode, contexts, device};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// No CUDA call yet.
const FRESH: u8 = 0;
const INITIALIZED: u8 = 1;
/// A parent process initialized CUDA before it forked this one.
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(FRESH);

extern "C" fn after_fork_in_child() {
    STATE.store(FORKED, Relaxed);
}

#[cold]
fn initialize() {
    if STATE.compare_exchange(FRESH, INITIALIZED, Relaxed, Relaxed).is_ok() {
        // Fails only if there is no memory for the handler; children are then not refused.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    }
}

/// Whether the parent's device memory, streams and handles are inaccessible.
pub(crate) fn is_forked() -> bool {
    STATE.load(Relaxed) == FORKED
}

/// Status returned by `cuInit`.
pub(crate) fn initialize_driver() -> Option<StatusCode> {
    initialize_runtime();
    is_forked().then_some(NOT_INITIALIZED)
}

/// Initializes the driver for a runtime function that also works in a forked process.
pub(crate) fn initialize_runtime() -> Option<StatusCode> {
    if STATE.load(Relaxed) == FRESH {
        initialize();
    }
    None
}

/// Status of a runtime function that needs the driver but no context.
pub(crate) fn runtime_refusal_if_forked() -> Option<StatusCode> {
    match STATE.load(Relaxed) {
        INITIALIZED => None,
        FORKED => Some(device::record_error(NOT_INITIALIZED)),
        _ => initialize_runtime(),
    }
}

/// Status of a runtime function that uses the device; makes the device's context current.
pub(crate) fn runtime_refusal() -> Option<StatusCode> {
    let refused = runtime_refusal_if_forked();
    if refused.is_none() {
        contexts::use_device();
    }
    refused
}

/// Status of a driver function.
pub(crate) fn driver_refusal() -> Option<StatusCode> {
    (STATE.load(Relaxed) != INITIALIZED).then_some(NOT_INITIALIZED)
}

/// Status of a driver function that uses the context of the calling thread.
pub(crate) fn driver_refusal_without_context() -> Option<StatusCode> {
    driver_refusal().or_else(|| contexts::current().is_none().then_some(INVALID_CONTEXT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_forked_after_initialization_is_refused_permanently() {
        assert_eq!(driver_refusal(), Some(NOT_INITIALIZED));
        assert_eq!(initialize_driver(), None);
        assert_eq!((driver_refusal(), runtime_refusal_if_forked()), (None, None));
        let child = unsafe { libc::fork() };
        if child == 0 {
            let answers =
                [initialize_driver(), driver_refusal(), runtime_refusal_if_forked(), runtime_refusal()];
            let is_refused = answers == [Some(NOT_INITIALIZED); 4] && initialize_runtime().is_none();
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        let mut status = -1;
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!is_forked());
    }
}
