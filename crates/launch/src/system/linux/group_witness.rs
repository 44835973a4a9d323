//! Tells a signal to this process alone from one to its whole process group.
//!
//! A terminal, `timeout` and `kill -- -GROUP` send a signal to every process of a group, so the program has
//! received it already; a supervisor that knows only our process ID means the program and sends it to us.
//! The signal itself does not say which. So a shell in our group prints the signals that it receives: those
//! were for all.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Prints those of its arguments, numbers of signals, that it receives, until its input ends. First a zero.
const SCRIPT: &str = r#"
    for signal; do trap "echo $signal" "$signal"; done
    echo 0
    while read -r _; [ $? -ne 1 ]; do :; done
"#;
/// Time for the shell to start, and to print a signal.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) struct GroupWitness {
    received: Receiver<i32>,
    /// Its input ends with this process, however that ends.
    _shell: Child,
}

impl GroupWitness {
    /// Returns `None` where there is no shell.
    pub(super) fn start(signals: &[i32]) -> Option<GroupWitness> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "oomph-signals"])
            .args(signals.iter().map(i32::to_string))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let lines = BufReader::new(shell.stdout.take()?).lines();
        let (send, received) = channel();
        std::thread::spawn(move || {
            for signal in lines.map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                if send.send(signal).is_err() {
                    break;
                }
            }
        });
        let witness = GroupWitness { received, _shell: shell };
        witness.has_received(0).then_some(witness)
    }

    /// Whether the group has received this signal, which this process has just received.
    pub(super) fn has_received(&self, signal: i32) -> bool {
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.received.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(received) if received == signal => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}
