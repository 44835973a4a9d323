//! Which bytes of device memory have known values.
//!
//! Kernels do nothing, so most device memory has no value at all; reading it gives zeros. Bytes that were
//! copied from the host, or that oomph's Python part computed on the CPU for small tensors, are kept. A value
//! can also be made up: a replacement for what a random generator or a kernel would have produced, valid as
//! an index.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is known about a range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ByteValue {
    /// The bytes are those of the real run.
    Known,
    /// The bytes are plausible but not computed.
    MadeUp,
}

/// Ranges that have a value: start → (end, value). They do not overlap.
#[derive(Default)]
struct ValueRanges(BTreeMap<u64, (u64, ByteValue)>);

static RANGES: Mutex<ValueRanges> = Mutex::new(ValueRanges(BTreeMap::new()));

fn ranges() -> MutexGuard<'static, ValueRanges> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ValueRanges {
    fn forget(&mut self, low: u64, high: u64) {
        let first = self.0.range(..low).next_back().map_or(low, |(&start, _)| start);
        let hit: Vec<u64> =
            self.0.range(first..high).filter(|(_, (end, _))| *end > low).map(|(&start, _)| start).collect();
        for start in hit {
            if let Some((end, value)) = self.0.remove(&start) {
                if start < low {
                    self.0.insert(start, (low, value));
                }
                if end > high {
                    self.0.insert(high, (end, value));
                }
            }
        }
    }

    fn keep(&mut self, low: u64, high: u64, value: ByteValue) {
        if low < high {
            self.forget(low, high);
            self.0.insert(low, (high, value));
        }
    }

    /// Parts of a range that have a value.
    fn within(&self, low: u64, high: u64) -> Vec<(u64, u64, ByteValue)> {
        let first = self.0.range(..low).next_back().map_or(low, |(&start, _)| start);
        self.0
            .range(first..high)
            .filter(|(_, (end, _))| *end > low)
            .map(|(&start, &(end, value))| (start.max(low), end.min(high), value))
            .collect()
    }
}

/// Records that these bytes have a value now.
pub(crate) fn keep(at: u64, size: u64, value: ByteValue) {
    ranges().keep(at, at + size, value);
}

/// Records that a kernel would have written here.
pub(crate) fn forget(at: u64, size: u64) {
    ranges().forget(at, at + size);
}

/// Copies the knowledge about one range to another.
pub(crate) fn copy(to: u64, from: u64, size: u64) {
    let mut ranges = ranges();
    let parts = ranges.within(from, from + size);
    ranges.forget(to, to + size);
    for (low, high, value) in parts {
        ranges.keep(low - from + to, high - from + to, value);
    }
}

/// Whether reads return zeros unless the thread vouches for them. PyTorch reuses memory for new tensors
/// without notifying the emulator, so a recorded value may belong to the previous tensor. oomph's Python part
/// knows the tensors.
static GUARDED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static VOUCHED: Cell<bool> = const { Cell::new(false) };
    /// Answers for the next small reads of this thread, whatever the memory contains.
    static ANSWERS: RefCell<VecDeque<u64>> = const { RefCell::new(VecDeque::new()) };
}

/// Prepared answer for a read of this size: a count, or a flag that a check reads.
fn answer(size: u64) -> Option<[u8; 8]> {
    let counts = matches!(size, 1 | 4 | 8);
    counts.then(|| ANSWERS.with_borrow_mut(VecDeque::pop_front)).flatten().map(u64::to_le_bytes)
}

/// Copies known values to the host, and zeros elsewhere.
pub(crate) unsafe fn read(to: *mut u8, from: u64, size: u64) {
    if let Some(bytes) = answer(size) {
        return unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size as usize) };
    }
    let parts = match GUARDED.load(Relaxed) && !VOUCHED.get() {
        true => Vec::new(),
        false => ranges().within(from, from + size),
    };
    unsafe {
        if parts.first() != Some(&(from, from + size, ByteValue::Known)) {
            crate::copies::clear(to, size);
        }
        for (low, high, _) in parts {
            std::ptr::copy(low as *const u8, to.add((low - from) as usize), (high - low) as usize);
        }
    }
}

/// For oomph's Python part: the bytes at `at` were computed (`value` 1), made up (2), or written by a kernel
/// (0).
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_note(at: u64, size: u64, value: i32) {
    match value {
        1 => keep(at, size, ByteValue::Known),
        2 => keep(at, size, ByteValue::MadeUp),
        _ => forget(at, size),
    }
}

/// State of a range: 1 if all bytes are known, 2 if all have a value and some are made up, otherwise 0.
fn state(ranges: &ValueRanges, at: u64, size: u64) -> i32 {
    let parts = ranges.within(at, at + size);
    let covered: u64 = parts.iter().map(|(low, high, _)| high - low).sum();
    match covered == size {
        false => 0,
        true if parts.iter().all(|(_, _, value)| *value == ByteValue::Known) => 1,
        true => 2,
    }
}

/// Ranges that Python passes as two arrays of the same length.
unsafe fn ranges_from_arrays<'a>(
    at: *const u64,
    size: *const u64,
    count: usize,
) -> impl Iterator<Item = (u64, u64)> + 'a {
    let (at, size) = match count {
        0 => (&[][..], &[][..]),
        _ => unsafe { (std::slice::from_raw_parts(at, count), std::slice::from_raw_parts(size, count)) },
    };
    at.iter().copied().zip(size.iter().copied())
}

/// Parts of a range that have a value.
pub(crate) fn parts(at: u64, size: u64) -> Vec<(u64, u64, ByteValue)> {
    ranges().within(at, at + size)
}

/// For oomph's Python part: 1 if all bytes are known, 2 if all have a value and some are made up, otherwise
/// 0.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_value(at: u64, size: u64) -> i32 {
    state(&ranges(), at, size)
}

/// For oomph's Python part: [`oomph_emulator_value`] for many ranges.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_value_all(at: *const u64, size: *const u64, count: usize) -> i32 {
    let ranges = ranges();
    let mut all = 1;
    for (at, size) in unsafe { ranges_from_arrays(at, size, count) } {
        match state(&ranges, at, size) {
            0 => return 0,
            state => all = all.max(state),
        }
    }
    all
}

/// For oomph's Python part: [`oomph_emulator_note`] for many ranges.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_note_all(at: *const u64, size: *const u64, count: usize, value: i32) {
    for (at, size) in unsafe { ranges_from_arrays(at, size, count) } {
        oomph_emulator_note(at, size, value);
    }
}

/// For oomph's Python part: forgets everything outside these ranges.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_retain(at: *const u64, size: *const u64, count: usize) {
    let mut ranges = ranges();
    let mut retained = ValueRanges::default();
    for (at, size) in unsafe { ranges_from_arrays(at, size, count) } {
        for (low, high, value) in ranges.within(at, at + size) {
            retained.keep(low, high, value);
        }
    }
    *ranges = retained;
}

/// For oomph's Python part: the next read of 1, 4 or 8 bytes by this thread returns this number. Operators
/// whose result size depends on values read it from an address that only they know, just after a kernel has
/// counted.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_answer(value: u64) {
    ANSWERS.with_borrow_mut(|answers| answers.push_back(value));
}

/// For oomph's Python part: from the first call on, reads return zeros unless this thread vouches for them.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_vouch(vouched: bool) {
    GUARDED.store(true, Relaxed);
    VOUCHED.set(vouched);
}

/// For oomph's Python part: drops the answers that this thread did not read, and returns their number.
#[unsafe(no_mangle)]
extern "C" fn oomph_emulator_unanswered() -> u64 {
    ANSWERS.with_borrow_mut(|answers| answers.drain(..).count() as u64)
}

/// For oomph's Python part: makes these bytes known zeros, without touching host memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn oomph_emulator_zero(at: u64, size: u64) {
    unsafe { crate::copies::clear(at as *mut u8, size) };
    keep(at, size, ByteValue::Known);
}
