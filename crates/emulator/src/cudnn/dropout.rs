//! Dropout descriptors. Setting one starts a kernel that seeds the generators, so the real library is not
//! called.

use super::{Descriptor, SUCCESS, StatusCode};
use crate::card::card;
use crate::{notes, put};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Dropout rate of each descriptor that was set.
fn rates() -> MutexGuard<'static, HashMap<usize, f32>> {
    static RATES: LazyLock<Mutex<HashMap<usize, f32>>> = LazyLock::new(Default::default);
    RATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a descriptor was set to drop anything.
pub(super) fn has_dropout(descriptor: Descriptor) -> bool {
    rates().get(&(descriptor as usize)).is_some_and(|rate| *rate > 0.0)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetDropoutDescriptor(
    descriptor: Descriptor,
    _handle: u64,
    rate: f32,
    _states: u64,
    _size: usize,
    _seed: u64,
) -> StatusCode {
    rates().insert(descriptor as usize, rate);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudnnRestoreDropoutDescriptor(
    descriptor: Descriptor,
    handle: u64,
    rate: f32,
    states: u64,
    size: usize,
    seed: u64,
) -> StatusCode {
    cudnnSetDropoutDescriptor(descriptor, handle, rate, states, size, seed)
}

/// One generator per thread of a block on every multiprocessor: an H200 returns 6,488,064.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnDropoutGetStatesSize(_handle: u64, to: *mut usize) -> StatusCode {
    const GENERATORS_PER_MULTIPROCESSOR: usize = 1024;
    const GENERATOR_BYTES: usize = 48; // `sizeof(curandStateXORWOW_t)`
    notes::modeled("cuDNN dropout states");
    let generators = card().multiprocessors as usize * GENERATORS_PER_MULTIPROCESSOR;
    unsafe { put(to, generators * GENERATOR_BYTES) };
    SUCCESS
}
