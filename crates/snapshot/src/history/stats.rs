//! Counters of `torch.cuda.memory_stats()`, updated by PyTorch's own rules.

use super::Counters;
use crate::bytes::Bytes;

/// One counter with its totals: what `memory_stats()` calls current, peak, allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Current value.
    pub current: i64,
    /// Highest value so far.
    pub peak: i64,
    /// Sum of all increases.
    pub allocated: i64,
}

impl Stat {
    /// Sum of all decreases.
    pub fn freed(&self) -> i64 {
        self.allocated.saturating_sub(self.current)
    }

    #[inline]
    fn increase(&mut self, amount: i64) {
        self.current = self.current.saturating_add(amount);
        self.allocated = self.allocated.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    fn decrease(&mut self, amount: i64) {
        self.current = self.current.saturating_sub(amount);
    }
}

/// Quantity that is counted, in the order of `torch.cuda.memory_summary()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// `allocated_bytes`: bytes in blocks held by the program.
    AllocatedBytes,
    /// `active_bytes`: bytes in blocks in use, pending frees included.
    ActiveBytes,
    /// `requested_bytes`: bytes the program requested.
    RequestedBytes,
    /// `reserved_bytes`: bytes in segments.
    ReservedBytes,
    /// `inactive_split_bytes`: bytes in free pieces of partly used segments.
    InactiveSplitBytes,
    /// `allocation`: number of blocks held by the program.
    Allocation,
    /// `active`: number of blocks in use, pending frees included.
    Active,
    /// `segment`: number of segments.
    Segment,
    /// `inactive_split`: number of free pieces of partly used segments.
    InactiveSplit,
}

impl Metric {
    /// Every metric, in order.
    pub const ALL: [Metric; 9] = [
        Metric::AllocatedBytes,
        Metric::ActiveBytes,
        Metric::RequestedBytes,
        Metric::ReservedBytes,
        Metric::InactiveSplitBytes,
        Metric::Allocation,
        Metric::Active,
        Metric::Segment,
        Metric::InactiveSplit,
    ];

    /// Returns the prefix of the metric's keys in `memory_stats()`.
    pub fn key(self) -> &'static str {
        match self {
            Metric::AllocatedBytes => "allocated_bytes",
            Metric::ActiveBytes => "active_bytes",
            Metric::RequestedBytes => "requested_bytes",
            Metric::ReservedBytes => "reserved_bytes",
            Metric::InactiveSplitBytes => "inactive_split_bytes",
            Metric::Allocation => "allocation",
            Metric::Active => "active",
            Metric::Segment => "segment",
            Metric::InactiveSplit => "inactive_split",
        }
    }
}

/// Sets of blocks that are counted separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolClass {
    /// `all`: both pools.
    All,
    /// `small_pool`: requests up to 1 MiB.
    Small,
    /// `large_pool`: requests above 1 MiB.
    Large,
}

impl PoolClass {
    /// Every class, in order.
    pub const ALL: [PoolClass; 3] = [PoolClass::All, PoolClass::Small, PoolClass::Large];

    /// Returns the class's part of a key in `memory_stats()`.
    pub fn key(self) -> &'static str {
        match self {
            PoolClass::All => "all",
            PoolClass::Small => "small_pool",
            PoolClass::Large => "large_pool",
        }
    }
}

/// All counters of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    table: [[Stat; 3]; 9],
    /// `oversize_allocations`: blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// `oversize_segments`: segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// `num_ooms`: allocations that failed.
    pub ooms: u64,
    /// `num_device_alloc`: `cudaMalloc` calls and mappings that succeeded.
    pub device_allocs: u64,
    /// `num_device_free`: `cudaFree` calls and unmappings.
    pub device_frees: u64,
}

impl Stats {
    /// Returns one counter.
    pub fn get(&self, metric: Metric, class: PoolClass) -> Stat {
        self.table[metric as usize][class as usize]
    }

    /// Returns the current values of both pools together.
    pub fn counters(&self) -> Counters {
        let now = |metric| Bytes(self.get(metric, PoolClass::All).current.max(0) as u64);
        Counters {
            allocated: now(Metric::AllocatedBytes),
            active: now(Metric::ActiveBytes),
            requested: now(Metric::RequestedBytes),
            reserved: now(Metric::ReservedBytes),
            inactive_split: now(Metric::InactiveSplitBytes),
        }
    }

    #[inline]
    pub(super) fn increase(&mut self, metric: Metric, small: bool, amount: u64) {
        let amount = signed(amount);
        let row = &mut self.table[metric as usize];
        row[PoolClass::All as usize].increase(amount);
        row[if small { PoolClass::Small } else { PoolClass::Large } as usize].increase(amount);
    }

    #[inline]
    pub(super) fn decrease(&mut self, metric: Metric, small: bool, amount: u64) {
        let amount = signed(amount);
        let row = &mut self.table[metric as usize];
        row[PoolClass::All as usize].decrease(amount);
        row[if small { PoolClass::Small } else { PoolClass::Large } as usize].decrease(amount);
    }

    /// Applies one net change: an increase, a decrease or nothing.
    #[inline]
    pub(super) fn change(&mut self, metric: Metric, small: bool, amount: i64) {
        match amount {
            0 => {}
            1.. => self.increase(metric, small, amount as u64),
            _ => self.decrease(metric, small, amount.unsigned_abs()),
        }
    }

    pub(super) fn oversize(stat: &mut Stat, larger: bool, amount: i64) {
        match (larger, amount) {
            (false, _) => {}
            (true, 1) => stat.increase(1),
            (true, _) => stat.decrease(1),
        }
    }
}

/// Converts a size. Real sizes fit; the impossible sizes of a damaged file are clamped.
#[inline]
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
