//! The cause that the numbers show: of everything that would have avoided the failure, the largest part.

use super::Message;
use super::kinds::{Backend, MessageCause, MessageKind};
use super::numbers::{Numbers, ROUNDING_BYTES};
use crate::words::share;
use snapshot::Bytes;

/// How the numbers show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// Nothing of the device is left.
    Full,
    /// Something is left, but less than the request, or not in a piece for it.
    Short,
    /// The non-PyTorch memory of this process is more than a CUDA context.
    NonPytorch,
    /// The request and the tensors are more than the device has.
    TooLarge,
    /// The request alone is more than the device has.
    LargerThanDevice,
    /// The request is more than any machine has.
    Impossible,
    /// What PyTorch held was enough.
    Unallocated,
    /// What PyTorch held and what was free were enough together.
    UnallocatedAndFree,
    /// Processes in the message's list.
    Listed,
    /// Memory that nobody in the message has.
    Unexplained,
    /// A limit of the program or the driver.
    Limit,
    /// More was free than the request needed.
    FreeWasEnough,
    /// The numbers that would show it are not in the message.
    TooFewNumbers,
    /// What the kind of message says by itself.
    Kind,
}

/// Share of unused memory below which it is the usual rounding and splitting.
const MIN_UNUSED_SHARE: f64 = 0.05;
/// Share of unused memory that counts where only the sum with the free memory would have been enough.
const MIN_UNUSED_SHARE_WITH_FREE: f64 = 0.10;
/// Share of unused memory that counts where the request is not known.
const MIN_UNUSED_SHARE_WITHOUT_REQUEST: f64 = 0.30;
/// Share of a device below which free memory is not usable: drivers keep it back, or it is in pieces.
const MIN_USABLE_FREE_SHARE: f64 = 0.02;
/// What a CUDA context with its libraries may take of one process (measured: 0.3 to 1.5 GiB).
const MAX_CONTEXT_BYTES: Bytes = Bytes(3 << 29);
/// Non-PyTorch memory of a process that is more than a context.
const MIN_LIBRARIES_BYTES: Bytes = Bytes(2 << 30);
const GIB: Bytes = Bytes(1 << 30);
const MIB: u64 = 1 << 20;

/// The cause, and the second one where there are two.
pub(super) fn judge(message: &Message) -> (MessageCause, Reason, Option<MessageCause>) {
    let numbers = &message.numbers;
    let kind = message.kind.row();
    if numbers.is_impossible() || message.kind == MessageKind::TorchOverflow {
        return (MessageCause::Capacity, Reason::Impossible, None);
    }
    if kind.is_allocators {
        return judge_numbers(numbers, message.backend);
    }
    match message.kind {
        MessageKind::Mps if is_within_limit(numbers) => (MessageCause::Unknown, Reason::FreeWasEnough, None),
        MessageKind::Mps if numbers.limit.is_some() => (MessageCause::Limit, Reason::Limit, None),
        MessageKind::VllmStartup => match (numbers.total, numbers.free) {
            // A process that has only just begun has little more than its context.
            (Some(total), Some(free)) if total - free < GIB => (MessageCause::Limit, Reason::Kind, None),
            _ => (MessageCause::OtherProcess, Reason::Kind, None),
        },
        _ => (kind.cause, Reason::Kind, None),
    }
}

/// Whether the request would have fit below the limit.
fn is_within_limit(numbers: &Numbers) -> bool {
    let in_use = numbers.allocated.unwrap_or_default() + numbers.other_allocations.unwrap_or_default();
    let requested_and_limit = numbers.requested.zip(numbers.limit);
    requested_and_limit.is_some_and(|(requested, limit)| in_use + requested + ROUNDING_BYTES < limit)
}

fn judge_numbers(numbers: &Numbers, backend: Backend) -> (MessageCause, Reason, Option<MessageCause>) {
    use MessageCause::{Capacity, Fragmentation, Limit, OtherProcess, Unknown};
    let spare = numbers.unallocated().zip(numbers.held()).map(|(spare, held)| (spare, share(spare, held)));
    let Some(requested) = numbers.requested else {
        // Without a request, others count only if they have half of the device.
        let half = numbers.total.map_or(GIB, |total| Bytes(total.0 / 2));
        if let Some((reason, _)) = others(numbers, half).filter(|(_, bytes)| *bytes >= half) {
            return (OtherProcess, reason, None);
        }
        let is_fragmented = spare.is_some_and(|(_, share)| share >= MIN_UNUSED_SHARE_WITHOUT_REQUEST);
        let cause = if is_fragmented {
            (Fragmentation, Reason::Unallocated)
        } else {
            (Unknown, Reason::TooFewNumbers)
        };
        return (cause.0, cause.1, None);
    };
    if numbers.total.is_some_and(|total| requested > total) {
        return (Capacity, Reason::LargerThanDevice, None);
    }
    let needed = segment(requested, backend);
    let is_left =
        |bytes: Bytes| numbers.total.is_none_or(|total| share(bytes, total) >= MIN_USABLE_FREE_SHARE);
    let is_enough = |bytes: Bytes| bytes >= needed + slack(bytes, needed) && is_left(bytes);
    let fragmented = spare.and_then(|(spare, share)| {
        if spare >= requested && share >= MIN_UNUSED_SHARE {
            Some((Reason::Unallocated, spare))
        } else if spare + numbers.free? >= requested && share >= MIN_UNUSED_SHARE_WITH_FREE {
            Some((Reason::UnallocatedAndFree, spare))
        } else {
            None
        }
    });
    let has_limit = numbers.limit.is_some_and(|limit| numbers.total.is_none_or(|total| limit < total));
    if has_limit && numbers.free.is_none_or(is_enough) {
        return (Limit, Reason::Limit, fragmented.map(|_| Fragmentation));
    }
    if numbers.free.is_some_and(is_enough) {
        return (Unknown, Reason::FreeWasEnough, None);
    }
    let too_large =
        numbers.total.zip(numbers.tensors()).is_some_and(|(total, tensors)| tensors + requested > total);
    // Without the limit it would have failed too: the device itself had no room.
    let limit = (has_limit
        && numbers.held().zip(numbers.limit).is_some_and(|(held, limit)| held + needed > limit))
    .then_some(Limit);
    if too_large {
        return (Capacity, Reason::TooLarge, limit);
    }
    match (fragmented, others(numbers, requested)) {
        (Some((reason, spare)), Some((_, bytes))) if spare >= bytes => {
            (Fragmentation, reason, Some(OtherProcess))
        }
        (other, Some((reason, _))) => (OtherProcess, reason, other.map(|_| Fragmentation).or(limit)),
        (Some((reason, _)), None) => (Fragmentation, reason, None),
        (None, None) if has_non_pytorch(numbers, requested) => (Capacity, Reason::NonPytorch, limit),
        (None, None) if numbers.free.is_some_and(is_left) => (Capacity, Reason::Short, limit),
        (None, None) if numbers.free.is_some() => (Capacity, Reason::Full, limit),
        (None, None) => (Unknown, Reason::TooFewNumbers, None),
    }
}

/// What others have, if the request would have fit without them and they are more than a desktop.
fn others(numbers: &Numbers, requested: Bytes) -> Option<(Reason, Bytes)> {
    let (total, free) = (numbers.total?, numbers.free?);
    let worth_naming = GIB.min(Bytes(total.0 / 20));
    let decides = |bytes: Bytes, least: Bytes| bytes >= least && free + bytes >= requested;
    let listed = numbers.of_others();
    if decides(listed, worth_naming) {
        return Some((Reason::Listed, listed));
    }
    // Where the driver does not report what this process has, its context is included.
    let context =
        if numbers.own().is_some() { ROUNDING_BYTES } else { MAX_CONTEXT_BYTES.max(Bytes(total.0 / 10)) };
    let unexplained = numbers.unexplained()? - context;
    decides(unexplained, GIB.max(Bytes(total.0 / 20))).then_some((Reason::Unexplained, unexplained))
}

/// Whether other libraries in this process have what the request lacks, and more than a context takes.
fn has_non_pytorch(numbers: &Numbers, requested: Bytes) -> bool {
    let held = numbers.non_pytorch().unwrap_or_default();
    held > MIN_LIBRARIES_BYTES
        && held >= requested
        && numbers.free.is_some_and(|free| free + held >= requested)
}

/// What PyTorch asks the driver for when it has no block for a request.
pub(super) fn segment(requested: Bytes, backend: Backend) -> Bytes {
    match requested.0 {
        _ if !matches!(backend, Backend::Cuda | Backend::Hip) => requested,
        bytes if bytes <= MIB => Bytes(2 * MIB),
        bytes if bytes < 10 * MIB => Bytes(20 * MIB),
        bytes => Bytes(bytes.div_ceil(2 * MIB) * 2 * MIB),
    }
}

/// Rounding error of two numbers as they are printed.
fn slack(a: Bytes, b: Bytes) -> Bytes {
    if a.max(b) >= GIB { Bytes(6 * MIB) } else { Bytes::ZERO }
}
