//! While a user's program runs: signals are passed on to it, and its steps are read along.

use crate::terminal::say;
use analysis::{Alarm, Growth};
use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use snapshot::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How often to look whether the program has ended.
const GLANCE: Duration = Duration::from_millis(20);
/// How often to read its steps.
const LOOK: Duration = Duration::from_millis(500);

/// Waits for a program. `folder` is where its recordings stay, if they do: only then is there something to call for.
pub(crate) fn wait(mut child: Child, folder: Option<&PathBuf>) -> io::Result<ExitStatus> {
    pass_signals_on(&child)?;
    let mut alarms = folder.map(|folder| Alarms { folder: folder.clone(), ranks: BTreeMap::new() });
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
        alarms.take_back();
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

/// Whether memory grows, for each rank that writes its steps to a folder.
struct Alarms {
    folder: PathBuf,
    ranks: BTreeMap<u32, Rank>,
}

#[derive(Default)]
struct Rank {
    read: u64,
    /// By device.
    alarms: BTreeMap<u32, Alarm>,
}

#[derive(Deserialize)]
struct Step {
    devices: Vec<Counters>,
}

#[derive(Deserialize)]
struct Counters {
    device: u32,
    allocated: u64,
}

impl Alarms {
    fn look(&mut self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number =
                name.to_str().and_then(|name| name.strip_prefix("rank")?.strip_suffix(".steps.jsonl"));
            let Some(number) = number.and_then(|number| number.parse().ok()) else { continue };
            // Whatever keeps us from reading along does not matter to the program or its recording.
            let Ok(found) = self.ranks.entry(number).or_default().read(&entry.path()) else { continue };
            if let Some((device, growth)) = found {
                let (words, folder) = (growth.words(), self.folder.display());
                say(&format!(
                    "{words} on device {device} of rank {number}; a recording so far goes to {folder}"
                ));
                // The recorder looks for it at the end of each step: a signal might meet a process that does not expect it.
                let _ = std::fs::write(self.asking(number), "alarm");
            }
        }
    }

    /// What nobody has read any more.
    fn take_back(&self) {
        for &number in self.ranks.keys() {
            let _ = std::fs::remove_file(self.asking(number));
        }
    }

    fn asking(&self, number: u32) -> PathBuf {
        self.folder.join(format!("rank{number}.ask"))
    }
}

impl Rank {
    /// The steps that have been added to the file.
    fn read(&mut self, path: &Path) -> io::Result<Option<(u32, Growth)>> {
        let mut file = std::fs::File::open(path)?;
        if file.metadata()?.len() < self.read {
            // The recorder has begun anew: what it had counted were no steps.
            *self = Rank::default();
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.take(1 << 24).read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        let mut found = None;
        for line in text[..whole].lines() {
            let Ok(step) = serde_json::from_str::<Step>(line) else { continue };
            for Counters { device, allocated } in step.devices {
                let growth = self.alarms.entry(device).or_default().step(Bytes(allocated));
                found = found.or(growth.map(|growth| (device, growth)));
            }
        }
        Ok(found)
    }
}
