//! Answers that are JSON: each file has the query, the shape and the computation of one.

pub(crate) mod block;
pub(crate) mod findings;
pub(crate) mod flame;
pub(crate) mod group;
pub(crate) mod holders;
pub(crate) mod layout;
pub(crate) mod overview;
pub(crate) mod process;
pub(crate) mod rank_groups;
pub(crate) mod ranks;
pub(crate) mod table;
pub(crate) mod what_if;

use crate::run::view::DeviceView;
use analysis::words::grouped;
use snapshot::PoolId;

/// Positions that an answer is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Moments {
    /// One position.
    At(usize),
    /// An interval of positions.
    Over(std::ops::Range<usize>),
}

impl Moments {
    /// The interval if it has a beginning, otherwise the position.
    pub(crate) fn of(
        view: &DeviceView<'_>,
        at: Option<usize>,
        from: Option<usize>,
        to: Option<usize>,
    ) -> Option<Moments> {
        let position = |position: usize| view.clamped(position);
        match (from, to) {
            (Some(from), Some(to)) => {
                let from = position(from);
                Some(Moments::Over(from..position(to).max(from) + 1))
            }
            _ => at.map(|at| Moments::At(position(at))),
        }
    }

    /// In words; events are numbered from 0.
    pub(crate) fn words(&self) -> String {
        match self {
            Moments::At(0) => "before the first event".to_owned(),
            Moments::At(position) => format!("after event {}", grouped(*position as u64 - 1)),
            Moments::Over(positions) => format!(
                "mean from {} to after event {}",
                Moments::At(positions.start).words(),
                grouped(positions.end.saturating_sub(2) as u64)
            ),
        }
    }
}

/// Writes an address or a stream as PyTorch does.
pub(crate) fn hex(number: u64) -> String {
    format!("0x{number:x}")
}

/// Names a memory pool.
pub(crate) fn pool_name(pool: PoolId) -> String {
    if pool == PoolId::DEFAULT {
        "default".to_owned()
    } else {
        format!("({}, {})", grouped(pool.0), grouped(pool.1))
    }
}
