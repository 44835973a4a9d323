//! Description of the first difference between the model and a recording.

use crate::model::{Model, ModelBlock, ModelBlockState};
use crate::owners::is_inferred;
use crate::trace_environment::{Mismatch, TraceEnvironment};
use snapshot::{Action, BlockState, Bytes, Event, History, Segment, Snapshot};

/// First difference between the model and a recorded run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelDifference {
    /// Index of the event, or the number of events if only the end differs.
    pub event: usize,
    /// What the recording shows.
    pub recorded: String,
    /// What the model did.
    pub model: String,
    /// State of the segments around it, one line each.
    pub around: Vec<String>,
    /// Address that the model used.
    pub(crate) place: Option<u64>,
}

impl std::fmt::Display for ModelDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {}: recorded {}, model {}", self.event, self.recorded, self.model)
    }
}

/// Maximum number of blocks shown around a difference.
const MAX_SHOWN_BLOCKS: usize = 12;

pub(crate) fn at_event(
    model: &Model<TraceEnvironment<'_>>,
    events: &TraceEnvironment<'_>,
    mismatch: &Mismatch,
) -> ModelDifference {
    let modeled = &mismatch.modeled;
    let requested =
        mismatch.requested.map(|size| format!(", after requesting {} more from the driver", Bytes(size)));
    let recorded = events.event(mismatch.event);
    let mut places = vec![modeled.addr];
    places.extend(recorded.map(|event| event.addr));
    ModelDifference {
        event: mismatch.event,
        recorded: recorded.map_or_else(|| "no further event".to_owned(), |event| named(&event)),
        model: format!(
            "{}{}",
            words(modeled.action, modeled.addr, modeled.size),
            requested.unwrap_or_default()
        ),
        around: around(model, &places),
        place: Some(modeled.addr),
    }
}

pub(crate) fn unexplained(event: usize, why: &str) -> ModelDifference {
    ModelDifference {
        event,
        recorded: "an event that the model cannot explain".to_owned(),
        model: why.to_owned(),
        around: Vec::new(),
        place: None,
    }
}

pub(crate) fn active(event: usize, recorded: u64, model: u64) -> ModelDifference {
    ModelDifference {
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

/// Describes the segments at these addresses, and the counters.
fn around(model: &Model<TraceEnvironment<'_>>, places: &[u64]) -> Vec<String> {
    let mut lines = vec![format!(
        "reserved {} bytes, allocated {}, active {}",
        model.counts.reserved, model.counts.allocated, model.counts.active
    )];
    for head in model.heads() {
        let blocks: Vec<&ModelBlock> = model.segment(head).map(|(_, block)| block).collect();
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
        let from = nearest.saturating_sub(MAX_SHOWN_BLOCKS / 2);
        for block in blocks.iter().skip(from).take(MAX_SHOWN_BLOCKS) {
            lines.push(format!("  {:#x}  {:>12}  {}", block.addr, block.size, state_name(block.state)));
        }
        if blocks.len() > from + MAX_SHOWN_BLOCKS {
            lines.push(format!("  … {} more blocks", blocks.len() - from - MAX_SHOWN_BLOCKS));
        }
    }
    lines
}

fn state_name(state: ModelBlockState) -> &'static str {
    match state {
        ModelBlockState::Free => "free",
        ModelBlockState::Allocated => "allocated",
        ModelBlockState::Pending => "pending free",
        ModelBlockState::Unmapped => "unmapped",
    }
}

/// Compares the segments and blocks at the end of the run.
pub(crate) fn at_end(
    model: &Model<TraceEnvironment<'_>>,
    snapshot: &Snapshot,
    history: &History,
) -> Option<ModelDifference> {
    let differs = |recorded: String, modeled: String, place: u64| ModelDifference {
        event: history.len(),
        recorded: format!("at the end {recorded}"),
        model: modeled,
        around: around(model, &[place]),
        place: Some(place),
    };
    let heads = model.heads();
    let recorded: Vec<&Segment> = snapshot.segments_of(history.device).collect();
    for (place, segment) in recorded.iter().enumerate() {
        let head = heads.get(place).map(|&head| (head, model.block(head)));
        let Some((head, first)) = head.filter(|(_, block)| block.addr <= segment.addr) else {
            let modeled = "no segment there".to_owned();
            return Some(differs(format!("a segment at {:#x}", segment.addr), modeled, segment.addr));
        };
        if first.addr < segment.addr {
            let modeled = format!("a segment at {:#x}", first.addr);
            return Some(differs("no segment there".to_owned(), modeled, first.addr));
        }
        let is_same = (model.stream(first), model.is_small(first), first.is_expandable())
            == (segment.stream, segment.small, segment.expandable);
        let pool = model.pool_id(first);
        if !is_same || (pool != segment.pool && !is_inferred(pool)) {
            return Some(differs(
                format!("another kind of segment at {:#x}", segment.addr),
                "stream, size class, pool or kind differs".to_owned(),
                segment.addr,
            ));
        }
        let mut blocks = model.segment(head).map(|(_, block)| block);
        for block in &snapshot.blocks[segment.blocks.clone()] {
            let ours = blocks.next();
            let state = match block.state {
                BlockState::Allocated => ModelBlockState::Allocated,
                BlockState::PendingFree => ModelBlockState::Pending,
                BlockState::Inactive => ModelBlockState::Free,
            };
            // The last request for a free block may precede the history.
            let knows_request = block.state != BlockState::Inactive || history.complete;
            let is_same = ours.is_some_and(|ours| {
                (ours.addr, ours.size, ours.state) == (block.addr, block.size.0, state)
                    && (!knows_request
                        || !is_request_recorded(snapshot)
                        || ours.requested == block.requested.0)
            });
            if !is_same {
                let describe = |size: u64, state: ModelBlockState, requested: u64| {
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

/// Returns whether requested sizes are recorded: torch 2.0 does not record them.
fn is_request_recorded(snapshot: &Snapshot) -> bool {
    snapshot.torch.newest >= 1
}
