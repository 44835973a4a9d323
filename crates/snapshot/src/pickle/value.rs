//! A pickled value in eight bytes: a tag, and a small number or a reference to a table.

use crate::stacks::{FrameId, StackId};
use crate::text::StrId;

/// What a [`Value`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A memo slot that was never written.
    Unset,
    None,
    Bool(bool),
    Int(i64),
    /// A float, or an integer too wide for the inline form: place in `Machine::numbers`.
    Number(u32),
    Str(StrId),
    /// Plain data that no part of a snapshot is made of (bytes, sets); kept only to stay in step.
    Opaque,
    List(u32),
    Tuple(u32),
    Dict(u32),
    /// A dictionary that has become a row of the events.
    Event(u32),
    /// A dictionary that has become a row of the blocks.
    Block(u32),
    /// A dictionary that has become a row of the segments.
    Segment(u32),
    /// A dictionary that has become a frame.
    Frame(FrameId),
    /// A list of frames that has become a stack.
    Stack(StackId),
    /// A tuple of two small integers: a pool's identity.
    Pair(u32, u32),
}

/// A packed [`Kind`]: 4 bits of tag, 60 bits of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value(u64);

const INLINE: i64 = 1 << 59;
const HALF: u32 = 30;

impl Value {
    pub(crate) const UNSET: Value = Value(0);

    #[inline]
    pub(crate) fn new(kind: Kind) -> Value {
        let (tag, payload) = match kind {
            Kind::Unset => (0, 0),
            Kind::None => (1, 0),
            Kind::Bool(b) => (2, u64::from(b)),
            Kind::Int(i) => (3, i as u64),
            Kind::Number(n) => (4, u64::from(n)),
            Kind::Str(s) => (5, u64::from(s.0)),
            Kind::Opaque => (6, 0),
            Kind::List(n) => (7, u64::from(n)),
            Kind::Tuple(n) => (8, u64::from(n)),
            Kind::Dict(n) => (9, u64::from(n)),
            Kind::Event(n) => (10, u64::from(n)),
            Kind::Block(n) => (11, u64::from(n)),
            Kind::Segment(n) => (12, u64::from(n)),
            Kind::Frame(f) => (13, u64::from(f.0)),
            Kind::Stack(s) => (14, u64::from(s.0)),
            Kind::Pair(a, b) => (15, u64::from(a) << HALF | u64::from(b)),
        };
        Value(payload << 4 | tag)
    }

    /// The integer `i`, if it fits into a value.
    pub(crate) fn inline_int(i: i64) -> Option<Value> {
        (-INLINE..INLINE).contains(&i).then(|| Value::new(Kind::Int(i)))
    }

    /// The pair (a, b), if it fits into a value.
    #[inline]
    pub(crate) fn inline_pair(a: i64, b: i64) -> Option<Value> {
        let fits = |n: i64| (0..1 << HALF).contains(&n);
        (fits(a) && fits(b)).then(|| Value::new(Kind::Pair(a as u32, b as u32)))
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        let payload = self.0 >> 4;
        let index = payload as u32;
        match self.0 & 15 {
            0 => Kind::Unset,
            1 => Kind::None,
            2 => Kind::Bool(payload != 0),
            3 => Kind::Int(self.0 as i64 >> 4),
            4 => Kind::Number(index),
            5 => Kind::Str(StrId(index)),
            6 => Kind::Opaque,
            7 => Kind::List(index),
            8 => Kind::Tuple(index),
            9 => Kind::Dict(index),
            10 => Kind::Event(index),
            11 => Kind::Block(index),
            12 => Kind::Segment(index),
            13 => Kind::Frame(FrameId(index)),
            14 => Kind::Stack(StackId(index)),
            _ => Kind::Pair((payload >> HALF) as u32, (payload & ((1 << HALF) - 1)) as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_packing() {
        for kind in [
            Kind::Unset,
            Kind::None,
            Kind::Bool(true),
            Kind::Bool(false),
            Kind::Int(0),
            Kind::Int(-1),
            Kind::Int(INLINE - 1),
            Kind::Int(-INLINE),
            Kind::Number(7),
            Kind::Str(StrId(u32::MAX)),
            Kind::Opaque,
            Kind::List(u32::MAX),
            Kind::Tuple(1),
            Kind::Dict(2),
            Kind::Event(u32::MAX),
            Kind::Block(3),
            Kind::Segment(4),
            Kind::Frame(FrameId(5)),
            Kind::Stack(StackId(6)),
            Kind::Pair((1 << HALF) - 1, 9),
        ] {
            assert_eq!(Value::new(kind).kind(), kind);
        }
        assert_eq!(Value::inline_int(INLINE), None);
        assert_eq!(Value::inline_pair(-1, 0), None);
    }
}
