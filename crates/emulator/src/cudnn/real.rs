//! Functions of the real cuDNN that need no device: descriptors and, through them, planning.
//!
//! PyTorch has already loaded the library. Its functions are found by name in the library, because the
//! emulator's functions hide them.

use super::{Descriptor, NOT_INITIALIZED, StatusCode};
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

/// Address of a function of the real library.
fn find(name: &CStr) -> Option<usize> {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    const NAME: &CStr = c"libcudnn.so.9";
    let library = *LIBRARY.get_or_init(|| {
        let library = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            crate::notes::print("cannot load libcudnn.so.9");
        }
        library as usize
    });
    if library == 0 {
        return None;
    }
    let function = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    (!function.is_null()).then_some(function as usize)
}

/// Functions of the real library under their own names; a missing one returns "not initialized".
macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {$(
        #[allow(clippy::too_many_arguments)] // same arguments as the library's function
        pub(super) unsafe fn $name($($argument: $type),*) -> StatusCode {
            static ADDRESS: OnceLock<Option<usize>> = OnceLock::new();
            const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
            let address = *ADDRESS.get_or_init(|| CStr::from_bytes_with_nul(NAME).ok().and_then(find));
            let Some(address) = address else { return NOT_INITIALIZED };
            let function: unsafe extern "C" fn($($type),*) -> StatusCode =
                unsafe { std::mem::transmute(address) };
            unsafe { function($($argument),*) }
        }
    )*};
}

real! {
    cudnnBackendCreateDescriptor(kind: i32, to: *mut Descriptor);
    cudnnBackendDestroyDescriptor(descriptor: Descriptor);
    cudnnBackendFinalize(descriptor: Descriptor);
    cudnnBackendSetAttribute(descriptor: Descriptor, name: i32, kind: i32, count: i64, values: *const c_void);
    cudnnBackendGetAttribute(
        descriptor: Descriptor, name: i32, kind: i32, room: i64, count: *mut i64, values: *mut c_void,
    );
    cudnnGetTensorNdDescriptor(
        tensor: Descriptor, room: i32, data_type: *mut i32, dimensions: *mut i32,
        sizes: *mut i32, strides: *mut i32,
    );
    cudnnSetTensorNdDescriptor(
        tensor: Descriptor, data_type: i32, dimensions: i32, sizes: *const i32, strides: *const i32,
    );
    cudnnGetRNNDescriptor_v8(
        network: Descriptor, algorithm: *mut i32, cell: *mut i32, bias: *mut i32, direction: *mut i32,
        input_mode: *mut i32, data_type: *mut i32, math_type: *mut i32, math_mode: *mut i32, input: *mut i32,
        hidden: *mut i32, output: *mut i32, layers: *mut i32, dropout: *mut Descriptor, flags: *mut u32,
    );
    cudnnGetRNNDataDescriptor(
        sequences: Descriptor, data_type: *mut i32, layout: *mut i32, longest: *mut i32, batch: *mut i32,
        vector: *mut i32, room: i32, lengths: *mut i32, padding: *mut c_void,
    );
    cudnnGetCTCLossDescriptor_v9(
        descriptor: Descriptor, data_type: *mut i32, normalization: *mut i32, gradient_mode: *mut i32,
        longest_label: *mut i32,
    );
}

/// Release of the library, as `MAJOR * 10000 + MINOR * 100 + PATCH`.
pub(super) fn version() -> usize {
    static VERSION: OnceLock<usize> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let Some(address) = find(c"cudnnGetVersion") else { return 0 };
        let function: extern "C" fn() -> usize = unsafe { std::mem::transmute(address) };
        function()
    })
}
