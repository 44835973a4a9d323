//! While a user's program runs: signals are passed on to it, and its steps are read along.

mod alarms;
mod on_leak;
mod written;

use alarms::Alarms;
use on_leak::OnLeak;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often to look whether the program has ended.
const GLANCE: Duration = Duration::from_millis(20);
/// How often to read its steps.
const LOOK: Duration = Duration::from_millis(500);

/// A signal that has stopped the command: its exit code says all there is to say.
#[derive(Debug)]
pub struct Stopped(i32);

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stopped by signal {}", self.0)
    }
}

impl std::error::Error for Stopped {}

/// The signal that told us to stop, if one has.
pub fn stopped_by() -> Option<i32> {
    Some(STOPPED_BY.load(Ordering::SeqCst)).filter(|&signal| signal != NONE)
}

/// An error if a signal has told us to stop.
pub fn go_on() -> Result<(), Stopped> {
    stopped_by().map_or(Ok(()), |signal| Err(Stopped(signal)))
}

/// Waits for a program. `folder` is where its recordings stay, if they do: only then is there something to call for.
/// `on_leak` is a command for that case. `say` tells the user; `look` is called now and then.
pub(crate) fn wait(
    mut child: Child,
    folder: Option<&Path>,
    on_leak: Option<&OsStr>,
    say: fn(&str),
    mut look: impl FnMut(),
) -> io::Result<ExitStatus> {
    running().insert(child.id());
    pass_signals_on()?;
    let mut alarms =
        folder.map(|folder| Alarms::new(folder, on_leak.map(|command| OnLeak::new(command, say)), say));
    let mut looked = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(GLANCE);
        if looked.elapsed() > LOOK {
            look();
            if let Some(alarms) = &mut alarms {
                alarms.look();
            }
            looked = Instant::now();
        }
    };
    running().remove(&child.id());
    if let Some(alarms) = alarms {
        alarms.finish();
    }
    Ok(status)
}

/// The programs that run, for the thread that hears signals.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
/// The first signal that told us to stop.
static STOPPED_BY: AtomicI32 = AtomicI32::new(NONE);
const NONE: i32 = 0;

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that is told to end writes its recording first, so we outlive it: after Ctrl-C, which the terminal sends to both
/// of us, and after what has to be passed on. Who presses Ctrl-C twice does not want to wait.
fn pass_signals_on() -> io::Result<()> {
    static LISTENING: std::sync::OnceLock<()> = std::sync::OnceLock::new();
    if LISTENING.set(()).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let mut before = None;
            if matches!(signal, SIGINT | SIGTERM | SIGHUP) {
                let stopped = STOPPED_BY.compare_exchange(NONE, signal, Ordering::SeqCst, Ordering::SeqCst);
                before = stopped.err();
            }
            let programs = running();
            if programs.is_empty() || (signal == SIGINT && before == Some(SIGINT)) {
                std::process::exit(128 + signal);
            }
            if signal == SIGINT {
                continue;
            }
            for &program in programs.iter() {
                let pid = i32::try_from(program).ok().and_then(rustix::process::Pid::from_raw);
                if let (Some(signal), Some(pid)) = (rustix::process::Signal::from_named_raw(signal), pid) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        }
    });
    Ok(())
}
