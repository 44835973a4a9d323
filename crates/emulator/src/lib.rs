//! A CUDA emulator: the driver, the runtime and the libraries above them, as far as PyTorch calls them.
//!
//! It is loaded ahead of the real libraries into a child process that oomph starts, and into nothing else. Requests for
//! memory, streams, events, captures and properties are answered as the chosen card would answer them; kernels do
//! nothing. So an unmodified PyTorch makes the same memory requests as on that card, on a machine without a GPU.
//!
//! Only documented interfaces are answered. The driver's undocumented tables, among them the check by which NVIDIA's
//! own libraries make sure of the driver, are refused ([`driver`]). Whatever is not covered fails with its name
//! ([`notes::uncovered`]), never silently.
//!
//! What values are: copies from the host are kept up to [`copies::LARGEST_COPY`] bytes, memory that a kernel would have
//! written reads as zero ([`values`]).

#![allow(unsafe_code)] // every function here is called by C code, through pointers
#![allow(non_snake_case)] // and has the name that C code knows

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
mod kernels;
mod memory;
mod nccl;
mod notes;
mod nvml;
mod process;
mod solver;
mod space;
mod sparse;
mod streams;
mod uncovered;
mod values;
mod virtual_memory;

/// Status of the runtime and of the driver: their codes agree where we use them.
pub(crate) type Status = i32;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const INVALID_VALUE: Status = 1;
pub(crate) const OUT_OF_MEMORY: Status = 2;
pub(crate) const NOT_INITIALIZED: Status = 3;
pub(crate) const INVALID_DEVICE: Status = 101;
pub(crate) const INVALID_CONTEXT: Status = 201;
pub(crate) const INVALID_HANDLE: Status = 400;
pub(crate) const NOT_FOUND: Status = 500;
pub(crate) const NOT_SUPPORTED: Status = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Status = 900;

/// Writes an answer through a pointer that C code gave us; a null pointer means that it does not want it.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        unsafe { to.write(value) };
    }
}
