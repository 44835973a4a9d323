//! Builders for pickles at the level of instructions, including hostile ones that are expensive for a naive
//! reader.

// Each test file uses only a part of this.
#![allow(dead_code)]

use std::io::{Read, Write};

/// Complete pickle with `body` as its value.
pub(crate) fn pickle(body: impl AsRef<[u8]>) -> Vec<u8> {
    [b"\x80\x04", body.as_ref(), b"."].concat()
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![b'X'];
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

pub(crate) fn int(int: i128) -> Vec<u8> {
    [&[0x8a, 16], &int.to_le_bytes()[..]].concat()
}

pub(crate) fn dict(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"}(".to_vec();
    for (key, value) in pairs {
        bytes.extend(text(key));
        bytes.extend_from_slice(value);
    }
    bytes.push(b'u');
    bytes
}

pub(crate) fn list(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = b"](".to_vec();
    for item in items {
        bytes.extend_from_slice(&item);
    }
    bytes.push(b'e');
    bytes
}

/// `value` in a memo slot, for [`recall`].
pub(crate) fn memoized(slot: u8, value: Vec<u8>) -> Vec<u8> {
    [&value[..], &[b'q', slot]].concat()
}

pub(crate) fn recall(slot: u8) -> Vec<u8> {
    vec![b'h', slot]
}

pub(crate) fn event(action: &str, addr: i128, size: i128) -> Vec<u8> {
    dict(&[
        ("action", text(action)),
        ("addr", int(addr)),
        ("size", int(size)),
        ("stream", int(0)),
        ("frames", b"]".into()),
    ])
}

pub(crate) fn block(addr: i128, size: i128, state: &str) -> Vec<u8> {
    dict(&[
        ("address", int(addr)),
        ("size", int(size)),
        ("requested_size", int(size)),
        ("state", text(state)),
    ])
}

pub(crate) fn segment(addr: i128, size: i128, blocks: Vec<u8>) -> Vec<u8> {
    dict(&[
        ("device", int(0)),
        ("address", int(addr)),
        ("total_size", int(size)),
        ("stream", int(0)),
        ("segment_type", text("large")),
        ("blocks", blocks),
    ])
}

/// A snapshot with one device.
pub(crate) fn snapshot(
    segments: impl IntoIterator<Item = Vec<u8>>,
    events: impl IntoIterator<Item = Vec<u8>>,
) -> Vec<u8> {
    pickle(dict(&[("segments", list(segments)), ("device_traces", list([list(events)]))]))
}

pub(crate) fn gzip(data: impl Read) -> Vec<u8> {
    let mut packed = Vec::new();
    flate2::read::GzEncoder::new(data, flate2::Compression::fast())
        .read_to_end(&mut packed)
        .expect("gzip packs");
    packed
}

pub(crate) fn xz(data: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(data).expect("xz packs");
    encoder.finish().expect("xz ends")
}

pub(crate) fn zip(name: &str, data: &[u8], method: zip::CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    writer.start_file(name, options).expect("zip begins");
    writer.write_all(data).expect("zip packs");
    writer.finish().expect("zip ends").into_inner()
}

/// Stream of `head` followed by `byte` `count` times, without holding it in memory.
pub(crate) fn flood(head: &[u8], byte: u8, count: u64) -> impl Read {
    std::io::Cursor::new(head.to_vec()).chain(Endless(byte).take(count))
}

/// The same byte forever. [`std::io::repeat`] sets one at a time where tests are not optimized.
struct Endless(u8);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer.fill(self.0);
        Ok(buffer.len())
    }
}

const MIB: usize = 1 << 20;

/// Inputs that make a reader spend far more memory or time than their size justifies.
pub(crate) fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    let kinds = [flat_bombs(), shared_row_bombs(), key_bombs(), packed_bombs(), json_bombs()];
    kinds.into_iter().flatten().collect()
}

fn long(n: usize) -> String {
    "x".repeat(n)
}

/// Values that nothing contains, and one very long value.
fn flat_bombs() -> Vec<(&'static str, Vec<u8>)> {
    let mut bombs: Vec<(&'static str, Vec<u8>)> = Vec::new();
    for (name, byte) in
        [("marks", b'('), ("lists", b']'), ("dictionaries", b'}'), ("tuples", b')'), ("nones", b'N')]
    {
        bombs.push((name, [b"\x80\x04", &vec![byte; 50 * MIB][..]].concat()));
    }
    bombs.push(("memo slots far apart", {
        let mut bytes = b"\x80\x04N".to_vec();
        for i in 0..4_000_000_u32 {
            bytes.push(b'r');
            bytes.extend_from_slice(
                &(0x8000_0000_u32.wrapping_add(i.wrapping_mul(2_654_435_761))).to_le_bytes(),
            );
        }
        bytes
    }));
    bombs.push(("a million tiny events", {
        let keys = ["action", "addr", "size", "alloc"];
        let keys = keys.iter().zip(1..).map(|(key, slot)| memoized(slot, text(key)));
        let keys: Vec<u8> = keys.flat_map(|key| [key, b"0".to_vec()].concat()).collect();
        let event = |i: u32| [b"}(h\x01h\x04h\x02J", &(i * 512).to_le_bytes()[..], b"h\x03K\x01u"].concat();
        // In batches, as a pickler writes them, so that they do not stay on the stack.
        let batch = |from: u32| {
            [b"(".to_vec(), (from..from + 1000).flat_map(event).collect(), b"e".to_vec()].concat()
        };
        let trace = [b"]".to_vec(), (0..1000).flat_map(|i| batch(i * 1000)).collect()].concat();
        let traces = list([trace]);
        pickle([keys, dict(&[("segments", list([])), ("device_traces", traces)])].concat())
    }));
    bombs.push(("an integer of 50 MB", [b"\x80\x04\x8b\0\0\x20\x03", &vec![7; 50 * MIB][..], b"."].concat()));
    bombs.push(("digits of 20 MB", [b"\x80\x04I", &vec![b'7'; 20 * MIB][..], b"\n."].concat()));
    bombs.push(("a string of 50 MB", pickle(text(&long(50 * MIB)))));
    bombs.push(("strings, all different", {
        let each = |i: u32| [b"\x8c\x04", format!("{i:04x}").as_bytes()].concat();
        [
            b"\x80\x04".to_vec(),
            (0..60_000).flat_map(each).collect(),
            (0x1_0000..3_000_000_u32)
                .flat_map(|i| [&b"\x8c\x03"[..], &i.to_le_bytes()[..3]].concat())
                .collect(),
        ]
        .concat()
    }));
    bombs
}

/// Lists and lines that are written once and used many times.
fn shared_row_bombs() -> Vec<(&'static str, Vec<u8>)> {
    let mut bombs: Vec<(&'static str, Vec<u8>)> = Vec::new();
    bombs.push(("one list of blocks for every segment, copied", {
        // The rows of two lists alternate, so that neither is a run of rows.
        let blocks = list((0..50_000).map(|i| {
            [block(i * 512, 512, "active_allocated"), if i % 2 == 0 { b"N".to_vec() } else { vec![] }]
                .concat()
        }));
        let first = segment(0, 1 << 40, memoized(1, blocks));
        snapshot([first].into_iter().chain((0..3000).map(|i| segment(i << 41, 1 << 40, recall(1)))), [])
    }));
    bombs.push(("one list of blocks for every segment, shared", {
        let blocks = list((0..50_000).map(|i| block(i * 512, 512, "active_allocated")));
        let first = segment(0, 1 << 40, memoized(1, blocks));
        snapshot([first].into_iter().chain((0..20_000).map(|i| segment(i << 41, 1 << 40, recall(1)))), [])
    }));
    bombs.push(("one trace for every device, copied", {
        let events = list((0..50_000).map(|i| [event("alloc", i * 512, 512), b"N".to_vec()].concat()));
        let traces = list([memoized(1, events)].into_iter().chain((0..100_000).map(|_| recall(1))));
        pickle(dict(&[("segments", list([])), ("device_traces", traces)]))
    }));
    bombs.push(("one trace for every device, shared", {
        let events = list((0..50_000).map(|i| event("alloc", i * 512, 512)));
        let traces = list([memoized(1, events)].into_iter().chain((0..100_000).map(|_| recall(1))));
        pickle(dict(&[("segments", list([])), ("device_traces", traces)]))
    }));
    bombs.push(("forward frames that repeat a long line", {
        let line = memoized(1, text(&long(MIB / 4)));
        let lines = list([line].into_iter().chain((0..100_000).map(|_| recall(1))));
        snapshot([], [dict(&[("action", text("alloc")), ("forward_frames", lines)])])
    }));
    bombs.push(("shared lists, sixty levels", {
        let mut laughs = memoized(0, list([text("ha"), text("ha")]));
        for level in 1..60_u8 {
            laughs = memoized(level, list([laughs, recall(level - 1), recall(level - 1)]));
        }
        pickle(dict(&[
            ("segments", list([])),
            ("laughs", laughs.clone()),
            ("allocator_settings", dict(&[("x", laughs)])),
        ]))
    }));
    bombs
}

/// Keys that no release writes.
fn key_bombs() -> Vec<(&'static str, Vec<u8>)> {
    let numbered = |n: usize| (0..n).map(|i| format!("{i:06x}")).collect::<Vec<_>>();
    let mut bombs: Vec<(&'static str, Vec<u8>)> = Vec::new();
    bombs.push(("a long key, repeated", {
        let mut pairs = memoized(1, text(&long(MIB / 4)));
        pairs.push(b'N');
        for _ in 0..100_000 {
            pairs.extend(recall(1));
            pairs.push(b'N');
        }
        snapshot([], [[b"}(", &text("action")[..], &text("alloc"), &pairs, b"u"].concat()])
    }));
    bombs.push(("a different unknown key in every event", {
        let action = [memoized(1, text("action")), memoized(2, text("alloc"))].concat();
        let first = [b"}(", &action[..], b"u"].concat();
        let event = |key: String| [b"}(h\x01h\x02\x8c\x06", key.as_bytes(), b"Nu"].concat();
        snapshot([], [first].into_iter().chain(numbered(1_000_000).into_iter().map(event)))
    }));
    bombs.push(("settings that share a long value", {
        let tail = memoized(1, list((0..4000).map(|_| b"N".to_vec())));
        let mut pairs = [text("tail"), tail].concat();
        for key in numbered(300_000) {
            pairs.extend([b"\x8c\x06", key.as_bytes(), b"](\x8c\x06", key.as_bytes(), b"h\x01e"].concat());
        }
        let settings = [b"}(", &pairs[..], b"u"].concat();
        pickle(dict(&[("segments", list([])), ("allocator_settings", settings)]))
    }));
    bombs.push(("an unknown key with a long list in every event", {
        let action = [memoized(1, text("action")), memoized(2, text("alloc"))].concat();
        let values = memoized(4, list((0..1_000_000).map(|_| b"N".to_vec())));
        let first = [b"}(", &action[..], &memoized(3, text("new")), &values, b"u"].concat();
        snapshot([], [first].into_iter().chain((0..100_000).map(|_| b"}(h\x01h\x02h\x03h\x04u".to_vec())))
    }));
    bombs
}

fn packed_bombs() -> Vec<(&'static str, Vec<u8>)> {
    let string = b"\x80\x04X\xff\xff\xff\x3f";
    let bytes = b"\x80\x04\x8e\0\0\0\0\0\x01\0\0";
    let wide = |head: &[u8], byte, count| {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("zstd begins");
        encoder.window_log(27).expect("a window of 128 MiB");
        std::io::copy(&mut flood(head, byte, count), &mut encoder).expect("zstd packs");
        encoder.finish().expect("zstd ends")
    };
    vec![
        ("gzip of a gigabyte of zeros", gzip(flood(b"", 0, 1 << 30))),
        ("gzip of a gigabyte of lists", gzip(flood(b"\x80\x04", b']', 1 << 30))),
        ("gzip of one long string", gzip(flood(string, b'x', 1 << 29))),
        ("gzip of one long line", gzip(flood(b"(S'", b'x', 1 << 29))),
        ("gzip of one long JSON string", gzip(flood(b"{\"segments\":\"", b'x', 1 << 29))),
        ("gzip of one long JSON key", gzip(flood(b"{\"", b'x', 1 << 29))),
        ("gzip of one long JSON number", gzip(flood(b"{\"segments\":[{\"x\":", b'7', 1 << 29))),
        ("gzip of gzip of lists", gzip(&gzip(flood(b"\x80\x04", b']', 1 << 28))[..])),
        ("zstd of zeros, wide window", wide(b"", 0, 1 << 29)),
        ("zstd of long bytes, wide window", wide(bytes, 0, 1 << 29)),
        ("xz of long bytes, wide dictionary", {
            let mut options = liblzma::stream::LzmaOptions::new_preset(0).expect("preset 0");
            options.dict_size(1 << 28);
            let mut filters = liblzma::stream::Filters::new();
            filters.lzma2(&options);
            let stream = liblzma::stream::Stream::new_stream_encoder(&filters, liblzma::stream::Check::None);
            let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream.expect("xz begins"));
            std::io::copy(&mut flood(bytes, 0, 1 << 29), &mut encoder).expect("xz packs");
            encoder.finish().expect("xz ends")
        }),
        (
            "deflated zip of lists",
            zip("a/data.pkl", &vec![b']'; 256 << 20], zip::CompressionMethod::Deflated),
        ),
    ]
}

fn json_bombs() -> Vec<(&'static str, Vec<u8>)> {
    let around = |head: &str, part: &str, count: usize, tail: &str| {
        [head, &part.repeat(count), tail].concat().into_bytes()
    };
    let keys: String = (0..2_000_000).map(|i| format!("\"{i:x}\":1,")).collect();
    let keys = |head: &str, tail: &str| [head, &keys, tail].concat().into_bytes();
    let event = "{\"device_traces\":[[{\"action\":\"alloc\",\"addr\":1,\"size\":1,";
    vec![
        ("JSON, nested a million deep", vec![b'['; 1_000_000]),
        ("JSON, nested in an unknown key", around("{\"segments\":[],\"x\":", "[", 1_000_000, "")),
        ("JSON, nested in an event", around(&format!("{event}\"x\":"), "[", 10_000_000, "")),
        ("JSON, a string of 50 MB", around("{\"segments\":[{\"segment_type\":\"", "x", 50 * MIB, "\"}]}")),
        ("JSON, many unknown keys", keys("{\"segments\":[],", "\"z\":1}")),
        ("JSON, many keys, no snapshot", keys("{", "\"z\":1}")),
        ("JSON, many unknown keys of an event", keys(event, "\"z\":1}]]}")),
        (
            "JSON, many forward frames",
            around(&format!("{event}\"forward_frames\":["), "\"\",", 10_000_000, "\"\"]}]]}"),
        ),
        ("JSON, many frames", around(&format!("{event}\"frames\":["), "{},", 10_000_000, "{}]}]]}")),
        (
            "JSON, many annotations",
            around("{\"segments\":[],\"external_annotations\":[", "{},", 10_000_000, "{}]}"),
        ),
        ("JSON, many empty events", around("{\"device_traces\":[[", "{},", 10_000_000, "{}]]}")),
        ("JSON, many traces", around("{\"device_traces\":[", "[{}],", 5_000_000, "[]]}")),
        ("JSON, many settings", keys("{\"segments\":[],\"allocator_settings\":{", "\"z\":1}}")),
        (
            "JSON, many divisions",
            keys("{\"segments\":[],\"allocator_settings\":{\"roundup_power2_divisions\":{", "\"z\":1}}}"),
        ),
        ("JSON, many host segments", around("{\"segments\":[],\"host_segments\":[", "1,", 20_000_000, "1]}")),
    ]
}
