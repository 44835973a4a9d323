//! Memory that is reserved but could not be used when it was needed.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::findings::layout::{Free, RegionNow, free, layout};
use crate::run::model::{RunModel, active_peak};
use crate::words::{counted, listed, percent, place, place_or, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId, History, PoolId};

/// Below these nobody would change anything for it.
const LEAST_BYTES: Bytes = Bytes(128 << 20);
const LEAST_SHARE: f64 = 0.15;
const MEDIUM: (Bytes, f64) = (Bytes(256 << 20), 0.25);
const HIGH: (Bytes, f64) = (Bytes(1 << 30), 0.4);
/// Lines that are named as holding segments.
const LINES: usize = 3;

/// The finding, if the memory that was free when the most was reserved is worth it.
pub(crate) fn fragmentation(model: &RunModel<'_>) -> Option<Finding> {
    let history = &model.device.history;
    if history.is_empty() {
        return None;
    }
    // Just before the last large segment: what had been reserved so far was not good enough.
    let growing = last_large_segment(model);
    if growing.is_none() && !history.complete {
        // What was reserved before the history begins may well have been in use then.
        return None;
    }
    let growing = growing.unwrap_or(history.reserved_peak.event());
    let (reserved, used) = (history.reserved_peak.bytes, model.active_peak());
    let lost = never_needed(history);
    let ratio = share(lost, reserved);
    if lost < LEAST_BYTES || ratio < LEAST_SHARE {
        return None;
    }
    let severity = match () {
        () if lost >= HIGH.0 && ratio >= HIGH.1 => Severity::High,
        () if lost >= MEDIUM.0 && ratio >= MEDIUM.1 => Severity::Medium,
        () => Severity::Low,
    };
    let regions = layout(history, &model.course, growing);
    let free = free(history, &regions);
    let pins = pins(model, &regions);
    let growth = growth(model);
    let mut finding = Finding::new(
        Kind::Fragmentation,
        severity,
        format!("{} of the reserved memory was never needed at one time", percent(ratio)),
        format!(
            "{reserved} were reserved, but at most {used} were ever in use at one time: {lost} ({}) is fragmentation",
            percent(ratio)
        ),
        lost,
    );
    finding.count = free.pieces;
    finding.site = pins.first().and_then(|pin| pin.frame).or(growth.last_line);
    finding.module = model.module_at(growing, finding.site);
    finding.details.extend(request(model, growing, &free));
    finding.details.extend(parts(&free));
    if !pins.is_empty() {
        let lines: Vec<String> = pins
            .iter()
            .take(LINES)
            .map(|pin| {
                let line = place_or(model.device.snapshot, pin.frame, "unknown lines");
                format!("{line} ({}, {})", counted(pin.count, "block"), pin.live)
            })
            .collect();
        finding.details.push(format!("segments are kept in part by blocks of {}", listed(&lines)));
    }
    finding.details.extend(growth.sentence);
    let settings = &model.device.snapshot.settings;
    let is_expandable = history.regions.iter().any(|region| region.expandable);
    finding.fix = match () {
        () if settings.max_split.is_some() => "drop `max_split_size_mb`: blocks above it are never split, so every new \
            size needs a segment of its own; then try `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
            .to_owned(),
        () if is_expandable => "sizes that change from step to step leave holes even in expandable segments: pad or \
            bucket the input shapes"
            .to_owned(),
        () if model.device.steps.count() == 0 => {
            "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: free pieces then join into one".to_owned()
        }
        () => "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: free pieces then join into one; or pad or bucket \
            the input shapes, so that blocks of one step fit the next"
            .to_owned(),
    };
    if !history.complete {
        finding.caveats.push("the history begins late: more may have been in use before it".to_owned());
    }
    finding.evidence = vec![
        ("event", Value::Count(growing as u64)),
        ("reserved", Value::Bytes(history.reserved_peak.bytes)),
        ("active_peak", Value::Bytes(used)),
        ("free_before_last_growth", Value::Bytes(free.total())),
        ("returnable_by_empty_cache", Value::Bytes(free.returnable)),
        ("pinned_by_live_blocks", Value::Bytes(free.pinned)),
        ("wrong_pool_or_stream", Value::Bytes(free.elsewhere)),
        ("private_pools", Value::Bytes(free.private)),
        ("rounding", Value::Bytes(free.rounding)),
        ("largest_free", Value::Bytes(free.largest)),
        ("pieces", Value::Count(free.pieces)),
        (
            "pinned_by",
            Value::List(
                pins.iter()
                    .take(LINES)
                    .map(|pin| {
                        let mut record = vec![
                            ("bytes_held_back", Value::Bytes(pin.free)),
                            ("live_bytes", Value::Bytes(pin.live)),
                            ("count", Value::Count(pin.count)),
                        ];
                        record.extend(pin.frame.map(|frame| ("site", Value::Site(frame))));
                        Value::Record(record)
                    })
                    .collect(),
            ),
        ),
        ("at_end", at_end(model)),
        ("reserved_grew_in_steps", Value::Count(growth.steps)),
        ("threshold", Value::Ratio(LEAST_SHARE)),
    ];
    Some(finding)
}

/// What was reserved and never in use at one time, private pools aside: no arrangement of the blocks would have needed it.
pub fn never_needed(history: &History) -> Bytes {
    let private =
        history.regions.iter().zip(&history.region_ends).filter(|(region, _)| region.pool != PoolId::DEFAULT);
    let idle: Bytes = private.map(|(_, end)| end.reserved.saturating_sub(end.active)).sum();
    history.reserved_peak.bytes.saturating_sub(active_peak(history)).saturating_sub(idle)
}

/// The event that reserved the last large piece of what is reserved at the peak.
fn last_large_segment(model: &RunModel<'_>) -> Option<usize> {
    let peak = model.device.history.reserved_peak;
    let until_peak = model.course.segments.iter().take_while(|event| event.event < peak.position);
    let large = until_peak.filter(|event| event.reserves && event.bytes.0 >= peak.bytes.0 / 100);
    large.last().map(|event| event.event)
}

/// What was asked for when it had to be reserved.
fn request(model: &RunModel<'_>, growing: usize, free: &Free) -> Option<String> {
    let history = &model.device.history;
    let next = history.first_born_from(growing);
    let life = history.lives.get(next).filter(|life| life.born() == Some(growing + 1))?;
    if free.pinned + free.returnable == Bytes::ZERO {
        return None;
    }
    let line = model.frame_of_life(next).map(|frame| format!(" at {}", place(model.device.snapshot, frame)));
    Some(format!(
        "the last large `cudaMalloc` served a request of {}{} while {} lay free in {}, the largest {}",
        life.requested,
        line.unwrap_or_default(),
        free.pinned + free.returnable,
        counted(free.pieces, "piece"),
        free.largest
    ))
}

/// The free memory in words.
fn parts(free: &Free) -> Option<String> {
    let parts: Vec<String> = [
        (free.pinned, "in segments that live blocks keep"),
        (free.returnable, "in whole segments that `empty_cache()` would return"),
        (free.elsewhere, "cached for another stream or for small blocks"),
    ]
    .iter()
    .filter(|(bytes, _)| *bytes >= Bytes(1 << 20))
    .map(|(bytes, what)| format!("{bytes} {what}"))
    .collect();
    let text =
        || format!("what lay free: {}; rounding inside blocks takes {} more", listed(&parts), free.rounding);
    (!parts.is_empty()).then(text)
}

struct Pin {
    frame: Option<FrameId>,
    /// Free bytes of the segments that its blocks keep, shared among all blocks there.
    free: Bytes,
    live: Bytes,
    count: u64,
}

/// The lines whose blocks keep the most free memory from being returned.
fn pins(model: &RunModel<'_>, regions: &[RegionNow]) -> Vec<Pin> {
    let history = &model.device.history;
    let mut pins: FxHashMap<Option<FrameId>, Pin> = FxHashMap::default();
    for now in regions {
        let region = &history.regions[now.region];
        if region.pool != PoolId::DEFAULT
            || region.expandable
            || now.free() < Bytes(1 << 20)
            || now.lives.is_empty()
        {
            continue;
        }
        let each = Bytes(now.free().0 / now.lives.len() as u64);
        for &row in &now.lives {
            let frame = model.frame_of_life(row as usize);
            let pin =
                pins.entry(frame).or_insert(Pin { frame, free: Bytes::ZERO, live: Bytes::ZERO, count: 0 });
            pin.free += each;
            pin.live += history.lives[row as usize].size;
            pin.count += 1;
        }
    }
    let mut pins: Vec<Pin> = pins.into_values().collect();
    pins.sort_by(|a, b| b.free.cmp(&a.free).then(a.frame.cmp(&b.frame)));
    pins
}

struct Growth {
    steps: u64,
    sentence: Option<String>,
    last_line: Option<FrameId>,
}

/// In how many steps more memory was reserved.
fn growth(model: &RunModel<'_>) -> Growth {
    let reserving = || model.course.segments.iter().filter(|event| event.reserves);
    let mut steps: Vec<usize> =
        reserving().filter_map(|event| model.device.steps.of_event(event.event)).collect();
    steps.dedup();
    let last_line = reserving().next_back().and_then(|event| {
        let row = model.device.history.rows.start + event.event;
        model.frame_of(model.device.snapshot.events.stack(row))
    });
    let sentence = steps.last().map(|last| {
        format!(
            "more was reserved in {} of {} steps, the last time in step {}",
            steps.len(),
            model.device.steps.count(),
            last + 1
        )
    });
    Growth { steps: steps.len() as u64, sentence, last_line }
}

/// The free memory when the snapshot was taken.
fn at_end(model: &RunModel<'_>) -> Value {
    let history = &model.device.history;
    let free = free(history, &layout(history, &model.course, history.len()));
    Value::Record(vec![
        ("reserved", Value::Bytes(history.end.reserved)),
        ("active", Value::Bytes(history.end.active)),
        ("returnable_by_empty_cache", Value::Bytes(free.returnable)),
        ("pinned_by_live_blocks", Value::Bytes(free.pinned)),
        ("wrong_pool_or_stream", Value::Bytes(free.elsewhere)),
        ("largest_free", Value::Bytes(free.largest)),
    ])
}
