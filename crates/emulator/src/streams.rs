//! Streams and events. All work completes immediately, because kernels do nothing. Only PyTorch's NCCL
//! watchdog learns of it later.

use crate::graphs;
use crate::{CAPTURE_UNSUPPORTED, INVALID_HANDLE, NOT_READY, SUCCESS, StatusCode, device, nccl, pools, put};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Next stream handle; nothing is behind the handles. Lower numbers are the default streams.
static NEXT_STREAM: AtomicU64 = AtomicU64::new(FIRST_STREAM);
const FIRST_STREAM: u64 = 0x1000_0000;
const PRIORITY_MASK: u64 = 0xff;

/// Event: its device, when it was recorded, and in which capture.
pub(crate) struct CudaEvent {
    device: i32,
    at: Option<Instant>,
    capture: Option<u64>,
}

impl CudaEvent {
    /// Event of the current device that was recorded now.
    pub(crate) fn completed() -> *mut CudaEvent {
        CudaEvent::create(Some(Instant::now()))
    }

    fn create(at: Option<Instant>) -> *mut CudaEvent {
        Box::into_raw(Box::new(CudaEvent { device: device::current(), at, capture: None }))
    }
}

/// Priority that a stream was created with: its handle has it in the lowest bits.
fn priority_of(stream: u64) -> i32 {
    let is_created = stream >= FIRST_STREAM;
    if is_created { -((stream & PRIORITY_MASK) as i32) } else { 0 }
}

runtime! {
    fn cudaStreamCreateWithPriority(to: *mut u64, _flags: u32, priority: i32) -> StatusCode {
        // A driver uses the nearest priority that it has.
        let priority = priority.clamp(device::HIGHEST_STREAM_PRIORITY, 0).unsigned_abs();
        let handle = NEXT_STREAM.fetch_add(PRIORITY_MASK + 1, Relaxed);
        unsafe { put(to, handle | u64::from(priority)) };
        SUCCESS
    }

    fn cudaStreamCreate(to: *mut u64) -> StatusCode {
        unsafe { cudaStreamCreateWithPriority(to, 0, 0) }
    }

    fn cudaStreamCreateWithFlags(to: *mut u64, flags: u32) -> StatusCode {
        unsafe { cudaStreamCreateWithPriority(to, flags, 0) }
    }

    fn cudaStreamDestroy(_stream: u64) -> StatusCode {
        SUCCESS
    }

    fn cudaStreamGetPriority(stream: u64, to: *mut i32) -> StatusCode {
        unsafe { put(to, priority_of(stream)) };
        SUCCESS
    }

    fn cudaStreamSynchronize(stream: u64) -> StatusCode {
        let status = unsafe { cudaStreamQuery(stream) };
        pools::synchronize();
        status
    }

    fn cudaStreamQuery(stream: u64) -> StatusCode {
        if graphs::capture_of(stream).is_some() {
            return device::record_error(CAPTURE_UNSUPPORTED);
        }
        SUCCESS
    }

    fn cudaStreamWaitEvent(stream: u64, event: *const CudaEvent, _flags: u32) -> StatusCode {
        if event.is_null() {
            return device::record_error(INVALID_HANDLE);
        }
        if let Some(capture) = unsafe { (*event).capture } {
            graphs::join(capture, stream);
        }
        SUCCESS
    }

    fn cudaStreamAddCallback(
        stream: u64,
        call: extern "C" fn(u64, StatusCode, *mut c_void),
        data: *mut c_void,
        _flags: u32,
    ) -> StatusCode {
        call(stream, SUCCESS, data);
        SUCCESS
    }

    /// On a real card, a captured host function runs at each replay; here, replays do nothing.
    fn cudaLaunchHostFunc(
        stream: u64,
        call: extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> StatusCode {
        if graphs::capture_of(stream).is_none() {
            call(data);
        }
        SUCCESS
    }

    fn cudaEventCreateWithFlags(to: *mut *mut CudaEvent, _flags: u32) -> StatusCode {
        unsafe { put(to, CudaEvent::create(None)) };
        SUCCESS
    }

    fn cudaEventCreate(to: *mut *mut CudaEvent) -> StatusCode {
        unsafe { cudaEventCreateWithFlags(to, 0) }
    }

    fn cudaEventDestroy(event: *mut CudaEvent) -> StatusCode {
        if !event.is_null() {
            drop(unsafe { Box::from_raw(event) });
        }
        SUCCESS
    }

    fn cudaEventRecord(event: *mut CudaEvent, stream: u64) -> StatusCode {
        if event.is_null() {
            return device::record_error(INVALID_HANDLE);
        }
        unsafe {
            (*event).at = Some(Instant::now());
            (*event).capture = graphs::capture_of(stream);
        }
        SUCCESS
    }

    fn cudaEventRecordWithFlags(event: *mut CudaEvent, stream: u64, _flags: u32) -> StatusCode {
        unsafe { cudaEventRecord(event, stream) }
    }
}

runtime_query! {
    fn cudaEventQuery(event: *const CudaEvent) -> StatusCode {
        if event.is_null() {
            return device::record_error(INVALID_HANDLE);
        }
        if unsafe { (*event).capture }.is_some_and(graphs::is_active) {
            return device::record_error(CAPTURE_UNSUPPORTED);
        }
        if unsafe { (*event).at }.is_some_and(nccl::is_hidden_from_watchdog) {
            return device::record_error(NOT_READY);
        }
        SUCCESS
    }

    fn cudaEventSynchronize(event: *const CudaEvent) -> StatusCode {
        let status = unsafe { cudaEventQuery(event) };
        pools::synchronize();
        status
    }

    /// The time between two events is host time: kernels take none.
    fn cudaEventElapsedTime(to: *mut f32, start: *const CudaEvent, end: *const CudaEvent) -> StatusCode {
        if start.is_null() || end.is_null() {
            return device::record_error(INVALID_HANDLE);
        }
        if unsafe { (*start).device != (*end).device } {
            return device::record_error(INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (unsafe { (*start).at }, unsafe { (*end).at }) else {
            return device::record_error(INVALID_HANDLE);
        };
        let elapsed = end.checked_duration_since(start).unwrap_or(Duration::ZERO);
        unsafe { put(to, elapsed.as_secs_f32() * 1e3) };
        SUCCESS
    }
}
