//! What each collective takes from its ranks and returns to them, in chunks of one size.

use super::arithmetic::{NcclElement, Reduction, reduce};
use super::contents::BufferContents;
use super::exchange::RankMessage;
use crate::copies::MAX_KEPT_COPY_BYTES;
use crate::values::ByteValue;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum CollectiveKind {
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
    pub(super) kind: CollectiveKind,
    pub(super) element: NcclElement,
    /// Elements of a chunk: the `count` argument of the calls.
    pub(super) count: usize,
    pub(super) send: u64,
    pub(super) receive: u64,
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// Source of a chunk of a result: a chunk of one rank's buffer, or of all ranks' buffers.
enum ChunkSource {
    One { rank: usize, chunk: usize },
    All { reduction: Reduction, chunk: usize },
}

impl Collective {
    /// What all ranks have to agree on, in words.
    pub(super) fn shape(&self, name: &str) -> String {
        let root = match self.kind {
            CollectiveKind::Reduce { root, .. }
            | CollectiveKind::Broadcast { root }
            | CollectiveKind::Gather { root } => format!(" with root {root}"),
            _ => String::new(),
        };
        format!("{name} of {} elements of {} bytes{root}", self.count, self.element.bytes())
    }

    fn chunk_bytes(&self) -> usize {
        self.count * self.element.bytes()
    }

    /// Large buffers are not exchanged. All ranks agree on that, because they agree on the count.
    pub(super) fn is_large(&self) -> bool {
        self.chunk_bytes() as u64 > MAX_KEPT_COPY_BYTES
    }

    fn chunks_received(&self) -> usize {
        match self.kind {
            CollectiveKind::ReduceScatter(_) | CollectiveKind::AllToAll => self.size,
            CollectiveKind::Broadcast { root } if root != self.rank => 0,
            _ => 1,
        }
    }

    fn chunks_sent(&self) -> usize {
        match self.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll => self.size,
            CollectiveKind::Gather { root } if root == self.rank => self.size,
            CollectiveKind::Gather { .. } => 0,
            CollectiveKind::Reduce { root, .. } if root != self.rank => 0,
            _ => 1,
        }
    }

    fn source(&self, taken: usize) -> ChunkSource {
        match self.kind {
            CollectiveKind::AllReduce(reduction) | CollectiveKind::Reduce { reduction, .. } => {
                ChunkSource::All { reduction, chunk: 0 }
            }
            CollectiveKind::ReduceScatter(reduction) => ChunkSource::All { reduction, chunk: self.rank },
            CollectiveKind::Broadcast { root } => ChunkSource::One { rank: root, chunk: 0 },
            CollectiveKind::AllGather | CollectiveKind::Gather { .. } => {
                ChunkSource::One { rank: taken, chunk: 0 }
            }
            CollectiveKind::AllToAll => ChunkSource::One { rank: taken, chunk: self.rank },
        }
    }

    /// Contents of this rank's send buffer.
    pub(super) unsafe fn part(&self) -> BufferContents {
        unsafe { BufferContents::of(self.send, self.chunks_received() * self.chunk_bytes()) }
    }

    /// Writes this rank's result; without the ranks' parts, it is unknown.
    pub(super) unsafe fn finish(&self, parts: Option<&[RankMessage]>) {
        for taken in 0..self.chunks_sent() {
            let to = self.receive + (taken * self.chunk_bytes()) as u64;
            let source = self.source(taken);
            if self.is_in_place(&source, to) {
                continue;
            }
            let contents = parts.map_or_else(BufferContents::default, |parts| self.contents(&source, parts));
            unsafe { contents.put(to, self.chunk_bytes()) };
        }
    }

    /// Whether a rank's own chunk is already in place.
    fn is_in_place(&self, source: &ChunkSource, to: u64) -> bool {
        let from = |chunk: usize| self.send + (chunk * self.chunk_bytes()) as u64;
        match *source {
            ChunkSource::One { rank, chunk } => rank == self.rank && from(chunk) == to,
            ChunkSource::All { reduction: Reduction::ScaledSum(_), .. } => false,
            ChunkSource::All { chunk, .. } => self.size == 1 && from(chunk) == to,
        }
    }

    fn contents(&self, source: &ChunkSource, parts: &[RankMessage]) -> BufferContents {
        let bytes = self.chunk_bytes();
        let slice =
            |part: &RankMessage, chunk: usize| part.contents.slice(chunk * bytes..(chunk + 1) * bytes);
        match *source {
            ChunkSource::One { rank, chunk } => {
                parts.get(rank).map_or_else(BufferContents::default, |part| slice(part, chunk))
            }
            ChunkSource::All { reduction, chunk } => {
                let slices: Vec<BufferContents> = parts.iter().map(|part| slice(part, chunk)).collect();
                self.reduced(reduction, &slices).unwrap_or_default()
            }
        }
    }

    /// A reduction is known if all ranks' parts are.
    fn reduced(&self, reduction: Reduction, slices: &[BufferContents]) -> Option<BufferContents> {
        let whole: Option<Vec<(&[u8], ByteValue)>> =
            slices.iter().map(|slice| slice.whole(self.chunk_bytes())).collect();
        let (bytes, values): (Vec<&[u8]>, Vec<ByteValue>) = whole?.into_iter().unzip();
        let made_up = values.contains(&ByteValue::MadeUp);
        let result = reduce(self.element, reduction, &bytes)?;
        Some(BufferContents::with_value(result, if made_up { ByteValue::MadeUp } else { ByteValue::Known }))
    }
}
