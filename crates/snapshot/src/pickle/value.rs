//! Pickled values packed into eight bytes: a tag, and a small number or a reference to a table.

use crate::stacks::{FrameId, StackId};
use crate::text::StrId;

/// Unpacked form of a [`PickleValue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValueKind {
    /// Memo slot that was never written.
    Unset,
    None,
    Bool(bool),
    Int(i64),
    /// Float, or integer too wide for the inline form: index into `Machine::numbers`.
    Number(u32),
    Str(StrId),
    /// Plain data that no part of a snapshot uses (bytes, sets); kept only to stay in step with the
    /// stream.
    Opaque,
    List(u32),
    Tuple(u32),
    Dict(u32),
    /// Dictionary that became a row of the events.
    Event(u32),
    /// Dictionary that became a row of the blocks.
    Block(u32),
    /// Dictionary that became a row of the segments.
    Segment(u32),
    /// Dictionary that became a frame.
    Frame(FrameId),
    /// List of frames that became a stack.
    Stack(StackId),
    /// Tuple of two small integers: a pool's identity.
    Pair(u32, u32),
}

/// Packed [`ValueKind`]: 4 bits of tag, 60 bits of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PickleValue(u64);

/// Integers below this in magnitude fit into the payload.
const INLINE_INT_LIMIT: i64 = 1 << 59;
/// Bits of each half of a pair.
const PAIR_HALF_BITS: u32 = 30;

impl PickleValue {
    pub(crate) const UNSET: PickleValue = PickleValue(0);

    #[inline]
    pub(crate) fn new(kind: ValueKind) -> PickleValue {
        let (tag, payload) = match kind {
            ValueKind::Unset => (0, 0),
            ValueKind::None => (1, 0),
            ValueKind::Bool(b) => (2, u64::from(b)),
            ValueKind::Int(i) => (3, i as u64),
            ValueKind::Number(n) => (4, u64::from(n)),
            ValueKind::Str(s) => (5, u64::from(s.0)),
            ValueKind::Opaque => (6, 0),
            ValueKind::List(n) => (7, u64::from(n)),
            ValueKind::Tuple(n) => (8, u64::from(n)),
            ValueKind::Dict(n) => (9, u64::from(n)),
            ValueKind::Event(n) => (10, u64::from(n)),
            ValueKind::Block(n) => (11, u64::from(n)),
            ValueKind::Segment(n) => (12, u64::from(n)),
            ValueKind::Frame(f) => (13, u64::from(f.0)),
            ValueKind::Stack(s) => (14, u64::from(s.0)),
            ValueKind::Pair(a, b) => (15, u64::from(a) << PAIR_HALF_BITS | u64::from(b)),
        };
        PickleValue(payload << 4 | tag)
    }

    /// Packs the integer `i`, if it fits.
    pub(crate) fn inline_int(i: i64) -> Option<PickleValue> {
        (-INLINE_INT_LIMIT..INLINE_INT_LIMIT).contains(&i).then(|| PickleValue::new(ValueKind::Int(i)))
    }

    /// Packs the pair (a, b), if it fits.
    #[inline]
    pub(crate) fn inline_pair(a: i64, b: i64) -> Option<PickleValue> {
        let fits = |n: i64| (0..1 << PAIR_HALF_BITS).contains(&n);
        (fits(a) && fits(b)).then(|| PickleValue::new(ValueKind::Pair(a as u32, b as u32)))
    }

    /// Returns the value with its row moved by `rows`, if it is an event.
    #[inline]
    pub(crate) fn moved(self, rows: u32) -> PickleValue {
        let is_event = self.0 & 15 == PickleValue::new(ValueKind::Event(0)).0;
        PickleValue(self.0 + if is_event { u64::from(rows) << 4 } else { 0 })
    }

    #[inline]
    pub(crate) fn kind(self) -> ValueKind {
        let payload = self.0 >> 4;
        let index = payload as u32;
        match self.0 & 15 {
            0 => ValueKind::Unset,
            1 => ValueKind::None,
            2 => ValueKind::Bool(payload != 0),
            3 => ValueKind::Int(self.0 as i64 >> 4),
            4 => ValueKind::Number(index),
            5 => ValueKind::Str(StrId(index)),
            6 => ValueKind::Opaque,
            7 => ValueKind::List(index),
            8 => ValueKind::Tuple(index),
            9 => ValueKind::Dict(index),
            10 => ValueKind::Event(index),
            11 => ValueKind::Block(index),
            12 => ValueKind::Segment(index),
            13 => ValueKind::Frame(FrameId(index)),
            14 => ValueKind::Stack(StackId(index)),
            _ => ValueKind::Pair(
                (payload >> PAIR_HALF_BITS) as u32,
                (payload & ((1 << PAIR_HALF_BITS) - 1)) as u32,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_packing() {
        for kind in [
            ValueKind::Unset,
            ValueKind::None,
            ValueKind::Bool(true),
            ValueKind::Bool(false),
            ValueKind::Int(0),
            ValueKind::Int(-1),
            ValueKind::Int(INLINE_INT_LIMIT - 1),
            ValueKind::Int(-INLINE_INT_LIMIT),
            ValueKind::Number(7),
            ValueKind::Str(StrId(u32::MAX)),
            ValueKind::Opaque,
            ValueKind::List(u32::MAX),
            ValueKind::Tuple(1),
            ValueKind::Dict(2),
            ValueKind::Event(u32::MAX),
            ValueKind::Block(3),
            ValueKind::Segment(4),
            ValueKind::Frame(FrameId(5)),
            ValueKind::Stack(StackId(6)),
            ValueKind::Pair((1 << PAIR_HALF_BITS) - 1, 9),
        ] {
            assert_eq!(PickleValue::new(kind).kind(), kind);
        }
        assert_eq!(PickleValue::inline_int(INLINE_INT_LIMIT), None);
        assert_eq!(PickleValue::inline_pair(-1, 0), None);
    }
}
