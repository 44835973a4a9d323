//! What every target does with a file: read it and, if it can be read, use all of it.

use allocator::{Conf, KnownConditions, RecordedRun, WhatIf};
use analysis::{DeviceSummary, RunModel};
use snapshot::{History, Snapshot};

/// Reads `bytes`, replays every device to the end and back, and explains it. Errors are fine, panics are not.
pub fn check(bytes: &[u8]) {
    if let Ok(snapshot) = snapshot::read(bytes) {
        replay(&snapshot);
        explain(&snapshot);
        simulate(&snapshot);
    }
}

fn explain(snapshot: &Snapshot) {
    for device in analysis::devices(snapshot) {
        let model = RunModel::new(&device);
        let summary = DeviceSummary::new("", &model, &analysis::findings(&model));
        assert!(analysis::changes(&summary.sites, &summary.sites).is_empty(), "a summary differs from itself");
    }
}

/// Verifies every device with the allocator model, then replays it under other settings on a small card.
fn simulate(snapshot: &Snapshot) {
    for device in snapshot.devices() {
        let history = History::new(snapshot, device);
        let recorded = RecordedRun::new(snapshot, &history, KnownConditions::default());
        for text in ["", "expandable_segments:True", "max_split_size_mb:32,garbage_collection_threshold:0.5"] {
            let Ok(parsed) = Conf::parse(text, recorded.release) else { continue };
            let limit = Some(64 << 20);
            let what = WhatIf { conf: parsed.conf, total: Some(128 << 20), available: Some(100 << 20), limit };
            let outcome = recorded.simulate(&what);
            assert!(outcome.peak_allocated <= outcome.peak_reserved, "more is allocated than reserved");
            let replayed = recorded.replayed(&what, text);
            let _ = snapshot::write(&replayed, &mut std::io::sink());
        }
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
