//! Whether this process may use CUDA: a driver refuses a process that has not initialized it, and a process that was forked
//! from one that had.
//!
//! As seen on an H200 (driver 580, CUDA 13.0): every call of the runtime initializes the driver, even `cudaGetLastError`;
//! calls of NVML do not. In a process forked afterwards every function that needs the device gives status 3, for good,
//! `cuInit` included. The runtime still answers what it knows without the driver, and NVML works. Nothing here can be
//! switched off: a program that is refused here is refused by a GPU as well.

use crate::{INVALID_CONTEXT, NOT_INITIALIZED, Status, contexts, device};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Nothing has called CUDA.
const FRESH: u8 = 0;
const INITIALIZED: u8 = 1;
/// A parent process has initialized CUDA before it forked this one.
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(FRESH);

extern "C" fn after_fork_in_child() {
    STATE.store(FORKED, Relaxed);
}

#[cold]
fn initialize() {
    if STATE.compare_exchange(FRESH, INITIALIZED, Relaxed, Relaxed).is_ok() {
        // It fails only without memory for an entry; children are then not refused.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    }
}

/// Whether the parent's device memory, streams and handles are out of reach.
pub(crate) fn is_forked() -> bool {
    STATE.load(Relaxed) == FORKED
}

/// Status that `cuInit` gives.
pub(crate) fn driver_starts() -> Option<Status> {
    runtime_starts();
    is_forked().then_some(NOT_INITIALIZED)
}

/// Initializes the driver for a function of the runtime that also answers in a forked process.
pub(crate) fn runtime_starts() -> Option<Status> {
    if STATE.load(Relaxed) == FRESH {
        initialize();
    }
    None
}

/// Status of a function of the runtime that needs the driver, but no context.
pub(crate) fn runtime_refuses_forked() -> Option<Status> {
    match STATE.load(Relaxed) {
        INITIALIZED => None,
        FORKED => Some(device::failed(NOT_INITIALIZED)),
        _ => runtime_starts(),
    }
}

/// Status of a function of the runtime that uses the device; the thread gets the device's context.
pub(crate) fn runtime_refuses() -> Option<Status> {
    let refused = runtime_refuses_forked();
    if refused.is_none() {
        contexts::use_device();
    }
    refused
}

/// Status of a function of the driver.
pub(crate) fn driver_refuses() -> Option<Status> {
    (STATE.load(Relaxed) != INITIALIZED).then_some(NOT_INITIALIZED)
}

/// Status of a function of the driver that uses the context of the calling thread.
pub(crate) fn driver_refuses_without_context() -> Option<Status> {
    driver_refuses().or_else(|| contexts::current().is_none().then_some(INVALID_CONTEXT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_forked_after_initialization_is_refused_for_good() {
        assert_eq!(driver_refuses(), Some(NOT_INITIALIZED));
        assert_eq!(driver_starts(), None);
        assert_eq!((driver_refuses(), runtime_refuses_forked()), (None, None));
        let child = unsafe { libc::fork() };
        if child == 0 {
            let answers = [driver_starts(), driver_refuses(), runtime_refuses_forked(), runtime_refuses()];
            let is_refused = answers == [Some(NOT_INITIALIZED); 4] && runtime_starts().is_none();
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        let mut status = -1;
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!is_forked());
    }
}
