//! What every target does with a file: read it and, if it can be read, use all of it.

use analysis::{Outline, Portrait};
use snapshot::{History, Snapshot};

/// Reads `bytes`, replays every device to the end and back, and explains it. Errors are fine, panics are not.
pub fn check(bytes: &[u8]) {
    if let Ok(snapshot) = snapshot::read(bytes) {
        replay(&snapshot);
        explain(&snapshot);
    }
}

fn explain(snapshot: &Snapshot) {
    for device in analysis::devices(snapshot) {
        let outline = Outline::new(&device);
        let portrait = Portrait::new("", &outline, &analysis::findings(&outline));
        assert!(analysis::changes(&portrait.holdings, &portrait.holdings).is_empty(), "a portrait differs from itself");
    }
}

fn replay(snapshot: &Snapshot) {
    for device in snapshot.devices() {
        let history = History::new(snapshot, device);
        let mut cursor = history.cursor(snapshot);
        let before = (cursor.total(), regions(&cursor));
        cursor.seek(history.len());
        for row in history.rows.clone() {
            let event = snapshot.events.get(row);
            let _ = snapshot.events.context(event.context);
            let _ = snapshot.strings.get(snapshot.events.action_name(event.action));
            for &frame in snapshot.stacks.frames(event.stack) {
                let _ = snapshot.strings.get(snapshot.stacks.frame(frame).function);
            }
        }
        cursor.seek(0);
        assert!(before == (cursor.total(), regions(&cursor)), "the way back ends elsewhere");
    }
}

fn regions(cursor: &snapshot::Cursor<'_>) -> Vec<snapshot::Counters> {
    cursor.regions().map(|(_, counters)| counters).collect()
}
