//! Calls between `ncclGroupStart` and `ncclGroupEnd`: each sends its part immediately, and none waits for the
//! parts of other ranks before the group ends. A call outside a group is a group of its own.

use super::collective::Collective;
use super::communicator::{Communicator, finish_split};
use super::exchange::ExchangeFailure;
use super::{SUCCESS, StatusCode, failed};
use std::cell::RefCell;
use std::sync::Arc;

/// Rest of a call, once this rank has sent its part.
pub(super) enum Pending {
    Init { communicator: Arc<Communicator>, round: u64 },
    Split { communicator: Arc<Communicator>, round: u64, color: i32, to: *mut u64 },
    Collective { communicator: Arc<Communicator>, round: u64, collective: Collective },
    Receive { communicator: Arc<Communicator>, from: usize, number: u64, to: u64, bytes: usize },
}

#[derive(Default)]
struct NcclGroup {
    depth: u32,
    pending: Vec<(&'static str, Pending)>,
}

thread_local! {
    static GROUP: RefCell<NcclGroup> = RefCell::default();
}

impl Pending {
    fn communicator(&self) -> &Arc<Communicator> {
        match self {
            Pending::Init { communicator, .. }
            | Pending::Split { communicator, .. }
            | Pending::Collective { communicator, .. }
            | Pending::Receive { communicator, .. } => communicator,
        }
    }

    fn finish(&self) -> Result<StatusCode, ExchangeFailure> {
        let exchange = &self.communicator().exchange;
        match self {
            Pending::Init { round, .. } => exchange.finish_init(*round)?,
            Pending::Split { communicator, round, color, to } => {
                let requests = exchange.collect(*round)?;
                return Ok(unsafe { finish_split(communicator, *round, *color, *to, &requests) });
            }
            Pending::Collective { round, collective, .. } => {
                let parts = exchange.collect(*round)?;
                unsafe { collective.finish(Some(&parts)) };
            }
            Pending::Receive { from, number, to, bytes, .. } => {
                let message = exchange.receive(*from, *number, *bytes)?;
                unsafe { message.contents.put(*to, *bytes) };
            }
        }
        Ok(SUCCESS)
    }
}

pub(super) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Finishes the calls since the outermost start; returns the first failure, if any.
pub(super) fn end() -> StatusCode {
    let pending = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        if group.depth == 0 { std::mem::take(&mut group.pending) } else { Vec::new() }
    });
    let mut first = SUCCESS;
    for (name, call) in pending {
        let status =
            call.finish().unwrap_or_else(|failure| failed(name, Some(call.communicator()), &failure));
        if first == SUCCESS {
            first = status;
        }
    }
    first
}

/// Defers the rest of a call to the end of its group.
pub(super) fn defer(name: &'static str, call: Pending) -> StatusCode {
    start();
    GROUP.with_borrow_mut(|group| group.pending.push((name, call)));
    end()
}
