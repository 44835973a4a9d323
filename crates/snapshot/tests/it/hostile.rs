//! Hostile files: each must end in the right error or in a snapshot with a caveat, quickly, and never in a
//! panic.

use crate::pickles::{
    self, block, dict, event, gzip, int, list, memoized, pickle, recall, segment, snapshot, text, xz, zip,
};
use snapshot::{ErrorKind, History, Snapshot};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Generous time limit for a debug build on a busy machine. The cases that this catches take minutes.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Reads `input` and replays it if it is readable.
fn read(name: &str, input: impl Read + Send) -> Result<Snapshot, snapshot::Error> {
    let begun = Instant::now();
    let result = snapshot::read(input);
    if let Ok(snapshot) = &result {
        replay(name, snapshot);
    }
    assert!(begun.elapsed() < READ_TIMEOUT, "{name} took {:?}", begun.elapsed());
    result
}

/// Moves through the history of every device, to the end and back.
fn replay(name: &str, snapshot: &Snapshot) {
    for device in snapshot.devices() {
        let history = History::new(snapshot, device);
        let mut cursor = history.cursor(snapshot);
        let before = cursor.total();
        cursor.seek(history.len());
        cursor.seek(0);
        assert_eq!(cursor.total(), before, "{name}: the way back ends elsewhere");
    }
}

#[track_caller]
fn fails(name: &str, input: impl Read + Send, kind: ErrorKind) -> String {
    match read(name, input) {
        Ok(_) => panic!("{name} was read"),
        Err(error) => {
            assert_eq!(error.kind, kind, "{name}: {error}");
            assert!(error.cause.len() < 500, "{name}: a cause of {} bytes", error.cause.len());
            error.cause
        }
    }
}

/// Reads `input` and expects a caveat that contains `caveat`, of the file or of a device's history.
#[track_caller]
fn warns(name: &str, input: impl Read + Send, caveat: &str) -> Snapshot {
    let snapshot = read(name, input).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut caveats = snapshot.caveats.clone();
    for device in snapshot.devices() {
        caveats.extend(History::new(&snapshot, device).caveats);
    }
    assert!(caveats.iter().any(|text| text.contains(caveat)), "{name}: {caveats:?}");
    snapshot
}

#[test]
fn pickles_that_run_code_are_refused() {
    let call = |body: &[u8]| pickle([b"X\x02\0\0\0os", body].concat());
    for (name, bytes, asked_for, byte) in [
        ("GLOBAL", pickle(b"cos\nsystem\n(X\x02\0\0\0idtR"), "`os.system`", 2),
        ("GLOBAL of protocol 0", b"cos\nsystem\n(S'id'\ntR.".to_vec(), "`os.system`", 0),
        ("STACK_GLOBAL", call(b"X\x06\0\0\0system\x93X\x02\0\0\0id\x85R"), "`os.system`", 20),
        ("STACK_GLOBAL without names", pickle(b"NN\x93"), "`?.?`", 4),
        ("INST", pickle(b"(X\x02\0\0\0idios\nsystem\n"), "`os.system`", 10),
        ("OBJ", pickle(b"(NNo"), "an object", 5),
        ("REDUCE", pickle(b"N)R"), "a function call", 4),
        ("NEWOBJ", pickle(b"N)\x81"), "an object", 4),
        ("NEWOBJ_EX", pickle(b"N)}\x92"), "an object", 5),
        ("BUILD", pickle(b"}}b"), "an object's state", 4),
        ("EXT1", pickle(b"\x82\x01"), "a registered extension", 2),
        ("EXT2", pickle(b"\x83\x01\0"), "a registered extension", 2),
        ("EXT4", pickle(b"\x84\x01\0\0\0"), "a registered extension", 2),
        ("PERSID", pickle(b"Pcall me\n"), "persistent id call me", 2),
        ("BINPERSID", pickle(b"NQ"), "a persistent id", 3),
        ("NEXT_BUFFER", pickle(b"\x97"), "an out-of-band buffer", 2),
        (
            "inside a snapshot",
            pickle(dict(&[("segments", b"cposix\nsystem\n".to_vec())])),
            "`posix.system`",
            17,
        ),
        ("builtins", pickle(b"cbuiltins\neval\n"), "`builtins.eval`", 2),
        ("torch as bait", pickle(b"ctorchlike\nload\n"), "`torchlike.load`", 2),
    ] {
        for (form, bytes) in [("", bytes.clone()), (" in gzip", gzip(&bytes[..])), (" in xz", xz(&bytes))] {
            let name = format!("{name}{form}");
            let cause = fails(&name, &bytes[..], ErrorKind::Forbidden);
            assert!(cause.contains(asked_for), "{name}: {cause}");
            assert!(cause.contains(&format!("at byte {byte} ")), "{name}: {cause}");
        }
    }
}

#[test]
fn a_very_long_name_is_not_repeated_in_full() {
    let name = "x".repeat(100_000);
    fails("GLOBAL", &pickle(format!("c{name}\n{name}\n"))[..], ErrorKind::Forbidden);
    fails("STACK_GLOBAL", &pickle([text(&name), text(&name), vec![0x93]].concat())[..], ErrorKind::Forbidden);
    fails("PERSID", &pickle(format!("P{name}\n"))[..], ErrorKind::Forbidden);
    fails("key", &pickle(dict(&[(&name, b"N".into())]))[..], ErrorKind::NotASnapshot);
    fails("JSON key", &format!("{{\"{name}\":1}}").into_bytes()[..], ErrorKind::NotASnapshot);
    let entry = zip(&name[..60_000], b"", ::zip::CompressionMethod::Stored);
    fails("zip entry", &entry[..], ErrorKind::NotASnapshot);
    let unknown =
        warns("unknown key", &pickle(dict(&[("segments", list([])), (&name, b"N".into())]))[..], "xxx");
    assert!(unknown.caveats.iter().all(|caveat| caveat.len() < 500));
}

#[test]
fn a_checkpoint_is_reported_as_one() {
    for (name, bytes) in [
        ("state_dict", pickle(b"ccollections\nOrderedDict\n)R")),
        ("a tensor", pickle(b"}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n")),
        ("numpy", pickle(b"cnumpy._core.multiarray\n_reconstruct\n")),
        ("safetensors", b"\x40\x01\0\0\0\0\0\0{\"__metadata__\":{}".to_vec()),
        ("GGUF", b"GGUF\x03\0\0\0".to_vec()),
        ("HDF5", b"\x89HDF\r\n\x1a\n".to_vec()),
        (
            "zip",
            zip(
                "archive/data.pkl",
                &pickle(b"ccollections\nOrderedDict\n)R"),
                ::zip::CompressionMethod::Stored,
            ),
        ),
    ] {
        fails(name, &bytes[..], ErrorKind::Checkpoint);
    }
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats/torch-checkpoint.pt");
    let error = snapshot::open(&real).err().expect("a checkpoint is not a snapshot");
    assert_eq!(error.kind, ErrorKind::Checkpoint, "{error}");
}

#[test]
fn claimed_lengths_cost_nothing() {
    for (name, bytes) in [
        ("BINUNICODE", &b"X\xff\xff\xff\xff"[..]),
        ("BINUNICODE8", b"\x8d\0\0\0\0\0\0\0\x10"),
        ("BINUNICODE8 of everything", b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("BINSTRING", b"T\xff\xff\xff\x7f"),
        ("BINBYTES", b"B\xff\xff\xff\xff"),
        ("BINBYTES8", b"\x8e\0\0\0\0\0\0\0\x10"),
        ("BYTEARRAY8", b"\x96\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("LONG4", b"\x8b\xff\xff\xff\x7f"),
        ("LONG4, negative", b"\x8b\xff\xff\xff\xff"),
        ("FRAME", b"\x95\0\0\0\0\0\0\0\x40"),
        ("a line without end", b"Ixxx"),
        ("nothing", b""),
    ] {
        fails(name, &[b"\x80\x04", bytes].concat()[..], ErrorKind::Truncated);
    }
    for (name, bytes) in [
        ("LONG_BINPUT", &b"Nr\xff\xff\xff\xee0"[..]),
        ("PUT", b"Np4000000000\n0"),
        ("PUT beyond 32 bits", b"Np99999999999\n0"),
        ("PUT of a negative", b"Np-1\n0"),
        ("LONG_BINGET", b"j\xff\xff\xff\xee"),
        ("GET", b"g0\n"),
        ("MEMOIZE of nothing", b"\x94"),
        ("POP of nothing", b"0"),
        ("APPENDS without a mark", b"]e"),
        ("APPEND to a number", b"K\x01K\x01a"),
        ("SETITEMS with a key alone", b"}(Nu"),
        ("SETITEM of a list", b"]NNs"),
        ("TUPLE3 of two", b"NN\x87"),
        ("a mark below the stack", b"N(0(00"),
        ("protocol 77", b"\x80\x4d"),
        ("a float that is none", b"Fx\n"),
        ("an integer that is none", b"I0x10\n"),
        ("a string without quotes", b"Sx\n"),
        ("a line that is not UTF-8", b"I\xff\n"),
        ("an instruction that does not exist", b"\xff"),
    ] {
        let error = read(name, &pickle(bytes)[..]).err().map(|error| error.kind);
        assert!(matches!(error, Some(ErrorKind::Malformed | ErrorKind::NotASnapshot)), "{name}: {error:?}");
    }
}

#[test]
fn depth_and_sharing_are_harmless() {
    for byte in [b'(', b']', b'}', b')', b'N', b'2'] {
        let flood = pickles::flood(b"\x80\x04N", byte, 50 << 20);
        fails(&format!("50 MB of {:?}", char::from(byte)), flood, ErrorKind::TooLarge);
    }
    let million = 1_000_000;
    let nested = |open: &[u8], close: &[u8]| [&open.repeat(million)[..], &close.repeat(million)].concat();
    for (name, value) in [
        ("lists", [&b"]".repeat(million)[..], &b"a".repeat(million - 1)].concat()),
        ("tuples", [b"N", &b"\x85".repeat(million)[..]].concat()),
        ("dictionaries", nested(b"}N", b"s")[..million * 3 - 1].to_vec()),
    ] {
        let _ = read(name, &pickle(&value)[..]);
        let _ = read(name, &pickle(dict(&[("segments", value.clone())]))[..]);
        let _ = read(name, &pickle(dict(&[("segments", b"]".into()), ("new", value)]))[..]);
    }
    fails("JSON", std::io::repeat(b'[').take(1_000_000), ErrorKind::NotASnapshot);
    let mut laughs = memoized(0, list([text("ha"), text("ha")]));
    for level in 1..200_u8 {
        laughs = memoized(level, list([laughs, recall(level - 1), recall(level - 1)]));
    }
    let with_laughs = |key: &str, laughs: &[u8]| dict(&[("action", text("alloc")), (key, laughs.to_vec())]);
    for key in ["new", "frames", "addr", "forward_frames", "pool_id", "internal_metadata"] {
        read(key, &snapshot([], [with_laughs(key, &laughs)])[..]).map(drop).expect("readable");
    }
    let unknown = read("unknown", &snapshot([], [with_laughs("new", &laughs)])[..]).expect("readable");
    let context = unknown.events.context(unknown.events.get(0).context);
    assert!(unknown.strings.get(context.extra).len() < 16 << 10);
}

#[test]
fn containers_that_contain_themselves_are_read_once() {
    for (name, body) in [
        ("a list in itself", &b"]q\0h\0a"[..]),
        ("a dictionary in itself", b"}q\0X\x08\0\0\0segmentsh\0s"),
        ("segments in themselves", b"}X\x08\0\0\0segments]q\0h\0as"),
        ("traces in themselves", b"}X\x0d\0\0\0device_traces]q\0h\0as"),
        (
            "frames in themselves",
            b"}X\x0d\0\0\0device_traces]](}(X\x06\0\0\0actionX\x05\0\0\0allocX\x06\0\0\0frames]q\0h\0auees",
        ),
        (
            "an event in itself",
            b"}X\x0d\0\0\0device_traces]](}q\0(X\x06\0\0\0actionX\x05\0\0\0allocX\x06\0\0\0framesh\0ueas",
        ),
        (
            "an unknown key in itself",
            b"}X\x0d\0\0\0device_traces]](}(X\x06\0\0\0actionX\x05\0\0\0allocX\x01\0\0\0x]q\0h\0aueas",
        ),
        ("a segment as its own blocks", b"}X\x08\0\0\0segments](}q\0(X\x06\0\0\0blocksh\0ues"),
        (
            "a trace in two lists",
            b"}X\x0d\0\0\0device_traces](]q\0(}(X\x06\0\0\0actionX\x05\0\0\0allocueh\0h\0es",
        ),
        (
            "a stack that grows after use",
            b"}X\x0d\0\0\0device_traces]](}(X\x06\0\0\0actionX\x05\0\0\0allocX\x06\0\0\0frames]q\0uh\0Naeas",
        ),
    ] {
        let _ = read(name, &pickle(body)[..]);
    }
}

const EVENT: [&str; 11] = [
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "frames",
    "compile_context",
    "user_metadata",
    "pool_id",
    "forward_frames",
    "device_free",
];
const SEGMENT: [&str; 9] = [
    "device",
    "address",
    "total_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
];
const BLOCK: [&str; 6] = ["address", "size", "requested_size", "state", "frames", "history"];
const FRAME: [&str; 3] = ["name", "filename", "line"];
const ANNOTATION: [&str; 4] = ["name", "stage", "device", "time_us"];
const TOP: [&str; 7] = [
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "host_segments",
    "host_traces",
    "new",
];

/// Dictionary with these keys and usual values, except for one key.
fn row(keys: &[&'static str], key: &str, value: &[u8]) -> Vec<u8> {
    let usual = |key: &str| match key {
        "action" => text("alloc"),
        "state" => text("active_allocated"),
        "blocks" => list([block(0, 512, "active_allocated")]),
        "frames" => list([]),
        "name" | "filename" | "stage" | "segment_type" => text("large"),
        _ => int(512),
    };
    let pairs = keys.iter().map(|&of| (of, if of == key { value.to_vec() } else { usual(of) }));
    dict(&pairs.collect::<Vec<_>>())
}

/// Values of every type, with their names.
fn odd_values() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a string", text("x")),
        ("a number", int(7)),
        ("a negative number", int(-7)),
        ("a huge number", [&b"\x8b\0\0\x10\0"[..], &[1; 1 << 20]].concat()),
        ("a wide number", int(i128::MAX)),
        ("a float", b"G\x40\x09\x21\xfb\x54\x44\x2d\x18".into()),
        ("not a number", b"G\x7f\xf8\0\0\0\0\0\0".into()),
        ("None", b"N".into()),
        ("a boolean", b"\x88".into()),
        ("an empty list", b"]".into()),
        ("a list", list([int(1), text("x")])),
        ("a tuple", b")".into()),
        ("a dictionary", dict(&[("x", int(1))])),
        ("bytes", b"C\x01x".into()),
        ("a set", b"\x8f".into()),
        ("an event", event("alloc", 1, 1)),
        ("a block", block(1, 1, "inactive")),
        ("a segment", segment(1, 1, list([]))),
        ("a frame", dict(&[("filename", text("x"))])),
        ("a list of frames", list([dict(&[("filename", text("x"))])])),
        ("a list of events", list([event("alloc", 1, 1)])),
    ]
}

#[test]
fn values_of_the_wrong_type_are_survived() {
    for (what, value) in &odd_values() {
        for key in TOP {
            let others = [("segments", list([])), ("device_traces", list([]))];
            let pairs: Vec<_> =
                others.into_iter().filter(|(other, _)| *other != key).chain([(key, value.clone())]).collect();
            read(&format!("{what} as {key}"), &pickle(dict(&pairs))[..]).map(drop).expect("readable");
        }
        for key in EVENT {
            let _ =
                read(&format!("{what} as an event's {key}"), &snapshot([], [row(&EVENT, key, value)])[..]);
        }
        for key in SEGMENT {
            let _ =
                read(&format!("{what} as a segment's {key}"), &snapshot([row(&SEGMENT, key, value)], [])[..]);
        }
        for key in BLOCK {
            let blocks = list([row(&BLOCK, key, value)]);
            let _ =
                read(&format!("{what} as a block's {key}"), &snapshot([segment(0, 4096, blocks)], [])[..]);
        }
        for key in FRAME {
            let frames = list([row(&FRAME, key, value)]);
            let event = dict(&[("action", text("alloc")), ("frames", frames)]);
            let _ = read(&format!("{what} as a frame's {key}"), &snapshot([], [event])[..]);
        }
        for key in ANNOTATION {
            let marks = list([row(&ANNOTATION, key, value)]);
            let bytes = pickle(dict(&[("segments", list([])), ("external_annotations", marks)]));
            read(&format!("{what} as an annotation's {key}"), &bytes[..]).map(drop).expect("readable");
        }
        let _ = read(&format!("{what} alone"), &pickle(value)[..]);
    }
}

#[test]
fn wrong_types_become_caveats() {
    for (name, bytes, caveat) in [
        ("segments", pickle(dict(&[("segments", text("x"))])), "`segments`"),
        ("frames", snapshot([], [row(&EVENT, "frames", &int(7))]), "`frames` in events"),
        ("blocks", snapshot([row(&SEGMENT, "blocks", &dict(&[("x", int(1))]))], []), "`blocks` in segments"),
        (
            "size, a float",
            snapshot([], [row(&EVENT, "size", b"G\x40\x09\x21\xfb\x54\x44\x2d\x18")]),
            "`size` in events",
        ),
        ("size, negative", snapshot([], [row(&EVENT, "size", &int(-1))]), "`size` in events"),
        ("size, None", snapshot([], [row(&EVENT, "size", b"N")]), "`size` in events"),
        ("size, huge", snapshot([], [row(&EVENT, "size", &int(i128::MAX))]), "`size` in events"),
        ("action", snapshot([], [row(&EVENT, "action", &int(7))]), "`action` in events"),
        ("state", snapshot([segment(0, 512, list([block(0, 512, "lost")]))], []), "`state` in blocks"),
    ] {
        warns(name, &bytes[..], caveat);
    }
}

#[test]
fn json_of_the_wrong_types_is_an_error_or_a_caveat() {
    let values = [
        "\"x\"",
        "7",
        "-7",
        "1e300",
        "null",
        "true",
        "[]",
        "{}",
        "[[[]]]",
        "18446744073709551616",
        "1e-5",
        "\"\\ud800\"",
    ];
    for value in values {
        for shape in [
            "{\"segments\":@}",
            "{\"device_traces\":@}",
            "{\"device_traces\":[@]}",
            "{\"device_traces\":[[@]]}",
            "{\"segments\":[@]}",
            "{\"segments\":[],\"allocator_settings\":@}",
            "{\"segments\":[],\"allocator_settings\":{\"roundup_power2_divisions\":@}}",
            "{\"segments\":[],\"external_annotations\":@}",
            "{\"segments\":[],\"host_traces\":@}",
            "{\"segments\":[],\"new\":@}",
            "{\"segments\":[{\"blocks\":@,\"total_size\":@}]}",
            "{\"segments\":[{\"blocks\":[{\"size\":@,\"address\":@,\"state\":\"active_allocated\"}],\
             \"total_size\":512}]}",
            "{\"segments\":[{\"device\":@,\"address\":@,\"total_size\":512,\"stream\":@}]}",
            "{\"segments\":[{\"total_size\":512,\"segment_pool_id\":@,\"is_expandable\":@,\"frames\":@}]}",
            "{\"device_traces\":[[{\"action\":\"alloc\",\"addr\":@,\"size\":@}]]}",
            "{\"device_traces\":[[{\"action\":@,\"frames\":@}]]}",
            "{\"device_traces\":[[{\"action\":\"alloc\",\"time_us\":@,\"pool_id\":@,\"new\":@}]]}",
            "[@]",
            "@",
        ] {
            let json = shape.replace('@', value);
            let _ = read(&json, json.as_bytes());
        }
    }
}

const TOP_ADDRESS: i128 = u64::MAX as i128;
const HALF: i128 = 1 << 63;

fn allocated_block(addr: i128, size: i128) -> Vec<u8> {
    block(addr, size, "active_allocated")
}

#[test]
fn segments_that_contradict_each_other_are_survived() {
    for (name, bytes) in [
        (
            "two equal segments",
            snapshot(
                [
                    segment(0, 512, list([allocated_block(0, 512)])),
                    segment(0, 512, list([allocated_block(0, 512)])),
                ],
                [],
            ),
        ),
        (
            "two equal blocks",
            snapshot([segment(0, 4096, list([allocated_block(0, 512), allocated_block(0, 512)]))], []),
        ),
        (
            "overlapping blocks",
            snapshot([segment(0, 4096, list([allocated_block(0, 1024), allocated_block(512, 1024)]))], []),
        ),
        (
            "blocks outside their segment",
            snapshot(
                [segment(4096, 512, list([allocated_block(0, 1 << 40), allocated_block(TOP_ADDRESS, 512)]))],
                [],
            ),
        ),
        (
            "blocks from high to low",
            snapshot([segment(0, 4096, list([allocated_block(1024, 512), allocated_block(0, 512)]))], []),
        ),
        (
            "a segment at the top",
            snapshot([segment(TOP_ADDRESS, HALF, list([allocated_block(TOP_ADDRESS, HALF)]))], []),
        ),
        (
            "segments of half of everything",
            snapshot((0..4).map(|i| segment(i, HALF, list([allocated_block(i, HALF)]))), []),
        ),
        (
            "empty segment and block",
            snapshot([segment(0, 0, list([allocated_block(0, 0)]))], [event("free_requested", 0, 0)]),
        ),
    ] {
        read(name, &bytes[..]).map(drop).expect("readable");
    }
}

#[test]
fn events_that_contradict_each_other_are_survived() {
    let actions = [
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
        "annotate",
    ];
    // Every pair and some triples of actions, at addresses and sizes where arithmetic could go wrong.
    for first in actions {
        for second in actions {
            for (addr, size) in [
                (0, 0),
                (0, HALF),
                (TOP_ADDRESS, 1),
                (TOP_ADDRESS, TOP_ADDRESS),
                (512, HALF - 1),
                (HALF, HALF),
                (1 << 40, 2 << 20),
            ] {
                let name = format!("{first}, {second} at {addr:x} of {size:x}");
                let others = [
                    event(second, addr, size),
                    event("alloc", addr, size),
                    event("free_completed", addr, size / 2),
                ];
                let trace = [
                    event(first, addr, size),
                    others[0].clone(),
                    others[1].clone(),
                    others[2].clone(),
                    others[0].clone(),
                ];
                let bytes =
                    snapshot([segment(addr, size, list([allocated_block(addr, size)]))], trace.clone());
                read(&name, &bytes[..]).map(drop).expect("readable");
                read(&name, &snapshot([], trace)[..]).map(drop).expect("readable");
            }
        }
    }
}

#[test]
fn contradictions_become_caveats() {
    for (name, events, caveat) in [
        (
            "a free of nothing",
            vec![event("alloc", 0, 1), event("free_completed", 0, 1), event("free_requested", 0, 1)],
            "frees of blocks",
        ),
        (
            "an unmap of nothing",
            vec![
                event("segment_map", 0, 2 << 20),
                event("segment_unmap", 1 << 40, 2 << 20),
                event("segment_map", 1 << 40, 2 << 20),
            ],
            "segment events",
        ),
        ("an allocation outside", vec![event("alloc", 4096, 1)], "outside every known segment"),
        (
            "an allocation over another",
            vec![event("alloc", 4096, 1), event("alloc", 4096, 1)],
            "no event had freed",
        ),
    ] {
        warns(name, &snapshot([], events)[..], caveat);
    }
}

#[test]
fn a_hundred_thousand_unknown_actions_are_kept() {
    let events = (0..100_000).map(|i| event(&format!("action {i}"), i, 1));
    let snapshot = warns("unknown actions", &snapshot([], events)[..], "unknown to this version");
    assert_eq!(snapshot.events.len(), 100_000);
    assert!(snapshot.caveats.len() < 1000, "{} caveats", snapshot.caveats.len());
    let same = (0..100_000).map(|i| event("teleport", i, 1));
    let snapshot = warns("one unknown action", &pickles::snapshot([], same)[..], "`teleport`");
    let name = snapshot.events.action_name(snapshot.events.get(99_999).action);
    assert_eq!(snapshot.strings.get(name), "teleport");
}

#[test]
fn damaged_containers_say_so() {
    let good = snapshot([], [event("alloc", 4096, 512)]);
    let packed = [
        ("gzip", gzip(&good[..])),
        ("xz", xz(&good)),
        ("zstd", zstd::encode_all(&good[..], 1).expect("zstd packs")),
        ("zip", zip("a/data.pkl", &good, ::zip::CompressionMethod::Deflated)),
        ("zip, stored", zip("a/data.pkl", &good, ::zip::CompressionMethod::Stored)),
        ("plain", good.clone()),
    ];
    for (name, bytes) in &packed {
        read(name, &bytes[..]).map(drop).expect("readable while whole");
        for end in 0..bytes.len() {
            let kind = snapshot::read(&bytes[..end]).err().map(|error| error.kind);
            // Some containers can be unpacked without their end.
            let fine = matches!(
                kind,
                None | Some(
                    ErrorKind::Truncated | ErrorKind::Empty | ErrorKind::NotASnapshot | ErrorKind::Malformed
                )
            );
            assert!(fine, "{name} cut at {end}: {kind:?}");
        }
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << (place % 8);
            let _ = read(name, &damaged[..]);
        }
    }
    fails("cut gzip", &packed[0].1[..packed[0].1.len() / 2], ErrorKind::Truncated);
    fails("cut xz", &packed[1].1[..packed[1].1.len() / 2], ErrorKind::Truncated);
    fails("cut zstd", &packed[2].1[..packed[2].1.len() / 2], ErrorKind::Truncated);
    fails("cut pickle", &good[..good.len() / 2], ErrorKind::Truncated);
    fails("cut JSON", &b"{\"segments\": [{\"total_size\""[..], ErrorKind::Truncated);
    fails("no bytes", &b""[..], ErrorKind::Empty);
    fails("gzip of nothing", &gzip(&b""[..])[..], ErrorKind::Empty);
    let five = (0..5).fold(good, |inner, _| gzip(&inner[..]));
    fails("five times gzip", &five[..], ErrorKind::NotASnapshot);
}

#[test]
fn zips_with_wrong_sizes_are_survived() {
    let good = snapshot([], [event("alloc", 4096, 512)]);
    for method in [::zip::CompressionMethod::Stored, ::zip::CompressionMethod::Deflated] {
        let honest = zip("a/data.pkl", &good, method);
        // Offsets of the packed and the unpacked size in a local header.
        for field in [18, 22] {
            for wrong in [0_u32, 1, 7, u32::MAX - 1, u32::MAX] {
                let mut bytes = honest.clone();
                bytes[field..field + 4].copy_from_slice(&wrong.to_le_bytes());
                let _ = read(&format!("{method:?}, {wrong} at {field}"), &bytes[..]);
            }
        }
    }
    let other = zip("readme.txt", b"hello", ::zip::CompressionMethod::Stored);
    let cause = fails("zip without data.pkl", &other[..], ErrorKind::NotASnapshot);
    assert!(cause.contains("`readme.txt`"), "{cause}");
    fails("an empty zip", &b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], ErrorKind::NotASnapshot);
}

/// Inputs found by fuzzing that once caused crashes.
#[test]
fn old_crashes_stay_fixed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/bad");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("fixtures/bad is there") {
        let path = entry.expect("readable").path();
        let bytes = std::fs::read(&path).expect("readable");
        let _ = read(&path.display().to_string(), &bytes[..]);
        count += 1;
    }
    assert!(count > 0);
}
