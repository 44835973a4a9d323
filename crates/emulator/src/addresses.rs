//! Where `cudaMalloc` puts a segment.
//!
//! Up to torch 2.11 PyTorch prefers the lower address among free blocks of equal size, so placement decides about
//! fragmentation. Segments are placed as an H200's driver was seen to place them, in 200 recordings of programs and of random
//! traffic:
//!
//! - Address space is taken in chunks of 32 MiB, where the process has room for one: the driver and the host share their
//!   addresses, so where host memory was given back (a model that has moved to the card), the next chunk may lie there.
//!   That is `mmap`'s own choice, and here it is `mmap` that makes it.
//! - A segment goes into the tightest hole of the newest chunk that has one. An empty chunk is given back.
//! - The context begins with two chunks, of 96 and 416 MiB, all but a hole in each the driver's own. With the first kernel
//!   its part of the second becomes free, and if nothing else lies in that chunk, it is given back.

use std::collections::BTreeMap;

/// Segments lie on multiples of this.
pub(crate) const ALIGNMENT: u64 = 2 << 20;
const CHUNK: u64 = 32 << 20;

/// A chunk of the context: its size, and how much of it the driver takes, from its start on.
struct Own {
    chunk: u64,
    taken: u64,
}

const FOR_GOOD: Own = Own { chunk: 96 << 20, taken: 72 << 20 };
const UNTIL_FIRST_KERNEL: Own = Own { chunk: 416 << 20, taken: 414 << 20 };

/// Address space of the process.
pub(crate) trait Space {
    /// Takes `size` bytes at a multiple of `alignment`.
    fn take(&mut self, size: u64, alignment: u64) -> Option<u64>;
    fn give_back(&mut self, at: u64, size: u64);
}

pub(crate) struct Addresses<S> {
    space: S,
    /// Segments, ours and the driver's: start and end.
    used: BTreeMap<u64, u64>,
    /// Chunks by start.
    chunks: BTreeMap<u64, Chunk>,
    /// The starts of chunks, oldest first.
    by_age: BTreeMap<u64, u64>,
    next_age: u64,
    /// The driver's own memory that the first kernel makes free.
    until_first_kernel: Option<u64>,
}

struct Chunk {
    end: u64,
    age: u64,
    free: u64,
}

impl<S: Space> Addresses<S> {
    /// The addresses of a device whose context has just been made.
    pub(crate) fn new(space: S) -> Addresses<S> {
        let mut addresses = Addresses {
            space,
            used: BTreeMap::new(),
            chunks: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
            until_first_kernel: None,
        };
        for own in [FOR_GOOD, UNTIL_FIRST_KERNEL] {
            addresses.until_first_kernel = addresses.new_chunk(own.chunk);
            if let Some(at) = addresses.until_first_kernel {
                addresses.occupy(at, own.taken);
            }
        }
        addresses
    }

    /// A place for `size` bytes, if there is address space left.
    pub(crate) fn place(&mut self, size: u64) -> Option<u64> {
        let span = size.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let mut newest_first = self.by_age.values().rev();
        let at = match newest_first.find_map(|&low| self.tightest_hole(low, span)) {
            Some(at) => at,
            None => self.new_chunk(span.checked_next_multiple_of(CHUNK)?)?,
        };
        self.occupy(at, span);
        Some(at)
    }

    /// Gives a segment back: its end, or `None` if there is none at this address.
    pub(crate) fn release(&mut self, at: u64) -> Option<u64> {
        let end = self.used.remove(&at)?;
        let (&low, chunk) = self.chunks.range_mut(..=at).next_back()?;
        chunk.free += end - at;
        if chunk.free == chunk.end - low {
            let (size, age) = (chunk.end - low, chunk.age);
            self.chunks.remove(&low);
            self.by_age.remove(&age);
            self.space.give_back(low, size);
        }
        Some(end)
    }

    /// A kernel is launched for the first time.
    pub(crate) fn first_kernel(&mut self) {
        if let Some(at) = self.until_first_kernel.take() {
            self.release(at);
        }
    }

    /// Whether an address is device memory.
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.chunks.range(..=at).next_back().is_some_and(|(_, chunk)| at < chunk.end)
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
        let low = self.space.take(size, CHUNK)?;
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

    /// Address space that is handed out from the top down.
    struct Downwards(u64);

    impl Space for Downwards {
        fn take(&mut self, size: u64, alignment: u64) -> Option<u64> {
            self.0 = (self.0 - size) / alignment * alignment;
            Some(self.0)
        }

        fn give_back(&mut self, _at: u64, _size: u64) {}
    }

    /// Segments of a recording (sizes in MiB) by their offset from the first hole.
    #[test]
    fn segments_lie_where_a_driver_put_them() {
        let top = 0x7f00_0000_0000;
        let mut addresses = Addresses::new(Downwards(top));
        let first = top - 98 * MIB;
        // The beginning of a recording of a ConvNeXt on an H200: parameters, then activations.
        let before = [(2, 0), (2, 74), (2, 76), (20, 78), (20, -446), (20, -478), (20, -510), (20, -542)];
        for (size, offset) in before {
            let at = addresses.place(size * MIB);
            assert_eq!(at, Some((first as i64 + offset * MIB as i64) as u64), "{size} MiB");
        }
        addresses.first_kernel();
        assert_eq!(addresses.place(32 * MIB), Some(first - 414 * MIB));
        assert_eq!(addresses.place(32 * MIB), Some(first - 382 * MIB));
    }

    #[test]
    fn an_empty_chunk_is_given_back() {
        let mut addresses = Addresses::new(Downwards(0x7f00_0000_0000));
        let at = addresses.place(64 * MIB).unwrap_or_default();
        assert!(addresses.contains(at) && addresses.contains(at + 64 * MIB - 1));
        assert_eq!(addresses.release(at), Some(at + 64 * MIB));
        assert!(!addresses.contains(at));
        assert_eq!(addresses.release(at), None);
    }
}
