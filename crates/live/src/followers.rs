//! All recorders that are to be followed: a thread looks for them, and one for each asks it.

use crate::driver::{Driver, Gpu};
use crate::followed::Followed;
use crate::recorder::Recorder;
use crate::remote::Address;
use crate::sockets;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
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
/// How long to wait before asking again one whose connection broke.
const AGAIN: Duration = Duration::from_millis(200);
/// How long to wait for an answer before looking whether anybody still wants it.
const PATIENCE: Duration = Duration::from_millis(500);

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
            wants_stacks: AtomicBool::new(wants_stacks),
            is_over: AtomicBool::new(false),
            has_looked: AtomicBool::new(false),
            has_asked_driver: AtomicBool::new(false),
        });
        if let Source::Remote(address) = shared.source.clone() {
            spawn(&shared, move |shared| shared.follow_remote(&address));
        } else {
            spawn(&shared, |shared| shared.discover());
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

    /// Forgets those that have ended.
    pub fn forget_ended(&self) {
        lock(&self.shared.followed).retain(|_, followed| followed.ended.is_none());
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
    }
}

fn spawn(shared: &Arc<Shared>, work: impl FnOnce(&Arc<Shared>) + Send + 'static) {
    let shared = shared.clone();
    thread::spawn(move || work(&shared));
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
        let mut known: BTreeSet<PathBuf> = BTreeSet::new();
        while !self.is_over() {
            // Root looks after all users, also those whose first program comes later.
            let found: BTreeSet<PathBuf> = sockets::sockets(&sockets::folders()).into_iter().collect();
            let new: Vec<_> = found.difference(&known).cloned().collect();
            known = found;
            let threads: Vec<_> = new
                .into_iter()
                .map(|socket| {
                    let shared = self.clone();
                    let (tell, hear) = std::sync::mpsc::channel();
                    thread::spawn(move || {
                        shared.follow(&socket, || {
                            let _ = tell.send(());
                        })
                    });
                    hear
                })
                .collect();
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

    /// Asks one recorder until it ends; `heard` is called after the first answer.
    fn follow(&self, socket: &Path, heard: impl Fn()) {
        let name = socket.to_string_lossy().into_owned();
        while !self.is_over() {
            match Recorder::connect(socket, PATIENCE) {
                Ok(mut recorder) => {
                    if !self.converse(&mut recorder, &name, &heard) {
                        return;
                    }
                    // It has ended, or turned us away, as one does that too many ask: the next connection tells.
                    thread::sleep(AGAIN);
                }
                Err(error) => {
                    // Who was killed could not take its socket away.
                    sockets::remove_stale(socket, &error);
                    break;
                }
            }
        }
        if let Some(followed) = lock(&self.followed).get_mut(&name) {
            followed.end();
        }
    }

    /// Asks until the connection breaks; whether it is wanted again.
    fn converse(&self, recorder: &mut Recorder, name: &str, heard: impl Fn()) -> bool {
        while !self.is_over() {
            let Ok(state) = self.ask(recorder, name) else { return true };
            let Some(state) = state.filter(|state| self.is_wanted(state.pid, &state.folder)) else {
                return false;
            };
            lock(&self.followed)
                .entry(name.to_owned())
                .and_modify(|followed| followed.absorb(state.clone()))
                .or_insert_with(|| Followed::new(state));
            heard();
            thread::sleep(self.pace);
        }
        false
    }

    /// One question and its answer; nothing if nobody wants it any more.
    fn ask(&self, recorder: &mut Recorder, name: &str) -> std::io::Result<Option<crate::State>> {
        let mut question = lock(&self.followed).get(name).map(Followed::question).unwrap_or_default();
        question.stacks = self.wants_stacks.load(Ordering::SeqCst);
        question.dump = lock(&self.dumps).remove(name);
        recorder.ask(&question)?;
        let mut begun = Vec::new();
        while !self.is_over() {
            if let Some(state) = recorder.answer(&mut begun)? {
                return Ok(Some(state));
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
                            Some(known) => known.absorb_again(state),
                            None => drop(followed.insert(name, Followed::new(state))),
                        }
                    }
                    for (_, gone) in followed.iter_mut().filter(|(name, _)| !here.contains(*name)) {
                        gone.ended.get_or_insert(crate::Ended::Gone);
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

    #[test]
    fn a_process_is_found_by_those_that_started_it() {
        let own = std::process::id();
        assert_eq!(ancestors(own).next(), Some(own));
        assert!(ancestors(own).count() > 1, "somebody has started the test");
    }
}
