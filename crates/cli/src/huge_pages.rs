//! Large tables on huge pages.
//!
//! A snapshot of half a million events fills 30 MB of tables, front to back. With pages of 4 KiB that
//! is eight thousand page faults, a fifth of the time of `oomph report`; with pages of 2 MiB, a dozen.
//! Linux gives huge pages on request (`madvise`); this allocator requests them for large allocations. On
//! other systems the system's own allocator takes its place.
//!
//! This is the only unsafe code of the workspace.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, with huge pages for large allocations.
pub struct HugePages;

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// From half a huge page on, a table is likely to grow into a whole one.
const MIN_TABLE_BYTES: usize = HUGE_PAGE_BYTES / 2;

/// The layout used for an allocation: large ones are whole huge pages, since the rest of a page would
/// come as small pages.
fn placed(layout: Layout) -> Layout {
    if layout.size() < MIN_TABLE_BYTES {
        return layout;
    }
    layout.align_to(HUGE_PAGE_BYTES).map_or(layout, |layout| layout.pad_to_align())
}

/// Requests huge pages; if the kernel declines, nothing changes.
fn ask(start: *mut u8, layout: Layout) {
    if layout.size() >= MIN_TABLE_BYTES && !start.is_null() {
        // SAFETY: the range was just allocated, begins on a page boundary (`placed`) and lies within the
        // allocation; the advice changes how it is backed, never its contents.
        unsafe {
            libc::madvise(start.cast(), placed(layout).size(), libc::MADV_HUGEPAGE);
        }
    }
}

// SAFETY: every call is passed on to `System` with `placed(layout)`, which depends on the layout alone and
// only raises alignment and size, so an allocation is freed with the layout it was made with.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout holds for one of the same size.
        let start = unsafe { System.alloc(placed(layout)) };
        ask(start, layout);
        start
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        let start = unsafe { System.alloc_zeroed(placed(layout)) };
        ask(start, layout);
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: `start` was allocated with `placed(layout)`.
        unsafe { System.dealloc(start, placed(layout)) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.size() < MIN_TABLE_BYTES && new_size < MIN_TABLE_BYTES {
            // SAFETY: small before and after, so the layout is the one that `System` knows.
            return unsafe { System.realloc(start, layout, new_size) };
        }
        // SAFETY: the caller promises that `new_size`, rounded up to the alignment, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the new block is separate from the old one and at least as long as what is copied; the
        // old one is freed with the layout it was made with.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(start, new, layout.size().min(new_size));
                self.dealloc(start, layout);
            }
            new
        }
    }
}
