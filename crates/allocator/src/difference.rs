//! Where model and record part, in words.

use crate::model::{Block, Model, State};
use crate::owners::is_invented;
use crate::record::{Mismatch, Record};
use snapshot::{Action, BlockState, Bytes, Event, History, Segment, Snapshot};

/// The first difference between the model and a recorded run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The event, or the number of events if only the end differs.
    pub event: usize,
    /// What the recording shows.
    pub recorded: String,
    /// What the model did.
    pub model: String,
    /// The state around it, a line each.
    pub around: Vec<String>,
    /// The address that the model used.
    pub(crate) place: Option<u64>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {}: recorded {}, model {}", self.event, self.recorded, self.model)
    }
}

/// Blocks that are shown around a difference.
const MOST_SHOWN: usize = 12;

pub(crate) fn at_event(model: &Model<Record<'_>>, events: &Record<'_>, mismatch: &Mismatch) -> Difference {
    let deed = &mismatch.deed;
    let asked =
        mismatch.asked.map(|size| format!(", after it had asked the driver for {} more", Bytes(size)));
    let recorded = events.event(mismatch.event);
    let mut places = vec![deed.addr];
    places.extend(recorded.map(|event| event.addr));
    Difference {
        event: mismatch.event,
        recorded: recorded.map_or_else(|| "nothing more".to_owned(), |event| named(&event)),
        model: format!("{}{}", words(deed.action, deed.addr, deed.size), asked.unwrap_or_default()),
        around: around(model, &places),
        place: Some(deed.addr),
    }
}

pub(crate) fn unexplained(event: usize, why: &str) -> Difference {
    Difference {
        event,
        recorded: "an event that the model cannot follow".to_owned(),
        model: why.to_owned(),
        around: Vec::new(),
        place: None,
    }
}

pub(crate) fn active(event: usize, recorded: u64, model: u64) -> Difference {
    Difference {
        event,
        recorded: format!("a snapshot with {recorded} active bytes"),
        model: format!("{model} active bytes"),
        around: Vec::new(),
        place: None,
    }
}

fn named(event: &Event) -> String {
    words(event.action, event.addr, event.size.0)
}

fn words(action: Action, addr: u64, size: u64) -> String {
    let name = match action {
        Action::Alloc => "alloc",
        Action::FreeRequested => "free_requested",
        Action::FreeCompleted => "free_completed",
        Action::SegmentAlloc => "segment_alloc",
        Action::SegmentFree => "segment_free",
        Action::SegmentMap => "segment_map",
        Action::SegmentUnmap => "segment_unmap",
        Action::Snapshot => "snapshot",
        Action::Oom => return format!("oom of {size} bytes"),
        Action::Annotate | Action::Other(_) => "another event",
    };
    format!("{name} of {size} bytes at {addr:#x}")
}

/// The segments at these addresses, and what the counters say.
fn around(model: &Model<Record<'_>>, places: &[u64]) -> Vec<String> {
    let mut lines = vec![format!(
        "reserved {} bytes, allocated {}, active {}",
        model.counts.reserved, model.counts.allocated, model.counts.active
    )];
    for head in model.heads() {
        let blocks: Vec<&Block> = model.segment(head).map(|(_, block)| block).collect();
        let Some((first, last)) = blocks.first().zip(blocks.last()) else { continue };
        let end = last.addr + last.size;
        if !places.iter().any(|place| (first.addr..end).contains(place)) {
            continue;
        }
        let class = if model.is_small(first) { "small" } else { "large" };
        lines.push(format!(
            "segment {:#x}, {} bytes, {class}, stream {:#x}, pool {:?}:",
            first.addr,
            end - first.addr,
            model.stream(first),
            model.pool_id(first)
        ));
        let nearest = places
            .iter()
            .filter_map(|&place| {
                blocks.iter().position(|block| (block.addr..block.addr + block.size).contains(&place))
            })
            .min()
            .unwrap_or(0);
        let from = nearest.saturating_sub(MOST_SHOWN / 2);
        for block in blocks.iter().skip(from).take(MOST_SHOWN) {
            lines.push(format!("  {:#x}  {:>12}  {}", block.addr, block.size, state_name(block.state)));
        }
        if blocks.len() > from + MOST_SHOWN {
            lines.push(format!("  … {} more blocks", blocks.len() - from - MOST_SHOWN));
        }
    }
    lines
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Free => "free",
        State::Allocated => "allocated",
        State::Pending => "waits for another stream",
        State::Unmapped => "unmapped",
    }
}

/// Compares the segments and blocks at the end.
pub(crate) fn at_end(
    model: &Model<Record<'_>>,
    snapshot: &Snapshot,
    history: &History,
) -> Option<Difference> {
    let differs = |recorded: String, modelled: String, place: u64| Difference {
        event: history.len(),
        recorded: format!("at the end {recorded}"),
        model: modelled,
        around: around(model, &[place]),
        place: Some(place),
    };
    let heads = model.heads();
    let recorded: Vec<&Segment> = snapshot.segments_of(history.device).collect();
    for (place, segment) in recorded.iter().enumerate() {
        let head = heads.get(place).map(|&head| (head, model.block(head)));
        let Some((head, first)) = head.filter(|(_, block)| block.addr <= segment.addr) else {
            let modelled = "no segment there".to_owned();
            return Some(differs(format!("a segment at {:#x}", segment.addr), modelled, segment.addr));
        };
        if first.addr < segment.addr {
            let modelled = format!("a segment at {:#x}", first.addr);
            return Some(differs("no segment there".to_owned(), modelled, first.addr));
        }
        let is_same = (model.stream(first), model.is_small(first), first.is_expandable())
            == (segment.stream, segment.small, segment.expandable);
        let pool = model.pool_id(first);
        if !is_same || (pool != segment.pool && !is_invented(pool)) {
            return Some(differs(
                format!("another kind of segment at {:#x}", segment.addr),
                "stream, class, pool or kind differs".to_owned(),
                segment.addr,
            ));
        }
        let mut blocks = model.segment(head).map(|(_, block)| block);
        for block in &snapshot.blocks[segment.blocks.clone()] {
            let ours = blocks.next();
            let state = match block.state {
                BlockState::Allocated => State::Allocated,
                BlockState::PendingFree => State::Pending,
                BlockState::Inactive => State::Free,
            };
            // What a free block was last asked for may lie before the history.
            let knows_request = block.state != BlockState::Inactive || history.complete;
            let is_same = ours.is_some_and(|ours| {
                (ours.addr, ours.size, ours.state) == (block.addr, block.size.0, state)
                    && (!knows_request
                        || !is_request_recorded(snapshot)
                        || ours.requested == block.requested.0)
            });
            if !is_same {
                let describe = |size: u64, state: State, requested: u64| {
                    format!("a block of {size} bytes, {}, requested {requested}", state_name(state))
                };
                return Some(differs(
                    format!("at {:#x} {}", block.addr, describe(block.size.0, state, block.requested.0)),
                    ours.map_or_else(
                        || "nothing there".to_owned(),
                        |ours| {
                            format!("at {:#x} {}", ours.addr, describe(ours.size, ours.state, ours.requested))
                        },
                    ),
                    block.addr,
                ));
            }
        }
        if let Some(extra) = blocks.next() {
            return Some(differs(
                "no block there".to_owned(),
                format!("a block at {:#x}", extra.addr),
                extra.addr,
            ));
        }
    }
    let extra = model.block(*heads.get(recorded.len())?).addr;
    Some(differs("no segment there".to_owned(), format!("a segment at {extra:#x}"), extra))
}

/// Torch 2.0 does not say what a block was asked for.
fn is_request_recorded(snapshot: &Snapshot) -> bool {
    snapshot.torch.newest >= 1
}
