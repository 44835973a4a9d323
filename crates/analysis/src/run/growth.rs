//! Growing sites: what grows from step to step, by the code that allocates it.
//!
//! Only blocks that outlive their step count. What a stack holds at the bounds of the steps is a short series
//! of numbers, kept as its changes; whether it grows, has stopped, or rises and falls is decided on that
//! series alone.

use crate::run::categories::{Categories, Category};
use crate::run::device::Device;
use crate::trace::modules::ModuleId;
use rustc_hash::FxHashMap;
use snapshot::{Allocation, Bytes, StackId};

/// How the bytes that one origin holds develop over the steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trend {
    /// Still grows at the end.
    Growing,
    /// Grew for a while and has stayed level since: retained growth.
    Stopped,
}

impl Trend {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Trend::Growing => "growing",
            Trend::Stopped => "stopped",
        }
    }
}

/// A rise that was never reversed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rise {
    /// The bound at which it shows.
    pub(crate) bound: usize,
    /// Bytes that are retained from there on.
    pub(crate) bytes: u64,
}

/// Blocks that accumulate from step to step and have the same origin.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct GrowingSite {
    /// The stack that allocates them, or that called the `backward()` in which they are allocated.
    pub(crate) stack: StackId,
    /// Whether they are allocated inside that `backward()`.
    pub(crate) in_backward: bool,
    /// The module whose backward pass they are, where that is known.
    pub(crate) module: Option<ModuleId>,
    /// Whether it still grows at the end.
    pub(crate) trend: Trend,
    /// Permanent rises, ascending; at least [`MIN_RISES`].
    pub(crate) rises: Vec<Rise>,
    /// Rows of [`History::allocations`]: the blocks that are left.
    pub(crate) allocations: Vec<u32>,
}

impl GrowingSite {
    /// What is left at the last bound.
    pub(crate) fn bytes(&self) -> u64 {
        self.rises.last().map_or(0, |rise| rise.bytes)
    }

    /// Bytes per step over the later half of `bounds` bounds: from the first rise there to the last, so that
    /// leaks of every few steps get the right rate.
    pub(crate) fn pace(&self, bounds: usize) -> f64 {
        let late = &self.rises[self.rises.partition_point(|rise| rise.bound < bounds / 2)..];
        match (late, self.rises.as_slice()) {
            // It had stopped by then: the pace that it had.
            ([first, .., last], _) | (_, [first, .., last]) => {
                (last.bytes - first.bytes) as f64 / (last.bound - first.bound) as f64
            }
            (_, rises) => rises.first().map_or(0.0, |rise| rise.bytes as f64),
        }
    }
}

/// Every growing site of a run.
pub(crate) struct GrowingSites {
    /// Largest first.
    pub(crate) sites: Vec<GrowingSite>,
    /// The bounds that were examined, as events.
    pub(crate) bounds: Vec<usize>,
    /// What lies between two of them.
    pub(crate) clock: GrowthClock,
}

/// What growth is measured over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum GrowthClock {
    /// Steps.
    Steps,
    /// Stretches of time, in seconds, for a run without steps.
    Time(f64),
}

/// Fewest steps over which growth can be distinguished from warm-up.
pub const MIN_STEPS_FOR_LEAK: usize = 5;
/// Fewest rises that make growth.
const MIN_RISES: usize = 3;
/// Rises from which growth that skips steps is a trend: three in eight steps happen by chance.
const MIN_SCATTERED_RISES: usize = 5;
/// Share of the steps with a rise below which rises are scattered.
pub(crate) const MIN_STEADY_SHARE: f64 = 0.75;
/// Share of what was ever added that may be taken away again; more is a buffer, a cache or the garbage
/// collector.
const MAX_RETURNED_SHARE: f64 = 0.3;
/// Share of the rise of the blocks that are left by which all blocks of their origin have to rise.
const MIN_SHARE_OF_LEFT: f64 = 0.5;
/// Below this share of the first half's pace, growth in the second half dies down: a cache that fills.
const MAX_LATE_SHARE: f64 = 0.25;

/// Minimum number of steps to distinguish a queue that grows from one that fills up once.
const MIN_STEPS_FOR_QUEUE: usize = 12;
/// Share of the growth that the last quarter of the steps has to have.
const MIN_SHARE_AT_END: f64 = 0.125;
/// Minimum number of steps to distinguish a queue that is filled in bursts from one with a limit.
const MIN_STEPS_FOR_BURSTS: usize = 48;
/// [`agreement`] from which a queue grows that is filled in bursts, and so rises and falls.
const MIN_AGREEMENT_OF_BURSTS: f64 = 0.7;
/// Share of its growth from which a queue looks full, and share of the steps in which it may: one that looks
/// full more often has a limit.
const FULL_SHARE: f64 = 0.9;
const MAX_SHARE_OF_STEPS_FULL: f64 = 0.2;
/// [`agreement`] from which values rise throughout.
pub(crate) const MIN_AGREEMENT: f64 = 0.8;
/// Values that are compared with each other; more would take time and tell nothing new.
pub(crate) const MAX_COMPARED: usize = 256;

/// Times the size of the next largest from which a block is a different thing.
const ONE_OFF_TIMES: i64 = 4;

/// Stretches of time that a run without steps is divided into.
const STRETCHES: usize = 24;
/// Shortest such run, in microseconds.
const MIN_DURATION_US: i64 = 1_000_000;

/// What allocates the blocks of a growing site. Without a stack of its own, blocks are distinguished by size,
/// and by their module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct GrowthOrigin {
    stack: StackId,
    in_engine: Option<(Bytes, Option<ModuleId>)>,
}

/// Finds the growing sites of a device.
pub(crate) fn growing_sites(device: &Device<'_>, categories: &Categories) -> GrowingSites {
    let Device { history, backward, .. } = device;
    let Some((all, clock)) = bounds(device) else {
        return GrowingSites { sites: Vec::new(), bounds: Vec::new(), clock: GrowthClock::Steps };
    };
    let bounds = all.as_slice();
    let inner = bounds.len();
    let mut origins: FxHashMap<GrowthOrigin, OriginGrowth> = FxHashMap::default();
    // The first bound that comes after the block's allocation.
    let mut next = 0;
    for (row, allocation) in history.allocations.iter().enumerate() {
        let Some(alloc_event) = allocation.alloc_event() else { continue };
        while bounds.get(next).is_some_and(|&bound| bound <= alloc_event) {
            next += 1;
        }
        let Some(&bound) = bounds.get(next) else { break };
        // Alive at the bound: it outlives its step. What was there before the first step cannot accumulate in
        // it.
        if next == 0 || allocation.free_event().is_some_and(|freed| freed < bound) {
            continue;
        }
        // Library workspaces are not the program's own blocks.
        if categories.of(row) == Category::Workspace {
            continue;
        }
        // Without steps, a model that is loaded or a long forward pass would look like growth.
        let is_model = matches!(categories.of(row), Category::Parameter | Category::Buffer);
        if clock != GrowthClock::Steps && (is_model || !is_of_another_thread(device, allocation.stack)) {
            continue;
        }
        let gone =
            allocation.free_event().map_or(inner, |freed| bounds.partition_point(|&bound| bound <= freed));
        let origin = if device.is_in_engine(alloc_event) {
            let call = backward.call(alloc_event).unwrap_or(StackId::EMPTY);
            GrowthOrigin {
                stack: call,
                in_engine: Some((allocation.requested, device.scope_at(alloc_event).module)),
            }
        } else {
            GrowthOrigin { stack: allocation.stack, in_engine: None }
        };
        origins.entry(origin).or_default().add(row, allocation, (next, gone), inner);
    }
    let mut sites: Vec<GrowingSite> =
        origins.into_iter().filter_map(|(origin, held)| held.judge(origin, inner)).collect();
    if clock != GrowthClock::Steps {
        sites.retain(|site| site.trend == Trend::Growing);
    } else if let Some(tail) = device.steps.tail() {
        // A loop after the main one, such as a last evaluation, is over: what it has collected is a leak only
        // if it is still there at the end.
        let begins = bounds.partition_point(|&bound| bound < tail);
        let is_freed = |&row: &u32| history.allocations[row as usize].free_event().is_some();
        sites.retain(|site| site.rises[0].bound <= begins || !site.allocations.iter().all(is_freed));
    }
    sites.sort_by(|a, b| {
        b.bytes().cmp(&a.bytes()).then((a.stack, a.module, &a.allocations).cmp(&(
            b.stack,
            b.module,
            &b.allocations,
        )))
    });
    GrowingSites { sites, bounds: all, clock }
}

/// The bounds between which growth is measured: those of the steps, or of stretches of time where there are
/// none.
fn bounds(device: &Device<'_>) -> Option<(Vec<usize>, GrowthClock)> {
    let Device { history, steps, snapshot, .. } = device;
    if steps.count() >= MIN_STEPS_FOR_LEAK {
        // What is freed after the loop says nothing about the loop.
        let inner = steps.bounds.partition_point(|&bound| bound < history.len());
        return Some((steps.bounds[..inner].to_vec(), GrowthClock::Steps));
    }
    let last = history.len().checked_sub(1).filter(|_| steps.count() == 0)?;
    let time = |event: usize| snapshot.events.get(history.rows.start + event).time_us;
    let (begin, duration) = (time(0), time(last).checked_sub(time(0))?);
    if duration < MIN_DURATION_US {
        return None;
    }
    let mut bounds = vec![0];
    for stretch in 1..STRETCHES as i64 {
        let ends = begin + duration / STRETCHES as i64 * stretch;
        let from = bounds.last().copied().unwrap_or(0);
        bounds.push((from..last).find(|&event| time(event) >= ends).unwrap_or(last));
    }
    bounds.push(last);
    Some((bounds, GrowthClock::Time(duration as f64 / 1e6 / STRETCHES as f64)))
}

/// Whether a stack begins in a thread that the program started.
fn is_of_another_thread(device: &Device<'_>, stack: StackId) -> bool {
    let snapshot = device.snapshot;
    snapshot.stacks.frames(stack).last().is_some_and(|&id| {
        let frame = snapshot.stacks.frame(id);
        let file = snapshot.strings.get(frame.file);
        file.ends_with("threading.py") && snapshot.strings.get(frame.function) == "_bootstrap"
    })
}

/// What one origin holds: changes at the bounds, and the blocks that are left.
#[derive(Default)]
struct OriginGrowth {
    changes: Vec<(u32, i64)>,
    left: Vec<u32>,
    /// The bounds at which the blocks that are left begin, with their bytes.
    left_changes: Vec<(u32, i64)>,
    /// Sizes of blocks that lived through at least one whole step and have been freed since.
    replaced: Vec<i64>,
}

impl OriginGrowth {
    fn add(&mut self, row: usize, allocation: &Allocation, (from, to): (usize, usize), bounds: usize) {
        let size = i64::try_from(allocation.size.0).unwrap_or(i64::MAX);
        self.changes.push((from as u32, size));
        if to < bounds {
            self.changes.push((to as u32, -size));
            if to > from + 1 {
                self.replaced.push(size);
            }
        } else {
            self.left.push(row as u32);
            self.left_changes.push((from as u32, size));
        }
    }

    /// Sets aside one block that stays and is far larger than the others: it does not grow with them. The
    /// workspace of another thread's cuBLAS handle looks like this.
    fn set_one_off_aside(&mut self) {
        let Some(at) = (0..self.left.len()).max_by_key(|&at| self.left_changes[at].1) else { return };
        let largest = self.left_changes[at];
        let others = self.left_changes.iter().enumerate().filter(|&(other, _)| other != at);
        let next = others.map(|(_, &(_, size))| size).max().unwrap_or(0);
        if self.left.len() > MIN_SCATTERED_RISES && largest.1 > next.saturating_mul(ONE_OFF_TIMES) {
            self.left.remove(at);
            self.left_changes.remove(at);
            self.changes.retain(|&change| change != largest);
        }
    }

    /// Sets aside sizes of which each block makes way for the next within a step: one line may make the batch
    /// of the step, and something else that is kept.
    fn set_passing_aside(&mut self) {
        if self.left.len() < MIN_RISES || self.left.len() == self.changes.len() {
            return;
        }
        let mut of_size: FxHashMap<i64, (usize, usize)> = FxHashMap::default();
        for &(_, change) in &self.changes {
            let (made, freed) = of_size.entry(change.saturating_abs()).or_default();
            if change > 0 { *made += 1 } else { *freed += 1 }
        }
        of_size.retain(|size, (made, freed)| {
            *freed >= MIN_RISES && *made <= *freed + 1 && !self.replaced.contains(size)
        });
        if of_size.is_empty() {
            return;
        }
        let is_kept = |size: i64| !of_size.contains_key(&size.saturating_abs());
        self.changes.retain(|&(_, change)| is_kept(change));
        let mut sizes = self.left_changes.iter().map(|&(_, size)| is_kept(size));
        self.left.retain(|_| sizes.next().unwrap_or(true));
        self.left_changes.retain(|&(_, size)| is_kept(size));
    }

    fn judge(mut self, origin: GrowthOrigin, bounds: usize) -> Option<GrowingSite> {
        self.set_passing_aside();
        self.set_one_off_aside();
        if self.changes.len() < MIN_RISES || self.left.is_empty() {
            return None;
        }
        let held = series(&mut self.changes);
        let left = series(&mut self.left_changes);
        // A buffer that has been filled, and whose older blocks make way for new ones, perhaps larger ones.
        let is_buffer = |trend: Trend| match trend {
            Trend::Growing => self.replaced.len() > self.left.len(),
            Trend::Stopped => self.replaced.len() > self.left.len() / 3,
        };
        let trend = trend(&held, bounds - 1)
            .filter(|&trend| !is_buffer(trend))
            .filter(|&trend| trend == Trend::Stopped || !is_scattered(&held, bounds - 1))
            .or_else(|| trend_of_left(&left, &held, bounds - 1))
            .or_else(|| trend_of_count(&series(&mut counts(&self.changes)), bounds - 1))?;
        let rises = kept(&held);
        let GrowthOrigin { stack, in_engine } = origin;
        let module = in_engine.and_then(|(_, module)| module);
        let in_backward = in_engine.is_some() && (stack != StackId::EMPTY || module.is_some());
        let allocations = self.left;
        (rises.len() >= MIN_RISES).then_some(GrowingSite {
            stack,
            in_backward,
            module,
            trend,
            rises,
            allocations,
        })
    }
}

/// Changes of the number of blocks.
fn counts(changes: &[(u32, i64)]) -> Vec<(u32, i64)> {
    changes.iter().map(|&(bound, change)| (bound, change.signum())).collect()
}

/// What is held from each bound on at which it changes.
fn series(changes: &mut [(u32, i64)]) -> Vec<(usize, i64)> {
    changes.sort_unstable();
    let mut held: Vec<(usize, i64)> = Vec::new();
    for &(bound, change) in &*changes {
        let before = held.last().map_or(0, |last| last.1);
        match held.last_mut() {
            Some(last) if last.0 == bound as usize => last.1 = last.1.saturating_add(change),
            _ => held.push((bound as usize, before.saturating_add(change))),
        }
    }
    held
}

/// What a series holds at a bound.
fn held_at(held: &[(usize, i64)], bound: usize) -> i64 {
    match held.partition_point(|&(from, _)| from <= bound) {
        0 => 0,
        changes => held[changes - 1].1,
    }
}

/// Whether there are too few rises, in too few of the steps, for a trend.
fn is_scattered(held: &[(usize, i64)], last: usize) -> bool {
    let levels = std::iter::once(0).chain(held.iter().map(|&(_, bytes)| bytes));
    let rises: Vec<usize> = held
        .iter()
        .zip(levels)
        .filter(|((_, bytes), before)| bytes > before)
        .map(|((bound, _), _)| *bound)
        .collect();
    let Some(&first) = rises.first() else { return true };
    let steady_share = rises.len() as f64 / (last + 1 - first).max(1) as f64;
    let gap = |pair: &[usize]| pair[1] - pair[0];
    let is_regular =
        rises.len() > MIN_RISES && rises.windows(3).all(|three| gap(&three[..2]) == gap(&three[1..]));
    rises.len() < MIN_SCATTERED_RISES && steady_share < MIN_STEADY_SHARE && !is_regular
}

/// Growth among blocks of which most make way for the next: a cache of each request, of which the last state
/// stays. What is left must come from the whole run, and the origin must hold more and more with it.
fn trend_of_left(left: &[(usize, i64)], held: &[(usize, i64)], last: usize) -> Option<Trend> {
    let from_whole_run = left.len() >= MIN_SCATTERED_RISES && left[0].0 <= last / 3 + 1;
    let (begin, middle) = (left.first()?.0 - 1, last / 2);
    let rises_with = |from: usize, to: usize| {
        let rise = |series: &[(usize, i64)]| held_at(series, to).saturating_sub(held_at(series, from)) as f64;
        rise(held) >= MIN_SHARE_OF_LEFT * rise(left) && rise(left) > 0.0
    };
    let grows = from_whole_run && rises_with(begin, middle) && rises_with(middle, last);
    trend(left, last).filter(|&trend| grows && trend == Trend::Growing)
}

/// Growth of a queue: blocks come faster than they go, so there are ever more, although none is from the
/// beginning.
fn trend_of_count(counts: &[(usize, i64)], last: usize) -> Option<Trend> {
    if last < MIN_STEPS_FOR_QUEUE {
        return None;
    }
    let at = |bound: usize| held_at(counts, bound);
    let levels: Vec<f64> =
        (1..=last).step_by(last.div_ceil(MAX_COMPARED)).map(|bound| at(bound) as f64).collect();
    let (all, at_end) = (at(last) - at(1), at(last) - at(last - last / 4));
    if all < MIN_SCATTERED_RISES as i64 {
        return None;
    }
    let highest = levels.iter().copied().fold(0.0, f64::max);
    let full_from = levels[0] + FULL_SHARE * (highest - levels[0]);
    let full = levels.iter().filter(|&&level| level >= full_from).count() as f64;
    let min_agreement =
        if last >= MIN_STEPS_FOR_BURSTS && full <= MAX_SHARE_OF_STEPS_FULL * levels.len() as f64 {
            // Where it ends depends on which thread ran last.
            MIN_AGREEMENT_OF_BURSTS
        } else if at_end as f64 >= MIN_SHARE_AT_END * all as f64 {
            MIN_AGREEMENT
        } else {
            // A buffer that has been filled does not grow at the end.
            return None;
        };
    (agreement(&levels) >= min_agreement).then_some(Trend::Growing)
}

/// How far the order of values is that of the steps: 1 if each is higher than the one before, 0 if there is
/// no trend (Kendall's tau).
pub(crate) fn agreement(values: &[f64]) -> f64 {
    let mut sum = 0.0;
    for (at, &early) in values.iter().enumerate() {
        for &late in &values[at + 1..] {
            sum += if late > early { 1.0 } else { -f64::from(late < early) };
        }
    }
    sum / (values.len() * (values.len() - 1)) as f64 * 2.0
}

/// The rises that were never reversed: the level at each bound is the lowest value from there on.
fn kept(held: &[(usize, i64)]) -> Vec<Rise> {
    let mut rises: Vec<Rise> = Vec::new();
    let mut lowest = i64::MAX;
    for &(bound, bytes) in held.iter().rev() {
        lowest = lowest.min(bytes);
        rises.push(Rise { bound, bytes: lowest.max(0) as u64 });
    }
    rises.reverse();
    // Keep the first bound of each level.
    let mut level = 0;
    rises.retain(|rise| {
        let is_higher = rise.bytes > level;
        level = level.max(rise.bytes);
        is_higher
    });
    rises
}

/// Whether a series of held bytes grows, and whether it still does.
pub(crate) fn trend(held: &[(usize, i64)], last: usize) -> Option<Trend> {
    let (mut rises, mut added, mut returned, mut before) = (Vec::new(), 0i64, 0i64, 0i64);
    for &(bound, bytes) in held {
        let change = bytes.saturating_sub(before);
        if change > 0 {
            rises.push(bound);
            added = added.saturating_add(change);
        } else {
            returned = returned.saturating_sub(change);
        }
        before = bytes;
    }
    if rises.len() < MIN_RISES || returned as f64 > MAX_RETURNED_SHARE * added as f64 {
        return None;
    }
    let mut gaps: Vec<usize> = rises.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let (usual, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    let since_last = last - rises[rises.len() - 1];
    if since_last > longest.max(2 * usual - 1).max(2) {
        return Some(Trend::Stopped);
    }
    let begin = rises[0] - 1;
    // The pace from the first rise on, by halves.
    let at = |bound: usize| held_at(held, bound);
    let middle = begin + (last - begin) / 2;
    let (early, late) = (at(middle).saturating_sub(at(begin)), at(last).saturating_sub(at(middle)));
    let dies_down = (late as f64) < MAX_LATE_SHARE * early as f64;
    Some(if dies_down { Trend::Stopped } else { Trend::Growing })
}
