//! A snapshot that is written and read again is unchanged; so is a run replayed as it was.

use crate::pickles::{block, dict, int, list, pickle, text};
use crate::tables::{same, tables};
use snapshot::{Action, Block, Bytes, History, ReplayedEvent, Segment, Snapshot};
use std::path::{Path, PathBuf};

/// Returns the recordings in `folder` whose name contains `part`.
fn recordings(folder: &str, part: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder);
    let entries = std::fs::read_dir(folder).expect("fixtures are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(&format!("{part}.pickle.xz")));
    paths.sort();
    paths
}

fn open(path: &Path) -> Snapshot {
    let mut snapshot = snapshot::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // Caveats about the file do not apply to the written one.
    snapshot.caveats.clear();
    snapshot
}

fn written(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot::write(snapshot, &mut bytes).expect("a vector takes everything");
    bytes
}

fn read_again(snapshot: &Snapshot) -> Snapshot {
    snapshot::read(&written(snapshot)[..]).expect("what we write can be read")
}

/// Returns the run of `device` as it was, through [`Snapshot::replayed`].
fn replayed(snapshot: &Snapshot, device: u32) -> Snapshot {
    let events = snapshot.rows(device).map(|row| {
        let event = snapshot.events.get(row);
        let stream = snapshot.events.context(event.context).stream;
        ReplayedEvent { action: event.action, addr: event.addr, size: event.size, row, stream }
    });
    let mut segments: Vec<(Segment, Vec<Block>)> = snapshot
        .segments_of(device)
        .map(|segment| (segment.clone(), snapshot.blocks[segment.blocks.clone()].to_vec()))
        .collect();
    // The order of segments does not matter.
    segments.reverse();
    snapshot.replayed(device, events, segments, snapshot.settings.clone(), Vec::new())
}

fn a_few_of_everything() -> Vec<PathBuf> {
    let all = [("zoo", ""), ("torch", ""), ("oracle", ""), ("traffic", "-00")];
    let found: Vec<_> = all.iter().flat_map(|(folder, part)| recordings(folder, part)).collect();
    assert!(found.len() >= 70, "only {} recordings", found.len());
    found
}

#[test]
fn a_recording_of_any_release_reads_the_same_after_writing() {
    for path in a_few_of_everything() {
        let snapshot = open(&path);
        assert!(!snapshot.events.is_empty() && !snapshot.segments.is_empty(), "{}", path.display());
        same(&path.to_string_lossy(), &read_again(&snapshot), &tables(&snapshot));
    }
}

#[test]
fn a_run_replayed_as_it_was_is_unchanged() {
    for path in a_few_of_everything() {
        let snapshot = open(&path);
        let (name, expected) = (path.to_string_lossy(), tables(&snapshot));
        assert_eq!(snapshot.devices(), [0], "{name}");
        let replayed = replayed(&snapshot, 0);
        same(&name, &replayed, &expected);
        same(&name, &read_again(&replayed), &expected);
        let (was, is) = (History::new(&snapshot, 0), History::new(&replayed, 0));
        assert_eq!(was.stats, is.stats, "{name}");
        assert_eq!(was.caveats, is.caveats, "{name}");
    }
}

/// Snapshot with two devices without events before one with events, and with unusual numbers and names.
fn strange() -> Snapshot {
    let name = "a name of more than 255 bytes, ".repeat(20);
    let frame = dict(&[
        ("name", text(&name)),
        ("filename", text("é.py")),
        ("line", int(70_000)),
        ("fx_node_name", text("n")),
    ]);
    let events = (0..2500).map(|row| {
        dict(&[
            ("action", text(if row % 7 == 0 { "teleport" } else { "alloc" })),
            ("addr", int(-0x7000_0000_0000 + row)),
            ("size", int(i128::from(u64::MAX))),
            ("stream", int(-1)),
            ("time_us", int(-5 + row)),
            ("compile_context", text("N/A")),
            ("user_metadata", text("")),
            ("pool_id", [int(3), int(300), vec![0x86]].concat()),
            ("frames", list([frame.clone()])),
            ("forward_frames", list([text("one\n  line\n"), text("two\n")])),
            ("novelty", dict(&[("b", int(1)), ("a", list([b"N".to_vec(), b"\x88".to_vec()]))])),
        ])
    });
    let failure = dict(&[
        ("action", text("oom")),
        ("device_free", int(1 << 63)),
        ("size", int(512)),
        ("stream", int(0)),
        ("time_us", int(4000)),
        ("user_metadata", text("eval")),
    ]);
    let segment = dict(&[
        ("device", int(4)),
        ("address", int(-(1 << 47))),
        ("total_size", int(2 << 20)),
        ("stream", int(7)),
        ("segment_type", text("small")),
        ("segment_pool_id", [int(3), int(300), vec![0x86]].concat()),
        ("is_expandable", b"\x88".to_vec()),
        ("frames", list([])),
        ("blocks", list([block(-(1 << 47), 2 << 20, "active_awaiting_free")])),
        ("mood", text("blue")),
    ]);
    let settings =
        dict(&[("max_split_size", int(1 << 40)), ("further", list([int(-1), b"G?\xf0\0\0\0\0\0\0".into()]))]);
    let annotation =
        dict(&[("stage", text("END")), ("name", text("eval")), ("device", int(2)), ("time_us", int(9))]);
    let traces = [list([]), list([]), list(events.chain([failure]))];
    let file = dict(&[
        ("segments", list([segment])),
        ("device_traces", list(traces)),
        ("allocator_settings", settings),
        ("external_annotations", list([annotation])),
    ]);
    let mut snapshot = snapshot::read(&pickle(file)[..]).expect("strange, but a snapshot");
    snapshot.caveats.clear();
    snapshot
}

#[test]
fn strange_numbers_names_and_keys_read_the_same_after_writing() {
    let snapshot = strange();
    let mut again = read_again(&snapshot);
    assert_eq!(again.devices(), [2, 4]);
    assert!(again.caveats.iter().any(|caveat| caveat.contains("`novelty`")), "{:?}", again.caveats);
    again.caveats.clear();
    same("strange", &again, &tables(&snapshot));
}

#[test]
fn only_the_replayed_device_stays_and_its_unknown_actions_keep_their_names() {
    let snapshot = strange();
    let replayed = replayed(&snapshot, 2);
    assert_eq!((replayed.devices(), replayed.segments.len()), (vec![2], 0));
    assert_eq!(replayed.events.len(), snapshot.rows(2).len());
    let action = |snapshot: &Snapshot, row| {
        snapshot.strings.get(snapshot.events.action_name(snapshot.events.get(row).action)).to_owned()
    };
    for (row, recorded) in snapshot.rows(2).enumerate() {
        assert_eq!(action(&replayed, row), action(&snapshot, recorded));
    }
}

#[test]
fn a_replayed_run_has_its_own_settings() {
    let path = recordings("zoo", "clean_gpt2_hf").remove(0);
    let recorded = open(&path);
    let mut settings = recorded.settings.clone();
    settings.pairs.clear();
    settings.conf = "max_split_size_mb:64,expandable_segments:True".to_owned();
    settings.max_split = Some(64 << 20);
    settings.gc_threshold = 0.8;
    settings.expandable_segments = true;
    settings.divisions = std::array::from_fn(|place| place as u64);
    let events = [ReplayedEvent {
        action: Action::SegmentMap,
        addr: 1 << 40,
        size: Bytes(2 << 20),
        row: 3,
        stream: 5,
    }];
    let replayed = recorded.replayed(0, events, Vec::new(), settings.clone(), Vec::new());
    for replayed in [read_again(&replayed), replayed] {
        let found = &replayed.settings;
        assert_eq!(found.pairs.len(), recorded.settings.pairs.len());
        let mut found = found.clone();
        found.pairs.clear();
        assert_eq!(found, settings);
        assert_eq!(replayed.torch, recorded.torch);
        let (event, below) = (replayed.events.get(0), recorded.events.get(3));
        assert_eq!((event.action, event.addr, event.size.0), (Action::SegmentMap, 1 << 40, 2 << 20));
        assert_eq!(event.time_us, below.time_us);
        assert_eq!(replayed.events.context(event.context).stream, 5);
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let snapshot = strange();
    for room in [0, 10, 100_000] {
        let mut space = vec![0; room];
        assert!(snapshot::write(&snapshot, &mut &mut space[..]).is_err(), "{room} bytes");
    }
}
