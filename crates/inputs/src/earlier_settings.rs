//! Allocator settings before those in a snapshot, from the calls that the recorder noted.

use allocator::{Conf, Release};
use recording::Recording;
use snapshot::{EarlierSettings, Settings, Snapshot};

/// Adds the settings that the program replaced while it was recorded. If they do not lead to those in the
/// snapshot, calls are missing, and nothing is added.
pub(crate) fn fill_in(snapshot: &mut Snapshot, recording: &Recording) {
    let Some(log) = &recording.settings else { return };
    let release = Release::of(snapshot.torch);
    let mut conf = Conf::default().changed_by(&log.initial, release);
    let mut confs = vec![(log.initial.as_str(), conf.clone())];
    for change in &log.changes {
        conf = conf.changed_by(&change.conf, release);
        confs.push((change.conf.as_str(), conf.clone()));
    }
    let settings = |(text, conf): &(&str, Conf)| {
        let mut settings = Settings { conf: (*text).to_owned(), ..snapshot.settings.clone() };
        conf.replace_in(&mut settings);
        settings
    };
    if confs.last().map(settings).as_ref() != Some(&snapshot.settings) {
        return;
    }
    let mut earlier = Vec::new();
    for trace in &snapshot.traces {
        let events = analysis::events_before_changes(snapshot, recording, trace.device, &log.changes);
        earlier.extend(confs.iter().zip(events).map(|(conf, until)| EarlierSettings {
            device: trace.device,
            until,
            settings: settings(conf),
        }));
    }
    snapshot.earlier_settings = earlier;
}
