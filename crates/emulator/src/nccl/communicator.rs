//! Communicators: how ranks find each other, split, and leave.

use super::buffers::NcclBuffers;
use super::contents::BufferContents;
use super::exchange::{Exchange, RankMessage};
use super::group::{self, Pending};
use super::{INVALID_ARGUMENT, SUCCESS, StatusCode, UNHANDLED_CUDA_ERROR, failed};
use crate::{process, put};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

/// Environment variable with the directory in which the processes of a run meet.
pub(super) const RENDEZVOUS_VARIABLE: &str = "OOMPH_EMULATOR_RENDEZVOUS";

pub(super) struct Communicator {
    pub(super) exchange: Exchange,
    pub(super) buffers: NcclBuffers,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Status of the first call that failed.
    pub(super) failure: AtomicI32,
}

impl Communicator {
    /// Prepares messages with another rank, and notes it: stages of a pipeline have some with their neighbors
    /// only.
    pub(super) fn connect(&self, peer: usize) {
        self.buffers.connect(peer);
        let name = self.exchange.directory().file_name().unwrap_or_default().to_string_lossy().into_owned();
        crate::notes::note("peer", &format!("{name} {peer}"));
    }
}

/// `ncclUniqueId`: one rank generates it and sends it to the others by other means.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// Random bytes in an ID; the rest is zero.
const RANDOM_ID_BYTES: usize = 16;

impl UniqueId {
    fn generate() -> UniqueId {
        let mut id = UniqueId([0; 128]);
        // Cannot fail: sixteen bytes are always available.
        unsafe { libc::getrandom(id.0.as_mut_ptr().cast(), RANDOM_ID_BYTES, 0) };
        id
    }

    fn directory(&self) -> PathBuf {
        let name: String = self.0[..RANDOM_ID_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        match std::env::var_os(RENDEZVOUS_VARIABLE) {
            Some(directory) => PathBuf::from(directory).join(name),
            None => PathBuf::from(format!("/dev/shm/oomph-{}-{name}", unsafe { libc::getuid() })),
        }
    }
}

/// Communicators by handle.
#[derive(Default)]
struct Communicators {
    open: BTreeMap<u64, Arc<Communicator>>,
    last_handle: u64,
}

fn communicators() -> MutexGuard<'static, Communicators> {
    static ALL: Mutex<Communicators> =
        Mutex::new(Communicators { open: BTreeMap::new(), last_handle: 0x4000_0000 });
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn find(handle: u64) -> Option<Arc<Communicator>> {
    communicators().open.get(&handle).cloned()
}

/// Leaves all communicators at exit, so that other ranks do not wait for this one and no files remain. The
/// communicators stay open, because PyTorch's watchdog queries them until the very end.
extern "C" fn leave_all() {
    // A forked process exits on its own; the rank belongs to the parent.
    if process::is_forked() {
        return;
    }
    let open: Vec<Arc<Communicator>> = communicators().open.values().cloned().collect();
    open.iter().for_each(|communicator| communicator.exchange.leave());
}

/// Opens this rank's end; the group waits for the other ranks when it ends.
unsafe fn open(to: *mut u64, directory: PathBuf, rank: i32, size: i32) -> StatusCode {
    if size < 1 || rank < 0 || rank >= size {
        return INVALID_ARGUMENT;
    }
    if process::runtime_refusal().is_some() {
        return UNHANDLED_CUDA_ERROR;
    }
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        unsafe { libc::atexit(leave_all) };
    });
    let (rank, size) = (rank as usize, size as usize);
    let buffers = NcclBuffers::new(rank, size);
    let exchange = match Exchange::new(directory, rank, size) {
        Ok(exchange) => exchange,
        Err(error) => return failed("ncclCommInitRank", None, &super::ExchangeFailure::Io(error)),
    };
    let communicator =
        Arc::new(Communicator { exchange, buffers, rank, size, failure: AtomicI32::new(SUCCESS) });
    let handle = {
        let mut all = communicators();
        all.last_handle += 0x100;
        let handle = all.last_handle;
        all.open.insert(handle, communicator.clone());
        handle
    };
    unsafe { put(to, handle) };
    match communicator.exchange.announce() {
        Ok(round) => group::defer("ncclCommInitRank", Pending::Init { communicator, round }),
        Err(failure) => failed("ncclCommInitRank", Some(&communicator), &failure),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(to: *mut UniqueId) -> StatusCode {
    unsafe { put(to, UniqueId::generate()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(to: *mut u64, size: i32, id: UniqueId, rank: i32) -> StatusCode {
    unsafe { open(to, id.directory(), rank, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut u64,
    size: i32,
    id: UniqueId,
    rank: i32,
    _configuration: u64,
) -> StatusCode {
    unsafe { open(to, id.directory(), rank, size) }
}

/// Several IDs distribute the work of starting many ranks; one is enough here.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankScalable(
    to: *mut u64,
    size: i32,
    rank: i32,
    count: i32,
    ids: *const UniqueId,
    _configuration: u64,
) -> StatusCode {
    if count < 1 || ids.is_null() {
        return INVALID_ARGUMENT;
    }
    unsafe { open(to, (*ids).directory(), rank, size) }
}

/// All ranks in one process, as in `torch.nn.DataParallel`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitAll(to: *mut u64, count: i32, _devices: u64) -> StatusCode {
    let directory = UniqueId::generate().directory();
    group::start();
    let opened = (0..count)
        .map(|rank| unsafe { open(to.add(rank as usize), directory.clone(), rank, count) })
        .find(|&status| status != SUCCESS);
    let ended = group::end();
    opened.unwrap_or(ended)
}

/// Color of a rank that joins none of the new communicators.
const NO_COLOR: i32 = -1;

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommSplit(
    handle: u64,
    color: i32,
    key: i32,
    to: *mut u64,
    _configuration: u64,
) -> StatusCode {
    const NAME: &str = "ncclCommSplit";
    let Some(communicator) = find(handle) else { return INVALID_ARGUMENT };
    let request = BufferContents::known([color.to_le_bytes(), key.to_le_bytes()].concat());
    match communicator.exchange.contribute(&request) {
        Ok(round) => group::defer(NAME, Pending::Split { communicator, round, color, to }),
        Err(failure) => failed(NAME, Some(&communicator), &failure),
    }
}

/// Opens the part of a split that a rank requested: the ranks of its color, ordered by key and old rank.
pub(super) unsafe fn finish_split(
    parent: &Communicator,
    round: u64,
    color: i32,
    to: *mut u64,
    requests: &[RankMessage],
) -> StatusCode {
    if color == NO_COLOR {
        unsafe { put(to, 0) };
        return SUCCESS;
    }
    let mut members: Vec<(i32, usize)> = requests
        .iter()
        .enumerate()
        .filter_map(|(rank, request)| match *request.contents.bytes() {
            [a, b, c, d, e, f, g, h] if i32::from_le_bytes([a, b, c, d]) == color => {
                Some((i32::from_le_bytes([e, f, g, h]), rank))
            }
            _ => None,
        })
        .collect();
    members.sort_unstable();
    let rank = members.iter().position(|&(_, rank)| rank == parent.rank).unwrap_or(0);
    let mut directory = parent.exchange.directory().as_os_str().to_owned();
    directory.push(format!("-{round}-{color}"));
    unsafe { open(to, directory.into(), rank as i32, members.len() as i32) }
}

/// Closes a communicator and leaves the other ranks.
fn close(handle: u64) -> StatusCode {
    super::watchdog::show_all();
    let removed = communicators().open.remove(&handle);
    match removed {
        Some(communicator) => {
            communicator.exchange.leave();
            SUCCESS
        }
        None => INVALID_ARGUMENT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: u64) -> StatusCode {
    close(handle)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: u64) -> StatusCode {
    if let Some(communicator) = find(handle) {
        communicator.exchange.abort();
    }
    close(handle)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(_handle: u64) -> StatusCode {
    super::watchdog::show_all();
    SUCCESS
}

/// Defines functions that query a number of a communicator.
macro_rules! queries {
    ($($name:ident: $query:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: u64, to: *mut i32) -> StatusCode {
            let query: fn(&Communicator) -> i32 = $query;
            match find(handle) {
                Some(communicator) => {
                    unsafe { put(to, query(&communicator)) };
                    SUCCESS
                }
                None => INVALID_ARGUMENT,
            }
        }
    )*};
}

queries! {
    ncclCommCount: |communicator| communicator.size as i32;
    ncclCommUserRank: |communicator| communicator.rank as i32;
    ncclCommGetAsyncError: |communicator| communicator.failure.load(Relaxed);
}
