//! Work on many items in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Applies `work` to every item on up to `max_threads` threads, and returns the results in order.
///
/// ```
/// assert_eq!(launch::in_parallel(&[1, 2, 3], 2, |number| number * 10), [10, 20, 30]);
/// ```
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    max_threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(items.len()).min(max_threads);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
