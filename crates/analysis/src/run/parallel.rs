//! Two computations at once.

use std::thread::{Builder, scope};

/// Runs both, the second on its own thread if one is available and the work is large enough.
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
