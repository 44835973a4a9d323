//! cuBLAS and cuBLASLt ([`lt`]): handles store their modes, products do nothing.
//!
//! PyTorch provides the workspace itself, by its own rule, so no sizes are needed here. Results requested on
//! the host are zero, like unknown device memory.
//!
//! `cublasLtGetVersion` is the real library's; it needs no driver.

mod lt;

use crate::memory::{self, Library};
use crate::{SUCCESS, StatusCode, put};

/// Modes that a caller can read back from a handle.
#[derive(Default)]
struct BlasHandle {
    math_mode: i32,
    pointer_mode: i32,
}

const NOT_INITIALIZED: StatusCode = 1;
const INVALID_VALUE: StatusCode = 7;

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(to: *mut *mut BlasHandle) -> StatusCode {
    if !memory::take_library_memory(Library::Cublas) {
        return NOT_INITIALIZED;
    }
    unsafe { put(to, Box::into_raw(Box::default())) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasDestroy_v2(handle: *mut BlasHandle) -> StatusCode {
    if handle.is_null() {
        return NOT_INITIALIZED;
    }
    drop(unsafe { Box::from_raw(handle) });
    SUCCESS
}

/// Defines the setter and getter of one of a handle's modes.
macro_rules! mode {
    ($field:ident: $get:ident $set:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(handle: *const BlasHandle, to: *mut i32) -> StatusCode {
            match unsafe { handle.as_ref() } {
                Some(handle) => {
                    unsafe { put(to, handle.$field) };
                    SUCCESS
                }
                None => NOT_INITIALIZED,
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set(handle: *mut BlasHandle, mode: i32) -> StatusCode {
            match unsafe { handle.as_mut() } {
                Some(handle) => {
                    handle.$field = mode;
                    SUCCESS
                }
                None => NOT_INITIALIZED,
            }
        }
    };
}

mode! { math_mode: cublasGetMathMode cublasSetMathMode }
mode! { pointer_mode: cublasGetPointerMode_v2 cublasSetPointerMode_v2 }

does_work! { cublasSetStream_v2 }

no_op! {
    cublasSetWorkspace_v2 cublasSetSmCountTarget

    // Vectors.
    cublasSaxpy_v2 cublasDaxpy_v2 cublasCaxpy_v2 cublasZaxpy_v2
    cublasScopy_v2 cublasDcopy_v2 cublasCcopy_v2 cublasZcopy_v2
    cublasSswap_v2 cublasDswap_v2 cublasCswap_v2 cublasZswap_v2
    cublasSscal_v2 cublasDscal_v2 cublasCscal_v2 cublasZscal_v2 cublasCsscal_v2 cublasZdscal_v2
    cublasSrot_v2 cublasDrot_v2 cublasCrot_v2 cublasZrot_v2 cublasCsrot_v2 cublasZdrot_v2
    cublasSrotg_v2 cublasDrotg_v2 cublasCrotg_v2 cublasZrotg_v2
    cublasSrotm_v2 cublasDrotm_v2 cublasSrotmg_v2 cublasDrotmg_v2

    // A matrix and a vector.
    cublasSgemv_v2 cublasDgemv_v2 cublasCgemv_v2 cublasZgemv_v2
    cublasSger_v2 cublasDger_v2 cublasCgerc_v2 cublasZgerc_v2 cublasCgeru_v2 cublasZgeru_v2
    cublasSsymv_v2 cublasDsymv_v2 cublasCsymv_v2 cublasZsymv_v2 cublasChemv_v2 cublasZhemv_v2
    cublasSsyr_v2 cublasDsyr_v2 cublasCsyr_v2 cublasZsyr_v2 cublasCher_v2 cublasZher_v2
    cublasSsyr2_v2 cublasDsyr2_v2 cublasCsyr2_v2 cublasZsyr2_v2 cublasCher2_v2 cublasZher2_v2
    cublasStrmv_v2 cublasDtrmv_v2 cublasCtrmv_v2 cublasZtrmv_v2
    cublasStrsv_v2 cublasDtrsv_v2 cublasCtrsv_v2 cublasZtrsv_v2

    // Matrices.
    cublasSgemm_v2 cublasDgemm_v2 cublasCgemm_v2 cublasZgemm_v2 cublasSgemmEx cublasGemmEx
    cublasSgemmBatched cublasDgemmBatched cublasCgemmBatched cublasZgemmBatched
    cublasSgemmStridedBatched cublasDgemmStridedBatched cublasCgemmStridedBatched cublasZgemmStridedBatched
    cublasGemmStridedBatchedEx
    cublasSsymm_v2 cublasDsymm_v2 cublasCsymm_v2 cublasZsymm_v2 cublasChemm_v2 cublasZhemm_v2
    cublasSsyrk_v2 cublasDsyrk_v2 cublasCsyrk_v2 cublasZsyrk_v2 cublasCherk_v2 cublasZherk_v2
    cublasSsyr2k_v2 cublasDsyr2k_v2 cublasCsyr2k_v2 cublasZsyr2k_v2 cublasCher2k_v2 cublasZher2k_v2
    cublasStrmm_v2 cublasDtrmm_v2 cublasCtrmm_v2 cublasZtrmm_v2
    cublasStrsm_v2 cublasDtrsm_v2 cublasCtrsm_v2 cublasZtrsm_v2
    cublasStrsmBatched cublasDtrsmBatched cublasCtrsmBatched cublasZtrsmBatched
    cublasSgetrfBatched cublasDgetrfBatched cublasCgetrfBatched cublasZgetrfBatched
}

/// Writes a scalar result to the host; a kernel would write one in device memory.
unsafe fn put_on_host<T>(to: *mut T, value: T) -> StatusCode {
    if !memory::is_device(to as u64) {
        unsafe { put(to, value) };
    }
    SUCCESS
}

/// Functions of one vector that return a scalar.
macro_rules! of_one_vector {
    ($($type:ty = $value:expr, $($name:ident)*;)*) => {$($(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_handle: u64, _n: i32, _x: u64, _step: i32, to: *mut $type) -> StatusCode {
            unsafe { put_on_host(to, $value) }
        }
    )*)*};
}

/// First index; cuBLAS counts from one.
const FIRST: i32 = 1;

of_one_vector! {
    f32 = 0.0, cublasSnrm2_v2 cublasScnrm2_v2 cublasSasum_v2 cublasScasum_v2;
    f64 = 0.0, cublasDnrm2_v2 cublasDznrm2_v2 cublasDasum_v2 cublasDzasum_v2;
    i32 = FIRST, cublasIsamax_v2 cublasIdamax_v2 cublasIcamax_v2 cublasIzamax_v2;
    i32 = FIRST, cublasIsamin_v2 cublasIdamin_v2 cublasIcamin_v2 cublasIzamin_v2;
}

/// Products of two vectors.
macro_rules! of_two_vectors {
    ($($type:ty = $value:expr, $($name:ident)*;)*) => {$($(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _handle: u64,
            _n: i32,
            _x: u64,
            _x_step: i32,
            _y: u64,
            _y_step: i32,
            to: *mut $type,
        ) -> StatusCode {
            unsafe { put_on_host(to, $value) }
        }
    )*)*};
}

of_two_vectors! {
    f32 = 0.0, cublasSdot_v2;
    f64 = 0.0, cublasDdot_v2;
    [f32; 2] = [0.0; 2], cublasCdotc_v2 cublasCdotu_v2;
    [f64; 2] = [0.0; 2], cublasZdotc_v2 cublasZdotu_v2;
}

/// Product of vectors with an explicit data type; PyTorch uses it for half precision.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasDotEx(
    _handle: u64,
    _n: i32,
    _x: u64,
    _x_type: i32,
    _x_step: i32,
    _y: u64,
    _y_type: i32,
    _y_step: i32,
    to: *mut u16,
    _result_type: i32,
    _compute_type: i32,
) -> StatusCode {
    unsafe { put_on_host(to, 0) }
}

/// Batched factorizations and solvers that report invalid arguments in a number on the host: the arguments
/// before it, and the functions, one per element type.
macro_rules! checks_arguments {
    (@one ($($before:ty),*) $name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $before,)* info: *mut i32) -> StatusCode {
            unsafe { put(info, 0) };
            SUCCESS
        }
    };
    ($($before:tt $($name:ident)*;)*) => {$($(
        checks_arguments! { @one $before $name }
    )*)*};
}

checks_arguments! {
    (u64, i32, i32, u64, i32, u64)
    cublasSgeqrfBatched cublasDgeqrfBatched cublasCgeqrfBatched cublasZgeqrfBatched;

    (u64, i32, i32, i32, u64, i32, u64, u64, i32)
    cublasSgetrsBatched cublasDgetrsBatched cublasCgetrsBatched cublasZgetrsBatched;

    (u64, i32, i32, i32, i32, u64, i32, u64, i32)
    cublasSgelsBatched cublasDgelsBatched cublasCgelsBatched cublasZgelsBatched;
}

/// Copies of a matrix between host and device; a vector is a matrix of one row.
macro_rules! copies {
    ($matrix:ident $vector:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $matrix(
            rows: i32,
            columns: i32,
            element: i32,
            from: u64,
            from_rows: i32,
            to: u64,
            to_rows: i32,
            stream: u64,
        ) -> StatusCode {
            if rows < 0 || columns < 0 || element <= 0 || from_rows < rows || to_rows < rows {
                return INVALID_VALUE;
            }
            let bytes = |count: i32| count as usize * element as usize;
            unsafe {
                crate::copies::cudaMemcpy2DAsync(
                    to,
                    bytes(to_rows),
                    from,
                    bytes(from_rows),
                    bytes(rows),
                    columns as usize,
                    0,
                    stream,
                )
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $vector(
            count: i32,
            element: i32,
            from: u64,
            from_step: i32,
            to: u64,
            to_step: i32,
            stream: u64,
        ) -> StatusCode {
            unsafe { $matrix(1, count, element, from, from_step, to, to_step, stream) }
        }
    };
}

copies! { cublasSetMatrixAsync cublasSetVectorAsync }
copies! { cublasGetMatrixAsync cublasGetVectorAsync }
