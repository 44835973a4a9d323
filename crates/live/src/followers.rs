//! All recorders that are to be followed: a thread looks for them, and one for each asks it.

use crate::driver::{Driver, Gpu};
use crate::followed::{Followed, how_it_ended};
use crate::recorder::{Heard, Recorder};
use crate::remote::Address;
use crate::sockets::{Finder, Socket};
use analysis::words::counted;
use recording::Exit;
use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often to look for recorders that have started.
const LOOK: Duration = Duration::from_millis(500);
/// How often to ask the driver, or another machine.
const SELDOM: Duration = Duration::from_secs(1);
/// How often to look for a driver where there was none: it may be loaded later than a service starts.
const RARELY: Duration = Duration::from_secs(15);
/// How long the first picture waits for somebody whose interpreter is busy, as with writing a recording.
const FIRST: Duration = Duration::from_secs(2);
/// How long to wait before asking again one whose connection broke; twice as long each time, up to the other.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(3);
/// Tries to connect to a socket that has no name yet: the kernel lists it a moment before.
const MAX_TRIES: u32 = 5;
/// How long to wait for an answer before looking whether anybody still wants it.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes per second that are read of one recorder: one with long answers is asked less often. A recorder's answers are short after
/// the first, and all of one user together take a small part of a core at this rate.
const MAX_BYTES_PER_SECOND: f64 = 256.0 * 1024.0;
/// Recorders that are followed at once, each in a thread of its own: of one user, and in all.
pub const MAX_RECORDERS_PER_USER: usize = 64;
pub const MAX_RECORDERS: usize = 512;
/// Recorders that have ended and are still shown.
const MAX_ENDED: usize = 64;
/// Bytes of the stack of a recorder's thread; only what is used of it is taken.
const STACK: usize = 1 << 20;

/// Which recorders to follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Every one that this user may see.
    All,
    /// That of a process, or of those that it has started.
    Process(u32),
    /// Those that record to a folder.
    Folder(PathBuf),
    /// Those of another machine.
    Remote(Address),
}

/// Follows recorders until it is dropped.
pub struct Followers {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    pace: Duration,
    followed: Mutex<BTreeMap<String, Followed>>,
    gpus: Mutex<Result<Vec<Gpu>, String>>,
    /// Recorders that are to write a recording.
    dumps: Mutex<BTreeSet<String>>,
    /// Recorders of each user that are followed.
    slots: Mutex<BTreeMap<u32, usize>>,
    /// Recorders of each user that are not.
    left_out: Mutex<BTreeMap<u32, usize>>,
    wants_stacks: AtomicBool,
    is_over: AtomicBool,
    /// Whether everything has been asked once.
    has_looked: AtomicBool,
    has_asked_driver: AtomicBool,
}

impl Followers {
    /// Asks every recorder with this pace; for the stacks of live blocks as well, if they are wanted.
    pub fn begin(source: Source, pace: Duration, wants_stacks: bool) -> Followers {
        let source = match source {
            Source::Folder(folder) => Source::Folder(folder.canonicalize().unwrap_or(folder)),
            other => other,
        };
        let shared = Arc::new(Shared {
            source,
            pace,
            followed: Mutex::default(),
            gpus: Mutex::new(Ok(Vec::new())),
            dumps: Mutex::default(),
            slots: Mutex::default(),
            left_out: Mutex::default(),
            wants_stacks: AtomicBool::new(wants_stacks),
            is_over: AtomicBool::new(false),
            has_looked: AtomicBool::new(false),
            has_asked_driver: AtomicBool::new(false),
        });
        if let Source::Remote(address) = shared.source.clone() {
            spawn(&shared, move |shared| shared.follow_remote(&address));
        } else {
            spawn(&shared, Shared::discover);
            spawn(&shared, Shared::ask_driver);
        }
        Followers { shared }
    }

    /// Every recorder by its own name, also those that have ended.
    pub fn now(&self) -> Vec<(String, Followed)> {
        lock(&self.shared.followed).iter().map(|(name, followed)| (name.clone(), followed.clone())).collect()
    }

    /// The GPUs of the machine, or why they cannot be known.
    pub fn gpus(&self) -> Result<Vec<Gpu>, String> {
        lock(&self.shared.gpus).clone()
    }

    /// Whether whatever was there at the beginning has been asked.
    pub fn has_looked(&self) -> bool {
        self.shared.has_looked.load(Ordering::SeqCst)
    }

    /// Whether [`Followers::gpus`] is what the driver has said: it may need seconds to wake its devices.
    pub fn has_asked_driver(&self) -> bool {
        self.shared.has_asked_driver.load(Ordering::SeqCst)
    }

    /// Whether the stacks of live blocks are wanted.
    pub fn want_stacks(&self, wanted: bool) {
        self.shared.wants_stacks.store(wanted, Ordering::SeqCst);
    }

    /// Asks a recorder to write a recording; whether it can be asked from here.
    pub fn dump(&self, name: &str) -> bool {
        let can = !matches!(self.shared.source, Source::Remote(_));
        can && lock(&self.shared.dumps).insert(name.to_owned())
    }

    /// How many live sockets are not followed: there are more than [`MAX_RECORDERS_PER_USER`] of a user or [`MAX_RECORDERS`], or no
    /// thread could be started for them.
    pub fn left_out(&self) -> usize {
        lock(&self.shared.left_out).values().sum()
    }

    /// The same in words, a note for each user.
    pub fn notes(&self) -> Vec<String> {
        let left_out = lock(&self.shared.left_out);
        let note = |(user, &count): (&u32, &usize)| {
            let sockets = counted(count as u64, "live socket");
            format!(
                "{sockets} of user {user} left out: at most {MAX_RECORDERS_PER_USER} of one user are followed, and \
                 {MAX_RECORDERS} in all"
            )
        };
        left_out.iter().map(note).collect()
    }

    /// Forgets those that have ended.
    pub fn forget_ended(&self) {
        lock(&self.shared.followed).retain(|_, followed| followed.exit.is_none());
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
    }
}

/// Starts a thread; where that fails, the reason is given in place of the GPUs.
fn spawn(shared: &Arc<Shared>, work: impl FnOnce(&Arc<Shared>) + Send + 'static) {
    let own = shared.clone();
    if let Err(error) = thread::Builder::new().spawn(move || work(&own)) {
        *lock(&shared.gpus) = Err(format!("no thread could be started: {error}"));
        shared.has_looked.store(true, Ordering::SeqCst);
        shared.has_asked_driver.store(true, Ordering::SeqCst);
    }
}

/// A place among the recorders that are followed; free again when it is dropped.
struct Slot {
    shared: Arc<Shared>,
    owner: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(count) = lock(&self.shared.slots).get_mut(&self.owner) {
            *count -= 1;
        }
    }
}

/// A thread that has panicked has left what it had.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn discover(self: &Arc<Shared>) {
        let mut finder = Finder::default();
        let mut begun: BTreeSet<Socket> = BTreeSet::new();
        while !self.is_over() {
            // Root looks after all users, also those whose first program comes later.
            let found = finder.find();
            begun.retain(|socket| found.contains(socket));
            let mut left_out: BTreeMap<u32, usize> = BTreeMap::new();
            let mut threads = Vec::new();
            for socket in found.difference(&begun.clone()) {
                match self.begin_to_follow(socket) {
                    Some(thread) => {
                        begun.insert(socket.clone());
                        threads.push(thread);
                    }
                    None => *left_out.entry(socket.owner).or_default() += 1,
                }
            }
            *lock(&self.left_out) = left_out;
            // The first picture is to have everybody in it that answers.
            if !self.has_looked() {
                let begun = Instant::now();
                for first in threads {
                    let _ = first.recv_timeout(FIRST.saturating_sub(begun.elapsed()));
                }
                self.has_looked.store(true, Ordering::SeqCst);
            }
            thread::sleep(LOOK);
        }
    }

    fn has_looked(&self) -> bool {
        self.has_looked.load(Ordering::SeqCst)
    }

    /// Follows a recorder in a thread of its own, which sends its first answer's coming; nothing if there is no place for it.
    fn begin_to_follow(self: &Arc<Shared>, socket: &Socket) -> Option<Receiver<()>> {
        let slot = self.slot(socket.owner)?;
        let socket = socket.clone();
        let (tell, hear) = std::sync::mpsc::channel();
        let follow = move || {
            slot.shared.follow(&socket, || {
                let _ = tell.send(());
            });
        };
        thread::Builder::new().stack_size(STACK).spawn(follow).ok()?;
        Some(hear)
    }

    fn slot(self: &Arc<Shared>, owner: u32) -> Option<Slot> {
        let mut slots = lock(&self.slots);
        let all: usize = slots.values().sum();
        let own = slots.entry(owner).or_default();
        if *own >= MAX_RECORDERS_PER_USER || all >= MAX_RECORDERS {
            return None;
        }
        *own += 1;
        Some(Slot { shared: self.clone(), owner })
    }

    /// Asks one recorder until it ends; `heard` is called after each answer.
    fn follow(&self, socket: &Socket, heard: impl Fn()) {
        let name = socket.path().to_string_lossy().into_owned();
        let (mut delay, mut tries) = (RECONNECT_DELAY, 0);
        let has_heard = Cell::new(false);
        while !self.is_over() {
            has_heard.set(false);
            let asked = Recorder::connect(socket, PATIENCE).and_then(|mut recorder| {
                self.converse(&mut recorder, &name, || {
                    has_heard.set(true);
                    heard();
                })
            });
            tries += 1;
            match asked {
                Ok(()) => return,
                Err(error) => match error.kind() {
                    // What no recorder says once, it will say again; and there is nobody behind these.
                    io::ErrorKind::InvalidData
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ConnectionRefused => break,
                    io::ErrorKind::NotFound if tries >= MAX_TRIES || self.knows(&name) => break,
                    // It has ended, or turned us away, as one does that too many ask: the next connection tells.
                    _ => {}
                },
            }
            if has_heard.get() {
                delay = RECONNECT_DELAY;
            }
            thread::sleep(delay);
            delay = (2 * delay).min(MAX_RECONNECT_DELAY);
        }
        self.end(&name, socket.owner);
    }

    fn knows(&self, name: &str) -> bool {
        lock(&self.followed).contains_key(name)
    }

    /// Says how a recorder has ended. What it has written is read while nobody waits for it.
    fn end(&self, name: &str, owner: u32) {
        let Some(state) = lock(&self.followed).get(name).map(|known| known.state.clone()) else { return };
        let (exit, exception) = how_it_ended(&state, owner);
        let mut followed = lock(&self.followed);
        if let Some(known) = followed.get_mut(name) {
            known.exit = Some(exit);
            known.exception = exception;
        }
        let ended = || followed.iter().filter(|(_, known)| known.exit.is_some());
        if ended().count() > MAX_ENDED {
            let oldest = ended().min_by_key(|(_, known)| known.heard).map(|(name, _)| name.clone());
            oldest.map(|oldest| followed.remove(&oldest));
        }
    }

    /// Asks until the connection breaks, which is the error, or the answers are not wanted any more.
    fn converse(&self, recorder: &mut Recorder, name: &str, heard: impl Fn()) -> io::Result<()> {
        while let Some(Heard { state, length }) = self.ask(recorder, name)? {
            if !self.is_wanted(state.pid, &state.folder) {
                return Ok(());
            }
            match lock(&self.followed).entry(name.to_owned()) {
                Entry::Occupied(mut known) => known.get_mut().absorb(state),
                Entry::Vacant(new) => drop(new.insert(Followed::new(state))),
            }
            heard();
            thread::sleep(self.pace.max(Duration::from_secs_f64(length as f64 / MAX_BYTES_PER_SECOND)));
        }
        Ok(())
    }

    /// One question and its answer; nothing if nobody wants it any more.
    fn ask(&self, recorder: &mut Recorder, name: &str) -> io::Result<Option<Heard>> {
        let mut question = lock(&self.followed).get(name).map(Followed::question).unwrap_or_default();
        question.stacks = self.wants_stacks.load(Ordering::SeqCst);
        question.dump = lock(&self.dumps).remove(name);
        recorder.ask(&question)?;
        while !self.is_over() {
            if let Some(heard) = recorder.answer()? {
                return Ok(Some(heard));
            }
        }
        Ok(None)
    }

    fn is_wanted(&self, pid: u32, folder: &str) -> bool {
        match &self.source {
            Source::All | Source::Remote(_) => true,
            Source::Process(wanted) => ancestors(pid).any(|ancestor| ancestor == *wanted),
            Source::Folder(wanted) => Path::new(folder).canonicalize().is_ok_and(|folder| folder == *wanted),
        }
    }

    fn ask_driver(self: &Arc<Shared>) {
        let mut driver = Driver::new();
        while !self.is_over() {
            let gpus = driver.as_ref().map_err(String::clone).and_then(Driver::gpus);
            let is_there = gpus.is_ok();
            *lock(&self.gpus) = gpus;
            self.has_asked_driver.store(true, Ordering::SeqCst);
            if is_there {
                thread::sleep(SELDOM);
            } else {
                thread::sleep(RARELY);
                driver = Driver::new();
            }
        }
    }

    fn follow_remote(&self, address: &Address) {
        while !self.is_over() {
            match address.ask() {
                Ok(answer) => {
                    let mut followed = lock(&self.followed);
                    let mut here = BTreeSet::new();
                    for state in answer.recorders {
                        let name = format!("{} {} {}", state.host, state.pid, state.started_us);
                        here.insert(name.clone());
                        match followed.get_mut(&name) {
                            Some(known) => known.absorb(state),
                            None => drop(followed.insert(name, Followed::new(state))),
                        }
                    }
                    for (_, gone) in followed.iter_mut().filter(|(name, _)| !here.contains(*name)) {
                        gone.exit.get_or_insert(Exit::Killed);
                    }
                    *lock(&self.gpus) = Ok(answer.gpus);
                }
                Err(why) => *lock(&self.gpus) = Err(why),
            }
            self.has_looked.store(true, Ordering::SeqCst);
            self.has_asked_driver.store(true, Ordering::SeqCst);
            thread::sleep(SELDOM);
        }
    }
}

/// A process, the one that started it, and so on.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program is in brackets and may hold anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().filter(|&parent| parent > 0)
    };
    std::iter::successors(Some(pid), parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::untrusted::tests::private_folder;
    use std::fs::Permissions;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use tempfile::TempDir;

    /// One that asks nobody by itself.
    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            source: Source::All,
            pace: Duration::from_millis(1),
            followed: Mutex::default(),
            gpus: Mutex::new(Ok(Vec::new())),
            dumps: Mutex::default(),
            slots: Mutex::default(),
            left_out: Mutex::default(),
            wants_stacks: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            has_looked: AtomicBool::new(false),
            has_asked_driver: AtomicBool::new(false),
        })
    }

    /// A socket of process 7 in a private folder, and who listens on it.
    fn listening() -> (TempDir, Socket, UnixListener) {
        let place = private_folder();
        let folder = place.path().canonicalize().expect("a path");
        let (name, owner) = ("7-00000000.sock".to_owned(), rustix::process::getuid().as_raw());
        let listener = UnixListener::bind(folder.join(&name)).expect("bound");
        (place, Socket { folder, name, owner, pid: 7 }, listener)
    }

    fn answer(state: &State) -> Vec<u8> {
        let mut line = serde_json::to_vec(state).expect("JSON");
        line.push(b'\n');
        line
    }

    fn state(folder: &Path) -> State {
        let (folder, name) = (folder.to_string_lossy().into_owned(), Some("rank0".to_owned()));
        State { version: 1, pid: 7, folder, name, ..State::default() }
    }

    /// What becomes of a recorder that says this and then ends.
    fn followed(socket: &Socket, listener: UnixListener, said: &[u8]) -> (Arc<Shared>, Option<Followed>) {
        let shared = shared();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut connection, _): (UnixStream, _) = listener.accept().expect("accepted");
                // Closing with an unread question would make the follower's write fail before it reads the answer.
                let mut question = String::new();
                let _ = BufReader::new(&connection).read_line(&mut question);
                let _ = connection.write_all(said);
            });
            shared.follow(socket, || ());
        });
        let known = lock(&shared.followed).values().next().cloned();
        (shared, known)
    }

    #[test]
    fn a_recorder_that_ends_is_followed_to_its_end() {
        let (place, socket, listener) = listening();
        let summary = r#"{"pid": 7, "host": "", "ended": "finished", "exception": null}"#;
        std::fs::write(place.path().join("rank0.json"), summary).expect("written");
        let (_, known) = followed(&socket, listener, &answer(&state(place.path())));
        assert_eq!(known.expect("heard").exit, Some(Exit::Finished));
        assert!(!socket.path().exists(), "nobody listens any more");
    }

    #[test]
    fn a_pipe_or_an_endless_device_as_summary_is_not_read() {
        for is_pipe in [true, false] {
            let (place, socket, listener) = listening();
            let summary = place.path().join("rank0.json");
            if is_pipe {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mkfifoat(rustix::fs::CWD, &summary, mode).expect("a pipe");
            } else {
                std::os::unix::fs::symlink("/dev/zero", &summary).expect("a link");
            }
            let (_, known) = followed(&socket, listener, &answer(&state(place.path())));
            assert_eq!(known.expect("heard").exit, Some(Exit::Killed), "pipe: {is_pipe}");
        }
    }

    #[test]
    fn whoever_talks_nonsense_is_not_asked_again() {
        let (_place, socket, listener) = listening();
        let again = listener.try_clone().expect("a copy");
        let (_, known) = followed(&socket, listener, b"nonsense\n");
        assert!(known.is_none());
        again.set_nonblocking(true).expect("set");
        assert!(again.accept().is_err(), "nobody came again");
    }

    #[test]
    fn only_the_folders_own_user_removes_what_is_left_of_a_killed_process() {
        let (place, socket, listener) = listening();
        drop(listener);
        let stranger = Socket { owner: socket.owner + 1, ..socket.clone() };
        shared().follow(&stranger, || ());
        assert!(socket.path().exists());
        shared().follow(&socket, || ());
        assert!(!socket.path().exists());
        // What others could have put there is left alone, too.
        drop(UnixListener::bind(socket.path()).expect("bound"));
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o777)).expect("changed");
        shared().follow(&socket, || ());
        assert!(socket.path().exists());
    }

    #[test]
    fn places_are_limited_for_each_user_and_in_all() {
        let shared = shared();
        let mut taken = Vec::new();
        let flood =
            |user| std::iter::from_fn(|| shared.slot(user)).take(MAX_RECORDERS + 1).collect::<Vec<_>>();
        for user in 0..20 {
            let slots = flood(user);
            let left = MAX_RECORDERS.saturating_sub(MAX_RECORDERS_PER_USER * user as usize);
            assert_eq!(slots.len(), MAX_RECORDERS_PER_USER.min(left), "user {user}");
            taken.push(slots);
        }
        taken.clear();
        assert_eq!(flood(7).len(), MAX_RECORDERS_PER_USER, "they are free again");
    }

    #[test]
    fn those_that_have_ended_do_not_pile_up() {
        let shared = shared();
        for number in 0..3 * MAX_ENDED {
            let name = number.to_string();
            lock(&shared.followed).insert(name.clone(), Followed::new(State::default()));
            shared.end(&name, 0);
        }
        let kept: Vec<usize> =
            lock(&shared.followed).keys().map(|name| name.parse().expect("a number")).collect();
        assert!(kept.len() == MAX_ENDED && kept.iter().all(|&number| number >= 2 * MAX_ENDED), "{kept:?}");
    }

    #[test]
    fn a_process_is_found_by_those_that_started_it() {
        let own = std::process::id();
        assert_eq!(ancestors(own).next(), Some(own));
        assert!(ancestors(own).count() > 1, "somebody has started the test");
    }
}
