//! Memory that accumulates step after step, and the lines that it comes from.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::findings::leak_kind::LeakKind;
use crate::run::growth::{GrowingSite, GrowingSites, Trend};
use crate::run::model::RunModel;
use crate::words::{counted, grouped, listed, percent, place_or, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId, StackId};

/// GrowingSites that rise in the same steps are kept by the same thing.
const SAME_RHYTHM: f64 = 0.6;
/// GrowingSites that have stopped growing are only worth a word from here on.
const LEAST_STOPPED: Bytes = Bytes(1 << 20);
const LEAST_STOPPED_SHARE: f64 = 0.01;
/// Bytes a step below which nobody's run is long enough.
const LEAST_PACE: f64 = 64.0;
/// A leak that fills the card within this many steps ends most runs; one that needs more than the second number ends
/// hardly any.
const SOON: f64 = 10_000.0;
const HARDLY_EVER: f64 = 1_000_000.0;
/// Memory of common cards, in GiB.
const CARDS: [u64; 12] = [8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 192];
/// Share of a leak by which memory as a whole has to grow.
const GROWS_WITH: f64 = 0.4;
/// Lines that are named.
const LINES: usize = 4;
/// Rhythms that are told apart.
const MOST_CLUSTERS: usize = 32;

/// Every leak, and what they had piled up at each bound of the steps.
pub(crate) struct Leaks {
    pub(crate) findings: Vec<Finding>,
    pub(crate) piled_up: Vec<u64>,
}

/// Finds them all.
pub(crate) fn leaks(model: &RunModel<'_>) -> Leaks {
    let GrowingSites { sites, bounds } = &model.growing_sites;
    let findings = clusters(sites).iter().filter_map(|cluster| finding(model, cluster, *bounds)).collect();
    Leaks { findings, piled_up: sum(sites.iter(), *bounds) }
}

/// What some growing sites hold together at each bound.
fn sum<'a>(sites: impl Iterator<Item = &'a GrowingSite>, bounds: usize) -> Vec<u64> {
    let mut added = vec![0u64; bounds];
    for site in sites {
        let mut before = 0;
        for rise in &site.rises {
            added[rise.bound] = added[rise.bound].saturating_add(rise.bytes - before);
            before = rise.bytes;
        }
    }
    let mut held = 0u64;
    for bytes in &mut added {
        held = held.saturating_add(*bytes);
        *bytes = held;
    }
    added
}

/// GrowingSites that belong together.
pub(crate) struct SiteCluster<'a> {
    pub(crate) sites: Vec<&'a GrowingSite>,
    /// The bounds at which the first of them rises.
    pub(crate) rises: Vec<usize>,
    trend: Trend,
}

fn clusters(sites: &[GrowingSite]) -> Vec<SiteCluster<'_>> {
    let mut clusters: Vec<SiteCluster<'_>> = Vec::new();
    for site in sites {
        let rises: Vec<usize> = site.rises.iter().map(|rise| rise.bound).collect();
        let home = clusters.iter().position(|cluster| {
            cluster.trend == site.trend && overlap(&cluster.rises, &rises) >= SAME_RHYTHM
        });
        match home {
            Some(cluster) => clusters[cluster].sites.push(site),
            None if clusters.len() < MOST_CLUSTERS => {
                clusters.push(SiteCluster { trend: site.trend, rises, sites: vec![site] });
            }
            // The sites are sorted: what is left is smaller than all of these.
            None => {}
        }
    }
    clusters
}

/// The share of both lists that is in both. What one step leaves behind may show at this bound or at the next.
fn overlap(a: &[usize], b: &[usize]) -> f64 {
    let shifted = |by: usize| a.iter().filter(|&&step| b.binary_search(&(step + by)).is_ok()).count();
    let back = b.iter().filter(|&&step| a.binary_search(&(step + 1)).is_ok()).count();
    let both = shifted(0).max(shifted(1)).max(back);
    both as f64 / (a.len() + b.len() - both).max(1) as f64
}

/// One line that adds to a leak.
struct Line {
    frame: Option<FrameId>,
    stack: StackId,
    pace: f64,
    bytes: u64,
    blocks: u64,
    /// It follows from another line: the gradient or the optimizer state of a parameter made there.
    follows: bool,
    in_backward: bool,
    /// Rows of `lives`.
    lives: Vec<u32>,
}

fn finding(model: &RunModel<'_>, cluster: &SiteCluster<'_>, bounds: usize) -> Option<Finding> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
    let bytes: Bytes = cluster.sites.iter().map(|site| Bytes(site.bytes())).sum();
    let is_growing = cluster.trend == Trend::Growing;
    let is_small = bytes < LEAST_STOPPED || share(bytes, history.allocated_peak.bytes) < LEAST_STOPPED_SHARE;
    let pace: f64 = cluster.sites.iter().map(|site| site.pace(bounds)).sum();
    if !is_growing && is_small || pace < LEAST_PACE {
        return None;
    }
    let lines = lines(model, &cluster.sites, bounds);
    let blocks: u64 = lines.iter().map(|line| line.blocks).sum();
    let steps = bounds - 1;
    let since = cluster.rises[0] - 1;
    let card = Room::of(model, bytes);
    let left = card.size.saturating_sub(history.reserved_peak.bytes).0 as f64 / pace.max(1.0);
    let (severity, reason) = match () {
        () if !is_growing => (Severity::Low, "it has stopped growing".to_owned()),
        () => (
            match left {
                left if left < SOON => Severity::High,
                left if left < HARDLY_EVER => Severity::Medium,
                _ => Severity::Low,
            },
            match left {
                left if left < 1.0 => format!("it has filled {}", card.name),
                left if left > HARDLY_EVER => {
                    format!("at this pace {} lasts for more than a million steps", card.name)
                }
                left => {
                    format!("at this pace {} is full after {} more steps", card.name, grouped(left as u64))
                }
            },
        ),
    };
    let kept = sum(cluster.sites.iter().copied(), bounds);
    let is_doubtful = is_growing && !memory_grows_with(model, &kept);
    let (severity, reason) = if is_doubtful && severity > Severity::Low {
        (Severity::Low, "memory as a whole does not grow with it".to_owned())
    } else {
        (severity, reason)
    };
    let per_step = Bytes(pace.round() as u64);
    let (rises, of_steps) = (grouped(cluster.rises.len() as u64), grouped((steps - since) as u64));
    let rhythm = if cluster.rises.len() == steps - since {
        "every step".to_owned()
    } else {
        format!("a step, in {rises} of {of_steps} steps")
    };
    let since_words = if since > 1 { format!(" since step {}", since + 1) } else { String::new() };
    let mut finding = Finding::new(
        Kind::Leak,
        severity,
        reason,
        if is_growing {
            format!("{per_step} {rhythm}{since_words}, still growing")
        } else {
            format!(
                "{bytes} piled up in {} steps{since_words} and stayed; it no longer grows",
                cluster.rises.len()
            )
        },
        bytes,
    );
    finding.bytes_per_step = Some(per_step);
    finding.count = blocks;
    finding.site = lines.first().and_then(|line| line.frame);
    let first = lines.first().map_or(&[][..], |line| &line.lives);
    finding.module = model.common_module(first.iter().map(|&row| row as usize));
    let nature = LeakKind::of(model, cluster, lines.first().is_some_and(|line| line.in_backward));
    let each = (blocks as f64 / cluster.rises.len().max(1) as f64).round().max(1.0) as u64;
    let stay = if each == 1 { "stays" } else { "stay" };
    finding.details.push(format!("{} each time {stay}: {}", counted(each, "block"), nature.sentence()));
    if lines.len() > 1 {
        let total = bytes.0;
        let named: Vec<String> = lines
            .iter()
            .take(LINES)
            .map(|line| {
                let name = place_or(snapshot, line.frame, "lines that were not recorded");
                let inside = if line.in_backward { ", inside backward()" } else { "" };
                format!("{name} ({}{inside})", percent(line.bytes as f64 / total.max(1) as f64))
            })
            .collect();
        let more = match lines.len().saturating_sub(LINES) {
            0 => String::new(),
            more => format!(" and {}", counted(more as u64, "more line")),
        };
        finding.details.push(format!("it comes from {}{more}", listed(&named)));
    }
    if is_growing {
        finding.details.push(finding.reason.clone());
    }
    finding.fix = nature.fix(&place_or(snapshot, finding.site, "that line"), model.device.is_cpu());
    if lines.first().is_some_and(|line| line.in_backward) {
        let doubt = first.first().and_then(|&row| model.doubt_in_backward(row as usize));
        finding.caveats.extend(doubt.map(|doubt| format!("{doubt}; blocks are told apart by size")));
    }
    if finding.site.is_none() {
        finding
            .caveats
            .push("these blocks were recorded without a stack, so the line is not known".to_owned());
    }
    if is_doubtful {
        finding.caveats.push(
            "the history begins late and older blocks are freed as these are made: this may be a buffer of fixed size that \
             was full before the recording began"
                .to_owned(),
        );
    }
    let lives = lines.iter().flat_map(|line| &line.lives).map(|&row| row as usize);
    finding.held = model.device.held(lives);
    if let Some(held) = &finding.held {
        finding.details.push(held.sentence.clone());
        finding.fix = held.advice.clone();
    }
    finding.evidence = evidence(cluster, &lines, &kept, since);
    if is_growing {
        finding.evidence.push(("card_bytes", Value::Bytes(card.size)));
        finding.evidence.push(("steps_until_full", Value::Count(left as u64)));
    }
    Some(finding)
}

/// Whether the memory as a whole rises with a leak. Where the history is complete every block is accounted for and this
/// need not be asked; where it begins late, blocks from before may be leaving as fast as new ones come.
fn memory_grows_with(model: &RunModel<'_>, piled_up: &[u64]) -> bool {
    if model.device.history.complete {
        return true;
    }
    let third = piled_up.len() / 3;
    let rise = |at: &dyn Fn(usize) -> u64| {
        let middle = |from: usize| {
            let mut values: Vec<u64> = (from..from + third.max(1)).map(at).collect();
            values.sort_unstable();
            values[values.len() / 2] as f64
        };
        middle(piled_up.len() - third.max(1)) - middle(third)
    };
    let allocated = |bound: usize| model.course.at_bounds[bound].0;
    rise(&allocated) > GROWS_WITH * rise(&|bound| piled_up[bound])
}

fn evidence(
    cluster: &SiteCluster<'_>,
    lines: &[Line],
    held: &[u64],
    since: usize,
) -> Vec<(&'static str, Value)> {
    let every = held.len().div_ceil(32);
    vec![
        (
            "trend",
            Value::Text(if cluster.trend == Trend::Growing { "growing".into() } else { "stopped".into() }),
        ),
        ("since_step", Value::Count(since as u64)),
        ("steps_with_growth", Value::Count(cluster.rises.len() as u64)),
        ("of_steps", Value::Count(held.len() as u64 - 1)),
        ("kept_every_steps", Value::Count(every as u64)),
        (
            "kept_bytes",
            Value::List(held.iter().step_by(every).map(|&bytes| Value::Bytes(Bytes(bytes))).collect()),
        ),
        (
            "lines",
            Value::List(
                lines
                    .iter()
                    .take(16)
                    .map(|line| {
                        let mut record = vec![
                            ("bytes", Value::Bytes(Bytes(line.bytes))),
                            ("bytes_per_step", Value::Bytes(Bytes(line.pace.round() as u64))),
                            ("count", Value::Count(line.blocks)),
                            ("in_backward", Value::Flag(line.in_backward)),
                        ];
                        record.extend(line.frame.map(|frame| ("site", Value::Site(frame))));
                        Value::Record(record)
                    })
                    .collect(),
            ),
        ),
        ("stack", Value::Stack(lines.first().map_or(StackId::EMPTY, |line| line.stack))),
    ]
}

/// The lines of a leak, the one to look at first.
fn lines(model: &RunModel<'_>, sites: &[&GrowingSite], bounds: usize) -> Vec<Line> {
    let mut lines: FxHashMap<(Option<FrameId>, bool), Line> = FxHashMap::default();
    for site in sites {
        let run = site.module.and_then(|module| model.device.modules.line(module));
        let frame = run.or_else(|| model.frame_of(site.stack));
        let follows = site.in_backward || model.device.roles.of(site.stack).optimizer;
        let line = lines.entry((frame, site.in_backward)).or_insert(Line {
            frame,
            stack: site.stack,
            pace: 0.0,
            bytes: 0,
            blocks: 0,
            follows: true,
            in_backward: site.in_backward,
            lives: Vec::new(),
        });
        line.lives.extend(&site.lives);
        line.pace += site.pace(bounds);
        line.bytes = line.bytes.saturating_add(site.bytes());
        line.blocks += site.lives.len() as u64;
        line.follows &= follows;
    }
    let total = lines.values().fold(0u64, |sum, line| sum.saturating_add(line.bytes));
    let mut lines: Vec<Line> = lines.into_values().collect();
    // Gradients and optimizer state follow from the parameter that they belong to: name its line, not theirs.
    lines.sort_by_key(|line| {
        (
            line.frame.is_none() || line.follows || line.bytes < total / 10,
            std::cmp::Reverse(line.bytes),
            line.frame,
        )
    });
    lines
}

/// The memory that a leak will fill.
struct Room {
    size: Bytes,
    name: String,
}

impl Room {
    /// The room that a failed allocation met, if the leak has a part in that; otherwise the next common size.
    fn of(model: &RunModel<'_>, leaked: Bytes) -> Room {
        let reserved = model.device.history.reserved_peak.bytes;
        if !model.course.ooms.is_empty() && share(leaked, reserved) >= 0.1 {
            return Room { size: reserved, name: "the memory that this process may use".to_owned() };
        }
        let card = model.device.recording.card(model.device.history.device);
        if let Some(size) = card.and_then(|card| card.limit.or(card.total)).filter(|&size| size > reserved) {
            return Room { size, name: format!("this {size} device") };
        }
        let next = CARDS.iter().copied().find(|&gib| (gib << 30) > reserved.0);
        let gib = next.unwrap_or_else(|| (reserved.0 >> 30).saturating_mul(2).min(u64::MAX >> 30));
        // The size of the card is not in a snapshot.
        let article = if matches!(gib, 8 | 80) { "an" } else { "a" };
        let thing = if model.device.is_cpu() { "machine" } else { "card" };
        Room { size: Bytes(gib << 30), name: format!("{article} {gib} GiB {thing} (the next common size)") }
    }
}
