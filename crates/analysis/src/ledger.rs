//! The ledger of a device: the memory of the process by owner, which adds up to what `nvidia-smi` shows.

use recording::{DriverCount, DriverCounts, DriverMemory, LedgerCounters, Process, Recording};
use snapshot::Bytes;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Beginnings of the names of libraries, and what people call them.
const LIBRARY_NAMES: [(&str, &str); 13] = [
    ("libc10", "PyTorch"),
    ("libtorch", "PyTorch"),
    ("libnccl", "NCCL"),
    ("libcublas", "cuBLAS"),
    ("libcudnn", "cuDNN"),
    ("libcufft", "cuFFT"),
    ("libcusolver", "cuSOLVER"),
    ("libcusparse", "cuSPARSE"),
    ("libcurand", "cuRAND"),
    ("libnvshmem", "NVSHMEM"),
    ("libcufile", "cuFile"),
    ("libcudart", "CUDA runtime"),
    ("libffi", "Python's ctypes"),
];

/// Memory of a device by owner, at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceLedger {
    /// What happened at that moment: `start`, `step`, or why the snapshot was written.
    pub at: String,
    /// Steps that had ended.
    pub step: u64,
    /// Whether calls of the CUDA driver were counted.
    pub is_traced: bool,
    /// Memory of the process by the driver's count, as `nvidia-smi` shows it. Some containers hide it.
    pub process: Option<Bytes>,
    /// Parts of it, PyTorch's first, then the largest first.
    pub rows: Vec<LedgerRow>,
    /// What the parts lack of the process's memory; negative if they are more.
    pub unattributed: Option<i64>,
    /// Other processes on the device.
    pub others: Vec<Process>,
    /// Memory in use on the device that is of no listed process: the driver itself, or hidden processes.
    pub unlisted: Option<Bytes>,
    /// Driver calls that overlapped with a call of another thread, so that their memory is unknown.
    pub missed_calls: u64,
}

/// One owner of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerRow {
    /// Who, or what for.
    pub owner: LedgerOwner,
    /// Bytes.
    pub bytes: Bytes,
    /// Libraries that make up the row, the largest first; empty if it is one of its own.
    pub libraries: Vec<(String, Bytes)>,
}

/// Owner of memory, or its purpose.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LedgerOwner {
    /// Allocated by PyTorch's allocator.
    Tensors,
    /// Reserved by PyTorch's allocator and not allocated.
    Cached,
    /// The CUDA context.
    Context,
    /// Code of kernels, loaded at their first use.
    Kernels,
    /// CUDA graphs.
    Graphs,
    /// Streams, events and limits of the context.
    Streams,
    /// Memory that a library has allocated.
    Library(String),
    /// NCCL's communicators, by their own count.
    Communicators,
    /// The context, libraries, kernels and graphs together: calls of the driver were not counted.
    NonPytorch,
}

impl LedgerOwner {
    /// Returns the name for people.
    pub fn name(&self) -> &str {
        match self {
            LedgerOwner::Tensors => "PyTorch, allocated",
            LedgerOwner::Cached => "PyTorch, cached",
            LedgerOwner::Context => "CUDA context",
            LedgerOwner::Kernels => "kernels",
            LedgerOwner::Graphs => "CUDA graphs",
            LedgerOwner::Streams => "streams and events",
            LedgerOwner::Library(name) => name,
            LedgerOwner::Communicators => "NCCL",
            LedgerOwner::NonPytorch => "non-PyTorch memory",
        }
    }

    /// Returns the name for programs: one of a fixed set, with `library` for all libraries.
    pub fn key(&self) -> &'static str {
        match self {
            LedgerOwner::Tensors => "allocated",
            LedgerOwner::Cached => "cached",
            LedgerOwner::Context => "context",
            LedgerOwner::Kernels => "kernels",
            LedgerOwner::Graphs => "graphs",
            LedgerOwner::Streams => "streams",
            LedgerOwner::Library(_) => "library",
            LedgerOwner::Communicators => "communicators",
            LedgerOwner::NonPytorch => "non_pytorch",
        }
    }
}

impl DeviceLedger {
    /// Returns the ledger of the moment when most of a device was in use; `None` if PyTorch has more than the
    /// driver gave the process, as when a prediction goes on although the GPU is full.
    pub fn highest(recording: &Recording, device: u32) -> Option<DeviceLedger> {
        let file = recording.ledger.as_deref()?;
        let samples = file.samples.iter().filter_map(|sample| Some((sample, sample.of(device)?)));
        // Of equal ones, the last: it knows most owners.
        let (sample, counters) =
            samples.max_by_key(|(_, counters)| counters.used.unwrap_or(counters.reserved))?;
        let ledger = DeviceLedger::new(counters, file.is_traced.then_some(&sample.driver));
        if ledger.process.is_some_and(|process| Bytes(counters.reserved) > process) {
            return None;
        }
        Some(DeviceLedger { at: sample.at.clone(), step: sample.step, ..ledger })
    }

    /// Returns the moment in words.
    pub fn when(&self) -> String {
        match (self.at.as_str(), self.step) {
            ("start", _) => "when CUDA was initialized".to_owned(),
            ("step", step) => format!("after step {step}"),
            ("oom", _) => "when the allocation failed".to_owned(),
            (_, 0) => "when the snapshot was written".to_owned(),
            (_, step) => format!("when the snapshot was written, after step {step}"),
        }
    }

    /// Returns the ledger of one moment; `driver` is what libraries had taken, where calls were counted.
    pub(crate) fn new(counters: &LedgerCounters, driver: Option<&DriverCounts>) -> DeviceLedger {
        let (process, others) = counters.processes();
        let mut rows = vec![
            row(LedgerOwner::Tensors, counters.allocated),
            row(LedgerOwner::Cached, counters.reserved.saturating_sub(counters.allocated)),
        ];
        if let Some(driver) = driver {
            rows.extend(LedgerRow::of_driver(&driver.entries, counters.device, counters.reserved));
        } else if let Some(process) = process {
            rows.extend(untraced(counters, process));
        }
        rows.retain(|row| row.bytes > Bytes::ZERO);
        let first = |row: &LedgerRow| matches!(row.owner, LedgerOwner::Tensors | LedgerOwner::Cached);
        rows.sort_by_key(|row| (!first(row), (!first(row)).then_some(Reverse(row.bytes))));
        let sum: Bytes = rows.iter().map(|row| row.bytes).sum();
        let listed: Bytes =
            others.iter().map(|process| process.bytes).sum::<Bytes>() + process.unwrap_or_default();
        DeviceLedger {
            at: String::new(),
            step: 0,
            is_traced: driver.is_some(),
            process,
            unattributed: process.map(|process| process.0 as i64 - sum.0 as i64),
            unlisted: process.and(counters.used).map(|used| Bytes(used.saturating_sub(listed.0))),
            rows,
            others,
            missed_calls: driver.map_or(0, |driver| driver.missed),
        }
    }
}

fn row(owner: LedgerOwner, bytes: u64) -> LedgerRow {
    LedgerRow { owner, bytes: Bytes(bytes), libraries: Vec::new() }
}

impl LedgerRow {
    /// Returns what libraries have taken of a device from the driver, the largest first, without what
    /// PyTorch's allocator has reserved.
    pub fn of_driver(entries: &[DriverCount], device: u32, reserved: u64) -> Vec<LedgerRow> {
        let mut sums: BTreeMap<LedgerOwner, BTreeMap<String, i64>> = BTreeMap::new();
        let mut of_allocator = 0;
        for entry in entries.iter().filter(|entry| entry.device == i64::from(device)) {
            let library = library_name(&entry.library);
            let owner = match entry.kind {
                DriverMemory::Context => LedgerOwner::Context,
                DriverMemory::Kernels => LedgerOwner::Kernels,
                DriverMemory::Graphs => LedgerOwner::Graphs,
                DriverMemory::Other => LedgerOwner::Streams,
                DriverMemory::Pinned | DriverMemory::Registered => continue,
                DriverMemory::Allocated | DriverMemory::Mapped | DriverMemory::Pooled => {
                    if file_name(&entry.library).starts_with("libc10") {
                        of_allocator += entry.bytes;
                        continue;
                    }
                    LedgerOwner::Library(library.clone())
                }
            };
            *sums.entry(owner).or_default().entry(library).or_default() += entry.bytes;
        }
        let mut rows: Vec<LedgerRow> = sums
            .into_iter()
            .map(|(owner, libraries)| {
                let bytes: i64 = libraries.values().sum();
                let names_itself = matches!(owner, LedgerOwner::Library(_) | LedgerOwner::Context);
                let mut libraries: Vec<(String, Bytes)> = libraries
                    .into_iter()
                    .filter(|(_, bytes)| *bytes > 0 && !names_itself)
                    .map(|(name, bytes)| (name, Bytes(bytes as u64)))
                    .collect();
                libraries.sort_by_key(|(_, bytes)| Reverse(*bytes));
                LedgerRow { owner, bytes: Bytes(u64::try_from(bytes).unwrap_or(0)), libraries }
            })
            .collect();
        // PyTorch's allocator counts as its own what a pluggable allocator has taken for it.
        let mut lent = u64::try_from(reserved as i64 - of_allocator).unwrap_or(0);
        rows.sort_by_key(|row| Reverse(row.bytes));
        for row in rows.iter_mut().filter(|row| matches!(row.owner, LedgerOwner::Library(_))) {
            let part = lent.min(row.bytes.0);
            row.bytes = Bytes(row.bytes.0 - part);
            lent -= part;
        }
        rows.retain(|row| row.bytes > Bytes::ZERO);
        rows.sort_by_key(|row| Reverse(row.bytes));
        rows
    }
}

/// Rows of what is known without counting: NCCL's own count, and the rest.
fn untraced(counters: &LedgerCounters, process: Bytes) -> Vec<LedgerRow> {
    let non_pytorch = process.0.saturating_sub(counters.reserved);
    let nccl: u64 = counters.nccl.iter().map(|of| of.bytes).sum();
    let nccl = nccl.min(non_pytorch);
    let groups = counters.nccl.iter().map(|of| (of.group.clone(), Bytes(of.bytes))).collect();
    vec![
        LedgerRow { libraries: groups, ..row(LedgerOwner::Communicators, nccl) },
        row(LedgerOwner::NonPytorch, non_pytorch - nccl),
    ]
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns what people call a library: its product, its Python package, or its file name.
fn library_name(path: &str) -> String {
    let file = file_name(path);
    if let Some((_, name)) = LIBRARY_NAMES.iter().find(|(prefix, _)| file.starts_with(prefix)) {
        return (*name).to_owned();
    }
    let package = ["/site-packages/", "/dist-packages/"]
        .into_iter()
        .find_map(|folder| path.split_once(folder))
        .and_then(|(_, inside)| inside.split_once('/'))
        .map(|(package, _)| package.trim_end_matches(".libs"));
    match package {
        // Part of CuPy.
        Some("cupy_backends") => "cupy".to_owned(),
        Some(package) => package.to_owned(),
        None if file.is_empty() => "unknown library".to_owned(),
        None => file.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::LedgerFile;

    const MIB: u64 = 1 << 20;

    fn ledger(json: &str) -> DeviceLedger {
        let file = LedgerFile::parse(json.as_bytes()).expect("a ledger");
        let recording = Recording { ledger: Some(std::sync::Arc::new(file)), ..Recording::default() };
        DeviceLedger::highest(&recording, 0).expect("the device")
    }

    fn sample(at: &str, reserved_mib: u64, process_mib: u64, driver: &str) -> String {
        let (reserved, process) = (reserved_mib * MIB, process_mib * MIB);
        format!(
            r#"{{"at": "{at}", "time_us": 1, "step": 3, "devices": [{{"device": 0, "allocated": {MIB},
            "reserved": {reserved}, "used": {process}, "processes": [{{"pid": 8, "bytes": {process},
            "name": "this process"}}]}}], "driver": {{"entries": [{driver}], "missed": 1}}}}"#
        )
    }

    fn entry(kind: &str, mib: i64, library: &str) -> String {
        let bytes = mib * MIB as i64;
        format!(r#"{{"device": 0, "kind": "{kind}", "bytes": {bytes}, "library": "{library}"}}"#)
    }

    fn shown(ledger: &DeviceLedger) -> Vec<(&str, u64)> {
        ledger.rows.iter().map(|row| (row.owner.name(), row.bytes.0 / MIB)).collect()
    }

    #[test]
    fn traced_calls_add_up_to_the_process() {
        let entries = [
            entry("context", 500, "/x/libnccl.so.2"),
            entry("mapped", 20, "/x/libc10_cuda.so"),
            entry("mapped", 388, "/x/libnccl.so.2"),
            entry("kernels", 190, "/x/libnccl.so.2"),
            entry("kernels", 92, "/x/libtorch_cuda.so"),
            entry("pooled", 64, "/y/site-packages/cupy_backends/cuda/api/runtime.so"),
            entry("other", -2, "/x/libcudnn_graph.so.9"),
        ];
        let ledger = ledger(&format!(
            r#"{{"traced": true, "samples": [{}]}}"#,
            sample("exit", 20, 1256, &entries.join(","))
        ));
        let expected = [
            ("PyTorch, allocated", 1),
            ("PyTorch, cached", 19),
            ("CUDA context", 500),
            ("NCCL", 388),
            ("kernels", 282),
            ("cupy", 64),
        ];
        assert_eq!(shown(&ledger), expected);
        assert_eq!(ledger.unattributed, Some(2 * MIB as i64));
        let kernels = ledger.rows.iter().find(|row| row.owner == LedgerOwner::Kernels).expect("kernels");
        assert_eq!(kernels.libraries[0], ("NCCL".to_owned(), Bytes(190 * MIB)));
        assert_eq!(ledger.missed_calls, 1);
    }

    #[test]
    fn memory_of_a_pluggable_allocator_is_not_counted_twice() {
        let entries = [entry("context", 500, "python3"), entry("allocated", 100, "/home/me/alloc.so")];
        let ledger = ledger(&format!(
            r#"{{"traced": true, "samples": [{}]}}"#,
            sample("exit", 80, 600, &entries.join(","))
        ));
        let expected =
            [("PyTorch, allocated", 1), ("PyTorch, cached", 79), ("CUDA context", 500), ("alloc.so", 20)];
        assert_eq!(shown(&ledger), expected);
        assert_eq!(ledger.unattributed, Some(0));
    }

    #[test]
    fn without_a_trace_only_what_counts_itself_is_told_apart() {
        let sample = sample("exit", 20, 900, "")
            .replace(r#""processes""#, r#""nccl": [{"group": "0", "bytes": 104857600}], "processes""#);
        let ledger = ledger(&format!(r#"{{"traced": false, "samples": [{sample}]}}"#));
        let expected =
            [("PyTorch, allocated", 1), ("PyTorch, cached", 19), ("non-PyTorch memory", 780), ("NCCL", 100)];
        assert_eq!(shown(&ledger), expected);
        assert_eq!((ledger.unattributed, ledger.step), (Some(0), 3));
    }
}
