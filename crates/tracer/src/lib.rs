//! Counts what libraries take from the CUDA driver: memory that PyTorch's allocator does not see.
//!
//! The recorder loads this library into a process of `oomph run --trace-driver`, before torch is imported.
//! [`oomph_tracer_install`] redirects entries of the driver's symbol table to functions of [`calls`], which
//! call the driver's own and count. Nothing else changes: no other library is loaded first, no environment
//! variable is set, and child processes have the driver as it is.
//!
//! A call belongs to the library that made it ([`caller`]). Where the driver does not say how much memory a
//! call takes (contexts, kernels, graphs), the memory in use before and after it tells ([`in_use`]).

#![cfg(target_os = "linux")] // empty elsewhere: programs are run on Linux
#![warn(missing_docs)]
#![allow(unsafe_code)] // C code calls these functions, and they call C code

mod caller;
mod calls;
mod counts;
mod in_use;
mod physical;
mod symbols;

use std::ffi::{CStr, c_char};

/// Redirects the driver, which is loaded if need be. Returns the number of functions that are counted; 0 if
/// there is no driver, or if its symbol table cannot be changed.
///
/// # Safety
/// `driver` is a C string: the name under which programs load the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_tracer_install(driver: *const c_char) -> usize {
    calls::install(unsafe { CStr::from_ptr(driver) })
}

/// Writes what was counted so far as JSON, without a terminating zero. Returns the length of the whole text,
/// which was cut if that is more than `capacity`.
///
/// # Safety
/// `to` points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oomph_tracer_read(to: *mut u8, capacity: usize) -> usize {
    calls::update_pools();
    let text = counts::as_json();
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len().min(capacity)) };
    text.len()
}
