//! While a user's program runs: signals are passed on to it, and its steps are read along.

mod alarms;
mod on_leak;
mod written;

use alarms::Alarms;
use on_leak::OnLeak;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How often to look whether the program has ended.
const GLANCE: Duration = Duration::from_millis(20);
/// How often to read its steps.
const LOOK: Duration = Duration::from_millis(500);

/// Waits for a program. `folder` is where its recordings stay, if they do: only then is there something to call for.
/// `on_leak` is a command for that case.
pub(crate) fn wait(
    mut child: Child,
    folder: Option<&Path>,
    on_leak: Option<&OsStr>,
) -> io::Result<ExitStatus> {
    pass_signals_on(&child)?;
    let mut alarms = folder.map(|folder| Alarms::new(folder, on_leak.map(OnLeak::new)));
    let mut looked = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(GLANCE);
        if let Some(alarms) = alarms.as_mut().filter(|_| looked.elapsed() > LOOK) {
            alarms.look();
            looked = Instant::now();
        }
    };
    RUNNING.store(NOBODY, Ordering::SeqCst);
    if let Some(alarms) = alarms {
        alarms.finish();
    }
    Ok(status)
}

/// The program that runs, for the thread that hears signals.
static RUNNING: AtomicI32 = AtomicI32::new(NOBODY);
const NOBODY: i32 = 0;

/// A program that is told to end writes its recording first, so we outlive it: after Ctrl-C, which the terminal sends to both
/// of us, and after what has to be passed on. Who presses Ctrl-C twice does not want to wait.
fn pass_signals_on(child: &Child) -> io::Result<()> {
    static LISTENING: std::sync::OnceLock<()> = std::sync::OnceLock::new();
    RUNNING.store(i32::try_from(child.id()).unwrap_or(NOBODY), Ordering::SeqCst);
    if LISTENING.set(()).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])?;
    std::thread::spawn(move || {
        let mut told = NOBODY;
        for signal in signals.forever() {
            let running = RUNNING.load(Ordering::SeqCst);
            if running == NOBODY || (signal == SIGINT && told == running) {
                std::process::exit(128 + signal);
            }
            if signal == SIGINT {
                told = running;
                continue;
            }
            let signal = rustix::process::Signal::from_named_raw(signal);
            if let (Some(signal), Some(pid)) = (signal, rustix::process::Pid::from_raw(running)) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    });
    Ok(())
}
