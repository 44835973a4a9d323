//! What each collective takes from its ranks and returns to them, in chunks of one size.

use super::arithmetic::{Element, Reduction, reduce};
use super::contents::Contents;
use super::exchange::Message;
use crate::copies::MAX_KEPT_COPY_BYTES;
use crate::values::Value;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    AllReduce(Reduction),
    Reduce { reduction: Reduction, root: usize },
    ReduceScatter(Reduction),
    Broadcast { root: usize },
    AllGather,
    AllToAll,
    Gather { root: usize },
}

/// One rank's call of a collective.
#[derive(Clone, Debug)]
pub(super) struct Collective {
    pub(super) kind: Kind,
    pub(super) element: Element,
    /// Elements of a chunk: the `count` argument of the calls.
    pub(super) count: usize,
    pub(super) send: u64,
    pub(super) receive: u64,
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// Source of a chunk of a result: a chunk of one rank's buffer, or of all ranks' buffers.
enum Source {
    One { rank: usize, chunk: usize },
    All { reduction: Reduction, chunk: usize },
}

impl Collective {
    fn chunk_bytes(&self) -> usize {
        self.count * self.element.bytes()
    }

    /// Large buffers are not exchanged. All ranks agree on that, because they agree on the count.
    pub(super) fn is_large(&self) -> bool {
        self.chunk_bytes() as u64 > MAX_KEPT_COPY_BYTES
    }

    fn chunks_received(&self) -> usize {
        match self.kind {
            Kind::ReduceScatter(_) | Kind::AllToAll => self.size,
            Kind::Broadcast { root } if root != self.rank => 0,
            _ => 1,
        }
    }

    fn chunks_sent(&self) -> usize {
        match self.kind {
            Kind::AllGather | Kind::AllToAll => self.size,
            Kind::Gather { root } if root == self.rank => self.size,
            Kind::Gather { .. } => 0,
            Kind::Reduce { root, .. } if root != self.rank => 0,
            _ => 1,
        }
    }

    fn source(&self, taken: usize) -> Source {
        match self.kind {
            Kind::AllReduce(reduction) | Kind::Reduce { reduction, .. } => {
                Source::All { reduction, chunk: 0 }
            }
            Kind::ReduceScatter(reduction) => Source::All { reduction, chunk: self.rank },
            Kind::Broadcast { root } => Source::One { rank: root, chunk: 0 },
            Kind::AllGather | Kind::Gather { .. } => Source::One { rank: taken, chunk: 0 },
            Kind::AllToAll => Source::One { rank: taken, chunk: self.rank },
        }
    }

    /// Contents of this rank's send buffer.
    pub(super) unsafe fn part(&self) -> Contents {
        unsafe { Contents::of(self.send, self.chunks_received() * self.chunk_bytes()) }
    }

    /// Writes this rank's result; without the ranks' parts, it is unknown.
    pub(super) unsafe fn finish(&self, parts: Option<&[Message]>) {
        for taken in 0..self.chunks_sent() {
            let to = self.receive + (taken * self.chunk_bytes()) as u64;
            let source = self.source(taken);
            if self.is_in_place(&source, to) {
                continue;
            }
            let contents = parts.map_or_else(Contents::default, |parts| self.contents(&source, parts));
            unsafe { contents.put(to, self.chunk_bytes()) };
        }
    }

    /// Whether a rank's own chunk is already in place.
    fn is_in_place(&self, source: &Source, to: u64) -> bool {
        let from = |chunk: usize| self.send + (chunk * self.chunk_bytes()) as u64;
        match *source {
            Source::One { rank, chunk } => rank == self.rank && from(chunk) == to,
            Source::All { reduction: Reduction::ScaledSum(_), .. } => false,
            Source::All { chunk, .. } => self.size == 1 && from(chunk) == to,
        }
    }

    fn contents(&self, source: &Source, parts: &[Message]) -> Contents {
        let bytes = self.chunk_bytes();
        let slice = |part: &Message, chunk: usize| part.contents.slice(chunk * bytes..(chunk + 1) * bytes);
        match *source {
            Source::One { rank, chunk } => {
                parts.get(rank).map_or_else(Contents::default, |part| slice(part, chunk))
            }
            Source::All { reduction, chunk } => {
                let slices: Vec<Contents> = parts.iter().map(|part| slice(part, chunk)).collect();
                self.reduced(reduction, &slices).unwrap_or_default()
            }
        }
    }

    /// A reduction is known if all ranks' parts are.
    fn reduced(&self, reduction: Reduction, slices: &[Contents]) -> Option<Contents> {
        let whole: Option<Vec<(&[u8], Value)>> =
            slices.iter().map(|slice| slice.whole(self.chunk_bytes())).collect();
        let (bytes, values): (Vec<&[u8]>, Vec<Value>) = whole?.into_iter().unzip();
        let made_up = values.contains(&Value::MadeUp);
        let result = reduce(self.element, reduction, &bytes)?;
        Some(Contents::with_value(result, if made_up { Value::MadeUp } else { Value::Known }))
    }
}
