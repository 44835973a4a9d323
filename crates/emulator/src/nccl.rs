//! NCCL: ranks on one machine, each usually a separate process, with emulated devices.
//!
//! Training code sends more than gradients through NCCL: shapes, flags, sizes of pickled objects. Buffers up
//! to [`crate::copies::MAX_KEPT_COPY_BYTES`] are therefore exchanged between the processes ([`exchange`]) and
//! reduced ([`arithmetic`]), so that a program reads back what it would read on real cards. Larger buffers
//! are activations, weights and gradients, which have no values here: no rank waits for them, and the
//! received values are unknown.
//!
//! `ncclGetVersion` and `ncclGetErrorString` are the real library's; they need no driver.

mod agreement;
mod arithmetic;
mod buffers;
mod collective;
mod communicator;
mod contents;
mod exchange;
mod group;
mod stand_ins;
mod watchdog;

use crate::copies::MAX_KEPT_COPY_BYTES;
use crate::{StatusCode, graphs, memory, put, values};
use arithmetic::{NcclElement, Reduction};
use collective::{Collective, CollectiveKind};
use communicator::{Communicator, find};
use contents::BufferContents;
use exchange::ExchangeFailure;
use group::Pending;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use watchdog::is_hidden_from_watchdog;

const SUCCESS: StatusCode = 0;
const UNHANDLED_CUDA_ERROR: StatusCode = 1;
const SYSTEM_ERROR: StatusCode = 2;
const INVALID_ARGUMENT: StatusCode = 4;
const REMOTE_ERROR: StatusCode = 6;

/// Last error message, for `ncclGetLastError`.
static LAST_ERROR: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Reports a failed call and returns its status.
fn failed(call: &str, communicator: Option<&Communicator>, failure: &ExchangeFailure) -> StatusCode {
    let status = if matches!(failure, ExchangeFailure::Exited(_)) { REMOTE_ERROR } else { SYSTEM_ERROR };
    let place = communicator.map_or(String::new(), |own| {
        format!(" on {} ({} of a group of {})", agreement::own_name(), own.rank, own.size)
    });
    let text = format!("{call}{place}: {failure}");
    if !matches!(failure, ExchangeFailure::Aborted) && crate::notes::note("failed", &text) {
        crate::notes::print(&text);
    }
    if let Some(communicator) = communicator {
        communicator.failure.store(status, Relaxed);
    }
    // The previous message is leaked, because a caller may still be reading it.
    LAST_ERROR.store(CString::new(text).unwrap_or_default().into_raw(), Relaxed);
    status
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_handle: u64) -> *const c_char {
    const NOTHING: &CStr = c"";
    let last = LAST_ERROR.load(Relaxed);
    if last.is_null() { NOTHING.as_ptr() } else { last }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> StatusCode {
    group::start();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> StatusCode {
    group::end()
}

/// Arguments of a call, before any check.
struct CollectiveCall {
    name: &'static str,
    send: u64,
    receive: u64,
    count: usize,
    datatype: i32,
    communicator: u64,
    stream: u64,
}

impl CollectiveCall {
    /// Takes part in a collective; `kind` is `None` if the root or the reduction is invalid.
    unsafe fn run(self, kind: Option<CollectiveKind>) -> StatusCode {
        crate::graphs::record_work();
        let (Some(communicator), Some(element), Some(kind)) =
            (find(self.communicator), NcclElement::from_number(self.datatype), kind)
        else {
            return INVALID_ARGUMENT;
        };
        let collective = Collective {
            kind,
            element,
            count: self.count,
            send: self.send,
            receive: self.receive,
            rank: communicator.rank,
            size: communicator.size,
        };
        match kind {
            CollectiveKind::AllToAll => {
                (0..communicator.size).for_each(|peer| communicator.buffers.connect(peer));
            }
            _ => communicator.buffers.connect_all(),
        }
        communicator.exchange.log_call(&collective.shape(self.name));
        // A captured call runs when the graph is replayed, and replays do nothing.
        if collective.is_large() || graphs::capture_of(self.stream).is_some() {
            unsafe { collective.finish(None) };
            return SUCCESS;
        }
        match communicator.exchange.contribute(&unsafe { collective.part() }) {
            Ok(round) => group::defer(self.name, Pending::Collective { communicator, round, collective }),
            Err(failure) => failed(self.name, Some(&communicator), &failure),
        }
    }
}

fn root(root: i32) -> Option<usize> {
    usize::try_from(root).ok()
}

/// Defines collectives, which have most arguments in common.
macro_rules! collectives {
    ($($name:ident($($more:ident: $type:ty),*) $kind:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            send: u64,
            receive: u64,
            count: usize,
            datatype: i32,
            $($more: $type,)*
            communicator: u64,
            stream: u64,
        ) -> StatusCode {
            let name = stringify!($name);
            let call = CollectiveCall { name, send, receive, count, datatype, communicator, stream };
            unsafe { call.run($kind) }
        }
    )*};
}

collectives! {
    ncclAllReduce(how: i32) reduction(how).map(CollectiveKind::AllReduce);
    ncclReduceScatter(how: i32) reduction(how).map(CollectiveKind::ReduceScatter);
    ncclReduce(how: i32, to: i32)
        reduction(how).zip(root(to)).map(|(reduction, root)| CollectiveKind::Reduce { reduction, root });
    ncclBroadcast(from: i32) root(from).map(|root| CollectiveKind::Broadcast { root });
    ncclAllGather() Some(CollectiveKind::AllGather);
    ncclAlltoAll() Some(CollectiveKind::AllToAll);
    ncclGather(to: i32) root(to).map(|root| CollectiveKind::Gather { root });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclBcast(
    buffer: u64,
    count: usize,
    datatype: i32,
    root: i32,
    communicator: u64,
    stream: u64,
) -> StatusCode {
    unsafe { ncclBroadcast(buffer, buffer, count, datatype, root, communicator, stream) }
}

/// Arguments of a message between two ranks: the communicator, the peer, and the length in bytes.
fn message_arguments(
    handle: u64,
    peer: i32,
    count: usize,
    datatype: i32,
) -> Option<(std::sync::Arc<Communicator>, usize, usize)> {
    let communicator = find(handle)?;
    let peer = usize::try_from(peer).ok().filter(|&peer| peer < communicator.size)?;
    Some((communicator, peer, count * NcclElement::from_number(datatype)?.bytes()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    from: u64,
    count: usize,
    datatype: i32,
    peer: i32,
    handle: u64,
    stream: u64,
) -> StatusCode {
    let Some((communicator, peer, bytes)) = message_arguments(handle, peer, count, datatype) else {
        return INVALID_ARGUMENT;
    };
    communicator.connect(peer);
    if bytes as u64 > MAX_KEPT_COPY_BYTES || graphs::capture_of(stream).is_some() {
        return SUCCESS;
    }
    match communicator.exchange.send(peer, &unsafe { BufferContents::of(from, bytes) }) {
        Ok(()) => SUCCESS,
        Err(failure) => failed("ncclSend", Some(&communicator), &failure),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    to: u64,
    count: usize,
    datatype: i32,
    peer: i32,
    handle: u64,
    stream: u64,
) -> StatusCode {
    let Some((communicator, from, bytes)) = message_arguments(handle, peer, count, datatype) else {
        return INVALID_ARGUMENT;
    };
    communicator.connect(from);
    if bytes as u64 > MAX_KEPT_COPY_BYTES || graphs::capture_of(stream).is_some() {
        values::forget(to, bytes as u64);
        return SUCCESS;
    }
    let number = communicator.exchange.expect(from);
    group::defer("ncclRecv", Pending::Receive { communicator, from, number, to, bytes })
}

/// First number of `ncclRedOp_t` for reductions created by a program.
const FIRST_CUSTOM_REDUCTION: i32 = 5;

/// Reductions created by a program, by number.
#[derive(Default)]
struct CustomReductions {
    open: BTreeMap<i32, Reduction>,
    made: i32,
}

fn custom_reductions() -> MutexGuard<'static, CustomReductions> {
    static CUSTOM: Mutex<CustomReductions> = Mutex::new(CustomReductions { open: BTreeMap::new(), made: 0 });
    CUSTOM.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reduction(number: i32) -> Option<Reduction> {
    match number {
        0 => Some(Reduction::Sum),
        1 => Some(Reduction::Product),
        2 => Some(Reduction::Largest),
        3 => Some(Reduction::Smallest),
        4 => Some(Reduction::Average),
        own => custom_reductions().open.get(&own).copied(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    to: *mut i32,
    factor: u64,
    datatype: i32,
    _residence: i32,
    _communicator: u64,
) -> StatusCode {
    let Some(element) = NcclElement::from_number(datatype) else { return INVALID_ARGUMENT };
    let contents = unsafe { BufferContents::of(factor, element.bytes()) };
    // An unknown factor in device memory multiplies unknown values, so its value does not matter.
    let factor = contents.whole(element.bytes()).and_then(|(bytes, _)| element.scalar(bytes)).unwrap_or(1.0);
    let mut own = custom_reductions();
    let number = FIRST_CUSTOM_REDUCTION + own.made;
    own.made += 1;
    own.open.insert(number, Reduction::ScaledSum(factor));
    unsafe { put(to, number) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpDestroy(number: i32, _communicator: u64) -> StatusCode {
    custom_reductions().open.remove(&number);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclMemAlloc(to: *mut u64, size: usize) -> StatusCode {
    match memory::allocate(size as u64) {
        Ok(at) => {
            unsafe { put(to, at) };
            SUCCESS
        }
        Err(_) => UNHANDLED_CUDA_ERROR,
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclMemFree(at: u64) -> StatusCode {
    match memory::release(at) {
        crate::SUCCESS => SUCCESS,
        _ => INVALID_ARGUMENT,
    }
}

/// Registering buffers only improves speed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommRegister(
    _communicator: u64,
    _at: u64,
    _size: usize,
    to: *mut u64,
) -> StatusCode {
    unsafe { put(to, crate::macros::HANDLE) };
    SUCCESS
}

no_op! { ncclCommDeregister }
