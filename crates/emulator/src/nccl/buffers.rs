//! Device memory of NCCL's own buffers, from the defaults in NCCL's documentation and source.
//!
//! A communicator has channels; each connection of a channel has a buffer for each of NCCL's three protocols.
//! How many channels NCCL chooses depends on the links between the cards, which an emulated machine does not
//! have, so the figure is an estimate. `NCCL_BUFFSIZE`, `NCCL_LL_BUFFSIZE`, `NCCL_LL128_BUFFSIZE`,
//! `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS` change it as they change NCCL.

use crate::memory;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buffers of a connection by protocol, in bytes: Simple, LL and LL128.
const SIMPLE_BYTES: u64 = 4 << 20;
const LL_BYTES: u64 = 8 * 512 * 8 * 16;
const LL128_BYTES: u64 = 120 * 640 * 8 * 8;

/// Channels of a communicator whose cards are linked by NVSwitch.
const DEFAULT_CHANNELS: u64 = 16;

/// Receiving connections of a channel: one of the ring, and two of the tree if there is one.
const RING_CONNECTIONS: u64 = 1;
const TREE_CONNECTIONS: u64 = 2;

/// Ranks of a machine; larger communicators also use trees.
const MAX_RANKS_WITHOUT_TREE: usize = 8;

/// Bytes of all communicators of this process.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Takes the buffers of a new communicator from the current device.
pub(super) fn take(size: usize) {
    if size < 2 {
        return;
    }
    crate::notes::modeled("NCCL's buffers are estimated from its documented defaults");
    let bytes = bytes(size, |name| std::env::var(name).ok()?.parse().ok());
    TAKEN.fetch_add(bytes, Relaxed);
    memory::take_outside(bytes);
}

/// Bytes of a communicator, with NCCL's environment variables.
fn bytes(size: usize, variable: impl Fn(&str) -> Option<u64>) -> u64 {
    let of = |name: &str, usual: u64| variable(name).unwrap_or(usual);
    let connection = of("NCCL_BUFFSIZE", SIMPLE_BYTES)
        + of("NCCL_LL_BUFFSIZE", LL_BYTES)
        + of("NCCL_LL128_BUFFSIZE", LL128_BYTES);
    let least = of("NCCL_MIN_NCHANNELS", 1);
    let most = of("NCCL_MAX_NCHANNELS", 64).max(least);
    let channels = DEFAULT_CHANNELS.clamp(least, most);
    let connections = match size > MAX_RANKS_WITHOUT_TREE {
        true => RING_CONNECTIONS + TREE_CONNECTIONS,
        false => RING_CONNECTIONS,
    };
    channels * connections * connection
}

/// Bytes of NCCL's buffers in this process, for oomph's Python part.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_nccl() -> u64 {
    TAKEN.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variables_change_the_buffers_as_they_change_nccl() {
        let usual = bytes(8, |_| None);
        assert_eq!(usual, 16 * (SIMPLE_BYTES + LL_BYTES + LL128_BYTES));
        assert_eq!(bytes(16, |_| None), 3 * usual);
        let one_channel = |name: &str| (name == "NCCL_MAX_NCHANNELS").then_some(1);
        assert_eq!(bytes(8, one_channel), usual / 16);
        let small = |name: &str| (name == "NCCL_BUFFSIZE").then_some(0);
        assert_eq!(bytes(8, small), 16 * (LL_BYTES + LL128_BYTES));
    }
}
