//! cuFFT: plans know how much workspace they want, transforms do nothing.
//!
//! The size is a model. A transform whose lengths each fit a multiprocessor's shared memory goes through without any;
//! longer ones, and those over several dimensions, go through a copy of the data. On an H200 with CUDA 13.0 no transform
//! of one dimension up to 600 wanted any, except those of real numbers over a prime factor of more than 127.

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

/// Up to this length, in bytes of complex numbers, a transform is done by one kernel in shared memory.
const ONE_KERNEL: u64 = 64 << 10;

/// Prime factors up to this are transformed directly, larger ones as a convolution.
const LARGEST_PRIME: u64 = 127;

/// Bytes of a complex number, and whether either side of the transform is real.
fn numbers(from: i32, to: i32, execution: i32) -> Option<(u64, bool)> {
    const REAL: [i32; 3] = [2, 0, 1];
    const COMPLEX: [i32; 3] = [6, 4, 5];
    const BYTES: [u64; 3] = [4, 8, 16];
    let precision = COMPLEX.iter().position(|&datatype| datatype == execution)?;
    Some((BYTES[precision], REAL.contains(&from) || REAL.contains(&to)))
}

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

/// The workspace of transforms over all of `lengths`.
fn workspace(lengths: &[u64], batch: u64, bytes: u64, real: bool) -> u64 {
    let rough = lengths.iter().any(|&length| largest_prime_factor(length) > LARGEST_PRIME);
    let long = lengths.iter().any(|&length| length * bytes > ONE_KERNEL);
    let elements: u64 = batch * lengths.iter().product::<u64>();
    // Real numbers are transformed as half as many complex ones.
    let data = if real { elements * bytes / 2 } else { elements * bytes };
    match (lengths.len() > 1 || long, rough) {
        (false, false) => 0,
        (false, true) if real => 2 * data,
        (false, true) => 0,
        (true, false) => data,
        (true, true) => 3 * data,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftXtMakePlanMany(
    _plan: i32,
    rank: i32,
    lengths: *const i64,
    _from_embed: u64,
    _from_step: i64,
    _from_distance: i64,
    from: i32,
    _to_embed: u64,
    _to_step: i64,
    _to_distance: i64,
    to: i32,
    batch: i64,
    size: *mut usize,
    execution: i32,
) -> Status {
    const MOST_DIMENSIONS: i32 = 3;
    let Some((bytes, real)) = numbers(from, to, execution) else { return INVALID_VALUE };
    if !(1..=MOST_DIMENSIONS).contains(&rank) || lengths.is_null() || batch < 1 {
        return INVALID_VALUE;
    }
    let lengths: Vec<u64> = unsafe { std::slice::from_raw_parts(lengths, rank as usize) }
        .iter()
        .map(|&length| length as u64)
        .collect();
    notes::modelled("cuFFT workspace");
    unsafe { put(size, workspace(&lengths, batch as u64, bytes, real) as usize) };
    SUCCESS
}
