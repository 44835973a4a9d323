//! Memory that accumulates step after step, and the lines that it comes from.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::leak_kind::LeakKind;
use super::line::NamedSite;
use super::rising_peak::RisingPeakFacts;
use super::room::Room;
use crate::run::growth::{GrowingSite, GrowingSites, GrowthClock, MIN_STEADY_SHARE, Trend};
use crate::run::holders::Held;
use crate::run::model::RunModel;
use crate::trace::modules::ModuleId;
use crate::words::{counted, grouped, listed, percent, share};
use heap::HolderKind;
use recording::Label;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId, StackId};

/// Share of rises that two growing sites have in common if the same thing keeps both.
const MIN_COMMON_RISES: f64 = 0.6;
/// Bytes, and share of the peak, from which retained growth is reported.
const MIN_STOPPED: Bytes = Bytes(1 << 20);
const MIN_STOPPED_SHARE: f64 = 0.01;
/// Bytes per step. Slower leaks never fill a card in practice.
const MIN_PACE: f64 = 64.0;
/// Steps until the card is full below which a leak ends most runs, and above which it ends hardly any.
const HIGH_STEPS_LEFT: f64 = 10_000.0;
const LOW_STEPS_LEFT: f64 = 1_000_000.0;
/// Share of a leak by which memory as a whole has to grow.
const MIN_GROWTH_OF_ALL: f64 = 0.4;
/// Lines that are named.
const MAX_LINES: usize = 4;
/// Most clusters of growing sites.
const MAX_CLUSTERS: usize = 32;

/// Every leak of a run.
pub(super) struct Leaks {
    pub(super) leaks: Vec<LeakFacts>,
    /// Bytes that all of them had retained at each bound of the steps.
    pub(super) retained: Vec<u64>,
}

/// One leak, in numbers.
pub(super) struct LeakFacts {
    severity: Severity,
    trend: Trend,
    outlook: Outlook,
    clock: GrowthClock,
    /// What is retained at the end.
    bytes: Bytes,
    /// Bytes per step, or per second without steps.
    pace: f64,
    blocks: u64,
    /// Steps with growth, the step before the first of them, and steps in all.
    rises: usize,
    since: usize,
    steps: usize,
    /// Steps from one of them to the next, where that is always the same.
    every: Option<usize>,
    /// Bytes that it had retained at each bound of the steps.
    retained: Vec<u64>,
    /// Whether memory as a whole does not grow with it.
    is_doubtful: bool,
    room: Room,
    /// Steps until that is full, or seconds without steps.
    steps_left: f64,
    /// The line to look at first.
    lines: Vec<LeakLine>,
    module: Option<ModuleId>,
    kind: LeakKind,
    /// What to know about the first line, if it is in `backward()`.
    doubt: Option<&'static str>,
    is_cpu: bool,
    /// Whether a `backward()` ran.
    has_backward: bool,
    held: Option<Held>,
}

/// What becomes of a leak if the run goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// It has stopped growing.
    Stopped,
    /// It grows, but memory as a whole does not.
    Offset,
    /// It stops growing when its container is full.
    Bounded,
    /// It fills the memory.
    Fills,
}

impl LeakFacts {
    /// What has stopped growing, or will, is no leak: most often a cache that is filled.
    fn finding_kind(&self) -> FindingKind {
        match (self.trend, self.outlook) {
            (Trend::Stopped, _) | (_, Outlook::Bounded) => FindingKind::RetainedGrowth,
            (Trend::Growing, _) => FindingKind::Leak,
        }
    }

    fn has_steps(&self) -> bool {
        self.clock == GrowthClock::Steps
    }

    /// Name of the pace in evidence.
    fn pace_name(&self) -> &'static str {
        if self.has_steps() { "bytes_per_step" } else { "bytes_per_second" }
    }

    fn fix(&self) -> String {
        let line = self.lines.first().map_or("that line", |line| line.line.or("that line"));
        // A variable that grows is not to be deleted.
        let of_holder = |held: &&Held| self.kind != LeakKind::Grows || held.kind != HolderKind::Variable;
        let fix = match self.held.as_ref().filter(of_holder) {
            // Nothing needs the graph: it should not have been made.
            Some(held) if self.kind == LeakKind::Graph && held.keeps_tensors() && !self.has_backward => {
                self.kind.fix(line, self.is_cpu)
            }
            // A `backward()` that follows may be that of something else.
            Some(held) if self.kind.is_graph() && held.keeps_graph && held.kind == HolderKind::Container => {
                format!("{}; if nothing is trained there, run {line} under `torch.no_grad()`", held.advice)
            }
            Some(held) => held.advice.clone(),
            None => self.kind.fix(line, self.is_cpu),
        };
        match self.trend {
            Trend::Growing => fix,
            Trend::Stopped => {
                format!("nothing, if this is a cache that is meant to be there; otherwise {fix}")
            }
        }
    }
}

/// Measures all leaks of a run.
pub(super) fn measure(model: &RunModel<'_>) -> Leaks {
    let GrowingSites { sites, bounds, .. } = &model.growing_sites;
    let bounds = bounds.len();
    let leaks = clusters(sites).iter().filter_map(|cluster| measure_one(model, cluster, bounds)).collect();
    Leaks { leaks, retained: retained(sites.iter(), bounds) }
}

impl Leaks {
    /// Drops what is only the output of a step that works on more each time: one tensor that is alive when
    /// the step ends, and larger than the one before, as everything else in the step is. Returns whether
    /// there was any.
    pub(super) fn drop_growing_work(&mut self, rising: &RisingPeakFacts) -> bool {
        let before = self.leaks.len();
        let retained = &mut self.retained;
        self.leaks.retain(|leak| {
            let is_output = leak.kind == LeakKind::Grows
                && leak.lines.first().is_some_and(|line| rising.exceeds(leak.pace, line.line.frame));
            if is_output {
                retained.iter_mut().zip(&leak.retained).for_each(|(all, of)| *all = all.saturating_sub(*of));
            }
            !is_output
        });
        self.leaks.len() < before
    }

    /// What they had retained when the last allocation failed, as far as it was still there.
    pub(super) fn retained_at_oom(&self, model: &RunModel<'_>) -> Bytes {
        let Some(&event) = model.step_peaks.ooms.last() else { return Bytes::ZERO };
        let bound = model.growing_sites.bounds.partition_point(|&bound| bound <= event);
        let at = |bound| self.retained.get(bound).or(self.retained.last());
        let retained = Bytes(bound.checked_sub(1).and_then(at).copied().unwrap_or(0));
        retained.min(alive_at_oom(model, model.growing_sites.sites.iter()))
    }
}

/// What growing sites held when the last allocation failed.
fn alive_at_oom<'a>(model: &RunModel<'_>, sites: impl Iterator<Item = &'a GrowingSite>) -> Bytes {
    let Some(&event) = model.step_peaks.ooms.last() else { return Bytes::ZERO };
    let blocks = sites.flat_map(|site| &site.allocations);
    let blocks = blocks.map(|&row| &model.device.history.allocations[row as usize]);
    blocks.filter(|block| block.is_allocated_at(event)).map(|block| block.size).sum()
}

fn measure_one(model: &RunModel<'_>, cluster: &SiteCluster<'_>, bounds: usize) -> Option<LeakFacts> {
    let history = &model.device.history;
    let bytes: Bytes = cluster.sites.iter().map(|site| Bytes(site.bytes())).sum();
    let is_growing = cluster.trend == Trend::Growing;
    let is_small = bytes < MIN_STOPPED || share(bytes, history.allocated_peak.bytes) < MIN_STOPPED_SHARE;
    let per = per_unit(model.growing_sites.clock);
    let pace: f64 = cluster.sites.iter().map(|site| site.pace(bounds) * per).sum();
    if !is_growing && is_small || pace < MIN_PACE {
        return None;
    }
    let room = Room::of(model, alive_at_oom(model, cluster.sites.iter().copied()).min(bytes));
    let steps_left = room.size.saturating_sub(history.reserved_peak.bytes).0 as f64 / pace.max(1.0);
    let retained = retained(cluster.sites.iter().copied(), bounds);
    let is_doubtful = is_growing && !memory_grows_with(model, &retained);
    let held =
        model.device.held(cluster.sites.iter().flat_map(|site| &site.allocations).map(|&row| row as usize));
    let held = held.or_else(|| {
        let stacks = cluster.sites.iter().map(|site| site.stack);
        let stacks: Vec<StackId> = stacks.filter(|&stack| stack != StackId::EMPTY).collect();
        model.device.held_earlier(&stacks, bytes)
    });
    // A full deque drops as much as it takes. Its graphs would still be a mistake.
    let is_bounded = held.as_ref().is_some_and(|held| held.max_entries.is_some() && !held.keeps_graph);
    let (severity, outlook) = match steps_left {
        _ if !is_growing => (Severity::Low, Outlook::Stopped),
        _ if is_bounded => (Severity::Low, Outlook::Bounded),
        left if left >= LOW_STEPS_LEFT => (Severity::Low, Outlook::Fills),
        _ if is_doubtful => (Severity::Low, Outlook::Offset),
        left if left < HIGH_STEPS_LEFT => (Severity::High, Outlook::Fills),
        _ => (Severity::Medium, Outlook::Fills),
    };
    let is_gradient_cycle = held.as_ref().is_some_and(|held| held.is_gradient_cycle);
    let mut lines = lines(model, &cluster.sites, bounds, is_gradient_cycle);
    if is_gradient_cycle {
        // Here everything follows from the `backward()`.
        lines.sort_by_key(|line| !line.has_backward);
    }
    let first = lines.first().map_or(&[][..], |line| &line.allocations);
    let in_backward = lines.first().is_some_and(|line| line.in_backward);
    let kind = LeakKind::of(model, cluster, in_backward, held.as_ref());
    let is_input =
        |&row: &u32| model.device.tensor_of(row as usize).is_some_and(|tensor| tensor.label == Label::Input);
    if kind == LeakKind::Grows && first.iter().all(is_input) {
        // The input of the step that runs: it is larger each time, and the one before is gone.
        return None;
    }
    Some(LeakFacts {
        severity,
        trend: cluster.trend,
        outlook,
        clock: model.growing_sites.clock,
        bytes,
        pace,
        blocks: lines.iter().map(|line| line.blocks).sum(),
        rises: cluster.rises.len(),
        since: cluster.rises[0] - 1,
        steps: bounds - 1,
        every: cluster.interval(),
        retained,
        is_doubtful,
        room,
        steps_left,
        module: model.common_module(first.iter().map(|&row| row as usize)),
        kind,
        doubt: first.first().filter(|_| in_backward).and_then(|&row| model.doubt_in_backward(row as usize)),
        is_cpu: model.device.is_cpu(),
        has_backward: model.device.backward.next_after(0).is_some(),
        held,
        lines,
    })
}

/// How many of what a pace is measured in (steps, seconds) lie between two bounds, inverted.
fn per_unit(clock: GrowthClock) -> f64 {
    match clock {
        GrowthClock::Steps => 1.0,
        GrowthClock::Time(seconds) => 1.0 / seconds,
    }
}

/// What some growing sites retain together at each bound.
fn retained<'a>(sites: impl Iterator<Item = &'a GrowingSite>, bounds: usize) -> Vec<u64> {
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

/// Growing sites that belong together.
pub(super) struct SiteCluster<'a> {
    pub(super) sites: Vec<&'a GrowingSite>,
    /// The bounds at which the first of them rises.
    pub(super) rises: Vec<usize>,
    trend: Trend,
}

impl SiteCluster<'_> {
    /// Steps from one rise to the next, if that is the same for nearly all.
    fn interval(&self) -> Option<usize> {
        let mut gaps: Vec<usize> = self.rises.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        let usual = *gaps.get(gaps.len() / 2)?;
        let alike = gaps.iter().filter(|&&gap| gap == usual).count();
        (usual > 1 && alike as f64 >= MIN_STEADY_SHARE * gaps.len() as f64).then_some(usual)
    }
}

fn clusters(sites: &[GrowingSite]) -> Vec<SiteCluster<'_>> {
    let mut clusters: Vec<SiteCluster<'_>> = Vec::new();
    for site in sites {
        let rises: Vec<usize> = site.rises.iter().map(|rise| rise.bound).collect();
        let home = clusters.iter().position(|cluster| {
            cluster.trend == site.trend && overlap(&cluster.rises, &rises) >= MIN_COMMON_RISES
        });
        match home {
            Some(cluster) => clusters[cluster].sites.push(site),
            None if clusters.len() < MAX_CLUSTERS => {
                clusters.push(SiteCluster { trend: site.trend, rises, sites: vec![site] });
            }
            // The sites are sorted: what is left is smaller than all of these.
            None => {}
        }
    }
    clusters
}

/// The share of both lists that is in both. What one step leaves behind may show at this bound or at the
/// next.
fn overlap(a: &[usize], b: &[usize]) -> f64 {
    let shifted = |by: usize| a.iter().filter(|&&step| b.binary_search(&(step + by)).is_ok()).count();
    let back = b.iter().filter(|&&step| a.binary_search(&(step + 1)).is_ok()).count();
    let both = shifted(0).max(shifted(1)).max(back);
    both as f64 / (a.len() + b.len() - both).max(1) as f64
}

/// Whether the memory as a whole rises with a leak. Where the history is complete every block is accounted
/// for and this need not be asked; where it begins late, blocks from before may be leaving as fast as new
/// ones come.
fn memory_grows_with(model: &RunModel<'_>, retained: &[u64]) -> bool {
    if model.device.history.complete {
        return true;
    }
    let third = retained.len() / 3;
    let rise = |at: &dyn Fn(usize) -> u64| {
        let middle = |from: usize| {
            let mut values: Vec<u64> = (from..from + third.max(1)).map(at).collect();
            values.sort_unstable();
            values[values.len() / 2] as f64
        };
        middle(retained.len() - third.max(1)) - middle(third)
    };
    let allocated = |bound: usize| model.step_peaks.at_bounds[bound].0;
    rise(&allocated) > MIN_GROWTH_OF_ALL * rise(&|bound| retained[bound])
}

/// One line that adds to a leak.
struct LeakLine {
    line: NamedSite,
    stack: StackId,
    /// Bytes per step.
    pace: f64,
    bytes: u64,
    blocks: u64,
    /// It follows from another line: the gradient or the optimizer state of a parameter made there.
    follows: bool,
    /// All of it, or some of it, is allocated inside the `backward()` of the line.
    in_backward: bool,
    has_backward: bool,
    /// Rows of [`snapshot::History::allocations`].
    allocations: Vec<u32>,
}

/// The lines of a leak, the one to look at first. What `backward()` allocates is shown at the line of the
/// module that it runs through, or at the call itself.
fn lines(
    model: &RunModel<'_>,
    sites: &[&GrowingSite],
    bounds: usize,
    names_backward_call: bool,
) -> Vec<LeakLine> {
    let mut lines: FxHashMap<Option<FrameId>, LeakLine> = FxHashMap::default();
    for site in sites {
        let first = site
            .allocations
            .first()
            .and_then(|&row| model.device.history.allocations[row as usize].alloc_event());
        let run = site.module.zip(first).and_then(|(module, event)| model.device.forward_line(module, event));
        let call = model.frame_of(site.stack);
        let frame = if names_backward_call { call.or(run) } else { run.or(call) };
        let follows = site.in_backward || model.device.roles.of(site.stack).optimizer;
        let line = lines.entry(frame).or_insert_with(|| LeakLine {
            line: NamedSite::new(model, frame),
            stack: site.stack,
            pace: 0.0,
            bytes: 0,
            blocks: 0,
            follows: true,
            in_backward: true,
            has_backward: false,
            allocations: Vec::new(),
        });
        line.in_backward &= site.in_backward;
        line.has_backward |= site.in_backward;
        line.allocations.extend(&site.allocations);
        line.pace += site.pace(bounds) * per_unit(model.growing_sites.clock);
        line.bytes = line.bytes.saturating_add(site.bytes());
        line.blocks += site.allocations.len() as u64;
        line.follows &= follows;
    }
    let total = lines.values().fold(0u64, |sum, line| sum.saturating_add(line.bytes));
    let mut lines: Vec<LeakLine> = lines.into_values().collect();
    // Gradients and optimizer state follow from the parameter that they belong to: name its line, not theirs.
    lines.sort_by_key(|line| {
        let frame = line.line.frame;
        (frame.is_none() || line.follows || line.bytes < total / 10, std::cmp::Reverse(line.bytes), frame)
    });
    lines
}

/// The finding in words.
pub(super) fn describe(facts: &LeakFacts) -> Finding {
    let site = facts.lines.first().and_then(|line| line.line.frame);
    let reason = reason(facts);
    Finding {
        bytes_per_step: facts.has_steps().then_some(Bytes(facts.pace.round() as u64)),
        steps_until_full: (facts.outlook == Outlook::Fills && facts.has_steps())
            .then_some(facts.steps_left as u64),
        trend: Some(facts.trend),
        count: facts.blocks,
        site,
        module: facts.module,
        details: details(facts, &reason),
        fix: facts.fix(),
        caveats: caveats(facts, site),
        evidence: evidence(facts),
        held: facts.held.clone(),
        ..Finding::new(facts.finding_kind(), facts.severity, reason, summary(facts), facts.bytes)
    }
}

fn reason(facts: &LeakFacts) -> String {
    let room = &facts.room.name;
    match (facts.outlook, facts.steps_left) {
        (Outlook::Stopped, _) => "it has stopped growing".to_owned(),
        (Outlook::Bounded, _) => "what holds it has a limit".to_owned(),
        (Outlook::Offset, _) => "memory as a whole does not grow with it".to_owned(),
        (Outlook::Fills, left) if left < 1.0 => format!("it has filled {room}"),
        (Outlook::Fills, left) if !facts.has_steps() => {
            format!("at this rate {room} is full in {}", duration(left))
        }
        (Outlook::Fills, left) if left > LOW_STEPS_LEFT => {
            format!("at this rate {room} fills up after more than a million steps")
        }
        (Outlook::Fills, left) => {
            format!("at this rate {room} is full after {} more steps", grouped(left as u64))
        }
    }
}

/// A time in the unit that people would use.
fn duration(seconds: f64) -> String {
    let (number, unit) = match seconds {
        seconds if seconds < 120.0 => (seconds, "second"),
        seconds if seconds < 7_200.0 => (seconds / 60.0, "minute"),
        seconds if seconds < 172_800.0 => (seconds / 3_600.0, "hour"),
        seconds => (seconds / 86_400.0, "day"),
    };
    counted(number.round() as u64, unit)
}

fn summary(facts: &LeakFacts) -> String {
    let LeakFacts { bytes, rises, since, steps, .. } = facts;
    if let GrowthClock::Time(seconds) = facts.clock {
        let (pace, all) = (Bytes(facts.pace.round() as u64), seconds * *steps as f64);
        return format!("{pace} per second in another thread, for {}, still growing", duration(all));
    }
    let since_words = if *since > 1 { format!(" since step {}", since + 1) } else { String::new() };
    if facts.trend == Trend::Stopped {
        return format!("{bytes} accumulated in {rises} steps{since_words} and stayed; it no longer grows");
    }
    let (pace, grown) = (Bytes(facts.pace.round() as u64), steps - since);
    if facts.outlook == Outlook::Bounded {
        return format!(
            "{bytes} accumulated so far, {pace} per step{since_words}; what holds it has a limit"
        );
    }
    if *rises as f64 >= MIN_STEADY_SHARE * grown as f64 {
        return format!("{pace} per step{since_words}, still growing");
    }
    match facts.every {
        Some(every) => {
            let each = Bytes((facts.pace * every as f64).round() as u64);
            format!("{each} every {every} steps ({pace} per step){since_words}, still growing")
        }
        None => {
            let (rises, grown) = (grouped(*rises as u64), grouped(grown as u64));
            format!("{pace} per step, in {rises} of {grown} steps{since_words}, still growing")
        }
    }
}

fn details(facts: &LeakFacts, reason: &str) -> Vec<String> {
    let each = (facts.blocks as f64 / facts.rises.max(1) as f64).round().max(1.0) as u64;
    let are = if each == 1 { "is" } else { "are" };
    // Where the holder is known, it need not be guessed.
    let what = match (facts.kind, &facts.held) {
        (LeakKind::Tensors, Some(_)) => String::new(),
        (LeakKind::ScalarWithGraph, Some(held)) if !held.keeps_graph => String::new(),
        (kind, _) => format!(": {}", kind.sentence()),
    };
    let mut details = vec![match facts.has_steps() {
        true => format!("{} {are} retained each time{what}", counted(each, "block")),
        false => format!("{} were retained{what}", counted(facts.blocks, "block")),
    }];
    if facts.lines.len() > 1 {
        let named: Vec<String> = facts
            .lines
            .iter()
            .take(MAX_LINES)
            .map(|line| {
                let name = line.line.or("lines that were not recorded");
                let (backward, and) = match (line.in_backward, line.has_backward) {
                    (true, _) => ("backward of ", ""),
                    (false, true) => ("", " and its backward"),
                    (false, false) => ("", ""),
                };
                format!(
                    "{backward}{name}{and} ({})",
                    percent(line.bytes as f64 / facts.bytes.0.max(1) as f64)
                )
            })
            .collect();
        let more = match facts.lines.len().saturating_sub(MAX_LINES) {
            0 => String::new(),
            more => format!(" and {}", counted(more as u64, "more line")),
        };
        details.push(format!("it comes from {}{more}", listed(&named)));
    }
    if facts.trend == Trend::Growing {
        details.push(reason.to_owned());
    }
    details.extend(facts.held.as_ref().map(|held| held.sentence.clone()));
    details
}

fn caveats(facts: &LeakFacts, site: Option<FrameId>) -> Vec<String> {
    let mut caveats = Vec::new();
    caveats.extend(facts.doubt.map(|doubt| format!("{doubt}; blocks are distinguished by size")));
    if site.is_none() {
        caveats.push("these blocks were recorded without a stack, so the line is not known".to_owned());
    }
    if facts.is_doubtful {
        caveats.push(
            "the history begins late and older blocks are freed as these are made: this may be a buffer of \
             fixed size that was full before the recording began"
                .to_owned(),
        );
    }
    caveats
}

fn evidence(facts: &LeakFacts) -> Vec<(&'static str, EvidenceValue)> {
    let retained = &facts.retained;
    let every = retained.len().div_ceil(32);
    let line = |line: &LeakLine| {
        let mut record = vec![
            ("bytes", EvidenceValue::Bytes(Bytes(line.bytes))),
            (facts.pace_name(), EvidenceValue::Bytes(Bytes(line.pace.round() as u64))),
            ("count", EvidenceValue::Count(line.blocks)),
            ("in_backward", EvidenceValue::Flag(line.in_backward)),
        ];
        record.extend(line.line.evidence());
        EvidenceValue::Record(record)
    };
    let kept = retained.iter().step_by(every).map(|&bytes| EvidenceValue::Bytes(Bytes(bytes))).collect();
    let stack = facts.lines.first().map_or(StackId::EMPTY, |line| line.stack);
    let mut evidence = vec![
        ("trend", EvidenceValue::Text(facts.trend.name().to_owned())),
        (facts.pace_name(), EvidenceValue::Bytes(Bytes(facts.pace.round() as u64))),
        ("since_step", EvidenceValue::Count(facts.since as u64)),
        ("steps_with_growth", EvidenceValue::Count(facts.rises as u64)),
        ("of_steps", EvidenceValue::Count(retained.len() as u64 - 1)),
        ("kept_every_steps", EvidenceValue::Count(every as u64)),
        ("kept_bytes", EvidenceValue::List(kept)),
        ("lines", EvidenceValue::List(facts.lines.iter().take(16).map(line).collect())),
        ("stack", EvidenceValue::Stack(stack)),
    ];
    if facts.trend == Trend::Growing {
        evidence.push(("card_bytes", EvidenceValue::Bytes(facts.room.size)));
        let name = if facts.has_steps() { "steps_until_full" } else { "seconds_until_full" };
        evidence.push((name, EvidenceValue::Count(facts.steps_left as u64)));
    }
    evidence
}
