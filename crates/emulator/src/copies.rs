//! Copies between any two memories, and the variables declared by device code. Small copies keep their
//! values.

use crate::memory::{is_device, memory};
use crate::values::{self, ByteValue};
use crate::{OUT_OF_MEMORY, SUCCESS, StatusCode, device, graphs, put};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Copies to the device keep their values up to this size: indices, masks and scalars, but not weights.
pub(crate) const MAX_KEPT_COPY_BYTES: u64 = 64 << 10;

/// Zeros memory, without using host memory for whole pages.
pub(crate) unsafe fn clear(at: *mut u8, size: u64) {
    const PAGE_BYTES: u64 = 4096;
    let (low, high) = (at as u64, at as u64 + size);
    let (first, last) = (low.next_multiple_of(PAGE_BYTES), high / PAGE_BYTES * PAGE_BYTES);
    unsafe {
        if last <= first + MAX_KEPT_COPY_BYTES
            || libc::madvise(first as *mut c_void, (last - first) as usize, libc::MADV_DONTNEED) != 0
        {
            std::ptr::write_bytes(at, 0, size as usize);
        } else {
            std::ptr::write_bytes(at, 0, (first - low) as usize);
            std::ptr::write_bytes(last as *mut u8, 0, (high - last) as usize);
        }
    }
}

/// Copies within devices keep what was gathered from many ranks up to this size.
const MAX_GATHERED_BYTES: u64 = 16 << 20;

/// Whether memory of a device holds values that were written to it piece by piece. Zeros do not count: a
/// large buffer that was cleared takes no memory of the host, and a copy of it would.
unsafe fn is_gathered(from: u64, size: u64) -> bool {
    let is_written = |low: u64, high: u64| {
        let bytes = unsafe { std::slice::from_raw_parts(low as *const u8, (high - low) as usize) };
        bytes.iter().any(|&byte| byte != 0)
    };
    size <= MAX_GATHERED_BYTES
        && values::parts(from, size).iter().any(|&(low, high, _)| is_written(low, high))
}

/// Copies between any two addresses.
unsafe fn copy(to: u64, from: u64, size: u64) {
    graphs::record_work();
    if size == 0 {
        return;
    }
    unsafe {
        match (is_device(to), is_device(from)) {
            (false, false) => std::ptr::copy(from as *const u8, to as *mut u8, size as usize),
            (false, true) => values::read(to as *mut u8, from, size),
            (true, _) if size > MAX_KEPT_COPY_BYTES && !(is_device(from) && is_gathered(from, size)) => {
                values::forget(to, size)
            }
            (true, false) => {
                std::ptr::copy(from as *const u8, to as *mut u8, size as usize);
                values::keep(to, size, ByteValue::Known);
            }
            (true, true) => {
                std::ptr::copy(from as *const u8, to as *mut u8, size as usize);
                values::copy(to, from, size);
            }
        }
    }
}

unsafe fn set(to: u64, byte: i32, size: u64) {
    graphs::record_work();
    unsafe {
        if byte == 0 {
            clear(to as *mut u8, size);
        } else if size <= MAX_KEPT_COPY_BYTES {
            std::ptr::write_bytes(to as *mut u8, byte as u8, size as usize);
        } else {
            return values::forget(to, size);
        }
    }
    values::keep(to, size, ByteValue::Known);
}

runtime! {
    fn cudaMemcpy(to: u64, from: u64, size: usize, _kind: i32) -> StatusCode {
        unsafe { copy(to, from, size as u64) };
        SUCCESS
    }

    fn cudaMemcpyAsync(to: u64, from: u64, size: usize, _kind: i32, _stream: u64) -> StatusCode {
        unsafe { copy(to, from, size as u64) };
        SUCCESS
    }

    fn cudaMemcpyPeerAsync(
        to: u64,
        _to_device: i32,
        from: u64,
        _from_device: i32,
        size: usize,
        _stream: u64,
    ) -> StatusCode {
        unsafe { copy(to, from, size as u64) };
        SUCCESS
    }

    pub(crate) fn cudaMemcpy2DAsync(
        to: u64,
        to_pitch: usize,
        from: u64,
        from_pitch: usize,
        width: usize,
        height: usize,
        _kind: i32,
        _stream: u64,
    ) -> StatusCode {
        for row in 0..height as u64 {
            unsafe { copy(to + row * to_pitch as u64, from + row * from_pitch as u64, width as u64) };
        }
        SUCCESS
    }

    fn cudaMemset(to: u64, byte: i32, size: usize) -> StatusCode {
        unsafe { set(to, byte, size as u64) };
        SUCCESS
    }

    fn cudaMemsetAsync(to: u64, byte: i32, size: usize, _stream: u64) -> StatusCode {
        unsafe { cudaMemset(to, byte, size) }
    }
}

/// Address of a variable declared by device code, given its address on the host.
fn symbol_address(symbol: u64) -> Option<u64> {
    static SYMBOLS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    const SYMBOL_BYTES: u64 = 1 << 20;
    let mut symbols = SYMBOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&at) = symbols.get(&symbol) {
        return Some(at);
    }
    // Variables belong to the loaded module, not to the program's allocations.
    let at = memory().reserve_virtual(SYMBOL_BYTES)?;
    symbols.insert(symbol, at);
    Some(at)
}

runtime! {
    fn cudaGetSymbolAddress(to: *mut u64, name: u64) -> StatusCode {
        match symbol_address(name) {
            Some(at) => {
                unsafe { put(to, at) };
                SUCCESS
            }
            None => device::record_error(OUT_OF_MEMORY),
        }
    }

    fn cudaMemcpyToSymbol(
        name: u64,
        from: u64,
        size: usize,
        offset: usize,
        _kind: i32,
    ) -> StatusCode {
        match symbol_address(name) {
            Some(at) => {
                unsafe { copy(at + offset as u64, from, size as u64) };
                SUCCESS
            }
            None => device::record_error(OUT_OF_MEMORY),
        }
    }
}
