//! Decoder for an event that is encoded exactly like the one before it.
//!
//! Between two events of a trace only five things change: the action, the address, the size, the time and
//! the stack. All bytes between those (the keys, the stream, the labels) repeat exactly, so they are
//! compared eight at a time and not decoded again.

use super::value::PickleValue;

/// Bytes of an event, with gaps for the parts that change.
pub(super) struct Template {
    /// Bytes before the action, the address, the size, the time, and the stack.
    runs: [ByteRun; 5],
    addr_length: usize,
    time_length: usize,
    /// Encodings of the actions seen so far: the bytes of the reference, and the column code.
    actions: Vec<(ByteRun, u8)>,
    /// Values that the last run memoizes.
    memoized: Vec<PickleValue>,
    context: u32,
}

/// Byte ranges of the changing parts of an event, relative to its start.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Places {
    /// Reference to the action's name.
    pub(super) action: (usize, usize),
    /// Bytes of the address, after the opcode and its length.
    pub(super) addr: (usize, usize),
    /// Size with its opcode.
    pub(super) size: (usize, usize),
    /// Bytes of the time, after the opcode and its length.
    pub(super) time: (usize, usize),
    /// Start of the value of `frames`.
    pub(super) stack: usize,
}

/// Values that change from event to event, apart from the stack.
pub(super) struct Changes {
    pub(super) action: u8,
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) time_us: i64,
    /// Start of the stack.
    pub(super) length: usize,
}

/// Events up to their stack are shorter than this, in bytes, or not worth a template.
const MAX_TEMPLATE_BYTES: usize = 192;

impl Template {
    /// Creates a template from an event that was just decoded.
    pub(super) fn new(
        event: &[u8],
        places: &Places,
        action: u8,
        memoized: &[PickleValue],
        context: u32,
        before: Option<Template>,
    ) -> Option<Template> {
        let lengths = (places.addr.1.checked_sub(places.addr.0)?, places.time.1.checked_sub(places.time.0)?);
        if places.stack > MAX_TEMPLATE_BYTES - 32
            || lengths.0 > 8
            || lengths.1 > 8
            || lengths.0 == 0
            || lengths.1 == 0
        {
            return None;
        }
        let run = |from: usize, to: usize| ByteRun::new(event.get(from..to)?);
        let mut template = Template {
            runs: [
                run(0, places.action.0)?,
                run(places.action.1, places.addr.0)?,
                run(places.addr.1, places.size.0)?,
                run(places.size.1, places.time.0)?,
                run(places.time.1, places.stack)?,
            ],
            addr_length: lengths.0,
            time_length: lengths.1,
            actions: before.map_or(Vec::new(), |before| before.actions),
            memoized: memoized.to_vec(),
            context,
        };
        let spelled = run(places.action.0, places.action.1)?;
        // An inline name is also memoized; only a reference to it leaves the memo unchanged.
        let is_reference = matches!(event.get(places.action.0), Some(b'h' | b'j'));
        if is_reference
            && template.actions.len() < 16
            && !template.actions.iter().any(|(known, _)| *known == spelled)
        {
            template.actions.push((spelled, action));
        }
        Some(template)
    }

    /// Returns whether `bytes` begins like an event.
    pub(super) fn begins(&self, bytes: &[u8]) -> bool {
        bytes.first_chunk().is_some_and(|bytes| self.runs[0].skip(bytes, 0).is_some())
    }

    pub(super) fn memoized(&self) -> &[PickleValue] {
        &self.memoized
    }

    pub(super) fn context(&self) -> u32 {
        self.context
    }

    /// Returns the changing parts of the event at the start of `bytes`, if everything else is unchanged.
    #[inline(always)]
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<Changes> {
        let bytes: &[u8; MAX_TEMPLATE_BYTES] = bytes.first_chunk()?;
        let [before_action, before_addr, before_size, before_time, before_stack] = &self.runs;
        let mut at = before_action.skip(bytes, 0)?;
        let (action, after) =
            self.actions.iter().find_map(|(run, code)| run.skip(bytes, at).map(|after| (*code, after)))?;
        at = before_addr.skip(bytes, after)?;
        let addr = signed(word(bytes, at)?, self.addr_length) as u64;
        at = before_size.skip(bytes, at + self.addr_length)?;
        let next = word(bytes, at)?;
        let (size, length) = match next as u8 {
            b'K' => (u64::from((next >> 8) as u8), 2),
            b'M' => (u64::from((next >> 8) as u16), 3),
            // Negative sizes are rejected by the decoder.
            b'J' if next >> 39 & 1 == 0 => (u64::from((next >> 8) as u32), 5),
            _ => return None,
        };
        at = before_time.skip(bytes, at + length)?;
        let time_us = signed(word(bytes, at)?, self.time_length);
        at = before_stack.skip(bytes, at + self.time_length)?;
        Some(Changes { action, addr, size, time_us, length: at })
    }
}

/// Returns the number in the lowest `length` bytes of `word`.
#[inline]
fn signed(word: u64, length: usize) -> i64 {
    let beyond = 64 - 8 * length as u32;
    (word as i64) << beyond >> beyond
}

#[inline]
fn word(bytes: &[u8; MAX_TEMPLATE_BYTES], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Repeating bytes, as words to compare.
#[derive(Clone, PartialEq, Eq)]
struct ByteRun {
    words: [(u64, u64); 6],
    count: usize,
    length: usize,
}

impl ByteRun {
    fn new(bytes: &[u8]) -> Option<ByteRun> {
        let mut run = ByteRun { words: [(0, 0); 6], count: bytes.len().div_ceil(8), length: bytes.len() };
        for (place, chunk) in bytes.chunks(8).enumerate() {
            let mut bits = [0; 8];
            let mut mask = [0; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            mask[..chunk.len()].fill(0xff);
            *run.words.get_mut(place)? = (u64::from_le_bytes(bits), u64::from_le_bytes(mask));
        }
        Some(run)
    }

    /// Returns the end of the run if the bytes at `at` match it.
    #[inline(always)]
    fn skip(&self, bytes: &[u8; MAX_TEMPLATE_BYTES], at: usize) -> Option<usize> {
        for (place, (bits, mask)) in self.words[..self.count].iter().enumerate() {
            if word(bytes, at + place * 8)? & mask != *bits {
                return None;
            }
        }
        Some(at + self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_matches_its_own_bytes_and_no_others() {
        let run = ByteRun::new(b"abcdefghij").expect("short");
        let mut bytes = [0; MAX_TEMPLATE_BYTES];
        bytes[3..13].copy_from_slice(b"abcdefghij");
        assert_eq!(run.skip(&bytes, 3), Some(13));
        assert_eq!(run.skip(&bytes, 2), None);
        bytes[12] = b'J';
        assert_eq!(run.skip(&bytes, 3), None);
        assert_eq!(ByteRun::new(&[0; 49]).map(|run| run.length), None);
    }
}
