//! One memory pool: its chunks, the blocks in them, and its counters.

use std::collections::BTreeMap;

/// Number of bytes, and the most that it has been since it was last reset.
#[derive(Default, Clone, Copy)]
pub(super) struct HighWater {
    pub(super) now: u64,
    pub(super) high: u64,
}

impl HighWater {
    pub(super) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }
}

pub(super) struct Pool {
    pub(super) device: i32,
    /// Bytes that the pool keeps at a synchronization.
    pub(super) threshold: u64,
    /// Rules by which blocks may be reused; all are stored, none has an effect.
    pub(super) reuse: [i32; 3],
    pub(super) reserved: HighWater,
    pub(super) used: HighWater,
    /// Memory of the device: start → size.
    pub(super) chunks: BTreeMap<u64, u64>,
    /// Parts of chunks that are not in use: start → size.
    pub(super) free: BTreeMap<u64, u64>,
    /// Parts that are in use: start → size.
    pub(super) blocks: BTreeMap<u64, u64>,
}

impl Pool {
    pub(super) fn new(device: i32) -> Pool {
        Pool {
            device,
            threshold: 0,
            reuse: [1; 3],
            reserved: HighWater::default(),
            used: HighWater::default(),
            chunks: BTreeMap::new(),
            free: BTreeMap::new(),
            blocks: BTreeMap::new(),
        }
    }

    /// Takes a block of the smallest free part that is large enough.
    pub(super) fn take(&mut self, size: u64) -> Option<u64> {
        let (&at, &room) =
            self.free.iter().filter(|&(_, &room)| room >= size).min_by_key(|&(_, &room)| room)?;
        self.free.remove(&at);
        if room > size {
            self.free.insert(at + size, room - size);
        }
        self.blocks.insert(at, size);
        self.used.add(size);
        Some(at)
    }

    pub(super) fn add_chunk(&mut self, at: u64, size: u64) {
        self.chunks.insert(at, size);
        self.free.insert(at, size);
        self.reserved.add(size);
    }

    /// Frees a block, and joins it with the free parts of its chunk next to it; returns its size.
    pub(super) fn give_back(&mut self, at: u64) -> Option<u64> {
        let freed = self.blocks.remove(&at)?;
        self.used.now -= freed;
        let (mut start, mut size) = (at, freed);
        if !self.chunks.contains_key(&(at + size))
            && let Some(after) = self.free.remove(&(at + size))
        {
            size += after;
        }
        if !self.chunks.contains_key(&at)
            && let Some((&before, &room)) = self.free.range(..at).next_back()
            && before + room == at
        {
            (start, size) = (before, room + size);
        }
        self.free.insert(start, size);
        Some(freed)
    }

    /// Removes chunks without blocks until the pool has no more than `keep` bytes; returns them.
    pub(super) fn trim(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let mut removed = Vec::new();
        let empty: Vec<(u64, u64)> = self
            .chunks
            .iter()
            .map(|(&at, &size)| (at, size))
            .filter(|(at, size)| self.free.get(at) == Some(size))
            .collect();
        for (at, size) in empty {
            if self.reserved.now <= keep {
                break;
            }
            self.chunks.remove(&at);
            self.free.remove(&at);
            self.reserved.now -= size;
            removed.push((at, size));
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn freed_blocks_are_joined_within_their_chunk_only() {
        let mut pool = Pool::new(0);
        let (first, second) = (32 * MIB, 64 * MIB);
        pool.add_chunk(first, 32 * MIB);
        pool.add_chunk(second, 32 * MIB);
        let taken: Vec<u64> = (0..4).filter_map(|_| pool.take(16 * MIB)).collect();
        assert_eq!(taken, [first, first + 16 * MIB, second, second + 16 * MIB]);
        assert_eq!(pool.take(512), None);
        for at in taken {
            assert!(pool.give_back(at).is_some());
        }
        assert_eq!(pool.free, BTreeMap::from([(first, 32 * MIB), (second, 32 * MIB)]));
        assert_eq!((pool.used.now, pool.used.high, pool.reserved.now), (0, 64 * MIB, 64 * MIB));
    }

    #[test]
    fn only_chunks_without_blocks_are_trimmed() {
        let mut pool = Pool::new(0);
        pool.add_chunk(32 * MIB, 32 * MIB);
        pool.add_chunk(128 * MIB, 96 * MIB);
        let kept = pool.take(MIB);
        assert_eq!(kept, Some(32 * MIB));
        assert_eq!(pool.trim(128 * MIB), []);
        assert_eq!(pool.trim(0), [(128 * MIB, 96 * MIB)]);
        assert_eq!((pool.reserved.now, pool.reserved.high), (32 * MIB, 128 * MIB));
    }
}
