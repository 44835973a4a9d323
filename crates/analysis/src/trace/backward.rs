//! What runs inside `backward()` has no Python stack: the autograd engine works in threads of its own. The
//! calls before and after it show which `backward()` it was.

use crate::trace::modules::{Modules, Phase};
use crate::trace::order::Order;
use crate::trace::roles::Roles;
use crate::trace::site::{Site, Sites};
use snapshot::{Snapshot, StackId};

/// Allocations one after the other without a Python stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BackwardRun {
    /// The first and the last of them.
    first: usize,
    last: usize,
    /// The stack of the call, if the event before the run was on its way into `backward()`.
    call: Option<StackId>,
    /// The first allocation after it that has a Python stack.
    ends_at: usize,
}

/// Every run of a history, in order.
pub(crate) struct Backward {
    runs: Vec<BackwardRun>,
}

impl Backward {
    pub(crate) fn new(order: &Order<'_>, roles: &Roles, sites: &Sites, modules: &Modules) -> Backward {
        let mut runs: Vec<BackwardRun> = Vec::new();
        let mut call: Option<StackId> = None;
        let mut is_open = false;
        for (event, stack) in order.allocations(0..order.len()) {
            let role = roles.of(stack);
            let is_noted = modules.any_phase()
                && modules.of_context(order.context(event)).phase == Some(Phase::Backward);
            if is_noted && role.backward {
                // The engine works in the thread of the call, as it does on the CPU.
                call = Some(stack);
            }
            if role.without_python || is_noted {
                match runs.last_mut() {
                    Some(run) if is_open => run.last = event,
                    _ => runs.push(BackwardRun { first: event, last: event, call, ends_at: order.len() }),
                }
                is_open = true;
                continue;
            }
            if let (true, Some(run)) = (is_open, runs.last_mut()) {
                run.ends_at = event;
            }
            is_open = false;
            if role.backward {
                call = Some(stack);
            } else if call.is_some_and(|call| same_thread(order.snapshot, call, stack))
                && matches!(sites.of(stack), Site::User(_))
            {
                // The program has moved on. Hooks and recomputation, which run in the engine's threads, have
                // not.
                call = None;
            }
        }
        Backward { runs }
    }

    /// A place in the runs that follows allocations in their order.
    pub(crate) fn follow(&self) -> Follow<'_> {
        Follow { runs: &self.runs, run: 0, next: 0 }
    }

    /// The stack that called the `backward()` in which an event allocated.
    pub(crate) fn call(&self, event: usize) -> Option<StackId> {
        let place = self.runs.partition_point(|run| run.last < event);
        self.runs.get(place).filter(|run| run.first <= event).and_then(|run| run.call)
    }

    /// The first event of the next run after `event`.
    pub(crate) fn next_after(&self, event: usize) -> Option<usize> {
        self.runs.get(self.runs.partition_point(|run| run.first <= event)).map(|run| run.first)
    }
}

/// Where a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BackwardEnd {
    /// Its last allocation.
    pub(crate) last: usize,
    /// The first allocation with a Python stack after it: by then it is over for certain.
    pub(crate) over: usize,
}

/// Answers the same questions as [`Backward`] for one allocation after the other, without searching.
pub(crate) struct Follow<'a> {
    runs: &'a [BackwardRun],
    run: usize,
    next: usize,
}

impl Follow<'_> {
    /// The end of the run that this allocation belongs to.
    pub(crate) fn end_of(&mut self, event: usize) -> Option<BackwardEnd> {
        while self.runs.get(self.run).is_some_and(|run| run.last < event) {
            self.run += 1;
        }
        let run = self.runs.get(self.run).filter(|run| run.first <= event)?;
        Some(BackwardEnd { last: run.last, over: run.ends_at })
    }

    /// The first event of the next run after `event`.
    pub(crate) fn next_after(&mut self, event: usize) -> Option<usize> {
        while self.runs.get(self.next).is_some_and(|run| run.first <= event) {
            self.next += 1;
        }
        self.runs.get(self.next).map(|run| run.first)
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
