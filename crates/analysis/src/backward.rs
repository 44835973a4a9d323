//! What runs inside `backward()` has no Python stack: the autograd engine works in threads of its own. The calls on
//! either side of it tell which `backward()` it was.

use crate::roles::Roles;
use crate::site::{Site, Sites};
use snapshot::{History, Snapshot, StackId};

/// Blocks allocated one after the other without a Python stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// Rows of [`History::lives`].
    first: usize,
    end: usize,
    /// The stack of the call, if the event before the run was on its way into `backward()`.
    call: Option<StackId>,
    /// The event that begins the run, and the first one after it that has a Python stack.
    begins_at: usize,
    ends_at: usize,
}

/// Every run of a history, in order.
pub(crate) struct Backward {
    runs: Vec<Run>,
}

impl Backward {
    pub(crate) fn new(snapshot: &Snapshot, history: &History, roles: &Roles, sites: &Sites) -> Backward {
        let mut runs: Vec<Run> = Vec::new();
        let mut call: Option<StackId> = None;
        let mut is_open = false;
        for (row, life) in history.lives.iter().enumerate() {
            let Some(born) = life.born() else { continue };
            let role = roles.of(life.stack);
            if role.without_python {
                match runs.last_mut() {
                    Some(run) if is_open => run.end = row + 1,
                    _ => runs.push(Run { first: row, end: row + 1, call, begins_at: born, ends_at: history.len() }),
                }
                is_open = true;
                continue;
            }
            if let (true, Some(run)) = (is_open, runs.last_mut()) {
                run.ends_at = born;
            }
            is_open = false;
            if role.backward {
                call = Some(life.stack);
            } else if call.is_some_and(|call| same_thread(snapshot, call, life.stack))
                && matches!(sites.of(life.stack), Site::User(_))
            {
                // The program has moved on. Hooks and recomputation, which run in the engine's threads, have not.
                call = None;
            }
        }
        Backward { runs }
    }

    fn run_of(&self, life: usize) -> Option<&Run> {
        let place = self.runs.partition_point(|run| run.end <= life);
        self.runs.get(place).filter(|run| run.first <= life)
    }

    /// The stack that called the `backward()` in which a block was allocated.
    pub(crate) fn call(&self, life: usize) -> Option<StackId> {
        self.run_of(life).and_then(|run| run.call)
    }

    /// Where the run that a block belongs to ends: the next event with a Python stack.
    pub(crate) fn ends_at(&self, life: usize) -> Option<usize> {
        self.run_of(life).map(|run| run.ends_at)
    }

    /// The first event of the next run after `event`.
    pub(crate) fn next_after(&self, event: usize) -> Option<usize> {
        self.runs.get(self.runs.partition_point(|run| run.begins_at <= event)).map(|run| run.begins_at)
    }
}

/// Whether two stacks begin in the same function, as all stacks of one thread do.
fn same_thread(snapshot: &Snapshot, a: StackId, b: StackId) -> bool {
    let outermost = |stack| {
        let frame = *snapshot.stacks.frames(stack).last()?;
        let frame = snapshot.stacks.frame(frame);
        Some((frame.file, frame.function))
    };
    outermost(a) == outermost(b)
}
