//! Graph capture: tracks which streams are capturing, because the caching allocator asks. Of a graph, it is
//! only known whether anything was captured; replays do nothing.

use crate::{INVALID_HANDLE, INVALID_VALUE, SUCCESS, StatusCode, device, put};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Streams that take part in a capture: stream → capture.
static CAPTURING: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
static CAPTURES: AtomicU64 = AtomicU64::new(0);
static HANDLES: AtomicU64 = AtomicU64::new(0x2000_0000);

const NONE: i32 = 0;
const ACTIVE: i32 = 1;

/// Number of captures begun and not ended, so that work without one costs nothing.
static ACTIVE_CAPTURES: AtomicU64 = AtomicU64::new(0);
/// Captures in which work was done, and the handles of graphs that have nodes.
static WITH_WORK: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn with_work() -> MutexGuard<'static, BTreeSet<u64>> {
    WITH_WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that work was put on a stream. Which one is not always known, so it counts for all captures.
pub(crate) fn record_work() {
    if ACTIVE_CAPTURES.load(Relaxed) > 0 {
        let captures: Vec<u64> = capturing().values().copied().collect();
        with_work().extend(captures);
    }
}

fn capturing() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    CAPTURING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Capture that a stream takes part in.
pub(crate) fn capture_of(stream: u64) -> Option<u64> {
    capturing().get(&stream).copied()
}

/// Adds a stream to a capture; happens when the stream waits for an event of the capture.
pub(crate) fn join(capture: u64, stream: u64) {
    let mut capturing = capturing();
    if capturing.values().any(|&active| active == capture) {
        capturing.insert(stream, capture);
    }
}

pub(crate) fn is_active(capture: u64) -> bool {
    capturing().values().any(|&active| active == capture)
}

fn handle() -> u64 {
    HANDLES.fetch_add(0x100, Relaxed)
}

runtime! {
    fn cudaStreamBeginCapture(stream: u64, _mode: i32) -> StatusCode {
        // The default stream cannot be captured.
        if stream == 0 {
            return device::record_error(crate::CAPTURE_UNSUPPORTED);
        }
        let capture = CAPTURES.fetch_add(1, Relaxed) + 1;
        match capturing().insert(stream, capture) {
            None => {
                ACTIVE_CAPTURES.fetch_add(1, Relaxed);
                SUCCESS
            }
            Some(_) => device::record_error(INVALID_VALUE),
        }
    }

    fn cudaStreamBeginCaptureToGraph(
        stream: u64,
        _graph: u64,
        _dependencies: u64,
        _edges: u64,
        _count: usize,
        mode: i32,
    ) -> StatusCode {
        unsafe { cudaStreamBeginCapture(stream, mode) }
    }

    fn cudaStreamEndCapture(stream: u64, to: *mut u64) -> StatusCode {
        let mut capturing = capturing();
        let Some(capture) = capturing.get(&stream).copied() else {
            return device::record_error(INVALID_VALUE);
        };
        capturing.retain(|_, active| *active != capture);
        ACTIVE_CAPTURES.fetch_sub(1, Relaxed);
        let graph = handle();
        let mut with_work = with_work();
        if with_work.remove(&capture) {
            with_work.insert(graph);
        }
        unsafe { put(to, graph) };
        SUCCESS
    }

    fn cudaStreamIsCapturing(stream: u64, to: *mut i32) -> StatusCode {
        unsafe { put(to, if capture_of(stream).is_some() { ACTIVE } else { NONE }) };
        SUCCESS
    }
}

/// Common part of all variants of the query. Graphs have no nodes that others could depend on.
unsafe fn capture_info(
    stream: u64,
    status: *mut i32,
    id: *mut u64,
    graph: *mut u64,
    dependencies: *mut u64,
    count: *mut usize,
) -> StatusCode {
    let capture = capture_of(stream);
    unsafe {
        put(status, if capture.is_some() { ACTIVE } else { NONE });
        if let Some(capture) = capture {
            put(id, capture);
            put(graph, capture);
        }
        put(dependencies, 0);
        put(count, 0);
    }
    SUCCESS
}

runtime! {
    /// CUDA 12.
    fn cudaStreamGetCaptureInfo_v2(
        stream: u64,
        status: *mut i32,
        id: *mut u64,
        graph: *mut u64,
        dependencies: *mut u64,
        count: *mut usize,
    ) -> StatusCode {
        unsafe { capture_info(stream, status, id, graph, dependencies, count) }
    }
}

/// Variants of the query that also return the kinds of dependencies.
macro_rules! captures_with_edges {
    ($($name:ident)*) => {
        runtime! {
            $(fn $name(
                stream: u64,
                status: *mut i32,
                id: *mut u64,
                graph: *mut u64,
                dependencies: *mut u64,
                edges: *mut u64,
                count: *mut usize,
            ) -> StatusCode {
                unsafe {
                    put(edges, 0);
                    capture_info(stream, status, id, graph, dependencies, count)
                }
            })*
        }
    };
}

// CUDA 13, and its earlier name.
captures_with_edges! { cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v3 }

// Capture modes restrict what other threads may do during a capture; nothing is restricted here. Replays do
// nothing. User objects free host memory with a graph; without replays, nothing waits for that.
no_op! { runtime:
    cudaThreadExchangeStreamCaptureMode
    cudaGraphLaunch cudaGraphExecDestroy cudaGraphDebugDotPrint
    cudaGraphRetainUserObject cudaUserObjectRelease
}

runtime! {
    fn cudaGraphDestroy(graph: u64) -> StatusCode {
        with_work().remove(&graph);
        SUCCESS
    }

    /// Reports one node unless nothing was captured; PyTorch warns about empty graphs.
    fn cudaGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> StatusCode {
        if !with_work().contains(&graph) {
            unsafe { put(count, 0) };
            return SUCCESS;
        }
        unsafe {
            if !nodes.is_null() && !count.is_null() && *count > 0 {
                put(nodes, handle());
            }
            put(count, 1);
        }
        SUCCESS
    }

    fn cudaGraphInstantiate(to: *mut u64, graph: u64, _flags: u64) -> StatusCode {
        if graph == 0 {
            return device::record_error(INVALID_HANDLE);
        }
        unsafe { put(to, handle()) };
        SUCCESS
    }

    fn cudaGraphInstantiateWithFlags(to: *mut u64, graph: u64, flags: u64) -> StatusCode {
        unsafe { cudaGraphInstantiate(to, graph, flags) }
    }

    fn cudaUserObjectCreate(
        to: *mut u64,
        _object: u64,
        _destroy: u64,
        _count: u32,
        _flags: u32,
    ) -> StatusCode {
        unsafe { put(to, handle()) };
        SUCCESS
    }
}
