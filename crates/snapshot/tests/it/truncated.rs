//! A history without its start gives the same counters as the whole one, from its first event on.

use snapshot::{Counters, History};
use std::path::Path;

/// Error in bytes of each block whose size a cut leaves uncertain.
const UNCERTAIN_BYTES: u64 = 1 << 20;

#[test]
fn a_cut_history_agrees_with_the_whole_one() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let (mut exact, mut open) = (0, 0);
    for folder in ["oracle", "zoo", "torch"] {
        for entry in std::fs::read_dir(fixtures.join(folder)).expect("fixtures are there") {
            let path = entry.expect("readable").path();
            if path.extension().is_none_or(|extension| extension != "xz") {
                continue;
            }
            let mut snapshot = snapshot::open(&path).expect("readable");
            let rows = snapshot.traces[0].rows.clone();
            let whole = History::new(&snapshot, 0);
            let expected = {
                let mut cursor = whole.cursor(&snapshot);
                (0..=rows.len())
                    .map(|position| {
                        cursor.seek(position);
                        cursor.total()
                    })
                    .collect::<Vec<Counters>>()
            };
            for part in 1..8 {
                let cut = rows.len() * part / 8;
                snapshot.traces[0].rows = rows.start + cut..rows.end;
                let history = History::new(&snapshot, 0);
                let unsure = uncertain_blocks(&history);
                match unsure {
                    0 => exact += 1,
                    _ => open += 1,
                }
                let mut cursor = history.cursor(&snapshot);
                for position in 0..=history.len() {
                    cursor.seek(position);
                    let (now, then) = (cursor.total(), expected[cut + position]);
                    let name = format!("{} cut at {cut}, position {position}", path.display());
                    assert_eq!(now.reserved, then.reserved, "{name}");
                    assert_eq!(now.requested, then.requested, "{name}");
                    assert!(
                        then.allocated.0.abs_diff(now.allocated.0) <= unsure * UNCERTAIN_BYTES,
                        "{name}: {now:?} {then:?}"
                    );
                    assert!(
                        then.active.0.abs_diff(now.active.0) <= unsure * UNCERTAIN_BYTES,
                        "{name}: {now:?} {then:?}"
                    );
                }
                assert_eq!(history.end, whole.end, "{} cut at {cut}", path.display());
            }
            snapshot.traces[0].rows = rows;
        }
    }
    assert!(exact > open && exact > 100, "{exact} exact, {open} with open sizes");
}

/// Number of blocks that the history reports as uncertain.
fn uncertain_blocks(history: &History) -> u64 {
    history
        .caveats
        .iter()
        .find(|caveat| caveat.contains("may have been up to 1 MiB larger"))
        .and_then(|caveat| caveat.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}
