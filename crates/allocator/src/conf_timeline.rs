//! Settings over the course of a run: programs may change them while they run.

use crate::conf::{Conf, ParsedConf};
use crate::rules::Release;
use snapshot::{Settings, Snapshot};

/// Settings over the course of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct ConfTimeline {
    first: Conf,
    changes: Vec<ConfChange>,
}

/// Call of a program that changed the settings while it ran.
#[derive(Clone, PartialEq, Debug)]
pub struct ConfChange {
    /// First event of the device after it.
    pub event: usize,
    /// Settings string of the call.
    pub text: String,
    /// All settings from then on.
    pub conf: Conf,
}

impl From<Conf> for ConfTimeline {
    fn from(first: Conf) -> ConfTimeline {
        ConfTimeline { first, changes: Vec::new() }
    }
}

impl ConfTimeline {
    /// Returns the settings of the recorded run of a device, with the changes that a recorder noted.
    pub(crate) fn recorded(snapshot: &Snapshot, device: u32, release: Release) -> ConfTimeline {
        let mut of_device = snapshot.earlier_settings.iter().filter(|earlier| earlier.device == device);
        let Some(earliest) = of_device.next() else { return Conf::recorded(snapshot, release).into() };
        let parsed = Conf::parse(&earliest.settings.conf, release);
        let mut first = parsed.map(|parsed| parsed.conf).unwrap_or_default();
        first.take_values(&earliest.settings);
        let mut timeline = ConfTimeline::from(first);
        let mut event = earliest.until;
        for later in of_device {
            timeline.push_recorded(event, &later.settings, release);
            event = later.until;
        }
        timeline.push_recorded(event, &snapshot.settings, release);
        timeline
    }

    /// Adds a change after all others.
    pub(crate) fn push(&mut self, event: usize, text: &str, release: Release) {
        let conf = self.last().changed_by(text, release);
        self.changes.push(ConfChange { event, text: text.to_owned(), conf });
    }

    fn push_recorded(&mut self, event: usize, settings: &Settings, release: Release) {
        self.push(event, &settings.conf, release);
        if let Some(last) = self.changes.last_mut() {
            last.conf.take_values(settings);
        }
    }

    /// Returns the timeline of the same program started with other settings: options that the string contains
    /// stay as given, the others follow the calls of the program.
    pub(crate) fn overridden(&self, given: &ParsedConf, release: Release) -> ConfTimeline {
        let mut timeline = ConfTimeline::from(given.conf.clone());
        for change in &self.changes {
            timeline.push(change.event, &change.text, release);
            if let Some(last) = timeline.changes.last_mut() {
                given.override_in(&mut last.conf);
            }
        }
        timeline
    }

    /// Returns the settings at the start.
    pub fn first(&self) -> &Conf {
        &self.first
    }

    /// Returns the settings at the end.
    pub fn last(&self) -> &Conf {
        self.changes.last().map_or(&self.first, |change| &change.conf)
    }

    /// Returns the changes, by event.
    pub fn changes(&self) -> &[ConfChange] {
        &self.changes
    }

    /// Returns the settings of a request at `event`.
    pub(crate) fn at(&self, event: usize) -> &Conf {
        let made = self.changes.partition_point(|change| change.event <= event);
        made.checked_sub(1).map_or(&self.first, |last| &self.changes[last].conf)
    }

    /// Returns the event of the first change after `event`.
    pub(crate) fn next_change(&self, event: usize) -> Option<usize> {
        let made = self.changes.partition_point(|change| change.event <= event);
        self.changes.get(made).map(|change| change.event)
    }

    /// Iterates over all settings, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Conf> {
        std::iter::once(&self.first).chain(self.changes.iter().map(|change| &change.conf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: Release = Release(11);

    fn parsed(text: &str) -> ParsedConf {
        Conf::parse(text, RELEASE).expect("taken")
    }

    #[test]
    fn a_change_resets_some_options_and_keeps_others() {
        let first = parsed("expandable_segments:True,max_split_size_mb:64,large_segment_size_mb:32").conf;
        let mut timeline = ConfTimeline::from(first.clone());
        timeline.push(10, "garbage_collection_threshold:0.5", RELEASE);
        timeline.push(20, "expandable_segments:False", RELEASE);
        let second = Conf { max_split: None, gc_threshold: 0.5, ..first.clone() };
        let third = Conf { gc_threshold: 0.0, expandable: false, ..second.clone() };
        for (event, expected) in [(0, &first), (9, &first), (10, &second), (19, &second), (20, &third)] {
            assert_eq!(timeline.at(event), expected, "event {event}");
        }
        assert_eq!(
            [0, 9, 10, 20].map(|event| timeline.next_change(event)),
            [Some(10), Some(10), Some(20), None]
        );
    }

    #[test]
    fn options_before_an_error_are_applied() {
        let conf = Conf::default().changed_by("expandable_segments:True,max_split_size_mb:1", RELEASE);
        assert_eq!(conf, Conf { expandable: true, ..Conf::default() });
    }

    #[test]
    fn given_options_stay_and_others_follow_the_program() {
        let mut recorded = ConfTimeline::from(parsed("expandable_segments:True").conf);
        recorded.push(10, "expandable_segments:False,max_split_size_mb:64", RELEASE);
        recorded.push(20, "expandable_segments:True", RELEASE);
        let timeline = recorded.overridden(&parsed("expandable_segments:False"), RELEASE);
        assert!(timeline.all().all(|conf| !conf.expandable));
        assert_eq!([0, 10, 20].map(|event| timeline.at(event).max_split), [None, Some(64 << 20), None]);
    }
}
