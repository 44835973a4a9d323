//! Everything that is to be said about one device.

use crate::categories::{Categories, Source, categories};
use crate::churn::churn;
use crate::course::{Course, course};
use crate::device::{Device, Moment};
use crate::finding::{Finding, Kind};
use crate::fragmentation::fragmentation;
use crate::growth::{Piles, piles};
use crate::leaks::leaks;
use crate::oom::oom;
use crate::parallel::join;
use crate::pending::pending;
use crate::private_pools::private_pools;
use crate::site::Site;
use crate::spike::spike;
use crate::workspace::workspace;
use snapshot::{Bytes, FrameId, Metric, PoolClass, StackId};

/// A device with its steps, categories and course: what every finding is made from.
pub struct Outline<'a> {
    /// The device.
    pub device: &'a Device<'a>,
    /// What each block is for.
    pub categories: Categories,
    /// What each step needed.
    pub course: Course,
    pub(crate) piles: Piles,
}

impl<'a> Outline<'a> {
    /// Prepares all that findings are made from.
    pub fn new(device: &'a Device<'a>) -> Outline<'a> {
        let Device { snapshot, history, steps, roles, backward, .. } = device;
        let failed_at = device.position_of(Moment::Oom).map(|position| position - 1);
        let categories = categories(&Source { snapshot, history, roles, steps }, backward, failed_at);
        let (course, piles) = join(
            device.is_large(),
            || course(snapshot, history, steps, &categories),
            || piles(history, steps, &categories, roles, backward),
        );
        Outline { device, categories, course, piles }
    }

    /// `active_bytes.all.peak`: the most that was ever in use at one time.
    pub(crate) fn active_peak(&self) -> Bytes {
        Bytes(self.device.history.stats.get(Metric::ActiveBytes, PoolClass::All).peak.max(0) as u64)
    }

    /// Microseconds from one event to another; 0 where the clock was not recorded or ran backwards.
    pub(crate) fn elapsed_us(&self, from: usize, to: usize) -> u64 {
        let history = &self.device.history;
        let Some(last) = history.len().checked_sub(1) else { return 0 };
        let time =
            |event: usize| self.device.snapshot.events.get(history.rows.start + event.min(last)).time_us;
        u64::try_from(time(to).saturating_sub(time(from))).unwrap_or(0)
    }

    /// The line of code behind a stack.
    pub(crate) fn frame_of(&self, stack: StackId) -> Option<FrameId> {
        match self.device.sites.of(stack) {
            Site::User(frame) | Site::Library(frame) | Site::Backward(frame) => Some(frame),
            Site::Native | Site::Unknown | Site::Before => None,
        }
    }

    /// The line of code behind a block: its own, or the call of `backward()` in which it was allocated.
    pub(crate) fn frame_of_life(&self, life: usize) -> Option<FrameId> {
        let life = &self.device.history.lives[life];
        self.frame_of(life.stack).or_else(|| self.frame_of(self.device.backward.call(life.born()?)?))
    }
}

/// The findings, most important first.
pub fn findings(outline: &Outline<'_>) -> Vec<Finding> {
    let leaks = leaks(outline);
    let leaked: Vec<u64> = leaks.piled_up;
    let by_the_oom = outline.course.ooms.last().map_or(0, |&event| {
        let bound = outline.device.steps.bounds.partition_point(|&bound| bound <= event);
        bound.checked_sub(1).and_then(|bound| leaked.get(bound).or(leaked.last())).copied().unwrap_or(0)
    });
    let mut findings = leaks.findings;
    findings.extend(oom(outline, Bytes(by_the_oom)));
    findings.extend(spike(outline, &leaked));
    findings.extend(fragmentation(outline));
    findings.extend(churn(outline));
    findings.extend(pending(outline));
    findings.extend(private_pools(outline));
    findings.extend(workspace(outline));
    findings.sort_by_key(|finding| {
        let first = finding.kind == Kind::Oom;
        (
            std::cmp::Reverse(first),
            std::cmp::Reverse(finding.severity),
            std::cmp::Reverse(finding.bytes),
            finding.kind,
        )
    });
    findings
}
