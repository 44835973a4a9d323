//! A recorded run, understood well enough to be replayed.

use crate::addresses::{Call, Driver};
use crate::conf::Conf;
use crate::difference::Difference;
use crate::follow::{Followed, follow};
use crate::rules::Release;
use snapshot::{Action, History, Snapshot};

/// What is known of a recorded run from outside the file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Given {
    /// The release of torch; otherwise the newest that writes such a file.
    pub release: Option<Release>,
    /// Its settings; otherwise those in the file.
    pub conf: Option<Conf>,
    /// Its memory limit in bytes (`set_per_process_memory_fraction`).
    pub limit: Option<u64>,
}

/// A recorded run with what the program asked for.
pub struct Recorded<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) history: &'a History,
    pub(crate) followed: Followed,
    pub(crate) driver: Driver,
    /// The release whose rules are used.
    pub release: Release,
    /// The settings that it ran under.
    pub conf: Conf,
}

/// How far the model did what PyTorch did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verification<'a> {
    /// Events of the recording.
    pub events: usize,
    /// Events up to the first difference.
    pub identical: usize,
    /// The first difference.
    pub difference: Option<&'a Difference>,
}

impl<'a> Recorded<'a> {
    /// Follows the run of one device with the model.
    pub fn new(snapshot: &'a Snapshot, history: &'a History, given: Given) -> Recorded<'a> {
        let release = given.release.unwrap_or_else(|| Release::of(snapshot.torch));
        let conf = given.conf.unwrap_or_else(|| Conf::recorded(snapshot, release));
        let followed = follow(snapshot, history, &conf, release, given.limit);
        let driver = driver(snapshot, history);
        Recorded { snapshot, history, followed, driver, release, conf }
    }

    /// Compares the model with the record.
    pub fn verification(&self) -> Verification<'_> {
        Verification {
            events: self.history.len(),
            identical: self.followed.identical,
            difference: self.followed.difference.as_ref(),
        }
    }
}

/// What the run tells about the driver's choice of addresses.
fn driver(snapshot: &Snapshot, history: &History) -> Driver {
    let at_start = history.segments_at_start.iter().filter(|segment| !segment.expandable);
    let rows = history.rows.clone();
    let calls = snapshot.events.iter(rows).enumerate().filter_map(|(index, event)| {
        let is_malloc = match event.action {
            Action::SegmentAlloc => true,
            Action::SegmentFree => false,
            _ => return None,
        };
        Some(Call { event: index as u32, is_malloc, addr: event.addr, size: event.size.0 })
    });
    Driver::new(at_start.map(|segment| (segment.addr, segment.size)), calls.collect())
}
