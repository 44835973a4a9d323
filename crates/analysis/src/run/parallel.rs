//! Two questions at once.

use std::thread::{Builder, scope};

/// Answers both, the second on a thread of its own where one can be had and the work is worth it.
pub(crate) fn join<A, B: Send>(is_worth_it: bool, a: impl FnOnce() -> A, b: impl Fn() -> B + Sync) -> (A, B) {
    scope(|scope| {
        let second = is_worth_it.then(|| Builder::new().spawn_scoped(scope, &b).ok()).flatten();
        let first = a();
        let second = match second {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => b(),
        };
        (first, second)
    })
}
