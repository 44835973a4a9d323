//! Which library has called the driver.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Frames that are looked at: the runtime's own between a library and the driver are few.
const MAX_FRAMES: usize = 24;

/// Address of the driver, whose own frames are no callers.
static DRIVER: AtomicUsize = AtomicUsize::new(0);

/// Says where the driver is loaded.
pub(crate) fn set_driver(function: *const c_void) {
    DRIVER.store(library_of(function).map_or(0, |(base, _)| base), Ordering::Relaxed);
}

/// Returns the path of the library that has called the driver, directly or through the CUDA runtime.
pub(crate) fn library() -> &'static str {
    let mut frames = [ptr::null_mut(); MAX_FRAMES];
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), MAX_FRAMES as i32) }.max(0) as usize;
    let own = library_of(library as *const c_void).map_or(0, |(base, _)| base);
    let driver = DRIVER.load(Ordering::Relaxed);
    let mut runtime = "";
    for frame in &frames[..count] {
        let Some((base, name)) = library_of(*frame) else { continue };
        if base == own || base == driver {
            continue;
        }
        if !is_runtime(name) {
            return name;
        }
        runtime = name;
    }
    runtime
}

fn is_runtime(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with("libcudart"))
}

/// Returns the address and the path of the library in which some code is. Paths stay valid: libraries of CUDA
/// are never unloaded, and those of others rarely; a path that is gone would be read as another text.
fn library_of(code: *const c_void) -> Option<(usize, &'static str)> {
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    if unsafe { libc::dladdr(code, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_str().unwrap_or("");
    Some((info.dli_fbase as usize, name))
}
