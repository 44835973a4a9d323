//! cuFFT: plans know how much workspace they want, transforms do nothing.
//!
//! Most transforms want none: a kernel reads a line of numbers, transforms it in a multiprocessor's registers and shared
//! memory, and writes it. One of several dimensions goes through its data once for each, in place. Only lines for which
//! there is no such kernel need room for what is between two passes. Which lines those are is a table inside of cuFFT
//! (kernels exist for chosen lengths), so the limits here are just what was found on an H200 with CUDA 13.0. They give
//! all of the 4,296 sizes measured there: 84 lengths from 2 to 4,194,304, 33 planes and 13 volumes, of batches from 1 to
//! 1024. Not measured, and so a guess: real lines of even length with a large prime factor, real lines of odd length
//! beyond 343 without one, and columns too long for a convolution in one kernel.

use crate::{SUCCESS, Status, notes, put};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

const INVALID_VALUE: Status = 4;

does_nothing! {
    cufftDestroy cufftSetAutoAllocation cufftSetStream cufftSetWorkArea cufftXtExec
}

/// Plans are numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn cufftCreate(to: *mut i32) -> Status {
    static LAST: AtomicI32 = AtomicI32::new(0);
    unsafe { put(to, LAST.fetch_add(1, Relaxed) + 1) };
    SUCCESS
}

/// Bytes of a complex number of half, single and double precision.
const HALF: u64 = 4;
const SINGLE: u64 = 8;
const DOUBLE: u64 = 16;

/// Bytes of a complex number, and whether either side of the transform is real.
fn numbers(from: i32, to: i32, execution: i32) -> Option<(u64, bool)> {
    const REAL: [i32; 3] = [2, 0, 1];
    const COMPLEX: [i32; 3] = [6, 4, 5];
    const BYTES: [u64; 3] = [HALF, SINGLE, DOUBLE];
    let precision = COMPLEX.iter().position(|&datatype| datatype == execution)?;
    Some((BYTES[precision], REAL.contains(&from) || REAL.contains(&to)))
}

/// Prime factors up to this are transformed directly, larger ones as a convolution.
const LARGEST_PRIME: u64 = 127;

fn largest_prime_factor(mut n: u64) -> u64 {
    let (mut largest, mut factor) = (1, 2);
    while factor * factor <= n {
        while n.is_multiple_of(factor) {
            largest = factor;
            n /= factor;
        }
        factor += 1;
    }
    largest.max(n)
}

fn is_rough(length: u64) -> bool {
    largest_prime_factor(length) > LARGEST_PRIME
}

/// The length of the convolution (Bluestein's algorithm) that transforms a rough length: twice as long, rounded up to
/// a number that has a fast transform itself.
fn convolution(length: u64) -> u64 {
    const FAST_FACTOR: u64 = 5;
    (2 * length - 1..).find(|&n| largest_prime_factor(n) <= FAST_FACTOR).expect("powers of two are fast")
}

/// The lengths that some kind of kernel exists for.
struct Kernels {
    up_to: u64,
    powers_of_two_up_to: u64,
    /// Single lengths that were found not to follow the limits.
    but_with: &'static [u64],
    but_without: &'static [u64],
}

impl Kernels {
    fn transform(&self, length: u64) -> bool {
        let limit = if length.is_power_of_two() { self.powers_of_two_up_to } else { self.up_to };
        (length <= limit || self.but_with.contains(&length)) && !self.but_without.contains(&length)
    }

    /// Whole lines of complex numbers that lie next to one another.
    fn of_lines(bytes: u64) -> Kernels {
        let (up_to, powers_of_two_up_to) = match bytes {
            HALF => (0, 8_192),
            SINGLE => (24_576, 16_384),
            _ => (10_000, 16_384),
        };
        let (but_with, but_without): (&[u64], &[u64]) = match bytes {
            SINGLE => (&[], &[12_000, 22_050]),
            DOUBLE => (&[12_288], &[3_000]),
            _ => (&[], &[]),
        };
        Kernels { up_to, powers_of_two_up_to, but_with, but_without }
    }

    /// Lines of complex numbers that lie apart, as the columns of a matrix do.
    fn of_columns(bytes: u64, length: u64) -> Kernels {
        // The longer kernels are for products of small primes. Of the others, only 721 was found to have none.
        const SMALL_PRIME: u64 = 7;
        const UP_TO_OF_LARGE_PRIMES: u64 = 512;
        let (up_to, powers_of_two_up_to) = match bytes {
            HALF => (0, 4_096),
            SINGLE if largest_prime_factor(length) > SMALL_PRIME => (UP_TO_OF_LARGE_PRIMES, 0),
            SINGLE => (1_500, 4_096),
            _ => (512, 2_048),
        };
        let but_with: &[u64] = if bytes == SINGLE { &[3_000] } else { &[] };
        Kernels { up_to, powers_of_two_up_to, but_with, but_without: &[] }
    }

    /// Lines of real numbers.
    fn of_real(bytes: u64, is_strided: bool) -> Kernels {
        let powers_of_two_up_to = match bytes {
            _ if is_strided => 1_024,
            HALF => 8_192,
            SINGLE => 16_384,
            _ => 4_096,
        };
        let but_without: &[u64] = if is_strided { &[10, 500] } else { &[500] };
        Kernels { up_to: 1_024, powers_of_two_up_to, but_with: &[], but_without }
    }
}

/// Buffers of a workspace begin at multiples of this.
const ALIGNMENT: u64 = 1 << 10;

struct Transforms<'a> {
    /// Of the dimensions, of which the last is that of the lines.
    lengths: &'a [u64],
    batch: u64,
    /// Of a complex number.
    bytes: u64,
    is_real: bool,
    /// Whether the numbers of a line lie apart in memory.
    is_strided: bool,
}

impl Transforms<'_> {
    fn line(&self) -> u64 {
        *self.lengths.last().expect("plans have a dimension")
    }

    fn columns(&self) -> &[u64] {
        &self.lengths[..self.lengths.len() - 1]
    }

    /// The lines of all transforms.
    fn lines(&self) -> u64 {
        self.batch * self.columns().iter().product::<u64>()
    }

    /// Whether a convolution goes through in one kernel.
    fn convolves_at_once(&self, length: u64) -> bool {
        const AT_ONCE: u64 = 64 << 10;
        convolution(length) * self.bytes <= AT_ONCE
    }

    /// Whether one kernel transforms a column.
    fn does_column(&self, length: u64) -> bool {
        if is_rough(length) {
            self.convolves_at_once(length)
        } else {
            Kernels::of_columns(self.bytes, length).transform(length)
        }
    }

    fn does_columns(&self) -> bool {
        self.columns().iter().all(|&length| self.does_column(length))
    }

    fn workspace(&self) -> u64 {
        match (self.is_real, self.line().is_multiple_of(2)) {
            (false, _) => self.of_complex(),
            (true, true) => self.of_even(),
            (true, false) => self.of_odd(),
        }
    }

    /// A copy of the data, or the two sides of a convolution.
    fn of_complex(&self) -> u64 {
        let line = self.line();
        let does_line = if is_rough(line) {
            self.convolves_at_once(line)
        } else if self.is_strided {
            self.does_column(line)
        } else {
            Kernels::of_lines(self.bytes).transform(line)
        };
        if does_line && self.does_columns() {
            0
        } else if is_rough(line) {
            2 * (self.lines() * convolution(line) * self.bytes).next_multiple_of(ALIGNMENT)
        } else {
            self.lines() * line * self.bytes
        }
    }

    /// Real lines of even length are transformed as complex ones of half the length, and taken apart after.
    fn of_even(&self) -> u64 {
        let half = self.line() / 2;
        let has_kernel =
            !is_rough(half) && Kernels::of_real(self.bytes, self.is_strided).transform(self.line());
        if has_kernel && self.does_columns() {
            return 0;
        }
        let halves =
            Transforms { lengths: &[half], batch: self.lines(), is_real: false, is_strided: false, ..*self };
        let of_halves = halves.of_complex();
        // With a second pass, the complex side of the transform is kept: one number more than half a line.
        let has_passes = !self.does_columns() || of_halves > 0;
        let kept = self.lines() * (half + u64::from(has_passes)) * self.bytes;
        if is_rough(half) { kept + of_halves } else { kept }
    }

    /// Real lines of odd length are transformed in pairs, as the two parts of complex ones.
    fn of_odd(&self) -> u64 {
        let line = self.line();
        let has_kernel = !is_rough(line) && Kernels::of_real(self.bytes, self.is_strided).transform(line);
        if has_kernel {
            return if self.does_columns() { 0 } else { self.lines() * (line / 2 + 1) * self.bytes };
        }
        let pairs = Transforms { batch: self.batch.div_ceil(2), ..*self }.lines();
        let data = pairs * line * self.bytes;
        if is_rough(line) && !self.convolves_at_once(line) {
            let side = pairs * (convolution(line) + 1) * self.bytes;
            data + 2 * side.next_multiple_of(ALIGNMENT)
        } else {
            data + data.next_multiple_of(ALIGNMENT)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftXtMakePlanMany(
    _plan: i32,
    rank: i32,
    lengths: *const i64,
    from_embed: u64,
    from_step: i64,
    _from_distance: i64,
    from: i32,
    _to_embed: u64,
    to_step: i64,
    _to_distance: i64,
    to: i32,
    batch: i64,
    size: *mut usize,
    execution: i32,
) -> Status {
    const MOST_DIMENSIONS: i32 = 3;
    let Some((bytes, is_real)) = numbers(from, to, execution) else { return INVALID_VALUE };
    if !(1..=MOST_DIMENSIONS).contains(&rank) || lengths.is_null() || batch < 1 {
        return INVALID_VALUE;
    }
    let lengths: Vec<u64> = unsafe { std::slice::from_raw_parts(lengths, rank as usize) }
        .iter()
        .map(|&length| length as u64)
        .collect();
    // Without the first, numbers lie next to one another.
    let is_strided = from_embed != 0 && (from_step, to_step) != (1, 1);
    let transforms = Transforms { lengths: &lengths, batch: batch as u64, bytes, is_real, is_strided };
    notes::modelled("cuFFT workspace");
    unsafe { put(size, transforms.workspace() as usize) };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workspaces as an H200 gave them.
    #[test]
    fn agrees_with_an_h200() {
        let complex =
            |lengths, batch, bytes| Transforms { lengths, batch, bytes, is_real: false, is_strided: false };
        let real = |lengths, batch, bytes| Transforms { is_real: true, ..complex(lengths, batch, bytes) };
        let strided = |transforms| Transforms { is_strided: true, ..transforms };
        let measured = [
            // Feature maps.
            (real(&[64, 64], 16, SINGLE), 0),
            (complex(&[1024, 1024], 3, SINGLE), 0),
            (real(&[720, 1280], 3, SINGLE), 11_059_200),
            (real(&[721, 1440], 16, SINGLE), 66_539_648),
            (complex(&[721, 1440], 1, SINGLE), 8_305_920),
            (real(&[1000, 1000], 1, DOUBLE), 8_016_000),
            (complex(&[100, 100, 100], 3, DOUBLE), 0),
            // Signals.
            (complex(&[16_384], 3, SINGLE), 0),
            (complex(&[22_050], 1, SINGLE), 176_400),
            (real(&[1_024], 100, SINGLE), 0),
            (real(&[16_000], 16, SINGLE), 1_024_000),
            (real(&[480_000], 16, SINGLE), 30_720_128),
            (real(&[6_000], 3, DOUBLE), 144_048),
            (strided(real(&[2_048], 3, SINGLE)), 24_576),
            (strided(complex(&[2_000], 3, SINGLE)), 48_000),
            (strided(complex(&[4_096], 3, SINGLE)), 0),
            // Lengths with a large prime factor.
            (complex(&[4_093], 100, SINGLE), 0),
            (complex(&[4_097], 3, SINGLE), 415_744),
            (real(&[131], 16, SINGLE), 17_600),
            (real(&[257, 257], 3, SINGLE), 2_114_576),
            (real(&[4_097], 16, DOUBLE), 2_738_304),
            (real(&[8_193], 100, SINGLE), 16_779_664),
        ];
        for (transforms, size) in measured {
            let Transforms { lengths, batch, .. } = transforms;
            assert_eq!(transforms.workspace(), size, "{batch} of {lengths:?}");
        }
    }
}
