//! Placement of segments by `cudaMalloc`.
//!
//! Up to torch 2.11, PyTorch prefers the lower address among free blocks of equal size, so placement affects
//! fragmentation. Segments are placed as the driver of an H200 places them, according to 200 recordings of
//! programs and of random traffic:
//!
//! - Address space is taken in chunks of 32 MiB, wherever the process has room. The driver and the host share
//!   the address space, so if host memory was freed (a model that moved to the card), the next chunk may be
//!   there. The choice is `mmap`'s, here as well.
//! - A segment goes into the tightest hole of the newest chunk that has one. Empty chunks are released.
//! - The context starts with two chunks, of 96 and 416 MiB. The driver uses all of each except for one hole.
//!   The first kernel frees the driver's part of the second chunk, and if the chunk is then empty, it is
//!   released.

use std::collections::BTreeMap;

/// Alignment of segments, in bytes.
pub(crate) const SEGMENT_ALIGNMENT: u64 = 2 << 20;
const CHUNK_BYTES: u64 = 32 << 20;

/// Chunk of the context: its size in bytes, and how many bytes at its start the driver uses.
struct ContextChunk {
    bytes: u64,
    driver_bytes: u64,
}

const PERMANENT_CONTEXT_CHUNK: ContextChunk = ContextChunk { bytes: 96 << 20, driver_bytes: 72 << 20 };
const CONTEXT_CHUNK_BEFORE_FIRST_KERNEL: ContextChunk =
    ContextChunk { bytes: 416 << 20, driver_bytes: 414 << 20 };

/// Source of address space.
pub(crate) trait Space {
    /// Takes `size` bytes at a multiple of `alignment`.
    fn take(&mut self, size: u64, alignment: u64) -> Option<u64>;
    fn release(&mut self, at: u64, size: u64);
}

pub(crate) struct Addresses<S> {
    space: S,
    /// Segments, including the driver's: start → end.
    used: BTreeMap<u64, u64>,
    /// Chunks by start address.
    chunks: BTreeMap<u64, Chunk>,
    /// Start addresses of chunks, oldest first.
    by_age: BTreeMap<u64, u64>,
    next_age: u64,
    /// Address of the driver's memory that the first kernel frees.
    until_first_kernel: Option<u64>,
}

struct Chunk {
    end: u64,
    age: u64,
    free: u64,
}

impl<S: Space> Addresses<S> {
    /// Creates the addresses of a device with a new context.
    pub(crate) fn new(space: S) -> Addresses<S> {
        let mut addresses = Addresses {
            space,
            used: BTreeMap::new(),
            chunks: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
            until_first_kernel: None,
        };
        for context_chunk in [PERMANENT_CONTEXT_CHUNK, CONTEXT_CHUNK_BEFORE_FIRST_KERNEL] {
            addresses.until_first_kernel = addresses.new_chunk(context_chunk.bytes);
            if let Some(at) = addresses.until_first_kernel {
                addresses.occupy(at, context_chunk.driver_bytes);
            }
        }
        addresses
    }

    /// Places a segment of `size` bytes; `None` if the address space is exhausted.
    pub(crate) fn place(&mut self, size: u64) -> Option<u64> {
        let span = size.max(1).checked_next_multiple_of(SEGMENT_ALIGNMENT)?;
        let mut newest_first = self.by_age.values().rev();
        let at = match newest_first.find_map(|&low| self.tightest_hole(low, span)) {
            Some(at) => at,
            None => self.new_chunk(span.checked_next_multiple_of(CHUNK_BYTES)?)?,
        };
        self.occupy(at, span);
        Some(at)
    }

    /// Releases a segment and returns its end; `None` if there is no segment at this address.
    pub(crate) fn release(&mut self, at: u64) -> Option<u64> {
        let end = self.used.remove(&at)?;
        let (&low, chunk) = self.chunks.range_mut(..=at).next_back()?;
        chunk.free += end - at;
        if chunk.free == chunk.end - low {
            let (size, age) = (chunk.end - low, chunk.age);
            self.chunks.remove(&low);
            self.by_age.remove(&age);
            self.space.release(low, size);
        }
        Some(end)
    }

    /// Records the first kernel launch.
    pub(crate) fn record_first_kernel(&mut self) {
        if let Some(at) = self.until_first_kernel.take() {
            self.release(at);
        }
    }

    /// Whether an address is in device memory.
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.chunks.range(..=at).next_back().is_some_and(|(_, chunk)| at < chunk.end)
    }

    /// Bytes of the segment that starts at an address.
    pub(crate) fn size_of(&self, at: u64) -> Option<u64> {
        self.used.get(&at).map(|end| end - at)
    }

    fn occupy(&mut self, at: u64, span: u64) {
        self.used.insert(at, at + span);
        if let Some((_, chunk)) = self.chunks.range_mut(..=at).next_back() {
            chunk.free -= span;
        }
    }

    fn tightest_hole(&self, low: u64, span: u64) -> Option<u64> {
        let chunk = self.chunks.get(&low)?;
        if chunk.free < span {
            return None;
        }
        let mut best: Option<(u64, u64)> = None;
        let mut at = low;
        let segments = self.used.range(low..chunk.end).map(|(&start, &end)| (start, end));
        for (start, end) in segments.chain([(chunk.end, chunk.end)]) {
            let hole = start - at;
            if hole >= span && best.is_none_or(|(smallest, _)| hole < smallest) {
                best = Some((hole, at));
            }
            at = end;
        }
        best.map(|(_, at)| at)
    }

    fn new_chunk(&mut self, size: u64) -> Option<u64> {
        let low = self.space.take(size, CHUNK_BYTES)?;
        let age = self.next_age;
        self.next_age += 1;
        self.chunks.insert(low, Chunk { end: low + size, age, free: size });
        self.by_age.insert(age, low);
        Some(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Address space handed out from the top down.
    struct Downwards(u64);

    impl Space for Downwards {
        fn take(&mut self, size: u64, alignment: u64) -> Option<u64> {
            self.0 = (self.0 - size) / alignment * alignment;
            Some(self.0)
        }

        fn release(&mut self, _at: u64, _size: u64) {}
    }

    /// Segments of a recording (sizes in MiB) by their offset from the first hole.
    #[test]
    fn segments_are_placed_as_by_a_real_driver() {
        let top = 0x7f00_0000_0000;
        let mut addresses = Addresses::new(Downwards(top));
        let first = top - 98 * MIB;
        // The start of a recording of a ConvNeXt on an H200: parameters, then activations.
        let before = [(2, 0), (2, 74), (2, 76), (20, 78), (20, -446), (20, -478), (20, -510), (20, -542)];
        for (size, offset) in before {
            let at = addresses.place(size * MIB);
            assert_eq!(at, Some((first as i64 + offset * MIB as i64) as u64), "{size} MiB");
        }
        addresses.record_first_kernel();
        assert_eq!(addresses.place(32 * MIB), Some(first - 414 * MIB));
        assert_eq!(addresses.place(32 * MIB), Some(first - 382 * MIB));
    }

    #[test]
    fn an_empty_chunk_is_released() {
        let mut addresses = Addresses::new(Downwards(0x7f00_0000_0000));
        let at = addresses.place(64 * MIB).unwrap_or_default();
        assert!(addresses.contains(at) && addresses.contains(at + 64 * MIB - 1));
        assert_eq!(addresses.release(at), Some(at + 64 * MIB));
        assert!(!addresses.contains(at));
        assert_eq!(addresses.release(at), None);
    }
}
