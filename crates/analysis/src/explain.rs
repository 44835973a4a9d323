//! Everything that is to be said about one device.

use crate::categories::{Categories, categories};
use crate::churn::churn;
use crate::course::{Course, course};
use crate::device::{Device, Moment};
use crate::finding::{Finding, Kind, Value};
use crate::fragmentation::{active_peak, fragmentation};
use crate::growth::{Piles, piles};
use crate::leaks::leaks;
use crate::modules::{Common, ModuleId};
use crate::oom::oom;
use crate::outside::outside;
use crate::parallel::join;
use crate::pending::pending;
use crate::private_pools::private_pools;
use crate::site::Site;
use crate::spike::spike;
use crate::workspace::workspace;
use snapshot::{Bytes, FrameId, StackId};

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
        let failed_at = device.position_of(Moment::Oom).map(|position| position - 1);
        let categories = categories(device, failed_at);
        let (course, piles) = join(
            device.is_large(),
            || course(device.snapshot, &device.history, &device.steps, &categories),
            || piles(device, &categories),
        );
        Outline { device, categories, course, piles }
    }

    /// `active_bytes.all.peak`: the most that was ever in use at one time.
    pub(crate) fn active_peak(&self) -> Bytes {
        active_peak(&self.device.history)
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
        self.device.sites.of(stack).frame()
    }

    /// The line of code behind a block: its own, or what is known of the `backward()` in which it was allocated.
    pub fn frame_of_life(&self, life: usize) -> Option<FrameId> {
        let life = &self.device.history.lives[life];
        match life.born() {
            Some(born) => self.device.site_of_event(born).frame(),
            None => self.frame_of(life.stack),
        }
    }

    /// What to know about the line of a block that was allocated inside `backward()`.
    pub(crate) fn doubt_in_backward(&self, life: usize) -> Option<&'static str> {
        match self.device.site_of_event(self.device.history.lives[life].born()?) {
            Site::Backward(_) => Some("inside `backward()` there is no stack: the line is that of the call"),
            Site::BackwardOf(_) => Some(
                "what runs inside `backward()` has no line of its own: this is the one whose backward pass it is, by its module",
            ),
            _ => None,
        }
    }

    /// The module that most of these rows of `lives` lie in.
    pub(crate) fn common_module(&self, rows: impl Iterator<Item = usize>) -> Option<ModuleId> {
        let device = self.device;
        if device.modules.is_empty() {
            return None;
        }
        let mut common = Common::default();
        rows.for_each(|row| {
            common.add(&device.modules, device.module_of(row), device.history.lives[row].size)
        });
        common.module()
    }

    /// The same for the blocks of one line at a position.
    pub(crate) fn module_at(&self, position: usize, line: Option<FrameId>) -> Option<ModuleId> {
        let history = &self.device.history;
        let begun = 0..history.first_born_from(position);
        self.common_module(
            begun.filter(|&row| {
                history.lives[row].is_allocated_at(position) && self.frame_of_life(row) == line
            }),
        )
    }
}

/// One device with everything that is said about it.
pub struct Answer<'a> {
    /// What findings are made from.
    pub outline: Outline<'a>,
    /// The findings, most important first.
    pub findings: Vec<Finding>,
}

impl<'a> Answer<'a> {
    /// Explains a device.
    pub fn new(device: &'a Device<'a>) -> Answer<'a> {
        let outline = Outline::new(device);
        let findings = findings(&outline);
        Answer { outline, findings }
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
    findings.extend(outside(outline));
    findings.extend(spike(outline, &leaked));
    if !outline.device.is_cpu() {
        // What follows is about the caching allocator and CUDA's libraries.
        findings.extend(fragmentation(outline));
        findings.extend(churn(outline));
        findings.extend(pending(outline));
        findings.extend(private_pools(outline));
        findings.extend(workspace(outline));
    }
    for finding in &mut findings {
        let module = finding.module.map(|module| outline.device.modules.path(module).to_owned());
        finding.evidence.extend(module.map(|path| ("module", Value::Text(path))));
    }
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
