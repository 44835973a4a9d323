//! Finds recorders that have started, and gives each a thread, within limits per user and in total.

use crate::system::{Finder, Socket};
use crate::watcher::{MAX_RECORDERS, MAX_RECORDERS_PER_USER, Shared, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two searches for recorders that have started.
const DISCOVERY_INTERVAL: Duration = Duration::from_millis(500);
/// How long the first search waits for recorders whose interpreter is busy, for example with writing a
/// recording.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Stack size of a recorder's thread, in bytes. Only the used part takes memory.
const THREAD_STACK_BYTES: usize = 1 << 20;

/// One of the limited slots for watched recorders; released when dropped.
pub(crate) struct RecorderSlot {
    shared: Arc<Shared>,
    owner: u32,
}

impl Drop for RecorderSlot {
    fn drop(&mut self) {
        if let Some(count) = lock(&self.shared.slots).get_mut(&self.owner) {
            *count -= 1;
        }
    }
}

impl Shared {
    /// Searches for recorders until the watcher is dropped.
    pub(crate) fn discover(self: &Arc<Shared>) {
        let mut finder = Finder::default();
        let mut watched: BTreeSet<Socket> = BTreeSet::new();
        while !self.is_stopped() {
            // Root watches all users, including those whose first program starts later.
            let found = finder.find();
            watched.retain(|socket| found.contains(socket));
            let mut left_out: BTreeMap<u32, usize> = BTreeMap::new();
            let mut first_answers = Vec::new();
            for socket in found.difference(&watched.clone()) {
                match self.start_polling(socket) {
                    Some(first_answer) => {
                        watched.insert(socket.clone());
                        first_answers.push(first_answer);
                    }
                    None => *left_out.entry(socket.owner).or_default() += 1,
                }
            }
            *lock(&self.left_out) = left_out;
            // The first screen is to show everyone who answers.
            if !self.has_polled_recorders.load(Ordering::SeqCst) {
                let started = Instant::now();
                for answer in first_answers {
                    let _ = answer.recv_timeout(FIRST_ANSWER_TIMEOUT.saturating_sub(started.elapsed()));
                }
                self.has_polled_recorders.store(true, Ordering::SeqCst);
            }
            thread::sleep(DISCOVERY_INTERVAL);
        }
    }

    /// Polls a recorder in a thread of its own, which sends a message after each answer. `None` if there is
    /// no slot or thread.
    fn start_polling(self: &Arc<Shared>, socket: &Socket) -> Option<Receiver<()>> {
        let slot = self.slot(socket.owner)?;
        let socket = socket.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        let poll = move || {
            slot.shared.poll(&socket, || {
                let _ = sender.send(());
            });
        };
        thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(poll).ok()?;
        Some(receiver)
    }

    fn slot(self: &Arc<Shared>, owner: u32) -> Option<RecorderSlot> {
        let mut slots = lock(&self.slots);
        let all: usize = slots.values().sum();
        let own = slots.entry(owner).or_default();
        if *own >= MAX_RECORDERS_PER_USER || all >= MAX_RECORDERS {
            return None;
        }
        *own += 1;
        Some(RecorderSlot { shared: self.clone(), owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watcher::WatchSource;

    #[test]
    fn slots_are_limited_per_user_and_in_total() {
        let shared = Arc::new(Shared::new(WatchSource::All, Duration::from_millis(1), false));
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
}
