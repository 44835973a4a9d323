//! Everything that is to be said about one device.

use crate::backward::Backward;
use crate::categories::{Categories, categories};
use crate::course::{Course, course};
use crate::device::{Device, Moment};
use crate::finding::{Finding, Kind};
use crate::churn::churn;
use crate::fragmentation::fragmentation;
use crate::leaks::leaks;
use crate::oom::oom;
use crate::pending::pending;
use crate::private_pools::private_pools;
use crate::spike::spike;
use crate::workspace::workspace;
use crate::roles::Roles;
use crate::site::Site;
use crate::steps::{Steps, steps};
use snapshot::{Bytes, FrameId, Metric, PoolClass, StackId};

/// A device with its steps, categories and course: what every finding is made from.
pub struct Outline<'a> {
    /// The device.
    pub device: &'a Device<'a>,
    /// Its steps.
    pub steps: Steps,
    /// What each block is for.
    pub categories: Categories,
    /// What each step needed.
    pub course: Course,
    pub(crate) roles: Roles,
    pub(crate) backward: Backward,
}

impl<'a> Outline<'a> {
    /// Reads the whole history once.
    pub fn new(device: &'a Device<'a>) -> Outline<'a> {
        let (snapshot, history) = (device.snapshot, &device.history);
        let roles = Roles::new(snapshot, &device.sites);
        let steps = steps(snapshot, history, &device.sites, &roles);
        let backward = Backward::new(snapshot, history, &roles, &device.sites);
        let failed_at = device.position_of(Moment::Oom).map(|position| position - 1);
        let categories = categories(history, &roles, &steps, &backward, failed_at);
        let course = course(snapshot, history, &steps, &categories);
        Outline { device, steps, categories, course, roles, backward }
    }

    /// `active_bytes.all.peak`: the most that was ever in use at one time.
    pub(crate) fn active_peak(&self) -> Bytes {
        Bytes(self.device.history.stats.get(Metric::ActiveBytes, PoolClass::All).peak.max(0) as u64)
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
        let stack = self.device.history.lives[life].stack;
        self.frame_of(stack).or_else(|| self.frame_of(self.backward.call(life)?))
    }
}

/// The findings, most important first.
pub fn findings(outline: &Outline<'_>) -> Vec<Finding> {
    let leaks = leaks(outline);
    let leaked: Vec<u64> = leaks.piled_up;
    let by_the_oom = outline.course.ooms.last().map_or(0, |&event| {
        let bound = outline.steps.bounds.partition_point(|&bound| bound <= event);
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
        (std::cmp::Reverse(first), std::cmp::Reverse(finding.severity), std::cmp::Reverse(finding.bytes), finding.kind)
    });
    findings
}
