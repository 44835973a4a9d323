//! Waits for a user's program: passes signals on to it, and watches its steps for leaks.

mod alarms;
mod last_recording;
mod on_leak;

use crate::system;
use alarms::Alarms;
use on_leak::OnLeak;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time between two checks whether the program has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two readings of its steps.
const STEP_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Error of a command that a signal has stopped. No message is printed: the exit code names the signal.
#[derive(Debug)]
pub struct Stopped(i32);

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stopped by signal {}", self.0)
    }
}

impl std::error::Error for Stopped {}

/// Returns the signal that has asked this process to stop, if one has.
pub fn stop_signal() -> Option<i32> {
    Some(STOPPED_BY.load(Ordering::SeqCst)).filter(|&signal| signal != NONE)
}

/// Notes from now on which signal asks this process to stop. A second one ends it at once.
pub(crate) fn note_stop_signals() -> io::Result<()> {
    static LISTENING: OnceLock<()> = OnceLock::new();
    if LISTENING.set(()).is_err() { Ok(()) } else { system::note_stop_signals(stop) }
}

/// Fails if a signal has asked this process to stop.
pub fn check_not_stopped() -> Result<(), Stopped> {
    stop_signal().map_or(Ok(()), |signal| Err(Stopped(signal)))
}

/// Waits for a program. If its recordings outlive the run, `folder` has them, and leaks are reported with
/// `say` and with the command `on_leak`. `poll` is called twice per second.
pub(crate) fn wait(
    mut child: Child,
    folder: Option<&Path>,
    on_leak: Option<&OsStr>,
    say: fn(&str),
    mut poll: impl FnMut(),
) -> io::Result<ExitStatus> {
    begin(child.id())?;
    let mut alarms =
        folder.map(|folder| Alarms::new(folder, on_leak.map(|command| OnLeak::new(command, say)), say));
    let mut polled = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
        if polled.elapsed() > STEP_POLL_INTERVAL {
            poll();
            if let Some(alarms) = &mut alarms {
                alarms.update();
            }
            polled = Instant::now();
        }
    };
    end(child.id());
    if let Some(alarms) = alarms {
        alarms.finish();
    }
    Ok(status)
}

/// Passes signals on to a process from now on.
pub(crate) fn begin(process: u32) -> io::Result<()> {
    running().insert(process);
    pass_signals_on()
}

/// Passes no more signals on to a process.
pub(crate) fn end(process: u32) {
    running().remove(&process);
}

/// Process IDs of the programs that run, for the thread that receives signals.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
/// The first signal that has asked this process to stop.
static STOPPED_BY: AtomicI32 = AtomicI32::new(NONE);
/// Value of `STOPPED_BY` before any signal.
const NONE: i32 = 0;

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a signal that asks this process to stop. Returns the first that did, if this is a later one.
fn stop(signal: i32) -> Option<i32> {
    STOPPED_BY.compare_exchange(NONE, signal, Ordering::SeqCst, Ordering::SeqCst).err()
}

fn pass_signals_on() -> io::Result<()> {
    static LISTENING: OnceLock<()> = OnceLock::new();
    if LISTENING.set(()).is_err() { Ok(()) } else { system::pass_signals_on(running, stop) }
}
