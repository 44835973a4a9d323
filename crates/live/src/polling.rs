//! Polls the sources of a watcher: one recorder until it exits, the exporter of another machine, the driver.

use crate::connection::{ReceivedState, RecorderConnection};
use crate::driver::Driver;
use crate::remote::{ExporterAddress, ExporterAnswer};
use crate::system::Socket;
use crate::watched::{WatchedRecorder, exit_of};
use crate::watcher::{Shared, WatchSource, lock};
use recording::Exit;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Time between two requests to the driver, or to another machine.
const SLOW_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two attempts to load the driver: it may be loaded later than a service starts.
const DRIVER_RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// First delay before connecting again after a connection broke; each further one is twice as long.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);
/// Longest delay before connecting again.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(3);
/// Attempts to connect to a socket that has no name yet: the kernel lists it a moment earlier.
const MAX_CONNECT_ATTEMPTS: u32 = 5;
/// How long a read waits before checking whether the answer is still wanted.
const READ_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of bytes per second read from one recorder. One with long answers is asked less often; a
/// recorder's answers are short after the first, and all recorders of one user together take a small part
/// of a core at this rate.
const MAX_BYTES_PER_SECOND: f64 = 256.0 * 1024.0;
/// Maximum number of recorders that are still shown after their process has ended.
const MAX_EXITED: usize = 64;

impl Shared {
    /// Polls one recorder until it ends, and calls `on_answer` after each answer.
    pub(crate) fn poll(&self, socket: &Socket, on_answer: impl Fn()) {
        let name = socket.path().to_string_lossy().into_owned();
        let (mut delay, mut attempts) = (RECONNECT_DELAY, 0);
        let has_answered = Cell::new(false);
        while !self.is_stopped() {
            has_answered.set(false);
            let result = RecorderConnection::connect(socket, READ_TIMEOUT).and_then(|mut connection| {
                self.poll_connection(&mut connection, &name, || {
                    has_answered.set(true);
                    on_answer();
                })
            });
            attempts += 1;
            match result {
                Ok(()) => return,
                Err(error) => match error.kind() {
                    // Not a recorder, or no process listens: another attempt would end the same way.
                    io::ErrorKind::InvalidData
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ConnectionRefused => break,
                    io::ErrorKind::NotFound if attempts >= MAX_CONNECT_ATTEMPTS || self.knows(&name) => break,
                    // It exited, or refused because too many watchers ask: the next attempt will show.
                    _ => {}
                },
            }
            if has_answered.get() {
                delay = RECONNECT_DELAY;
            }
            thread::sleep(delay);
            delay = (2 * delay).min(MAX_RECONNECT_DELAY);
        }
        self.end(&name, socket.owner);
    }

    fn knows(&self, name: &str) -> bool {
        lock(&self.recorders).contains_key(name)
    }

    /// Notes how a recorder's process ended. Its files are read without holding a lock.
    fn end(&self, name: &str, owner: u32) {
        let state = lock(&self.recorders).get(name).map(|recorder| recorder.state.clone());
        let Some(state) = state else { return };
        let (exit, exception) = exit_of(&state, owner);
        let mut recorders = lock(&self.recorders);
        if let Some(recorder) = recorders.get_mut(name) {
            recorder.exit = Some(exit);
            recorder.exception = exception;
        }
        let exited = || recorders.iter().filter(|(_, recorder)| recorder.exit.is_some());
        if exited().count() > MAX_EXITED {
            let oldest = exited().min_by_key(|(_, recorder)| recorder.answered_at);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.map(|oldest| recorders.remove(&oldest));
        }
    }

    /// Asks until the connection breaks, which is the error, or the answers are no longer wanted.
    fn poll_connection(
        &self,
        connection: &mut RecorderConnection,
        name: &str,
        on_answer: impl Fn(),
    ) -> io::Result<()> {
        while let Some(ReceivedState { state, length }) = self.ask(connection, name)? {
            if !self.is_wanted(state.pid, &state.folder) {
                return Ok(());
            }
            match lock(&self.recorders).entry(name.to_owned()) {
                Entry::Occupied(mut known) => known.get_mut().update(state),
                Entry::Vacant(new) => drop(new.insert(WatchedRecorder::new(state))),
            }
            on_answer();
            let read_time = Duration::from_secs_f64(length as f64 / MAX_BYTES_PER_SECOND);
            thread::sleep(self.interval.max(read_time));
        }
        Ok(())
    }

    /// Sends one request and returns its answer; `None` if it is no longer wanted.
    fn ask(&self, connection: &mut RecorderConnection, name: &str) -> io::Result<Option<ReceivedState>> {
        let next = lock(&self.recorders).get(name).map(WatchedRecorder::next_request);
        let mut request = next.unwrap_or_default();
        request.stacks = self.wants_stacks.load(Ordering::SeqCst);
        request.dump = lock(&self.dump_requests).remove(name);
        connection.send(&request)?;
        while !self.is_stopped() {
            if let Some(received) = connection.receive()? {
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    fn is_wanted(&self, pid: u32, folder: &str) -> bool {
        match &self.source {
            WatchSource::All | WatchSource::Remote(_) => true,
            WatchSource::Process(wanted) => ancestors(pid).any(|ancestor| ancestor == *wanted),
            WatchSource::Folder(wanted) => {
                Path::new(folder).canonicalize().is_ok_and(|folder| folder == *wanted)
            }
        }
    }

    /// Polls the driver until the watcher is dropped.
    pub(crate) fn poll_driver(&self) {
        let mut driver = Driver::new();
        while !self.is_stopped() {
            let gpus = driver.as_ref().map_err(String::clone).and_then(Driver::gpus);
            let is_there = gpus.is_ok();
            *lock(&self.gpus) = gpus;
            self.has_polled_driver.store(true, Ordering::SeqCst);
            if is_there {
                thread::sleep(SLOW_POLL_INTERVAL);
            } else {
                thread::sleep(DRIVER_RETRY_INTERVAL);
                driver = Driver::new();
            }
        }
    }

    /// Polls the exporter of another machine until the watcher is dropped.
    pub(crate) fn poll_remote(&self, address: &ExporterAddress) {
        while !self.is_stopped() {
            match address.fetch() {
                Ok(answer) => self.take_remote(answer),
                Err(why) => *lock(&self.gpus) = Err(why),
            }
            self.has_polled_recorders.store(true, Ordering::SeqCst);
            self.has_polled_driver.store(true, Ordering::SeqCst);
            thread::sleep(SLOW_POLL_INTERVAL);
        }
    }

    /// Takes over an exporter's answer. Recorders that it no longer lists have ended, and it does not say
    /// how.
    fn take_remote(&self, answer: ExporterAnswer) {
        let mut recorders = lock(&self.recorders);
        let mut listed = BTreeSet::new();
        for state in answer.recorders {
            let name = format!("{} {} {}", state.host, state.pid, state.started_us);
            listed.insert(name.clone());
            match recorders.get_mut(&name) {
                Some(known) => known.update(state),
                None => drop(recorders.insert(name, WatchedRecorder::new(state))),
            }
        }
        for (_, ended) in recorders.iter_mut().filter(|(name, _)| !listed.contains(*name)) {
            ended.exit.get_or_insert(Exit::Killed);
        }
        *lock(&self.gpus) = Ok(answer.gpus);
    }
}

/// Returns a process, its parent, and so on.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program is in parentheses and may contain anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().filter(|&parent| parent > 0)
    };
    std::iter::successors(Some(pid), parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecorderState;
    use crate::system::untrusted::tests::private_folder;
    use std::fs::Permissions;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use tempfile::TempDir;

    /// A watcher's state without any threads.
    fn shared() -> Shared {
        Shared::new(WatchSource::All, Duration::from_millis(1), false)
    }

    /// A socket of process 7 in a private folder, and its listener.
    fn listening() -> (TempDir, Socket, UnixListener) {
        let private = private_folder();
        let folder = private.path().canonicalize().expect("a path");
        let (name, owner) = ("7-00000000.sock".to_owned(), rustix::process::getuid().as_raw());
        let listener = UnixListener::bind(folder.join(&name)).expect("bound");
        (private, Socket { folder, name, owner, pid: 7 }, listener)
    }

    fn answer(state: &RecorderState) -> Vec<u8> {
        let mut line = serde_json::to_vec(state).expect("JSON");
        line.push(b'\n');
        line
    }

    fn state(folder: &Path) -> RecorderState {
        let (folder, name) = (folder.to_string_lossy().into_owned(), Some("rank0".to_owned()));
        RecorderState { version: 1, pid: 7, folder, name, ..RecorderState::default() }
    }

    /// Returns what is known of a recorder that answers this and then ends.
    fn watched(socket: &Socket, listener: UnixListener, sent: &[u8]) -> Option<WatchedRecorder> {
        let shared = shared();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut connection, _): (UnixStream, _) = listener.accept().expect("accepted");
                // Closing with an unread request would make the watcher's write fail before it reads the
                // answer.
                let mut request = String::new();
                let _ = BufReader::new(&connection).read_line(&mut request);
                let _ = connection.write_all(sent);
            });
            shared.poll(socket, || ());
        });
        lock(&shared.recorders).values().next().cloned()
    }

    #[test]
    fn a_recorder_is_polled_until_its_process_ends() {
        let (private, socket, listener) = listening();
        let summary = r#"{"pid": 7, "host": "", "ended": "finished", "exception": null}"#;
        std::fs::write(private.path().join("rank0.json"), summary).expect("written");
        let known = watched(&socket, listener, &answer(&state(private.path())));
        assert_eq!(known.expect("an answer").exit, Some(Exit::Finished));
        assert!(!socket.path().exists(), "nobody listens any more");
    }

    #[test]
    fn a_pipe_or_an_endless_device_as_summary_is_not_read() {
        for is_pipe in [true, false] {
            let (private, socket, listener) = listening();
            let summary = private.path().join("rank0.json");
            if is_pipe {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mkfifoat(rustix::fs::CWD, &summary, mode).expect("a pipe");
            } else {
                std::os::unix::fs::symlink("/dev/zero", &summary).expect("a link");
            }
            let known = watched(&socket, listener, &answer(&state(private.path())));
            assert_eq!(known.expect("an answer").exit, Some(Exit::Killed), "pipe: {is_pipe}");
        }
    }

    #[test]
    fn what_is_not_a_recorder_is_not_asked_again() {
        let (_place, socket, listener) = listening();
        let again = listener.try_clone().expect("a copy");
        let known = watched(&socket, listener, b"nonsense\n");
        assert!(known.is_none());
        again.set_nonblocking(true).expect("set");
        assert!(again.accept().is_err(), "nobody came again");
    }

    #[test]
    fn only_the_folders_own_user_removes_what_is_left_of_a_killed_process() {
        let (private, socket, listener) = listening();
        drop(listener);
        let stranger = Socket { owner: socket.owner + 1, ..socket.clone() };
        shared().poll(&stranger, || ());
        assert!(socket.path().exists());
        shared().poll(&socket, || ());
        assert!(!socket.path().exists());
        // What others could have put there is left alone, too.
        drop(UnixListener::bind(socket.path()).expect("bound"));
        std::fs::set_permissions(private.path(), Permissions::from_mode(0o777)).expect("changed");
        shared().poll(&socket, || ());
        assert!(socket.path().exists());
    }

    #[test]
    fn recorders_that_have_ended_are_limited() {
        let shared = shared();
        for number in 0..3 * MAX_EXITED {
            let name = number.to_string();
            lock(&shared.recorders).insert(name.clone(), WatchedRecorder::new(RecorderState::default()));
            shared.end(&name, 0);
        }
        let kept: Vec<usize> =
            lock(&shared.recorders).keys().map(|name| name.parse().expect("a number")).collect();
        assert!(kept.len() == MAX_EXITED && kept.iter().all(|&number| number >= 2 * MAX_EXITED), "{kept:?}");
    }

    #[test]
    fn a_process_is_found_by_its_ancestors() {
        let own = std::process::id();
        assert_eq!(ancestors(own).next(), Some(own));
        assert!(ancestors(own).count() > 1, "the test has a parent process");
    }
}
