//! Inference of when a program switched expandable segments on or off, for recordings that do not say so.
//!
//! A snapshot has only the last settings, but each growth shows whether expandable segments were on: memory
//! is mapped, or a segment is allocated. In between, requests that were served from free blocks show it only
//! if the choice depends on it.

use crate::conf_timeline::ConfTimeline;
use crate::rules::Release;
use crate::verify::VerifiedRun;
use snapshot::{Action, History, PoolId, Snapshot};

/// Switch of expandable segments that the growths show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Toggle {
    /// First event at which the program can have made it.
    earliest: usize,
    /// Last event.
    latest: usize,
    /// Event at which it is assumed.
    event: usize,
    is_on: bool,
}

/// Returns the switches that the growths of the default pool show, each at its latest possible event. There
/// are none if all growths are as under the settings at the end.
pub(crate) fn toggles(snapshot: &Snapshot, history: &History, is_on_at_end: bool) -> Vec<Toggle> {
    let mut toggles: Vec<Toggle> = Vec::new();
    let mut kind = None;
    let mut grown = None;
    let mut earliest = 0;
    let mut note = |event: usize, is_on: bool, earliest: usize| {
        if kind.replace(is_on).is_some_and(|before| before != is_on) {
            toggles.push(Toggle { earliest, latest: event, event, is_on });
        }
    };
    for (index, (action, _)) in snapshot.events.actions(history.rows.clone()).enumerate() {
        match action {
            Action::SegmentAlloc | Action::SegmentMap => {
                let region = history.region_of(index, action).map(|region| &history.regions[region]);
                if region.is_some_and(|region| region.pool == PoolId::DEFAULT) {
                    grown = Some(action == Action::SegmentMap);
                }
            }
            Action::Alloc | Action::Oom => {
                if let Some(is_on) = grown.take() {
                    note(index, is_on, earliest);
                    earliest = index + 1;
                }
            }
            _ => {}
        }
    }
    note(history.len(), is_on_at_end, earliest);
    toggles
}

/// Returns the settings of a run with these switches, otherwise as at the end.
pub(crate) fn timeline(toggles: &[Toggle], end: &ConfTimeline, text: &str, release: Release) -> ConfTimeline {
    let mut first = end.first().clone();
    first.expandable = toggles.first().is_some_and(|toggle| !toggle.is_on);
    let mut timeline = ConfTimeline::from(first);
    for toggle in toggles {
        let value = if toggle.is_on { "True" } else { "False" };
        let comma = if text.is_empty() { "" } else { "," };
        timeline.push(toggle.event, &format!("{text}{comma}expandable_segments:{value}"), release);
    }
    timeline
}

/// Returns other events for one of the switches, at which it may explain the first difference.
pub(crate) fn other_events(toggles: &[Toggle], verified: &VerifiedRun) -> Vec<Vec<Toggle>> {
    let Some(difference) = &verified.difference else { return Vec::new() };
    let Some(last) = toggles.iter().rposition(|toggle| toggle.earliest <= difference.event) else {
        return Vec::new();
    };
    let Toggle { earliest, latest, event, .. } = toggles[last];
    let moved = |to: usize| {
        let mut other = toggles.to_vec();
        other[last].event = to;
        other
    };
    let here = difference.event.min(latest);
    let candidates = [here, earliest.midpoint(here), earliest];
    candidates.into_iter().filter(|&to| (earliest..event).contains(&to)).map(moved).collect()
}
