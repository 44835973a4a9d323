//! One snapshot in every supported format gives the same tables.
//!
//! The files come from `fixtures/formats/make.py`; compression is added here.

use crate::pickles::{self, dict, event, gzip, int, list, pickle, text, xz, zip};
use crate::tables::{same, segments, stack, tables};
use snapshot::{DeviceKind, History, Snapshot};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn open(name: &str) -> Snapshot {
    snapshot::open(&folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn read(name: &str, bytes: &[u8]) -> Snapshot {
    snapshot::read(bytes).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Content of the file on disk.
fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Content of the file without its xz compression.
fn unpacked(name: &str) -> Vec<u8> {
    let mut plain = Vec::new();
    let packed = bytes(name);
    std::io::Read::read_to_end(&mut liblzma::read::XzDecoder::new(&packed[..]), &mut plain)
        .expect("xz unpacks");
    plain
}

#[test]
fn every_protocol_and_writer_gives_the_same_tables() {
    let expected = tables(&open("torch/torch-2.15.0.pickle.xz"));
    assert!(expected.lines().count() > 140, "{expected}");
    for name in [
        "protocol-0.pickle.xz",
        "protocol-1.pickle.xz",
        "protocol-2.pickle.xz",
        "protocol-3.pickle.xz",
        "protocol-4.pickle.xz",
        "protocol-5.pickle.xz",
        "python-pickler.pickle.xz",
        "snapshot.json.xz",
        "torch-save-legacy.pt",
    ] {
        same(name, &open(&format!("formats/{name}")), &expected);
    }
}

#[test]
fn the_zip_of_torch_save_is_read() {
    let expected = tables(&open("torch/torch-2.15.0.pickle.xz"));
    same("torch-save.pt", &open("formats/torch-save.pt"), &expected);
    same(
        "torch-save.pt.gz",
        &read("torch-save.pt.gz", &gzip(&bytes("formats/torch-save.pt")[..])),
        &expected,
    );
    let segments = open("formats/torch-save-segments.pt");
    same("torch-save-segments.pt", &segments, &tables(&open("formats/segments-2.pickle.xz")));
}

/// Two recordings in one file: every action is written inline, and memoized, once for each device.
#[test]
fn repeated_inline_names_keep_the_memo_in_step() {
    let snapshot = open("formats/two-devices.pickle.xz");
    assert_eq!(snapshot.devices(), [0, 2]);
    assert_eq!(snapshot.caveats, [""; 0]);
    same("two devices", &snapshot, &tables(&open("formats/two-devices.json.xz")));
}

#[test]
fn sorted_keys_change_nothing_but_their_order() {
    let expected = segments(&open("torch/torch-2.15.0.pickle.xz"));
    let sorted = open("formats/snapshot-indented.json.xz");
    assert_eq!(segments(&sorted), expected);
    assert_eq!(sorted.traces[0].rows.len(), open("torch/torch-2.15.0.pickle.xz").traces[0].rows.len());
}

#[test]
fn a_bare_list_of_segments_is_read() {
    let expected = segments(&open("torch/torch-2.15.0.pickle.xz"));
    for name in [
        "segments-0.pickle",
        "segments-1.pickle",
        "segments-2.pickle",
        "segments-3.pickle",
        "segments-4.pickle",
        "segments-5.pickle",
        "segments.json",
    ] {
        let snapshot = open(&format!("formats/{name}.xz"));
        assert_eq!(segments(&snapshot), expected, "{name}");
        assert!(snapshot.events.is_empty(), "{name}");
    }
}

#[test]
fn compressions_change_nothing() {
    for name in ["torch/torch-2.15.0.pickle.xz", "zoo/side_stream.pickle.xz", "formats/snapshot.json.xz"] {
        let expected = tables(&open(name));
        let plain = unpacked(name);
        let zstd = |data: &[u8]| zstd::encode_all(data, 3).expect("zstd packs");
        let mut halves = gzip(&plain[..plain.len() / 2]);
        halves.extend(gzip(&plain[plain.len() / 2..]));
        let pack = |method| zip("archive/data.pkl", &plain, method);
        let mut forms = vec![
            ("plain", plain.clone()),
            ("gzip", gzip(&plain[..])),
            ("gzip in two parts", halves),
            ("xz", xz(&plain)),
            ("zstd", zstd(&plain)),
            ("gzip of gzip", gzip(&gzip(&plain[..])[..])),
            ("zstd of xz of gzip", zstd(&xz(&gzip(&plain[..])))),
        ];
        if !name.contains("json") {
            forms.push(("zip, stored", pack(::zip::CompressionMethod::Stored)));
            forms.push(("zip, deflated", pack(::zip::CompressionMethod::Deflated)));
            forms.push(("gzip of a zip", gzip(&pack(::zip::CompressionMethod::Stored)[..])));
        }
        for (form, data) in forms {
            same(&format!("{name} as {form}"), &read(form, &data), &expected);
        }
    }
}

/// Dumps by TorchScript's own pickler, which `_memory_snapshot_pickled` uses, and by Python's, one right
/// after the other.
#[test]
fn the_cpp_writer_agrees_with_the_python_one() {
    let (cpp, python) = (open("formats/torch-cpp.pickle"), open("formats/torch-cpp-twin.pickle"));
    assert_eq!(cpp.caveats, python.caveats);
    assert_eq!(cpp.torch, python.torch);
    // The second dump has the first one in its history.
    assert_eq!(cpp.events.len() + 1, python.events.len());
    let place = |snapshot: &Snapshot, row| {
        let event = snapshot.events.get(row);
        (event.action, event.addr, event.size, event.time_us, stack(snapshot, event.stack))
    };
    for row in 0..cpp.events.len() {
        assert_eq!(place(&cpp, row), place(&python, row), "event {row}");
    }
    assert_eq!(segments(&cpp), segments(&python));
}

fn one_event(event: Vec<u8>) -> Snapshot {
    read("one event", &pickles::snapshot([], [event]))
}

fn has_caveat(snapshot: &Snapshot, text: &str) -> bool {
    snapshot.caveats.iter().any(|caveat| caveat.contains(text))
}

#[test]
fn missing_keys_are_counted() {
    let snapshot = one_event(dict(&[("action", text("alloc"))]));
    assert!(has_caveat(&snapshot, "1 events without `addr`"), "{:?}", snapshot.caveats);
    assert!(has_caveat(&snapshot, "1 events without `size`"), "{:?}", snapshot.caveats);
    let snapshot = one_event(dict(&[("addr", int(1)), ("size", int(1))]));
    assert!(has_caveat(&snapshot, "1 events without `action`"), "{:?}", snapshot.caveats);
    let only_segments = read("only segments", &pickle(dict(&[("segments", list([]))])));
    assert!(only_segments.events.is_empty() && only_segments.caveats.is_empty());
    let only_traces = read("only traces", &pickle(dict(&[("device_traces", list([]))])));
    assert!(only_traces.segments.is_empty() && only_traces.caveats.is_empty());
}

#[test]
fn unknown_keys_and_actions_are_kept_and_named() {
    let fields =
        [("action", text("teleport")), ("addr", int(1)), ("size", int(2)), ("colour", list([text("red")]))];
    for snapshot in [
        one_event(dict(&fields)),
        read(
            "JSON",
            br#"{"segments":[],
                 "device_traces":[[{"action":"teleport","addr":1,"size":2,"colour":["red"]}]]}"#,
        ),
    ] {
        let event = snapshot.events.get(0);
        assert_eq!(snapshot.strings.get(snapshot.events.action_name(event.action)), "teleport");
        let extra = snapshot.strings.get(snapshot.events.context(event.context).extra);
        assert_eq!(extra, r#"{"colour":["red"]}"#);
        assert!(has_caveat(&snapshot, "1 × the key `colour` in events"), "{:?}", snapshot.caveats);
        assert!(has_caveat(&snapshot, "the action `teleport`"), "{:?}", snapshot.caveats);
    }
}

#[test]
fn a_recording_of_cpu_memory_has_its_device_kind() {
    let own = dict(&[("device", text("cpu"))]);
    let pickled = pickle(dict(&[("segments", list([])), ("oomph", own)]));
    for (name, bytes) in
        [("pickle", &pickled[..]), ("JSON", br#"{"segments": [], "oomph": {"device": "cpu", "more": [1]}}"#)]
    {
        let snapshot = read(name, bytes);
        assert_eq!(snapshot.kind, DeviceKind::Cpu, "{name}");
        assert_eq!(snapshot.round(3, &snapshot.settings), 3, "{name}: sizes are not rounded");
        assert!(snapshot.caveats.is_empty(), "{name}: {:?}", snapshot.caveats);
        let mut written = Vec::new();
        snapshot::write(&snapshot, &mut written).expect("a vector takes everything");
        assert_eq!(read(name, &written).kind, DeviceKind::Cpu, "{name}, written again");
    }
    for odd in ["3", "{}", "{\"device\": 7}", "[[[]]]"] {
        let text = format!("{{\"segments\": [], \"oomph\": {odd}}}");
        assert_eq!(read("odd", text.as_bytes()).kind, DeviceKind::Gpu, "{odd}");
    }
}

/// Pinned memory of a snapshot, as bytes: allocated at the end, allocated at the peak, and the blocks' sizes.
fn pinned(snapshot: &Snapshot) -> (u64, u64, Vec<u64>) {
    let pinned = snapshot.pinned_snapshot().expect("pinned memory");
    assert_eq!((pinned.kind, pinned.devices()), (DeviceKind::Pinned, vec![0]));
    let history = History::new(&pinned, 0);
    let sizes = pinned.blocks.iter().map(|block| block.size.0).collect();
    (history.end.allocated.0, history.allocated_peak.bytes.0, sizes)
}

#[test]
fn pinned_host_memory_is_a_snapshot_of_its_own() {
    for name in ["torch-2.14.1", "torch-2.15.0", "torch-2.15.0-expandable"] {
        let snapshot = open(&format!("torch/{name}.pickle.xz"));
        let (end, peak, mut sizes) = pinned(&snapshot);
        sizes.sort_unstable();
        assert_eq!((end, peak, sizes), (16384, 16384 + 524_288, vec![16384, 524_288]), "{name}");
        assert!(snapshot.segments.iter().all(|segment| segment.size.0 >= 2 << 20), "{name}");
        let mut written = Vec::new();
        snapshot::write(&snapshot, &mut written).expect("a vector takes everything");
        assert_eq!(pinned(&read(name, &written)), pinned(&snapshot), "{name}, written again");
    }
    let json = br#"{"segments": [], "device_traces": [], "host_segments": [{"device": -1, "address": 64,
        "total_size": 4096, "stream": 0, "segment_type": "small", "frames": [], "blocks": [
        {"address": 64, "size": 4096, "requested_size": 4096, "state": "active_allocated", "frames": []}]}],
        "host_traces": [{"action": "segment_alloc", "addr": 64, "size": 4096, "stream": 0, "time_us": 1, "frames": []},
        {"action": "alloc", "addr": 64, "size": 4096, "stream": 0, "time_us": 2, "frames": []}]}"#;
    let snapshot = read("JSON", json);
    assert_eq!(pinned(&snapshot), (4096, 4096, vec![4096]));
    assert!(snapshot.devices().is_empty() && snapshot.caveats.is_empty(), "{:?}", snapshot.caveats);
    assert!(read("without", br#"{"segments": []}"#).pinned_snapshot().is_none());
}

#[test]
fn addresses_use_all_64_bits() {
    for (written, meant) in
        [(-1, u64::MAX), (1 << 63, 1 << 63), (i128::from(u64::MAX), u64::MAX), (-(1 << 63), 1 << 63)]
    {
        let pickled = one_event(event("alloc", written, 512));
        assert_eq!(pickled.events.get(0).addr, meant, "{written}");
        let json = format!(r#"{{"device_traces":[[{{"action":"alloc","addr":{written},"size":512}}]]}}"#);
        let json = read("JSON", json.as_bytes());
        assert_eq!(json.events.get(0).addr, meant, "{written} in JSON");
    }
    let beyond = one_event(event("alloc", 1 << 64, 512));
    assert!(has_caveat(&beyond, "`addr` in events"), "{:?}", beyond.caveats);
}

#[test]
fn events_out_of_order_are_sorted_by_time() {
    let at = |time, addr| {
        dict(&[("action", text("alloc")), ("addr", int(addr)), ("size", int(512)), ("time_us", int(time))])
    };
    let snapshot = read("out of order", &pickles::snapshot([], [at(30, 3), at(10, 1), at(20, 2), at(20, 4)]));
    let order: Vec<u64> = (0..4).map(|row| snapshot.events.get(row).addr).collect();
    assert_eq!(order, [1, 2, 4, 3], "equal times keep their order");
    assert!(has_caveat(&snapshot, "out of order"), "{:?}", snapshot.caveats);
}
