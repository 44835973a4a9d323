//! What each collective takes from its ranks and gives to them, in pieces of one size.

use super::arithmetic::{Element, Reduction, reduce};
use super::contents::Contents;
use super::exchange::Message;
use crate::copies::LARGEST_COPY;
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
    /// Elements of a piece: what the calls name their count.
    pub(super) count: usize,
    pub(super) send: u64,
    pub(super) receive: u64,
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// Where a piece of a result comes from: a piece of one rank's part, or of all ranks' parts.
enum Source {
    One { rank: usize, piece: usize },
    All { reduction: Reduction, piece: usize },
}

impl Collective {
    fn piece_bytes(&self) -> usize {
        self.count * self.element.bytes()
    }

    /// Large pieces are not exchanged. All ranks agree on that, because they agree on the count.
    pub(super) fn is_large(&self) -> bool {
        self.piece_bytes() as u64 > LARGEST_COPY
    }

    fn pieces_given(&self) -> usize {
        match self.kind {
            Kind::ReduceScatter(_) | Kind::AllToAll => self.size,
            Kind::Broadcast { root } if root != self.rank => 0,
            _ => 1,
        }
    }

    fn pieces_taken(&self) -> usize {
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
                Source::All { reduction, piece: 0 }
            }
            Kind::ReduceScatter(reduction) => Source::All { reduction, piece: self.rank },
            Kind::Broadcast { root } => Source::One { rank: root, piece: 0 },
            Kind::AllGather | Kind::Gather { .. } => Source::One { rank: taken, piece: 0 },
            Kind::AllToAll => Source::One { rank: taken, piece: self.rank },
        }
    }

    /// This rank's part.
    pub(super) unsafe fn part(&self) -> Contents {
        unsafe { Contents::of(self.send, self.pieces_given() * self.piece_bytes()) }
    }

    /// Writes this rank's result; without the ranks' parts it is nobody's knowledge.
    pub(super) unsafe fn finish(&self, parts: Option<&[Message]>) {
        for taken in 0..self.pieces_taken() {
            let to = self.receive + (taken * self.piece_bytes()) as u64;
            let source = self.source(taken);
            if self.is_in_place(&source, to) {
                continue;
            }
            let contents = parts.map_or_else(Contents::default, |parts| self.contents(&source, parts));
            unsafe { contents.put(to, self.piece_bytes()) };
        }
    }

    /// A rank's own piece that is where it belongs already.
    fn is_in_place(&self, source: &Source, to: u64) -> bool {
        let from = |piece: usize| self.send + (piece * self.piece_bytes()) as u64;
        match *source {
            Source::One { rank, piece } => rank == self.rank && from(piece) == to,
            Source::All { reduction: Reduction::ScaledSum(_), .. } => false,
            Source::All { piece, .. } => self.size == 1 && from(piece) == to,
        }
    }

    fn contents(&self, source: &Source, parts: &[Message]) -> Contents {
        let bytes = self.piece_bytes();
        let slice = |part: &Message, piece: usize| part.contents.slice(piece * bytes..(piece + 1) * bytes);
        match *source {
            Source::One { rank, piece } => {
                parts.get(rank).map_or_else(Contents::default, |part| slice(part, piece))
            }
            Source::All { reduction, piece } => {
                let slices: Vec<Contents> = parts.iter().map(|part| slice(part, piece)).collect();
                self.reduced(reduction, &slices).unwrap_or_default()
            }
        }
    }

    /// A reduction is known if all ranks' parts are.
    fn reduced(&self, reduction: Reduction, slices: &[Contents]) -> Option<Contents> {
        let whole: Option<Vec<(&[u8], Value)>> =
            slices.iter().map(|slice| slice.whole(self.piece_bytes())).collect();
        let (bytes, values): (Vec<&[u8]>, Vec<Value>) = whole?.into_iter().unzip();
        let made_up = values.contains(&Value::MadeUp);
        let result = reduce(self.element, reduction, &bytes)?;
        Some(Contents::with_value(result, if made_up { Value::MadeUp } else { Value::Known }))
    }
}
