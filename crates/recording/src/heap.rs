//! `rankN.heap`, `rankN.oom.heap` and `rankN.growing.heap`: the references that kept tensors alive.

use crate::{AllocationCounts, DumpReason, FileError};
use heap::{Heap, Parts, ReferenceKind, ReferenceName, Root, Storage, StorageDevice};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Sizes claimed by a file are capped, so that their sums do not overflow.
const MAX_STORAGE_BYTES: u64 = 1 << 44;

/// The references that kept tensors alive at one moment.
pub struct HeapDump {
    /// The objects and their references.
    pub heap: Arc<Heap>,
    /// Allocations made by then.
    pub allocations: AllocationCounts,
    /// Why the recorder wrote the file, if that is known.
    pub reason: Option<DumpReason>,
    /// Notes on what the dump omits.
    pub caveats: Vec<String>,
}

impl fmt::Debug for HeapDump {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} objects", self.heap.len())
    }
}

#[derive(Deserialize)]
struct HeapFile {
    version: u64,
    types: Vec<String>,
    #[serde(default)]
    files: HashMap<String, String>,
    nodes: Vec<u32>,
    #[serde(default)]
    texts: Vec<(u32, String)>,
    /// Kind and text.
    names: Vec<(String, String)>,
    /// From, to, index into `names`; one list each.
    edges: (Vec<u32>, Vec<u32>, Vec<u32>),
    /// Node, kind and ordinal of the device, address, bytes.
    storages: Vec<(u32, String, u32, u64, u64)>,
    /// Node, kind, name or thread, file, line.
    roots: Vec<(u32, String, String, String, u32)>,
    #[serde(default)]
    outside: Vec<u32>,
    #[serde(default)]
    allocations: BTreeMap<String, u64>,
    #[serde(default)]
    dumped: String,
    #[serde(default)]
    caveats: Vec<String>,
}

impl HeapDump {
    /// Parses the content of a file.
    pub fn parse(bytes: &[u8]) -> Result<HeapDump, FileError> {
        let file: HeapFile = serde_json::from_slice(bytes)?;
        if file.version != 1 {
            return Err(FileError::UnknownVersion(file.version));
        }
        let (from, to, names) = file.edges;
        let edges = from.into_iter().zip(to).zip(names).map(|((from, to), name)| (from, to, name));
        let storages = file.storages.into_iter().map(|(node, kind, index, address, bytes)| Storage {
            node,
            device: StorageDevice { kind, index },
            address,
            bytes: bytes.min(MAX_STORAGE_BYTES),
        });
        let roots = file.roots.into_iter().filter_map(|(node, kind, name, file, line)| match kind.as_str() {
            "module" | "class" => Some((node, Root::Module { name, file })),
            "recorder" => Some((node, Root::Recorder)),
            "frame" => Some((node, Root::Frame { thread: name, file, line })),
            _ => None,
        });
        let outside = file.outside.into_iter().map(|node| (node, Root::Outside));
        let parts = Parts {
            types: file.types,
            files: file.files,
            nodes: file.nodes,
            texts: file.texts,
            names: file
                .names
                .into_iter()
                .map(|(kind, text)| ReferenceName { link: link(&kind), text })
                .collect(),
            edges: edges.collect(),
            storages: storages.collect(),
            roots: roots.chain(outside).collect(),
        };
        Ok(HeapDump {
            heap: Arc::new(Heap::new(parts)),
            allocations: AllocationCounts::from(file.allocations),
            reason: DumpReason::from_word(&file.dumped),
            caveats: file.caveats,
        })
    }
}

fn link(kind: &str) -> ReferenceKind {
    match kind {
        "attribute" => ReferenceKind::Attribute,
        "item" => ReferenceKind::Item,
        "local" => ReferenceKind::Local,
        "closure" => ReferenceKind::Closure,
        "element" => ReferenceKind::Element,
        "key" => ReferenceKind::Key,
        "cached" => ReferenceKind::Cached,
        "inside" => ReferenceKind::Inside,
        _ => ReferenceKind::Part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_points_nowhere_is_left_out() {
        let dump = HeapDump::parse(
            br#"{"version": 1, "types": ["dict", "storage"], "nodes": [0, 1, 9],
                "names": [["attribute", "x"], ["new", ""]],
                "edges": [[0, 0, 7, 0], [1, 5, 1, 2], [0, 0, 0, 9]], 
                "storages": [[1, "cuda", 0, 512, 64], [8, "cuda", 0, 1, 1]],
                "roots": [[0, "module", "__main__", "a.py", 0], [70, "module", "b", "", 0],
                          [0, "moon", "", "", 0]],
                "outside": [2, 33], "texts": [[55, "far"]], "more": 1}"#,
        )
        .expect("readable");
        assert_eq!((dump.heap.len(), dump.heap.edges.len(), dump.heap.storages.len()), (3, 1, 1));
        assert_eq!(dump.heap.roots.len(), 2);
        assert_eq!(dump.heap.class(2), "dict", "a class that is not there is the first");
    }

    #[test]
    fn sums_of_what_a_file_claims_do_not_overflow() {
        let dump = HeapDump::parse(
            br#"{"version": 1, "types": ["storage"], "nodes": [0, 0], "names": [], "edges": [[], [], []],
                "storages": [[0, "cuda", 0, 1, 18446744073709551615],
                             [1, "cuda", 0, 2, 18446744073709551615]],
                "roots": []}"#,
        )
        .expect("readable");
        let holdings = heap::AnalyzedHeap::new(&dump.heap, |_| true, |storage| storage.bytes);
        assert_eq!(holdings.top(3).iter().map(|held| held.bytes).sum::<u64>(), 2 * MAX_STORAGE_BYTES);
    }

    #[test]
    fn another_version_or_no_json_is_refused() {
        let new = br#"{"version": 2, "types": [], "nodes": [], "names": [], "edges": [[], [], []],
                        "storages": [], "roots": []}"#;
        assert_eq!(
            HeapDump::parse(new).err().map(|error| error.to_string()).as_deref(),
            Some("version 2 is unknown")
        );
        assert!(HeapDump::parse(b"[").is_err());
    }
}
