//! What differs between releases of torch.

use snapshot::TorchRange;

/// A release of torch, 2.x, by its minor number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Release(pub u8);

impl Release {
    /// The newest release whose allocator was compared with the model.
    pub const NEWEST: Release = Release(15);

    /// The release to assume for a snapshot: the newest of those that write its shape.
    pub fn of(range: TorchRange) -> Release {
        Release(range.newest)
    }
}

impl Release {
    /// The limit that a memory fraction means on a card of this size. From 2.10 on the whole card is no limit.
    pub fn limit(self, fraction: f64, total: u64) -> Option<u64> {
        (fraction < 1.0 || self < Release(10)).then_some((fraction * total as f64) as u64)
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "2.{}", self.0)
    }
}

/// What decides between free blocks of the same size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tie {
    /// The lower address.
    Address,
    /// The block that was made first.
    Block,
    /// The segment that was made first, then the lower address.
    Segment,
}

/// The behaviour of one release: where it is not that of all of them, and the one threshold that most hangs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub(crate) tie: Tie,
    /// The rest of a large block is split off if it is larger than this.
    pub(crate) split_above: u64,
    /// With `roundup_power2_divisions:1` sizes above 512 bytes are not rounded at all.
    pub(crate) one_division_keeps_sizes: bool,
    /// Expandable segments serve private pools as well.
    pub(crate) expandable_private_pools: bool,
    /// Any open pool scope holds back polling and releasing; later only a running capture does.
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
