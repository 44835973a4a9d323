//! Out-of-memory messages in a log: their text, what their numbers show, and what they cannot show.
//!
//! Terminals, chats and loggers damage logs in every possible way: lines are wrapped inside words, prefixed,
//! colored, escaped and cut off. So a log is read without its white space ([`log`]): `Gi⏎B` and
//! `GiB` are then the same, and every number of a message is between words that name it. Incomplete numbers
//! are left out of the answer.

mod advice;
mod allocator_message;
mod context;
mod groups;
mod judge;
mod kinds;
mod log;
mod matching;
mod numbers;
mod parts;
mod render;
mod scan;
mod template;
mod traceback;

pub use advice::NextCommand;
pub use groups::groups;
pub use kinds::{Backend, MessageCause, MessageKind, programs};
pub(crate) use log::pattern;
pub use numbers::{Numbers, OtherProcess};
pub use parts::{MemoryPart, MemoryShare};
pub use render::{Explanation, written};
pub use scan::{InferenceServer, MessageReader};
pub(crate) use scan::{SearchedText, TextObserver, TextOrigin};
pub use traceback::TracebackSite;

/// One message, as often as it was printed.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// Whose message it is, and from which releases on it looks like this.
    pub kind: MessageKind,
    /// What ran out of memory.
    pub backend: Backend,
    /// The device that it names.
    pub device: Option<u32>,
    /// The rank that printed it, if its lines say so.
    pub rank: Option<u32>,
    /// What it says in numbers.
    pub numbers: Numbers,
    /// The lines where it begins, the first one first; at most [`Message::LINES`].
    pub lines: Vec<u64>,
    /// How often it was printed.
    pub count: u64,
    /// The innermost line of the user's own code in the traceback above it.
    pub site: Option<TracebackSite>,
    /// The inference server whose log it is in.
    pub server: Option<InferenceServer>,
}

impl Message {
    /// Lines that are kept of a repeated message; more are only counted.
    pub const LINES: usize = 100;

    /// The first line on which it begins, from 1.
    pub fn line(&self) -> u64 {
        self.lines.first().copied().unwrap_or(1)
    }

    /// Whether it is the same message, printed again.
    fn repeats(&self, other: &Message) -> bool {
        let same_rank = self.rank == other.rank || self.rank.is_none() || other.rank.is_none();
        same_rank && self.kind == other.kind && self.device == other.device && self.numbers == other.numbers
    }
}

/// Finds the out-of-memory messages of a whole log.
pub fn find_messages(log: &[u8]) -> Vec<Message> {
    let mut reader = MessageReader::default();
    reader.read(log);
    reader.finish().0
}
