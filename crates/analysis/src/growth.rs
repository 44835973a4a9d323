//! What piles up from step to step, by the code that allocates it.
//!
//! Only blocks that outlive their step count. What a stack holds at the bounds of the steps is a short series of
//! numbers; whether it grows, has stopped, or rises and falls is decided on that series alone.

use crate::backward::Backward;
use crate::categories::{Categories, Category};
use crate::roles::Roles;
use crate::steps::Steps;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, History, Life, StackId};

/// How what one origin holds develops over the steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trend {
    /// It still grows at the end.
    Growing,
    /// It grew for a while and has stayed since.
    Stopped,
}

/// Blocks that pile up and have the same origin.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pile {
    /// The stack that allocates them, or that called the `backward()` in which they are allocated.
    pub(crate) stack: StackId,
    /// Whether they are allocated inside that `backward()`.
    pub(crate) in_backward: bool,
    /// Whether they still pile up.
    pub(crate) trend: Trend,
    /// What is held for good at each bound: the lowest that it falls to from there on.
    pub(crate) kept: Vec<u64>,
    /// Rows of [`History::lives`]: the blocks that are left.
    pub(crate) lives: Vec<u32>,
}

impl Pile {
    /// The bounds at which it has become larger for good.
    pub(crate) fn rises(&self) -> Vec<usize> {
        (1..self.kept.len()).filter(|&bound| self.kept[bound] > self.kept[bound - 1]).collect()
    }

    /// Bytes a step over the later half: from the first rise there to the last, so that a leak that comes every few
    /// steps is not counted too often or too seldom.
    pub(crate) fn pace(&self) -> f64 {
        let rises = self.rises();
        let middle = self.kept.len() / 2;
        let late = &rises[rises.partition_point(|&bound| bound < middle)..];
        let (from, to) = match (late, rises.as_slice()) {
            ([first, .., last], _) => (*first, *last),
            // It had stopped by then: the pace that it had.
            (_, [first, .., last]) => (*first, *last),
            (_, [only]) => (*only - 1, *only),
            (_, []) => return 0.0,
        };
        (self.kept[to] - self.kept[from]) as f64 / (to - from).max(1) as f64
    }
}

/// Fewest steps over which growth can be told from warm-up.
const FEWEST_STEPS: usize = 5;
/// Growth has to go up this often.
const FEWEST_RISES: usize = 3;
/// Share of what was ever added that may be taken away again; more is a buffer, a cache or the garbage collector.
const MOST_RETURNED: f64 = 0.3;
/// A pace in the second half below this share of that in the first is one that dies down: a cache that fills.
const DYING_DOWN: f64 = 0.25;

/// What allocates a pile. Without a stack of its own, blocks are told apart by size.
type Origin = (StackId, Option<Bytes>);

/// Finds all piles of a history.
pub(crate) fn piles(
    history: &History,
    steps: &Steps,
    categories: &Categories,
    roles: &Roles,
    backward: &Backward,
) -> Vec<Pile> {
    if steps.count() < FEWEST_STEPS {
        return Vec::new();
    }
    let mut origins: FxHashMap<Origin, Held> = FxHashMap::default();
    // What a program gives back when its loop is over says nothing about the loop.
    let inner = steps.bounds.partition_point(|&bound| bound < history.len());
    let bounds = &steps.bounds[..inner];
    // The first bound that comes after the block's birth.
    let mut next = 0;
    for (row, life) in history.lives.iter().enumerate() {
        let Some(born) = life.born() else { continue };
        while bounds.get(next).is_some_and(|&bound| bound <= born) {
            next += 1;
        }
        let Some(&bound) = bounds.get(next) else { break };
        // Alive at the bound: it outlives its step. What was there before the first step cannot pile up in it.
        if next == 0 || life.freed().is_some_and(|freed| freed < bound) {
            continue;
        }
        // A library's scratch memory is its own affair.
        if categories.of(row) == Category::Workspace {
            continue;
        }
        let gone = life.freed().map_or(bounds.len(), |freed| bounds.partition_point(|&bound| bound <= freed));
        let origin = if roles.of(life.stack).without_python {
            (backward.call(born).unwrap_or(StackId::EMPTY), Some(life.requested))
        } else {
            (life.stack, None)
        };
        origins.entry(origin).or_default().add(row, life, (next, gone), bounds.len());
    }
    let mut piles: Vec<Pile> =
        origins.into_iter().filter_map(|(origin, held)| held.judge(origin, bounds.len())).collect();
    piles.sort_by(|a, b| b.kept.last().cmp(&a.kept.last()).then(a.stack.cmp(&b.stack)));
    piles
}

/// What one origin holds: changes at the bounds, and the blocks that are left.
#[derive(Default)]
struct Held {
    changes: Vec<(u32, i64)>,
    left: Vec<u32>,
    /// Blocks that lived through at least one whole step and have been freed since.
    replaced: usize,
}

impl Held {
    fn add(&mut self, row: usize, life: &Life, (from, to): (usize, usize), bounds: usize) {
        self.changes.push((from as u32, life.size.0 as i64));
        if to < bounds {
            self.changes.push((to as u32, -(life.size.0 as i64)));
            self.replaced += usize::from(to > from + 1);
        } else {
            self.left.push(row as u32);
        }
    }

    fn judge(mut self, (stack, size): Origin, bounds: usize) -> Option<Pile> {
        if self.changes.len() < FEWEST_RISES || self.left.is_empty() {
            return None;
        }
        self.changes.sort_unstable();
        let mut held = vec![0i64; bounds];
        let mut at = 0;
        let mut now = 0i64;
        for (bound, slot) in held.iter_mut().enumerate() {
            while self.changes.get(at).is_some_and(|&(when, _)| when as usize <= bound) {
                now += self.changes[at].1;
                at += 1;
            }
            *slot = now;
        }
        let trend = trend(&held)?;
        if trend == Trend::Stopped && self.replaced * 3 > self.left.len() {
            // A buffer that has been filled, and whose older blocks make way for new ones.
            return None;
        }
        let mut kept: Vec<u64> = held.iter().map(|&bytes| bytes.max(0) as u64).collect();
        for bound in (0..bounds - 1).rev() {
            kept[bound] = kept[bound].min(kept[bound + 1]);
        }
        let pile = Pile { stack, in_backward: size.is_some(), trend, kept, lives: self.left };
        (pile.rises().len() >= FEWEST_RISES).then_some(pile)
    }
}

/// Whether a series of held bytes is a pile, and of which kind.
fn trend(held: &[i64]) -> Option<Trend> {
    let last = held.len() - 1;
    let rises: Vec<usize> = (1..=last).filter(|&bound| held[bound] > held[bound - 1]).collect();
    let (mut added, mut returned) = (0i64, 0i64);
    for pair in held.windows(2) {
        let change = pair[1] - pair[0];
        if change > 0 { added += change } else { returned -= change }
    }
    if rises.len() < FEWEST_RISES || returned as f64 > MOST_RETURNED * added as f64 {
        return None;
    }
    let mut gaps: Vec<usize> = rises.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let (usual, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    let since_last = last - rises[rises.len() - 1];
    if since_last > longest.max(2 * usual - 1).max(2) {
        return Some(Trend::Stopped);
    }
    // The pace from the first rise on, by halves.
    let begin = rises[0] - 1;
    let middle = begin + (last - begin) / 2;
    let (early, late) = (held[middle] - held[begin], held[last] - held[middle]);
    if (late as f64) < DYING_DOWN * early as f64 {
        return Some(Trend::Stopped);
    }
    Some(Trend::Growing)
}
