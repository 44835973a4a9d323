//! What a message means, in words.

use super::Message;
use super::advice::{self, NextCommand};
use super::judge::{Reason, judge, segment};
use super::kinds::{Backend, MessageCause};
use super::numbers::Numbers;
use super::template::filled;
use crate::words::{grouped, listed, percent, share};
use snapshot::Bytes;

/// What one message means: the cause, in words, and what to do.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The cause that the message shows.
    pub cause: MessageCause,
    /// A second cause that the numbers show as well.
    pub also: Option<MessageCause>,
    /// What happened and why, in one sentence.
    pub summary: String,
    /// What else the numbers say.
    pub details: Vec<String>,
    /// What no message of this kind shows.
    pub unknowns: Vec<String>,
    /// What to change.
    pub fix: String,
    /// Commands to run next, the first one first.
    pub steps: Vec<NextCommand>,
}

impl Message {
    /// What it means.
    pub fn explain(&self) -> Explanation {
        let (cause, reason, also) = judge(self);
        Explanation {
            cause,
            also,
            summary: summary(self, reason),
            details: details(self, reason, also),
            unknowns: advice::unknowns(self, reason),
            fix: advice::fix(self, cause, reason),
            steps: advice::steps(self, cause, reason),
        }
    }

    /// Whether the traceback above it has paths of Windows.
    pub(super) fn is_on_windows(&self) -> bool {
        self.site.as_ref().is_some_and(|site| site.file.get(1..3) == Some(":\\"))
    }

    /// `GPU 0`, as the message calls it.
    pub fn device_name(&self) -> String {
        let word = self.backend.device_word();
        self.device.map_or_else(|| format!("the {word}"), |device| format!("{word} {device}"))
    }
}

/// A size with the digits that messages have: `22.97 GiB`.
pub fn written(bytes: Bytes) -> String {
    let unit = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        .into_iter()
        .find(|(_, scale)| bytes.0 >= *scale);
    unit.map_or_else(
        || format!("{} bytes", bytes.0),
        |(unit, scale)| format!("{:.2} {unit}", bytes.0 as f64 / scale as f64),
    )
}

/// A size that no machine has: `4,072.73 PiB`.
fn written_in_pib(bytes: Bytes) -> String {
    let hundredths = (bytes.0 as f64 / (1u64 << 50) as f64 * 100.0).round() as u64;
    format!("{}.{:02} PiB", grouped(hundredths / 100), hundredths % 100)
}

/// `22.97 GiB`, or these words where the message has no such number.
fn written_or(bytes: Option<Bytes>, otherwise: &str) -> String {
    bytes.map_or_else(|| otherwise.to_owned(), written)
}

fn summary(message: &Message, reason: Reason) -> String {
    let (numbers, device) = (&message.numbers, message.device_name());
    let requested = written_or(numbers.requested, "the request");
    match reason {
        Reason::Kind => filled(message.kind.row().words, message),
        Reason::Impossible => {
            let requested = numbers.requested.map_or_else(|| "more than 1 EB".to_owned(), written_in_pib);
            format!("a request of {requested}: no memory is that large, so a shape or an index is wrong")
        }
        Reason::LargerThanDevice => {
            let total = written_or(numbers.total, "unknown");
            format!("the request alone, {requested}, is larger than {device} ({total})")
        }
        Reason::TooLarge | Reason::Full | Reason::Short => no_room(message, reason),
        Reason::NonPytorch => format!(
            "{} of {device} is used by this process outside PyTorch, more than a context takes: without it \
             {requested} more would have fit",
            written_or(numbers.non_pytorch(), "much")
        ),
        Reason::Unallocated | Reason::UnallocatedAndFree => unallocated(message),
        Reason::Listed => other_processes(message),
        Reason::Unexplained => {
            let unexplained = written(numbers.unexplained().unwrap_or_default());
            format!(
                "{unexplained} of {device} is in use, but not by PyTorch in this process: most likely \
                 another process"
            )
        }
        Reason::Limit => limit(message),
        Reason::FreeWasEnough if message.backend == Backend::Mps => format!(
            "Metal refused {requested}, although only {} of the limit of {} was in use, as happens on \
             virtual machines without their own GPU",
            written(numbers.allocated.unwrap_or_default() + numbers.other_allocations.unwrap_or_default()),
            written_or(numbers.limit, "MPS")
        ),
        Reason::FreeWasEnough => format!(
            "{} was free on {device} and {requested} was requested: the message does not show why \
             that failed",
            written_or(numbers.free, "enough")
        ),
        Reason::TooFewNumbers if numbers.is_empty() => {
            format!("{device} is out of memory; the message has no numbers")
        }
        Reason::TooFewNumbers => {
            format!(
                "{device} had no room for {requested}; the numbers that would show why are not in the message"
            )
        }
    }
}

/// The summary where the request did not fit next to what is in use.
fn no_room(message: &Message, reason: Reason) -> String {
    let (numbers, device) = (&message.numbers, message.device_name());
    let requested = written_or(numbers.requested, "the request");
    let tensors = numbers
        .tensors()
        .map_or_else(|| "the tensors".to_owned(), |tensors| format!("{} of tensors", written(tensors)));
    let word = message.backend.device_word();
    let card =
        numbers.total.map_or_else(|| format!("the {word}"), |total| with_article(&written(total), word));
    let non_pytorch = || not_pytorchs(numbers).map_or_else(String::new, |held| format!(" and {held}"));
    match reason {
        Reason::TooLarge => {
            format!("{device} is too small: {tensors} and {requested} more do not fit on {card}")
        }
        Reason::Full if numbers.allocated.is_none() => {
            format!("{device} is full: {requested} more did not fit on {card}")
        }
        Reason::Full => {
            let non_pytorch = non_pytorch();
            format!("{device} is full: {tensors}{non_pytorch} on {card}; {requested} more did not fit")
        }
        _ => {
            let (free, spare) = (numbers.free.unwrap_or_default(), numbers.unallocated().unwrap_or_default());
            let left = match spare {
                Bytes::ZERO => format!("{} was free", written(free)),
                _ => format!("{} was free and PyTorch held {} unused", written(free), written(spare)),
            };
            let is_enough = numbers.requested.is_some_and(|requested| free + spare >= requested);
            let why = match is_enough {
                true => "enough together, but not in one place",
                false if spare > Bytes::ZERO => "too little even together",
                false => "too little",
            };
            let non_pytorch = non_pytorch();
            format!(
                "{requested} did not fit on {device}: {left}, {why}; {tensors}{non_pytorch} are on \
                 {card}"
            )
        }
    }
}

/// The summary where PyTorch held enough that no tensor used.
fn unallocated(message: &Message) -> String {
    let (numbers, device) = (&message.numbers, message.device_name());
    let spare = numbers.unallocated().unwrap_or_default();
    let part = share(spare, numbers.held().unwrap_or_default());
    let held =
        format!("PyTorch held {} that no tensor used ({} of what it had)", written(spare), percent(part));
    match numbers.requested {
        Some(requested) => {
            format!("{device} had no room for {}, though {held}: may be fragmentation", written(requested))
        }
        None => format!("{held}: may be fragmentation"),
    }
}

/// The summary where other processes in the message's list have what the request lacks.
fn other_processes(message: &Message) -> String {
    let (numbers, device) = (&message.numbers, message.device_name());
    let others = written(numbers.of_others());
    let Some(requested) = numbers.requested.map(written) else {
        return format!("other processes use {others} of {device}");
    };
    if numbers.are_ranks() {
        return format!(
            "{} other processes use {others} of {device}, each nearly the same: they look like ranks of \
             this job that all use this one GPU; without them {requested} more would have fit",
            numbers.others.len() - usize::from(numbers.itself().is_some())
        );
    }
    format!("other processes use {others} of {device}; without them {requested} more would have fit")
}

/// `a 24.00 GiB GPU`, `an 80.00 GiB GPU`: by how the number is read.
fn with_article(amount: &str, word: &str) -> String {
    let whole = amount.split(['.', ' ']).next().unwrap_or_default();
    let begins_with_vowel = whole.starts_with('8') || whole == "11" || whole == "18";
    format!("{} {amount} {word}", if begins_with_vowel { "an" } else { "a" })
}

/// The summary where a limit refused the request.
fn limit(message: &Message) -> String {
    let (numbers, device) = (&message.numbers, message.device_name());
    let requested = written_or(numbers.requested, "the request");
    match message.backend {
        Backend::Mps => format!(
            "the limit for MPS was reached: {} held by PyTorch and {} by other allocations of this process, \
             of {} allowed; {requested} more did not fit",
            written_or(numbers.allocated, "an unknown amount"),
            written_or(numbers.other_allocations, "an unknown amount"),
            written_or(numbers.limit, "what is")
        ),
        Backend::Xpu => format!(
            "the driver does not allocate blocks larger than {}; {requested} was requested",
            written_or(numbers.limit, "its limit")
        ),
        _ => {
            let free =
                numbers.free.map_or_else(String::new, |free| format!(" while {} was free", written(free)));
            format!(
                "a limit was reached, not the end of {device}: PyTorch was allowed {}{free}",
                written_or(numbers.limit, "less")
            )
        }
    }
}

fn details(message: &Message, reason: Reason, also: Option<MessageCause>) -> Vec<String> {
    let numbers = &message.numbers;
    let mut details = Vec::new();
    if let (Some(requested), Some(free)) = (numbers.requested, numbers.free) {
        let needed = segment(requested, message.backend);
        let is_possible = numbers.total.is_none_or(|total| free <= total);
        let is_small =
            free >= requested && is_possible && reason != Reason::FreeWasEnough && reason != Reason::Limit;
        if message.kind.row().is_allocators && is_small && free >= needed {
            details.push(format!(
                "{} was free, but drivers reserve some memory; a request this close to the limit can fail",
                written(free)
            ));
        } else if message.kind.row().is_allocators && is_small {
            details.push(format!(
                "{} was free, but for a request of {} PyTorch asks the driver for {} at once",
                written(free),
                written(requested),
                written(needed)
            ));
        }
    }
    if reason == Reason::FreeWasEnough {
        details.push(free_was_enough(message));
    }
    if let Some(itself) = numbers.itself() {
        details.push(format!(
            "process {} is this process as the driver sees it: the listed memory does not match PyTorch's \
             numbers, which is common in containers",
            itself.pid
        ));
    }
    details.extend(other_uses(numbers, reason, also));
    if let Some(pools) = numbers.private_pools {
        let graphs = if message.backend == Backend::Hip { "HIP graphs" } else { "CUDA graphs" };
        details.push(format!(
            "{} more is unused in private pools, which only their own {graphs} can use; the message counts \
             it as allocated",
            written(pools)
        ));
    }
    if numbers.total.zip(numbers.tensors()).is_some_and(|(total, tensors)| tensors > total) {
        details.push(
            "tensors exceed the GPU's memory: the driver moved some to host memory, as it does on Windows"
                .to_owned(),
        );
    }
    if numbers.total.zip(numbers.free).is_some_and(|(total, free)| free > total) {
        details.push(
            "more is free than the device has: the driver's numbers contradict each other, as on \
             chips that share the machine's memory"
                .to_owned(),
        );
    }
    details
}

/// Second causes, and uses that are worth a word.
fn other_uses(numbers: &Numbers, reason: Reason, also: Option<MessageCause>) -> Vec<String> {
    let mut details = Vec::new();
    let (spare, held) = (numbers.unallocated().unwrap_or_default(), numbers.held().unwrap_or_default());
    if let (Some(MessageCause::Limit), Some(limit)) = (also, numbers.limit) {
        details.push(format!(
            "the {} that PyTorch was allowed would not have been enough either",
            written(limit)
        ));
    }
    if also == Some(MessageCause::OtherProcess) {
        let others = numbers.of_others().max(numbers.unexplained().unwrap_or_default());
        details
            .push(format!("it would also have fit without the {} used by other processes", written(others)));
    }
    let is_about_spare = matches!(reason, Reason::Unallocated | Reason::UnallocatedAndFree);
    if !is_about_spare
        && numbers.requested.is_some_and(|requested| spare >= requested)
        && reason != Reason::FreeWasEnough
    {
        let part = percent(share(spare, held));
        details.push(format!(
            "PyTorch held {} that no tensor used ({part}), more than the request, but not in one block that \
             it could use (it belongs to another stream or pool, or is fragmented; the message does not say \
             which)",
            written(spare)
        ));
    }
    if is_about_spare {
        details.push("this includes memory cached for other streams and private pools".to_owned());
    }
    if reason == Reason::UnallocatedAndFree {
        details.push("cached and free memory together would have been enough".to_owned());
    }
    if let Some((own, non_pytorch)) = numbers.own().zip(numbers.non_pytorch()) {
        if reason == Reason::NonPytorch {
            details.push(
                "it can be a second framework in this process, a server that reserves memory for itself \
                 (SGLang, vLLM), NCCL, or CUDA graphs"
                    .to_owned(),
            );
        } else if share(non_pytorch, own) >= 0.1 && non_pytorch.0 >= 1 << 30 {
            details.push(format!(
                "{} of this process is outside PyTorch: the context, NCCL, cuBLAS and other libraries",
                written(non_pytorch)
            ));
        }
    }
    if reason == Reason::Unexplained && numbers.own().is_none() {
        details.push(
            "the context and libraries of this process are in that number too; they take 0.3 to \
             1.5 GiB, the message does not say how much"
                .to_owned(),
        );
    }
    let unknown: Vec<String> = numbers
        .others
        .iter()
        .filter(|other| other.bytes.is_none())
        .map(|other| other.pid.to_string())
        .collect();
    if !unknown.is_empty() && numbers.total.is_some() {
        details.push(format!("the driver did not know how much process {} uses", listed(&unknown)));
    }
    details
}

/// `1.20 GiB outside PyTorch`, where that is at least a twentieth of the GPU's memory.
fn not_pytorchs(numbers: &Numbers) -> Option<String> {
    let non_pytorch = numbers.total? - numbers.free? - numbers.held()?;
    let is_worth_it = share(non_pytorch, numbers.total?) >= 0.05 && numbers.allocated.is_some();
    is_worth_it.then(|| format!("{} outside PyTorch", written(non_pytorch)))
}

fn free_was_enough(message: &Message) -> String {
    if message.backend == Backend::Mps {
        return "a smaller batch or a higher limit does not help".to_owned();
    }
    if message.backend == Backend::Xpu {
        return "XPU drivers do not allocate blocks larger than 4 GiB, some even less, unless relaxed limits \
             are enabled"
            .to_owned();
    }
    "it can be a limit that the message does not name (a memory fraction, MIG, a container), memory that \
     was freed between the failure and the message, or a driver that needs memory of the machine \
     for it (Windows and WSL)"
        .to_owned()
}
