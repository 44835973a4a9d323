//! Every recording among the fixtures reads without complaint.

use recording::{Exit, RunState, Sidecars};
use std::path::{Path, PathBuf};

fn snapshots() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings");
    let folders = std::fs::read_dir(root).expect("the fixtures are there");
    let files = folders.map(|entry| entry.expect("readable").path().join("rank0.pickle.xz"));
    files.filter(|file| file.exists()).collect()
}

#[test]
fn every_recording_of_the_fixtures_reads_whole() {
    let snapshots = snapshots();
    assert!(snapshots.len() >= 4, "{snapshots:?}");
    for snapshot in snapshots {
        let Sidecars { recording, run, unreadable } = Sidecars::read(&snapshot);
        assert!(unreadable.is_empty(), "{unreadable:?}");
        let run = run.expect("every fixture says how it went");
        assert_eq!(run.steps, Some(recording.marks.len() as u64), "{}", snapshot.to_string_lossy());
        assert!(!recording.labels.tensors.is_empty() && run.torch.is_some() && run.reason.is_some());
        let is_oom = snapshot.parent().is_some_and(|folder| folder.ends_with("oom"));
        let expected = if is_oom { Exit::OutOfMemory } else { Exit::Finished };
        assert_eq!(run.state, RunState::Exited(expected));
        assert_eq!(recording.shortage.is_some(), is_oom);
    }
}
