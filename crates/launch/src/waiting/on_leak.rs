//! The command that a user wants to be run when memory grows.
//!
//! It is started once the recording that the alarm asks for is there, is not waited for while the program runs, and cannot hurt
//! it: a process group of its own, no input, and an exit code that nobody looks at.

use super::GLANCE;
use super::alarms::Leak;
use super::written::{Stamp, written};
use analysis::words::shown_path;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for a recording, besides two steps: the recorder hears of it at the end of one, and then writes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a command may go on when everything else is done. Where we are the first process of a container, it ends with us.
const AT_THE_END: Duration = Duration::from_secs(5);

pub(super) struct OnLeak {
    command: OsString,
    waiting: Vec<Call>,
    running: Vec<Child>,
    say: fn(&str),
}

/// A command that is to be run when a rank has written.
struct Call {
    leak: Leak,
    /// What the rank had written before.
    before: Option<Stamp>,
    until: Instant,
}

impl Call {
    fn is_due(&self, folder: &Path) -> bool {
        let last = written(folder, self.leak.rank);
        last.is_some_and(|last| last.is_last || Some(last.stamp) != self.before)
            || Instant::now() >= self.until
    }
}

impl OnLeak {
    pub(super) fn new(command: &OsStr, say: fn(&str)) -> OnLeak {
        OnLeak { command: command.to_owned(), waiting: Vec::new(), running: Vec::new(), say }
    }

    /// Runs the command when the rank has written something else than `before`, or has been waited for long enough.
    pub(super) fn call_when_written(&mut self, leak: Leak, before: Option<Stamp>, step: Duration) {
        self.waiting.push(Call { leak, before, until: Instant::now() + PATIENCE + 2 * step });
    }

    /// Starts what is due, and lets go of what has ended.
    pub(super) fn look(&mut self, folder: &Path) {
        let (due, waiting): (Vec<Call>, Vec<Call>) =
            self.waiting.drain(..).partition(|call| call.is_due(folder));
        self.waiting = waiting;
        for call in due {
            self.call(call.leak, folder);
        }
        self.reap();
    }

    /// Runs the command now.
    pub(super) fn call(&mut self, leak: Leak, folder: &Path) {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command);
        // Our own output is the program's, then the report.
        command.stdin(Stdio::null()).stdout(io::stderr()).process_group(0);
        let pid = written(folder, leak.rank).and_then(|last| last.pid);
        command.env("OOMPH_RECORDING", std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()));
        command.env("OOMPH_PID", pid.map(|pid| pid.to_string()).unwrap_or_default());
        // The same as `on_leak.py` gives to a command.
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

    /// The program has ended: nothing else is going to be written. Waits a little for what still runs, and leaves it to itself.
    pub(super) fn finish(mut self, folder: &Path) {
        for call in std::mem::take(&mut self.waiting) {
            self.call(call.leak, folder);
        }
        let began = Instant::now();
        while !self.running.is_empty() && began.elapsed() < AT_THE_END {
            self.reap();
            std::thread::sleep(GLANCE);
        }
        if !self.running.is_empty() {
            (self.say)(&format!("`{}` still runs, and is left to itself", shown_path(&self.command)));
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

    /// What the commands of a test have said.
    fn said(folder: &Path) -> String {
        std::fs::read_to_string(folder.join("said")).unwrap_or_default()
    }

    fn write(folder: &Path, ended: &str) {
        let part = folder.join("part");
        std::fs::write(&part, format!(r#"{{"pid":77,"ended":"{ended}"}}"#)).expect("a file");
        std::fs::rename(part, folder.join("rank0.json")).expect("a file");
    }

    fn stamp(folder: &Path) -> Option<Stamp> {
        written(folder, 0).map(|last| last.stamp)
    }

    const ECHO: &str = r#"echo "$OOMPH_RANK $OOMPH_DEVICE $OOMPH_STEP $OOMPH_BYTES_PER_STEP $OOMPH_ALLOCATED $OOMPH_PID $OOMPH_MESSAGE" >> "$OOMPH_RECORDING/said""#;

    #[test]
    fn a_command_waits_for_the_recording() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        write(folder, "running");
        let mut on_leak = OnLeak::new(OsStr::new(ECHO), |_| ());
        on_leak.call_when_written(leak(0), stamp(folder), Duration::ZERO);
        on_leak.look(folder);
        assert!(on_leak.running.is_empty(), "nothing has been written since");
        write(folder, "running");
        on_leak.look(folder);
        assert!(on_leak.waiting.is_empty());
        on_leak.finish(folder);
        assert_eq!(said(folder), "0 1 9 8388608 1073741824 77 memory grows\n");
    }

    #[test]
    fn it_does_not_wait_for_a_rank_that_has_ended_or_for_ever() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        write(folder, "failed");
        let mut on_leak = OnLeak::new(OsStr::new(ECHO), |_| ());
        on_leak.call_when_written(leak(0), stamp(folder), Duration::ZERO);
        on_leak.waiting.push(Call { leak: leak(1), before: None, until: Instant::now() });
        on_leak.call_when_written(leak(2), None, Duration::ZERO);
        on_leak.look(folder);
        assert_eq!(on_leak.waiting.len(), 1, "rank 2 may still write");
        on_leak.finish(folder);
        let mut ranks: Vec<_> = said(folder).lines().map(|line| line[..1].to_owned()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, ["0", "1", "2"]);
        assert!(said(folder).contains("1 1 9 8388608 1073741824  memory grows"), "nobody knows its process");
    }
}
