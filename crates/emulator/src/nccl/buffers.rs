//! Device memory that NCCL takes for itself, as an estimate.
//!
//! What its code and its communicators take was measured with NCCL 2.28.9 on an H200
//! (`bench/jobs/nccl_buffers.py`). What connections take follows from NCCL's documentation and source. How
//! many channels NCCL opens depends on the links between the cards, which an emulated machine does not have:
//! they count as linked by NVSwitch. `NCCL_BUFFSIZE`, `NCCL_LL_BUFFSIZE`, `NCCL_LL128_BUFFSIZE`,
//! `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS` change the estimate as they change NCCL.

use crate::card::card;
use crate::memory;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

const MIB: u64 = 1 << 20;

/// NCCL asks the driver for each of its blocks, which it gets in multiples of this.
const BLOCK_BYTES: u64 = 2 * MIB;

/// NCCL's code on the device: with the first communicator of a process, its first collective of several
/// ranks, and its first message between two ranks.
const LIBRARY_BYTES: u64 = 170 * MIB;
const COLLECTIVE_CODE_BYTES: u64 = 214 * MIB;
const MESSAGE_CODE_BYTES: u64 = 34 * MIB;

/// Blocks of a communicator, and of each of its channels.
const COMMUNICATOR_BLOCKS: u64 = 2;
const CHANNEL_BLOCKS: u64 = 3;

/// Buffers of a connection by protocol, in bytes: Simple, LL and LL128. Its flags come on top.
const SIMPLE_BYTES: u64 = 4 * MIB;
const LL_BYTES: u64 = 8 * 512 * 8 * 16;
const LL128_BYTES: u64 = 120 * 640 * 8 * 8;
const FLAG_BYTES: u64 = 8 << 10;

/// Channels of a communicator of a single rank, and of one whose cards are linked by NVSwitch.
const CHANNELS_OF_ONE_RANK: u64 = 64;
const CHANNELS: u64 = 24;

/// Channels for messages between two ranks of one machine, and of different machines.
const MESSAGE_CHANNELS: u64 = 32;
const NETWORK_MESSAGE_CHANNELS: u64 = 2;

/// Connections of a channel from which a rank receives: that of the ring, and those of the tree, which
/// communicators over several machines have as well.
const RING_CONNECTIONS: u64 = 1;
const TREE_CONNECTIONS: u64 = 2;

/// Bytes of all communicators of this process, and of NCCL's code.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static HAS_LIBRARY: AtomicBool = AtomicBool::new(false);
static HAS_COLLECTIVE_CODE: AtomicBool = AtomicBool::new(false);
static HAS_MESSAGE_CODE: AtomicBool = AtomicBool::new(false);

/// Sizes of a communicator's parts, in bytes.
struct BufferSizes {
    /// The communicator with its channels.
    communicator: u64,
    /// Its connections for collectives.
    connections: u64,
    /// Its connections to a rank of the same machine, and of another one.
    peer: u64,
    network_peer: u64,
}

impl BufferSizes {
    /// Sizes for a communicator of `ranks`, on machines with `gpus` each, under NCCL's environment variables.
    fn new(ranks: usize, gpus: usize, variable: impl Fn(&str) -> Option<u64>) -> BufferSizes {
        let of = |name: &str, usual: u64| variable(name).unwrap_or(usual);
        let buffers = of("NCCL_BUFFSIZE", SIMPLE_BYTES)
            + of("NCCL_LL_BUFFSIZE", LL_BYTES)
            + of("NCCL_LL128_BUFFSIZE", LL128_BYTES);
        let receiving = (buffers + FLAG_BYTES).next_multiple_of(BLOCK_BYTES);
        let least = of("NCCL_MIN_NCHANNELS", 1);
        let most = of("NCCL_MAX_NCHANNELS", 64).max(least);
        let channels = if ranks == 1 { CHANNELS_OF_ONE_RANK } else { CHANNELS }.clamp(least, most);
        let connections = match ranks > gpus {
            _ if ranks == 1 => 0,
            true => RING_CONNECTIONS + TREE_CONNECTIONS,
            false => RING_CONNECTIONS,
        };
        BufferSizes {
            communicator: (COMMUNICATOR_BLOCKS + CHANNEL_BLOCKS * channels) * BLOCK_BYTES,
            connections: connections * channels * (receiving + BLOCK_BYTES),
            peer: MESSAGE_CHANNELS * (receiving + BLOCK_BYTES),
            network_peer: NETWORK_MESSAGE_CHANNELS * 2 * receiving,
        }
    }
}

/// Memory of one communicator. It grows when a rank first uses a connection, and is not given back: programs
/// keep their communicators to the end.
pub(super) struct NcclBuffers {
    rank: usize,
    gpus: usize,
    is_alone: bool,
    sizes: BufferSizes,
    used: Mutex<UsedConnections>,
}

#[derive(Default)]
struct UsedConnections {
    has_collectives: bool,
    peers: BTreeSet<usize>,
}

impl NcclBuffers {
    /// Takes the memory of a new communicator from the current device.
    pub(super) fn new(rank: usize, ranks: usize) -> NcclBuffers {
        crate::notes::modeled("NCCL's own memory is estimated");
        let gpus = card().devices.max(1) as usize;
        let sizes = BufferSizes::new(ranks, gpus, |name| std::env::var(name).ok()?.parse().ok());
        take_code(&HAS_LIBRARY, LIBRARY_BYTES);
        take(sizes.communicator);
        NcclBuffers { rank, gpus, is_alone: ranks == 1, sizes, used: Mutex::default() }
    }

    /// Connects the ranks for collectives, before the first one.
    pub(super) fn connect_all(&self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_alone && !used.has_collectives {
            used.has_collectives = true;
            take_code(&HAS_COLLECTIVE_CODE, COLLECTIVE_CODE_BYTES);
            take(self.sizes.connections);
        }
    }

    /// Connects this rank to another one, before the first message between them.
    pub(super) fn connect(&self, peer: usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if peer != self.rank && used.peers.insert(peer) {
            take_code(&HAS_MESSAGE_CODE, MESSAGE_CODE_BYTES);
            let is_near = peer / self.gpus == self.rank / self.gpus;
            take(if is_near { self.sizes.peer } else { self.sizes.network_peer });
        }
    }
}

fn take_code(is_there: &AtomicBool, bytes: u64) {
    if !is_there.swap(true, Relaxed) {
        take(bytes);
    }
}

fn take(bytes: u64) {
    TAKEN.fetch_add(bytes, Relaxed);
    memory::take_outside(bytes);
}

/// Bytes that NCCL takes in this process, for oomph's Python part.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_nccl() -> u64 {
    TAKEN.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variable: &'static str, value: u64) -> impl Fn(&str) -> Option<u64> {
        move |name| (name == variable).then_some(value)
    }

    #[test]
    fn communicators_take_what_they_took_on_an_h200() {
        assert_eq!(BufferSizes::new(1, 1, |_| None).communicator, 388 * MIB);
        assert_eq!(BufferSizes::new(1, 1, with("NCCL_MIN_NCHANNELS", 16)).communicator, 388 * MIB);
        assert_eq!(BufferSizes::new(1, 1, with("NCCL_MAX_NCHANNELS", 1)).communicator, 10 * MIB);
        assert_eq!(BufferSizes::new(8, 1, with("NCCL_MAX_NCHANNELS", 2)).communicator, 16 * MIB);
        assert_eq!(BufferSizes::new(2, 1, with("NCCL_MAX_NCHANNELS", 16)).communicator, 100 * MIB);
    }

    #[test]
    fn environment_variables_change_the_connections_as_they_change_nccl() {
        let usual = BufferSizes::new(8, 8, |_| None).connections;
        assert_eq!(usual, 24 * 12 * MIB);
        assert_eq!(BufferSizes::new(16, 8, |_| None).connections, 3 * usual);
        assert_eq!(BufferSizes::new(8, 8, with("NCCL_MAX_NCHANNELS", 1)).connections, usual / 24);
        assert_eq!(BufferSizes::new(8, 8, with("NCCL_BUFFSIZE", 0)).connections, 24 * 8 * MIB);
        assert_eq!(BufferSizes::new(1, 1, |_| None).connections, 0);
    }

    #[test]
    fn messages_to_all_ranks_of_a_machine_take_gigabytes() {
        assert_eq!(7 * BufferSizes::new(8, 8, |_| None).peer, 2688 * MIB);
    }
}
