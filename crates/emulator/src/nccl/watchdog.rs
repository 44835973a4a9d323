//! What the watchdog of PyTorch's NCCL process groups sees.
//!
//! The watchdog queries the events of collectives every 100 ms. Tensors of collectives that nobody waits for
//! are freed by the first collective after it has seen theirs complete: DistributedDataParallel's first
//! buckets, for example, which are replaced before the second step. In a job, steps are often shorter than
//! the watchdog's interval, or the GPU is behind the host, so that both sets of buckets are alive for a
//! while. Here, the host is slower and work takes no time. So that the same memory is alive in every run,
//! the watchdog sees work complete only after [`DELAY`].

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longer than the time from a backward pass to the next forward pass on an emulated GPU.
const DELAY: Duration = Duration::from_secs(2);

/// Name that PyTorch gives to the watchdog's thread.
const THREAD_NAME: &[u8] = b"pt_nccl_watchdg";

/// Whether the process closes a communicator; the watchdog then waits for what is left.
static IS_CLOSING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_WATCHDOG: bool = is_watchdog();
}

/// Whether this thread is a watchdog that does not yet see work that was recorded `at` this time.
pub(crate) fn is_hidden_from_watchdog(at: Instant) -> bool {
    IS_WATCHDOG.with(|&is_watchdog| is_watchdog) && !IS_CLOSING.load(Relaxed) && at.elapsed() < DELAY
}

/// Lets the watchdog see everything from now on.
pub(super) fn show_all() {
    IS_CLOSING.store(true, Relaxed);
}

fn is_watchdog() -> bool {
    let mut name = [0u8; 16];
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(THREAD_NAME)
}
