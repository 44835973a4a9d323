//! Watches recorders in background threads: one thread finds them, one thread per recorder polls it, one
//! polls the driver.

use crate::driver::Gpu;
use crate::remote::ExporterAddress;
use crate::system;
use crate::watched::WatchedRecorder;
use analysis::words::counted;
use failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum number of recorders of one user that are watched at once, each by a thread of its own.
pub const MAX_RECORDERS_PER_USER: usize = 64;
/// Maximum number of recorders of all users together that are watched at once.
pub const MAX_RECORDERS: usize = 512;

/// Which recorders to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchSource {
    /// Every recorder that this user may see.
    All,
    /// The recorder of a process, and those of its child processes.
    Process(u32),
    /// Recorders that write to a folder.
    Folder(PathBuf),
    /// Recorders of another machine.
    Remote(ExporterAddress),
}

/// Watches recorders until it is dropped.
pub struct Watcher {
    shared: Arc<Shared>,
}

/// State shared by the threads of a watcher.
pub(crate) struct Shared {
    pub(crate) source: WatchSource,
    /// Time between two requests to a recorder.
    pub(crate) interval: Duration,
    pub(crate) recorders: Mutex<BTreeMap<String, WatchedRecorder>>,
    pub(crate) gpus: Mutex<Result<Vec<Gpu>, String>>,
    /// Recorders that are to write a recording.
    pub(crate) dump_requests: Mutex<BTreeSet<String>>,
    /// Number of watched recorders, by user.
    pub(crate) slots: Mutex<BTreeMap<u32, usize>>,
    /// Number of recorders beyond the limits, by user.
    pub(crate) left_out: Mutex<BTreeMap<u32, usize>>,
    pub(crate) wants_stacks: AtomicBool,
    pub(crate) is_stopped: AtomicBool,
    /// Whether every recorder that existed at the start has been queried once.
    pub(crate) has_polled_recorders: AtomicBool,
    pub(crate) has_polled_driver: AtomicBool,
}

impl Watcher {
    /// Starts to poll every recorder at this interval; for the stacks of live blocks too, if they are wanted.
    /// Fails if this system cannot watch the source.
    pub fn start(source: WatchSource, interval: Duration, wants_stacks: bool) -> Result<Watcher, Failure> {
        if !matches!(source, WatchSource::Remote(_)) {
            system::check()?;
        }
        let source = match source {
            WatchSource::Folder(folder) => WatchSource::Folder(folder.canonicalize().unwrap_or(folder)),
            other => other,
        };
        let shared = Arc::new(Shared::new(source, interval, wants_stacks));
        if let WatchSource::Remote(address) = shared.source.clone() {
            spawn(&shared, move |shared| shared.poll_remote(&address));
        } else {
            spawn(&shared, Shared::discover);
            spawn(&shared, |shared| shared.poll_driver());
        }
        Ok(Watcher { shared })
    }

    /// Returns every recorder with its name, including those whose process has ended.
    pub fn recorders(&self) -> Vec<(String, WatchedRecorder)> {
        let recorders = lock(&self.shared.recorders);
        recorders.iter().map(|(name, recorder)| (name.clone(), recorder.clone())).collect()
    }

    /// Returns the GPUs of the machine, or why they are unknown.
    pub fn gpus(&self) -> Result<Vec<Gpu>, String> {
        lock(&self.shared.gpus).clone()
    }

    /// Returns whether every recorder that existed at the start has been queried.
    pub fn has_polled_recorders(&self) -> bool {
        self.shared.has_polled_recorders.load(Ordering::SeqCst)
    }

    /// Returns whether [`Watcher::gpus`] is the driver's answer, which may take seconds while devices wake
    /// up.
    pub fn has_polled_driver(&self) -> bool {
        self.shared.has_polled_driver.load(Ordering::SeqCst)
    }

    /// Sets whether recorders are asked for the stacks of live blocks.
    pub fn want_stacks(&self, wanted: bool) {
        self.shared.wants_stacks.store(wanted, Ordering::SeqCst);
    }

    /// Asks a recorder to write a recording. Returns `false` if it cannot be asked, or has been asked
    /// already.
    pub fn dump(&self, name: &str) -> bool {
        let can = !matches!(self.shared.source, WatchSource::Remote(_));
        can && lock(&self.shared.dump_requests).insert(name.to_owned())
    }

    /// Returns the number of live sockets that are not watched: beyond [`MAX_RECORDERS_PER_USER`] or
    /// [`MAX_RECORDERS`], or no thread could be started for them.
    pub fn left_out(&self) -> usize {
        lock(&self.shared.left_out).values().sum()
    }

    /// Returns notes on what is not watched, one per user.
    pub fn notes(&self) -> Vec<String> {
        let left_out = lock(&self.shared.left_out);
        let note = |(user, &count): (&u32, &usize)| {
            let sockets = counted(count as u64, "live socket");
            format!(
                "{sockets} of user {user} left out: at most {MAX_RECORDERS_PER_USER} per user are watched, \
                 and {MAX_RECORDERS} in total"
            )
        };
        left_out.iter().map(note).collect()
    }

    /// Forgets recorders whose process has ended.
    pub fn forget_exited(&self) {
        lock(&self.shared.recorders).retain(|_, recorder| recorder.exit.is_none());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    pub(crate) fn new(source: WatchSource, interval: Duration, wants_stacks: bool) -> Shared {
        Shared {
            source,
            interval,
            recorders: Mutex::default(),
            gpus: Mutex::new(Ok(Vec::new())),
            dump_requests: Mutex::default(),
            slots: Mutex::default(),
            left_out: Mutex::default(),
            wants_stacks: AtomicBool::new(wants_stacks),
            is_stopped: AtomicBool::new(false),
            has_polled_recorders: AtomicBool::new(false),
            has_polled_driver: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }
}

/// Starts a thread. If that fails, the reason takes the place of the GPUs.
fn spawn(shared: &Arc<Shared>, work: impl FnOnce(&Arc<Shared>) + Send + 'static) {
    let own = shared.clone();
    if let Err(error) = thread::Builder::new().spawn(move || work(&own)) {
        *lock(&shared.gpus) = Err(format!("no thread could be started: {error}"));
        shared.has_polled_recorders.store(true, Ordering::SeqCst);
        shared.has_polled_driver.store(true, Ordering::SeqCst);
    }
}

/// Locks a mutex; what a thread left behind when it panicked is still usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
