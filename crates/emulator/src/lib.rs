//! CUDA emulator: the driver, the runtime and the libraries on top of them, as far as PyTorch calls them.
//!
//! This library is loaded before the real ones into a child process that oomph starts, and nowhere else. It
//! answers requests for memory, streams, events, captures and properties as the chosen card would; kernels do
//! nothing. So an unmodified PyTorch makes the same memory requests as on that card, on a machine without a
//! GPU.
//!
//! Only documented interfaces are implemented. The driver's undocumented tables, among them the check that
//! NVIDIA's own libraries use to verify the driver, are refused ([`driver`]). A function that is not covered
//! fails with its name ([`notes::uncovered`]), never silently.
//!
//! Copies from the host keep their values up to [`copies::MAX_KEPT_COPY_BYTES`]; memory that a kernel would
//! have written reads as zero ([`values`]).

#![cfg(target_os = "linux")] // empty elsewhere: it takes the place of libraries for Linux
#![warn(missing_docs)]
#![allow(unsafe_code)] // C code calls every function here, through pointers
#![allow(non_snake_case)] // with the names that C code knows

#[macro_use]
mod macros;

mod addresses;
mod blas;
mod card;
mod contexts;
mod copies;
mod cudnn;
mod device;
mod driver;
mod fft;
mod graphs;
mod ipc;
mod kernels;
mod managed;
mod memory;
mod nccl;
mod notes;
mod nvml;
mod pools;
mod process;
mod solver;
mod space;
mod sparse;
mod streams;
mod uncovered;
mod values;
mod virtual_memory;

/// Status code of an emulated function. Each library has its own codes; 0 is success in all of them. The
/// codes here are those of the runtime and of the driver, which are the same in both.
pub(crate) type StatusCode = i32;

pub(crate) const SUCCESS: StatusCode = 0;
pub(crate) const INVALID_VALUE: StatusCode = 1;
pub(crate) const OUT_OF_MEMORY: StatusCode = 2;
pub(crate) const NOT_INITIALIZED: StatusCode = 3;
pub(crate) const INVALID_DEVICE: StatusCode = 101;
pub(crate) const INVALID_CONTEXT: StatusCode = 201;
pub(crate) const INVALID_HANDLE: StatusCode = 400;
pub(crate) const NOT_FOUND: StatusCode = 500;
pub(crate) const NOT_READY: StatusCode = 600;
pub(crate) const NOT_SUPPORTED: StatusCode = 801;
pub(crate) const CAPTURE_UNSUPPORTED: StatusCode = 900;

/// Writes an answer through a pointer given by C code; null means that the caller does not want it.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        unsafe { to.write(value) };
    }
}
