//! The command of `--on-leak`, which runs when memory grows.
//!
//! It starts once the recording that the alarm requests is written. It cannot disturb the program: it has
//! its own process group and no input, its exit code is ignored, and the program does not wait for it.

use super::EXIT_POLL_INTERVAL;
use super::alarms::Leak;
use super::last_recording::{Stamp, last_recording};
use crate::system;
use analysis::words::shown_path;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for a recording, in addition to two steps: the recorder reads the request at the end of a
/// step, and then writes.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for commands at the end. In a container whose first process is oomph they end with it.
const FINAL_COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the command of `--on-leak` once for each leak.
pub(super) struct OnLeak {
    command: OsString,
    waiting: Vec<PendingCommand>,
    running: Vec<Child>,
    say: fn(&str),
}

/// A command that runs once its rank has written a recording.
struct PendingCommand {
    leak: Leak,
    /// The recording that the rank had written before.
    before: Option<Stamp>,
    until: Instant,
}

impl PendingCommand {
    fn is_due(&self, folder: &Path) -> bool {
        let last = last_recording(folder, self.leak.rank);
        last.is_some_and(|last| last.is_last || Some(last.stamp) != self.before)
            || Instant::now() >= self.until
    }
}

impl OnLeak {
    pub(super) fn new(command: &OsStr, say: fn(&str)) -> OnLeak {
        OnLeak { command: command.to_owned(), waiting: Vec::new(), running: Vec::new(), say }
    }

    /// Runs the command when the rank has written a newer recording than `before`, or after a timeout.
    pub(super) fn call_when_written(&mut self, leak: Leak, before: Option<Stamp>, step: Duration) {
        self.waiting.push(PendingCommand {
            leak,
            before,
            until: Instant::now() + RECORDING_TIMEOUT + 2 * step,
        });
    }

    /// Starts the commands that are due.
    pub(super) fn update(&mut self, folder: &Path) {
        let (due, waiting): (Vec<PendingCommand>, Vec<PendingCommand>) =
            self.waiting.drain(..).partition(|call| call.is_due(folder));
        self.waiting = waiting;
        for call in due {
            self.call(call.leak, folder);
        }
        self.reap();
    }

    /// Runs the command now.
    pub(super) fn call(&mut self, leak: Leak, folder: &Path) {
        let mut command = system::shell(&self.command);
        // Standard output is for the program, then for the report.
        command.stdin(Stdio::null()).stdout(io::stderr());
        let pid = last_recording(folder, leak.rank).and_then(|last| last.pid);
        command.env("OOMPH_RECORDING", std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()));
        command.env("OOMPH_PID", pid.map(|pid| pid.to_string()).unwrap_or_default());
        // The same variables as in `on_leak.py`.
        command.env("OOMPH_MESSAGE", leak.message);
        command.env("OOMPH_RANK", leak.rank.to_string());
        command.env("OOMPH_DEVICE", leak.device.to_string());
        command.env("OOMPH_STEP", leak.step.to_string());
        command.env("OOMPH_BYTES_PER_STEP", leak.bytes_per_step.to_string());
        command.env("OOMPH_ALLOCATED", leak.allocated.to_string());
        match command.spawn() {
            Ok(child) => self.running.push(child),
            Err(error) => (self.say)(&format!("`{}` cannot be started: {error}", shown_path(&self.command))),
        }
    }

    /// Runs the remaining commands after the end of the program, and waits for them for a few seconds.
    pub(super) fn finish(mut self, folder: &Path) {
        for call in std::mem::take(&mut self.waiting) {
            self.call(call.leak, folder);
        }
        let began = Instant::now();
        while !self.running.is_empty() && began.elapsed() < FINAL_COMMAND_TIMEOUT {
            self.reap();
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
        if !self.running.is_empty() {
            (self.say)(&format!("`{}` is still running; not waiting for it", shown_path(&self.command)));
        }
    }

    fn reap(&mut self) {
        self.running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak(rank: u32) -> Leak {
        let message = "memory grows".to_owned();
        Leak { message, step: 9, bytes_per_step: 8 << 20, allocated: 1 << 30, device: 1, rank }
    }

    /// Output of the commands of a test.
    fn command_output(folder: &Path) -> String {
        std::fs::read_to_string(folder.join("output")).unwrap_or_default()
    }

    fn write(folder: &Path, ended: &str) {
        let part = folder.join("part");
        std::fs::write(&part, format!(r#"{{"pid":77,"ended":"{ended}"}}"#)).expect("a file");
        std::fs::rename(part, folder.join("rank0.json")).expect("a file");
    }

    fn stamp(folder: &Path) -> Option<Stamp> {
        last_recording(folder, 0).map(|last| last.stamp)
    }

    const ECHO: &str = concat!(
        r#"echo "$OOMPH_RANK $OOMPH_DEVICE $OOMPH_STEP $OOMPH_BYTES_PER_STEP $OOMPH_ALLOCATED $OOMPH_PID "#,
        r#"$OOMPH_MESSAGE" >> "$OOMPH_RECORDING/output""#
    );

    #[test]
    fn a_command_waits_for_the_recording() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        write(folder, "running");
        let mut on_leak = OnLeak::new(OsStr::new(ECHO), |_| ());
        on_leak.call_when_written(leak(0), stamp(folder), Duration::ZERO);
        on_leak.update(folder);
        assert!(on_leak.running.is_empty(), "nothing has been written since");
        write(folder, "running");
        on_leak.update(folder);
        assert!(on_leak.waiting.is_empty());
        on_leak.finish(folder);
        assert_eq!(command_output(folder), "0 1 9 8388608 1073741824 77 memory grows\n");
    }

    #[test]
    fn it_does_not_wait_for_a_rank_that_has_ended_or_for_ever() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        write(folder, "failed");
        let mut on_leak = OnLeak::new(OsStr::new(ECHO), |_| ());
        on_leak.call_when_written(leak(0), stamp(folder), Duration::ZERO);
        on_leak.waiting.push(PendingCommand { leak: leak(1), before: None, until: Instant::now() });
        on_leak.call_when_written(leak(2), None, Duration::ZERO);
        on_leak.update(folder);
        assert_eq!(on_leak.waiting.len(), 1, "rank 2 may still write");
        on_leak.finish(folder);
        let mut ranks: Vec<_> = command_output(folder).lines().map(|line| line[..1].to_owned()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, ["0", "1", "2"]);
        assert!(
            command_output(folder).contains("1 1 9 8388608 1073741824  memory grows"),
            "nobody knows its process"
        );
    }
}
