//! Address space of the process for device memory: mapped, readable and writable, but never reserved. Only
//! pages that are written to use host memory.

use crate::addresses::Space;
use std::ffi::c_void;
use std::sync::OnceLock;

/// Address space where the process has room.
///
/// A driver's chunks start at multiples of their size. These start at such distances from the first one,
/// because a process starts at a different page each time and a prediction must not depend on it.
#[derive(Default)]
pub(crate) struct Mapped {
    origin: Option<u64>,
}

impl Space for Mapped {
    fn take(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let at = map(0, size + alignment, 0)?;
        let end = at + size + alignment;
        let origin = *self.origin.get_or_insert(end);
        // Use the highest part, so that chunks are adjacent, and return the rest.
        let highest = end - size;
        let low = match highest.checked_sub(origin) {
            Some(above) => origin + above / alignment * alignment,
            None => origin - (origin - highest).next_multiple_of(alignment),
        };
        unmap(at, low - at);
        unmap(low + size, end - (low + size));
        Some(low)
    }

    fn release(&mut self, at: u64, size: u64) {
        unmap(at, size);
    }
}

/// Address ranges of virtual memory are long and contain no segments of their own, so they are far away from
/// everything else.
const VIRTUAL_BYTES: u64 = 48 << 40;
const VIRTUAL_BASE: u64 = 0x1000_0000_0000;

/// Start and end of all virtual memory.
pub(crate) fn virtual_range() -> (u64, u64) {
    static START: OnceLock<u64> = OnceLock::new();
    let start = *START.get_or_init(|| {
        let at =
            map(VIRTUAL_BASE, VIRTUAL_BYTES, libc::MAP_FIXED_NOREPLACE).or_else(|| map(0, VIRTUAL_BYTES, 0));
        at.unwrap_or_else(|| {
            crate::notes::print("no address space for the emulated device memory (is `ulimit -v` set?)");
            std::process::abort()
        })
    });
    (start, start + VIRTUAL_BYTES)
}

fn map(at: u64, size: u64, flags: i32) -> Option<u64> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let at = unsafe { libc::mmap(at as *mut c_void, size as usize, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // One touched byte must not cost 2 MiB of host memory.
    unsafe { libc::madvise(at, size as usize, libc::MADV_NOHUGEPAGE) };
    Some(at as u64)
}

/// Maps memory that the host and devices share.
pub(crate) fn map_host(size: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size.max(1) as usize, access, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as u64)
}

pub(crate) fn unmap(at: u64, size: u64) {
    if size > 0 {
        unsafe { libc::munmap(at as *mut c_void, size as usize) };
    }
}
