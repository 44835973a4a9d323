//! Differences between releases of torch.

use snapshot::TorchRange;

/// Release of torch 2.x, by its minor version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Release(pub u8);

impl Release {
    /// Newest release whose allocator was compared with the model.
    pub const NEWEST: Release = Release(15);

    /// Returns the release to assume for a snapshot: the newest of those that write its shape.
    pub fn of(range: TorchRange) -> Release {
        Release(range.newest)
    }
}

impl Release {
    /// Returns the limit in bytes that a memory fraction means on a card of `total` bytes. From torch 2.10 on
    /// the whole card means no limit.
    pub fn limit(self, fraction: f64, total: u64) -> Option<u64> {
        (fraction < 1.0 || self < Release(10)).then_some((fraction * total as f64) as u64)
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "2.{}", self.0)
    }
}

/// Tie-breaker between free blocks of the same size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tie {
    /// Lower address.
    Address,
    /// Block that was created first.
    Block,
    /// Segment that was created first, then the lower address.
    Segment,
}

/// Behaviour of one release: everything that is not common to all of them, and the threshold for splitting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub(crate) tie: Tie,
    /// Remainder in bytes above which a large block is split.
    pub(crate) split_above: u64,
    /// Whether `roundup_power2_divisions:1` leaves sizes above 512 bytes unrounded.
    pub(crate) one_division_keeps_sizes: bool,
    /// Whether expandable segments also serve private pools.
    pub(crate) expandable_private_pools: bool,
    /// Whether any open pool scope suspends polling and releasing; in later releases only a running capture
    /// does.
    pub(crate) scopes_gate: bool,
}

impl Rules {
    pub(crate) fn of(Release(minor): Release) -> Rules {
        Rules {
            tie: match minor {
                0..=11 => Tie::Address,
                12 => Tie::Block,
                _ => Tie::Segment,
            },
            split_above: 1 << 20,
            one_division_keeps_sizes: minor <= 3,
            expandable_private_pools: minor >= 5,
            scopes_gate: minor <= 12,
        }
    }
}
