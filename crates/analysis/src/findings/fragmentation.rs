//! Memory that is reserved but could not be used when it was needed.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::layout::{Free, RegionNow, free, layout};
use super::line::NamedSite;
use crate::run::model::{RunModel, active_peak};
use crate::trace::modules::ModuleId;
use crate::words::{counted, listed, percent, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, Counters, FrameId, History, PoolId};

/// Bytes and share of the reserved memory from which fragmentation is reported.
const MIN_BYTES: Bytes = Bytes(128 << 20);
const MIN_SHARE: f64 = 0.15;
const MEDIUM_BYTES_AND_SHARE: (Bytes, f64) = (Bytes(256 << 20), 0.25);
const HIGH_BYTES_AND_SHARE: (Bytes, f64) = (Bytes(1 << 30), 0.4);
/// Share of the card below which reserved memory keeps nobody from anything.
const MAX_HARMLESS_SHARE: f64 = 0.5;
/// Lines that are named as holding segments.
const MAX_LINES: usize = 3;
/// Smaller free blocks are not listed.
const MIN_FREE_BLOCK_BYTES: Bytes = Bytes(1 << 20);

/// Reserved memory that was never needed, in numbers.
pub(super) struct FragmentationFacts {
    severity: Severity,
    /// The card, where a recorder noted its size and it has room for far more than was reserved.
    roomy_card: Option<Bytes>,
    /// The event that last reserved a large segment.
    event: usize,
    reserved: Bytes,
    /// The most that was ever in use at one time.
    used: Bytes,
    lost: Bytes,
    /// The lost share of the reserved memory.
    share: f64,
    /// The free memory just before that event.
    free: Free,
    /// The request that the event served, with the line that made it.
    request: Option<(Bytes, NamedSite)>,
    /// The lines whose blocks keep the most free memory from being returned, largest first.
    pins: Vec<Pin>,
    reservations: Reservations,
    site: Option<FrameId>,
    module: Option<ModuleId>,
    /// Whether `max_split_size_mb` is set.
    has_max_split: bool,
    is_expandable: bool,
    is_complete: bool,
    /// The free memory when the snapshot was taken.
    at_end: (Counters, Free),
}

/// Blocks of one line that keep segments from being returned.
struct Pin {
    line: NamedSite,
    /// Free bytes of the segments that its blocks keep, shared among all blocks there.
    free: Bytes,
    live: Bytes,
    count: u64,
}

/// When more memory was reserved.
struct Reservations {
    /// Steps that reserved more, and steps in all.
    steps: u64,
    of_steps: usize,
    /// The last of these steps, from 0.
    last: Option<usize>,
    /// The line that reserved last.
    last_line: Option<FrameId>,
}

/// The facts, if the memory that was free when the most was reserved is worth it.
pub(super) fn measure(model: &RunModel<'_>) -> Option<FragmentationFacts> {
    let (history, snapshot) = (&model.device.history, model.device.snapshot);
    if history.is_empty() {
        return None;
    }
    // Just before the last large segment, when the memory reserved so far was not enough.
    let event = last_large_segment(model);
    if event.is_none() && !history.complete {
        // What was reserved before the history begins may well have been in use then.
        return None;
    }
    let event = event.unwrap_or(history.reserved_peak.event());
    let reserved = history.reserved_peak.bytes;
    let lost = never_needed(history);
    let ratio = share(lost, reserved);
    if lost < MIN_BYTES || ratio < MIN_SHARE {
        return None;
    }
    let regions = layout(history, &model.step_peaks, event);
    let free_then = free(history, &regions);
    let pins = pins(model, &regions);
    let reservations = reservations(model);
    let site = pins.first().and_then(|pin| pin.line.frame).or(reservations.last_line);
    let roomy_card = roomy_card(model);
    Some(FragmentationFacts {
        severity: if roomy_card.is_some() { Severity::Low } else { severity(lost, ratio) },
        roomy_card,
        event,
        reserved,
        used: model.active_peak(),
        lost,
        share: ratio,
        request: request(model, event, &free_then),
        free: free_then,
        pins,
        reservations,
        site,
        module: model.module_at(event, site),
        has_max_split: snapshot.settings.max_split.is_some(),
        is_expandable: history.regions.iter().any(|region| region.expandable),
        is_complete: history.complete,
        at_end: (history.end, free(history, &layout(history, &model.step_peaks, history.len()))),
    })
}

/// The card, if most of it was never reserved and no allocation failed.
pub(super) fn roomy_card(model: &RunModel<'_>) -> Option<Bytes> {
    let history = &model.device.history;
    let size = model.device.recording.gpu(history.device)?.usable()?;
    let is_roomy = share(history.reserved_peak.bytes, size) < MAX_HARMLESS_SHARE;
    (is_roomy && model.step_peaks.ooms.is_empty()).then_some(size)
}

fn severity(lost: Bytes, ratio: f64) -> Severity {
    if lost >= HIGH_BYTES_AND_SHARE.0 && ratio >= HIGH_BYTES_AND_SHARE.1 {
        Severity::High
    } else if lost >= MEDIUM_BYTES_AND_SHARE.0 && ratio >= MEDIUM_BYTES_AND_SHARE.1 {
        Severity::Medium
    } else {
        Severity::Low
    }
}

/// Bytes that were reserved and never in use at one time, private pools aside: no arrangement of the blocks
/// would have needed them.
pub fn never_needed(history: &History) -> Bytes {
    let private =
        history.regions.iter().zip(&history.region_ends).filter(|(region, _)| region.pool != PoolId::DEFAULT);
    let idle: Bytes = private.map(|(_, end)| end.reserved.saturating_sub(end.active)).sum();
    history.reserved_peak.bytes.saturating_sub(active_peak(history)).saturating_sub(idle)
}

/// The event that reserved the last large piece of what is reserved at the peak.
fn last_large_segment(model: &RunModel<'_>) -> Option<usize> {
    let peak = model.device.history.reserved_peak;
    let until_peak = model.step_peaks.segments.iter().take_while(|event| event.event < peak.position);
    let large = until_peak.filter(|event| event.reserves && event.bytes.0 >= peak.bytes.0 / 100);
    large.last().map(|event| event.event)
}

/// What was asked for when a segment had to be reserved.
fn request(model: &RunModel<'_>, event: usize, free: &Free) -> Option<(Bytes, NamedSite)> {
    let history = &model.device.history;
    let next = history.first_allocated_from(event);
    let allocation =
        history.allocations.get(next).filter(|allocation| allocation.alloc_event() == Some(event + 1))?;
    let had_free = free.pinned + free.returnable > Bytes::ZERO;
    had_free.then(|| (allocation.requested, NamedSite::new(model, model.frame_of_allocation(next))))
}

fn pins(model: &RunModel<'_>, regions: &[RegionNow]) -> Vec<Pin> {
    let history = &model.device.history;
    // Free bytes, live bytes and blocks of each line.
    let mut pins: FxHashMap<Option<FrameId>, (Bytes, Bytes, u64)> = FxHashMap::default();
    for now in regions {
        let region = &history.regions[now.region];
        let is_pinned =
            region.pool == PoolId::DEFAULT && !region.expandable && now.free() >= MIN_FREE_BLOCK_BYTES;
        if !is_pinned || now.allocations.is_empty() {
            continue;
        }
        let each = Bytes(now.free().0 / now.allocations.len() as u64);
        for &row in &now.allocations {
            let (free, live, count) = pins.entry(model.frame_of_allocation(row as usize)).or_default();
            *free += each;
            *live += history.allocations[row as usize].size;
            *count += 1;
        }
    }
    let pin = |(frame, (free, live, count))| Pin { line: NamedSite::new(model, frame), free, live, count };
    let mut pins: Vec<Pin> = pins.into_iter().map(pin).collect();
    pins.sort_by(|a, b| b.free.cmp(&a.free).then(a.line.frame.cmp(&b.line.frame)));
    pins
}

/// In how many steps more memory was reserved.
fn reservations(model: &RunModel<'_>) -> Reservations {
    let reserving = || model.step_peaks.segments.iter().filter(|event| event.reserves);
    let mut steps: Vec<usize> =
        reserving().filter_map(|event| model.device.steps.of_event(event.event)).collect();
    steps.dedup();
    let last_line = reserving().next_back().and_then(|event| {
        let row = model.device.history.rows.start + event.event;
        model.frame_of(model.device.snapshot.events.stack(row))
    });
    Reservations {
        steps: steps.len() as u64,
        of_steps: model.device.steps.count(),
        last: steps.last().copied(),
        last_line,
    }
}

/// The finding in words.
pub(super) fn describe(facts: &FragmentationFacts) -> Finding {
    let FragmentationFacts { reserved, used, lost, free, .. } = facts;
    let share = percent(facts.share);
    let reason = match facts.roomy_card {
        Some(size) => format!("this {size} device has room for more than twice what was reserved"),
        None => format!("{share} of the reserved memory was never needed at one time"),
    };
    let summary = format!(
        "{reserved} was reserved, but at most {used} was ever in use at one time: {lost} ({share}) is \
         fragmentation"
    );
    let caveats = match facts.is_complete {
        true => Vec::new(),
        false => vec!["the history begins late: more may have been in use before it".to_owned()],
    };
    Finding {
        count: free.pieces,
        site: facts.site,
        module: facts.module,
        details: details(facts),
        fix: fix(facts).to_owned(),
        caveats,
        evidence: evidence(facts),
        ..Finding::new(FindingKind::Fragmentation, facts.severity, reason, summary, *lost)
    }
}

fn details(facts: &FragmentationFacts) -> Vec<String> {
    let FragmentationFacts { free, reservations, .. } = facts;
    let mut details = Vec::new();
    details.extend(facts.roomy_card.map(|size| {
        format!("it costs nothing here: this {size} device has room for more than twice what was reserved")
    }));
    details.extend(facts.request.as_ref().map(|(requested, line)| {
        format!(
            "the last large `cudaMalloc` served a request of {requested}{} while {} was free in {}, the \
             largest {}",
            line.at(),
            free.pinned + free.returnable,
            counted(free.pieces, "block"),
            free.largest
        )
    }));
    details.extend(parts(free));
    if !facts.pins.is_empty() {
        let lines: Vec<String> = facts
            .pins
            .iter()
            .take(MAX_LINES)
            .map(|pin| {
                let line = pin.line.or("unknown lines");
                format!("{line} ({}, {})", counted(pin.count, "block"), pin.live)
            })
            .collect();
        details.push(format!("these blocks pin segments: {}", listed(&lines)));
    }
    details.extend(reservations.last.map(|last| {
        let Reservations { steps, of_steps, .. } = reservations;
        format!("reserved memory grew in {steps} of {of_steps} steps, last in step {}", last + 1)
    }));
    details
}

/// The free memory in words.
fn parts(free: &Free) -> Option<String> {
    let parts: Vec<String> = [
        (free.pinned, "in segments pinned by live blocks"),
        (free.returnable, "in whole segments that `empty_cache()` would return"),
        (free.elsewhere, "cached for another stream or for small blocks"),
    ]
    .iter()
    .filter(|(bytes, _)| *bytes >= MIN_FREE_BLOCK_BYTES)
    .map(|(bytes, what)| format!("{bytes} {what}"))
    .collect();
    let text =
        || format!("free memory: {}; rounding inside blocks takes {} more", listed(&parts), free.rounding);
    (!parts.is_empty()).then(text)
}

fn fix(facts: &FragmentationFacts) -> &'static str {
    if facts.has_max_split {
        "drop `max_split_size_mb`: blocks above it are never split, so every new \
         size needs a segment of its own; then try `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
    } else if facts.is_expandable {
        "sizes that change from step to step leave holes even in expandable segments: pad or \
         bucket the input shapes"
    } else if facts.reservations.of_steps == 0 {
        "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, which lets free memory be merged"
    } else {
        "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, which lets free memory be merged; or pad or \
         bucket the input shapes, so that blocks of one step fit the next"
    }
}

fn evidence(facts: &FragmentationFacts) -> Vec<(&'static str, EvidenceValue)> {
    let FragmentationFacts { free, at_end: (end, free_at_end), .. } = facts;
    let pin = |pin: &Pin| {
        let mut record = vec![
            ("bytes_held_back", EvidenceValue::Bytes(pin.free)),
            ("live_bytes", EvidenceValue::Bytes(pin.live)),
            ("count", EvidenceValue::Count(pin.count)),
        ];
        record.extend(pin.line.evidence());
        EvidenceValue::Record(record)
    };
    let at_end = EvidenceValue::Record(vec![
        ("reserved", EvidenceValue::Bytes(end.reserved)),
        ("active", EvidenceValue::Bytes(end.active)),
        ("returnable_by_empty_cache", EvidenceValue::Bytes(free_at_end.returnable)),
        ("pinned_by_live_blocks", EvidenceValue::Bytes(free_at_end.pinned)),
        ("wrong_pool_or_stream", EvidenceValue::Bytes(free_at_end.elsewhere)),
        ("largest_free", EvidenceValue::Bytes(free_at_end.largest)),
    ]);
    vec![
        ("event", EvidenceValue::Count(facts.event as u64)),
        ("reserved", EvidenceValue::Bytes(facts.reserved)),
        ("active_peak", EvidenceValue::Bytes(facts.used)),
        ("free_before_last_growth", EvidenceValue::Bytes(free.total())),
        ("returnable_by_empty_cache", EvidenceValue::Bytes(free.returnable)),
        ("pinned_by_live_blocks", EvidenceValue::Bytes(free.pinned)),
        ("wrong_pool_or_stream", EvidenceValue::Bytes(free.elsewhere)),
        ("private_pools", EvidenceValue::Bytes(free.private)),
        ("rounding", EvidenceValue::Bytes(free.rounding)),
        ("largest_free", EvidenceValue::Bytes(free.largest)),
        ("pieces", EvidenceValue::Count(free.pieces)),
        ("pinned_by", EvidenceValue::List(facts.pins.iter().take(MAX_LINES).map(pin).collect())),
        ("at_end", at_end),
        ("reserved_grew_in_steps", EvidenceValue::Count(facts.reservations.steps)),
        ("threshold", EvidenceValue::Ratio(MIN_SHARE)),
    ]
}
