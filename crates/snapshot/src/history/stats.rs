//! The counters of `torch.cuda.memory_stats()`, with PyTorch's own rules for when they change.

use super::Counters;
use crate::bytes::Bytes;

/// A counter with its history: what `memory_stats()` calls current, peak, allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Value now.
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

/// What is counted, in the order of `torch.cuda.memory_summary()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// `allocated_bytes`
    AllocatedBytes,
    /// `active_bytes`
    ActiveBytes,
    /// `requested_bytes`
    RequestedBytes,
    /// `reserved_bytes`
    ReservedBytes,
    /// `inactive_split_bytes`
    InactiveSplitBytes,
    /// `allocation`
    Allocation,
    /// `active`
    Active,
    /// `segment`
    Segment,
    /// `inactive_split`
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

    /// The prefix of its keys in `memory_stats()`.
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

/// The three sets in which everything is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolClass {
    /// `all`
    All,
    /// `small_pool`: requests up to 1 MiB.
    Small,
    /// `large_pool`
    Large,
}

impl PoolClass {
    /// The three of them.
    pub const ALL: [PoolClass; 3] = [PoolClass::All, PoolClass::Small, PoolClass::Large];

    /// Its part of a key in `memory_stats()`.
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
    /// `oversize_allocations`: blocks of `max_split_size` and more.
    pub oversize_allocations: Stat,
    /// `oversize_segments`
    pub oversize_segments: Stat,
    /// `num_ooms`
    pub ooms: u64,
    /// `num_device_alloc`: `cudaMalloc` calls and mappings that succeeded.
    pub device_allocs: u64,
    /// `num_device_free`
    pub device_frees: u64,
}

impl Stats {
    /// One counter.
    pub fn get(&self, metric: Metric, class: PoolClass) -> Stat {
        self.table[metric as usize][class as usize]
    }

    /// The current values for all pools together.
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

    /// One net change: an increase, a decrease or nothing.
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

/// Real sizes fit; those of a damaged file count as the largest that do.
#[inline]
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
