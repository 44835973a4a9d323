//! cuFFT: plans return the workspace they need, transforms do nothing.
//!
//! Most transforms need none: a kernel reads a line of numbers, transforms it in a multiprocessor's registers
//! and shared memory, and writes it back. A transform of several dimensions processes its data once for each,
//! in place. Only lines without such a kernel need memory for the data between two passes. Which lines those
//! are is a table inside cuFFT (kernels exist for selected lengths), so the limits here are simply what an
//! H200 with CUDA 13.0 showed. They reproduce all 4,296 sizes measured there: 84 lengths from 2 to 4,194,304,
//! 33 planes and 13 volumes, with batches from 1 to 1024. Not measured, and so a guess: real lines of even
//! length with a large prime factor, real lines of odd length above 343 without one, and columns too long for
//! a convolution in one kernel.

use crate::{SUCCESS, StatusCode, notes, put};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

const INVALID_VALUE: StatusCode = 4;

does_work! { cufftSetStream cufftXtExec }

no_op! { cufftDestroy cufftSetAutoAllocation cufftSetWorkArea }

/// Plans are numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn cufftCreate(to: *mut i32) -> StatusCode {
    static LAST: AtomicI32 = AtomicI32::new(0);
    unsafe { put(to, LAST.fetch_add(1, Relaxed) + 1) };
    SUCCESS
}

/// Bytes of a complex number in half, single and double precision.
const COMPLEX32_BYTES: u64 = 4;
const COMPLEX64_BYTES: u64 = 8;
const COMPLEX128_BYTES: u64 = 16;

/// Bytes of a complex number, and whether either side of the transform is real.
fn numbers(from: i32, to: i32, execution: i32) -> Option<(u64, bool)> {
    const REAL: [i32; 3] = [2, 0, 1];
    const COMPLEX: [i32; 3] = [6, 4, 5];
    const BYTES: [u64; 3] = [COMPLEX32_BYTES, COMPLEX64_BYTES, COMPLEX128_BYTES];
    let precision = COMPLEX.iter().position(|&datatype| datatype == execution)?;
    Some((BYTES[precision], REAL.contains(&from) || REAL.contains(&to)))
}

/// Largest prime factor that is transformed directly; larger ones become a convolution.
const MAX_DIRECT_PRIME: u64 = 127;

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

fn has_large_prime(length: u64) -> bool {
    largest_prime_factor(length) > MAX_DIRECT_PRIME
}

/// Length of the convolution (Bluestein's algorithm) that transforms a length with large prime factors: twice
/// as long, rounded up to a length with a fast transform.
fn convolution(length: u64) -> u64 {
    const FAST_FACTOR: u64 = 5;
    (2 * length - 1..).find(|&n| largest_prime_factor(n) <= FAST_FACTOR).expect("powers of two are fast")
}

/// Lengths for which a kind of kernel exists.
struct Kernels {
    up_to: u64,
    powers_of_two_up_to: u64,
    /// Individual lengths that do not follow the limits.
    included: &'static [u64],
    excluded: &'static [u64],
}

impl Kernels {
    fn transform(&self, length: u64) -> bool {
        let limit = if length.is_power_of_two() { self.powers_of_two_up_to } else { self.up_to };
        (length <= limit || self.included.contains(&length)) && !self.excluded.contains(&length)
    }

    /// Kernels for contiguous lines of complex numbers.
    fn for_lines(bytes: u64) -> Kernels {
        let (up_to, powers_of_two_up_to) = match bytes {
            COMPLEX32_BYTES => (0, 8_192),
            COMPLEX64_BYTES => (24_576, 16_384),
            _ => (10_000, 16_384),
        };
        let (included, excluded): (&[u64], &[u64]) = match bytes {
            COMPLEX64_BYTES => (&[], &[12_000, 22_050]),
            COMPLEX128_BYTES => (&[12_288], &[3_000]),
            _ => (&[], &[]),
        };
        Kernels { up_to, powers_of_two_up_to, included, excluded }
    }

    /// Kernels for strided lines of complex numbers, such as the columns of a matrix.
    fn for_columns(bytes: u64, length: u64) -> Kernels {
        // The longer kernels are for products of small primes. Of the others, only 721 was found to have
        // none.
        const SMALL_PRIME: u64 = 7;
        const MAX_LENGTH_WITH_LARGE_PRIME: u64 = 512;
        let (up_to, powers_of_two_up_to) = match bytes {
            COMPLEX32_BYTES => (0, 4_096),
            COMPLEX64_BYTES if largest_prime_factor(length) > SMALL_PRIME => (MAX_LENGTH_WITH_LARGE_PRIME, 0),
            COMPLEX64_BYTES => (1_500, 4_096),
            _ => (512, 2_048),
        };
        let included: &[u64] = if bytes == COMPLEX64_BYTES { &[3_000] } else { &[] };
        Kernels { up_to, powers_of_two_up_to, included, excluded: &[] }
    }

    /// Kernels for lines of real numbers.
    fn for_real(bytes: u64, is_strided: bool) -> Kernels {
        let powers_of_two_up_to = match bytes {
            _ if is_strided => 1_024,
            COMPLEX32_BYTES => 8_192,
            COMPLEX64_BYTES => 16_384,
            _ => 4_096,
        };
        let excluded: &[u64] = if is_strided { &[10, 500] } else { &[500] };
        Kernels { up_to: 1_024, powers_of_two_up_to, included: &[], excluded }
    }
}

/// Alignment of the buffers in a workspace, in bytes.
const BUFFER_ALIGNMENT_BYTES: u64 = 1 << 10;

struct Transforms<'a> {
    /// Lengths of the dimensions; the last is that of the lines.
    lengths: &'a [u64],
    batch: u64,
    /// Bytes of a complex number.
    bytes: u64,
    is_real: bool,
    /// Whether the numbers of a line are strided in memory.
    is_strided: bool,
}

impl Transforms<'_> {
    fn line(&self) -> u64 {
        *self.lengths.last().expect("plans have a dimension")
    }

    fn columns(&self) -> &[u64] {
        &self.lengths[..self.lengths.len() - 1]
    }

    /// Number of lines in all transforms.
    fn lines(&self) -> u64 {
        self.batch * self.columns().iter().product::<u64>()
    }

    /// Whether one kernel computes a convolution.
    fn has_convolution_kernel(&self, length: u64) -> bool {
        const MAX_CONVOLUTION_BYTES: u64 = 64 << 10;
        convolution(length) * self.bytes <= MAX_CONVOLUTION_BYTES
    }

    /// Whether one kernel transforms a column.
    fn has_column_kernel(&self, length: u64) -> bool {
        if has_large_prime(length) {
            self.has_convolution_kernel(length)
        } else {
            Kernels::for_columns(self.bytes, length).transform(length)
        }
    }

    fn has_column_kernels(&self) -> bool {
        self.columns().iter().all(|&length| self.has_column_kernel(length))
    }

    fn workspace(&self) -> u64 {
        match (self.is_real, self.line().is_multiple_of(2)) {
            (false, _) => self.for_complex(),
            (true, true) => self.for_even(),
            (true, false) => self.for_odd(),
        }
    }

    /// Workspace in bytes for complex lines: a copy of the data, or the two sides of a convolution.
    fn for_complex(&self) -> u64 {
        let line = self.line();
        let does_line = if has_large_prime(line) {
            self.has_convolution_kernel(line)
        } else if self.is_strided {
            self.has_column_kernel(line)
        } else {
            Kernels::for_lines(self.bytes).transform(line)
        };
        if does_line && self.has_column_kernels() {
            0
        } else if has_large_prime(line) {
            2 * (self.lines() * convolution(line) * self.bytes).next_multiple_of(BUFFER_ALIGNMENT_BYTES)
        } else {
            self.lines() * line * self.bytes
        }
    }

    /// Workspace in bytes for real lines of even length, which are transformed as complex lines of half the
    /// length and then split.
    fn for_even(&self) -> u64 {
        let half = self.line() / 2;
        let has_kernel =
            !has_large_prime(half) && Kernels::for_real(self.bytes, self.is_strided).transform(self.line());
        if has_kernel && self.has_column_kernels() {
            return 0;
        }
        let halves =
            Transforms { lengths: &[half], batch: self.lines(), is_real: false, is_strided: false, ..*self };
        let of_halves = halves.for_complex();
        // With a second pass, the complex side of the transform is kept: one number more than half a line.
        let has_passes = !self.has_column_kernels() || of_halves > 0;
        let kept = self.lines() * (half + u64::from(has_passes)) * self.bytes;
        if has_large_prime(half) { kept + of_halves } else { kept }
    }

    /// Workspace in bytes for real lines of odd length, which are transformed in pairs, as the two parts of
    /// complex lines.
    fn for_odd(&self) -> u64 {
        let line = self.line();
        let has_kernel =
            !has_large_prime(line) && Kernels::for_real(self.bytes, self.is_strided).transform(line);
        if has_kernel {
            return if self.has_column_kernels() { 0 } else { self.lines() * (line / 2 + 1) * self.bytes };
        }
        let pairs = Transforms { batch: self.batch.div_ceil(2), ..*self }.lines();
        let data = pairs * line * self.bytes;
        if has_large_prime(line) && !self.has_convolution_kernel(line) {
            let side = pairs * (convolution(line) + 1) * self.bytes;
            data + 2 * side.next_multiple_of(BUFFER_ALIGNMENT_BYTES)
        } else {
            data + data.next_multiple_of(BUFFER_ALIGNMENT_BYTES)
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
) -> StatusCode {
    const MAX_DIMENSIONS: i32 = 3;
    let Some((bytes, is_real)) = numbers(from, to, execution) else { return INVALID_VALUE };
    if !(1..=MAX_DIMENSIONS).contains(&rank) || lengths.is_null() || batch < 1 {
        return INVALID_VALUE;
    }
    let lengths: Vec<u64> = unsafe { std::slice::from_raw_parts(lengths, rank as usize) }
        .iter()
        .map(|&length| length as u64)
        .collect();
    // Without the first, numbers are contiguous.
    let is_strided = from_embed != 0 && (from_step, to_step) != (1, 1);
    let transforms = Transforms { lengths: &lengths, batch: batch as u64, bytes, is_real, is_strided };
    notes::modeled("cuFFT workspace");
    unsafe { put(size, transforms.workspace() as usize) };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workspaces returned by an H200.
    #[test]
    fn agrees_with_an_h200() {
        let complex =
            |lengths, batch, bytes| Transforms { lengths, batch, bytes, is_real: false, is_strided: false };
        let real = |lengths, batch, bytes| Transforms { is_real: true, ..complex(lengths, batch, bytes) };
        let strided = |transforms| Transforms { is_strided: true, ..transforms };
        let measured = [
            // Feature maps.
            (real(&[64, 64], 16, COMPLEX64_BYTES), 0),
            (complex(&[1024, 1024], 3, COMPLEX64_BYTES), 0),
            (real(&[720, 1280], 3, COMPLEX64_BYTES), 11_059_200),
            (real(&[721, 1440], 16, COMPLEX64_BYTES), 66_539_648),
            (complex(&[721, 1440], 1, COMPLEX64_BYTES), 8_305_920),
            (real(&[1000, 1000], 1, COMPLEX128_BYTES), 8_016_000),
            (complex(&[100, 100, 100], 3, COMPLEX128_BYTES), 0),
            // Signals.
            (complex(&[16_384], 3, COMPLEX64_BYTES), 0),
            (complex(&[22_050], 1, COMPLEX64_BYTES), 176_400),
            (real(&[1_024], 100, COMPLEX64_BYTES), 0),
            (real(&[16_000], 16, COMPLEX64_BYTES), 1_024_000),
            (real(&[480_000], 16, COMPLEX64_BYTES), 30_720_128),
            (real(&[6_000], 3, COMPLEX128_BYTES), 144_048),
            (strided(real(&[2_048], 3, COMPLEX64_BYTES)), 24_576),
            (strided(complex(&[2_000], 3, COMPLEX64_BYTES)), 48_000),
            (strided(complex(&[4_096], 3, COMPLEX64_BYTES)), 0),
            // Lengths with a large prime factor.
            (complex(&[4_093], 100, COMPLEX64_BYTES), 0),
            (complex(&[4_097], 3, COMPLEX64_BYTES), 415_744),
            (real(&[131], 16, COMPLEX64_BYTES), 17_600),
            (real(&[257, 257], 3, COMPLEX64_BYTES), 2_114_576),
            (real(&[4_097], 16, COMPLEX128_BYTES), 2_738_304),
            (real(&[8_193], 100, COMPLEX64_BYTES), 16_779_664),
        ];
        for (transforms, size) in measured {
            let Transforms { lengths, batch, .. } = transforms;
            assert_eq!(transforms.workspace(), size, "{batch} of {lengths:?}");
        }
    }
}
