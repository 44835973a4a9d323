//! cuBLASLt: descriptors contain nothing, and every product has a single algorithm that needs no workspace.

use super::INVALID_VALUE;
use crate::{SUCCESS, StatusCode, put};

returns_handle! { cublasLtMatmulDescCreate cublasLtMatmulPreferenceCreate cublasLtMatrixLayoutCreate }

does_work! { cublasLtMatmul }

no_op! {
    cublasLtMatmulDescSetAttribute cublasLtMatmulDescDestroy
    cublasLtMatmulPreferenceSetAttribute cublasLtMatmulPreferenceDestroy
    cublasLtMatrixLayoutSetAttribute cublasLtMatrixLayoutDestroy
    cublasLtMatmulAlgoConfigSetAttribute
}

/// `cublasLtMatmulAlgo_t`: opaque.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MatmulAlgorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Default)]
struct HeuristicResult {
    algorithm: MatmulAlgorithm,
    workspace: usize,
    state: StatusCode,
    waves: f32,
    reserved: [i32; 4],
}

/// Returns one algorithm, which uses none of the workspace that PyTorch offers.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: u64,
    _operation: u64,
    _a: u64,
    _b: u64,
    _c: u64,
    _d: u64,
    _preference: u64,
    wanted: i32,
    results: *mut HeuristicResult,
    found: *mut i32,
) -> StatusCode {
    if wanted < 1 {
        return INVALID_VALUE;
    }
    unsafe {
        put(results, HeuristicResult::default());
        put(found, 1);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoInit(
    _handle: u64,
    _compute_type: i32,
    _scale_type: i32,
    _a_type: i32,
    _b_type: i32,
    _c_type: i32,
    _d_type: i32,
    _id: i32,
    to: *mut MatmulAlgorithm,
) -> StatusCode {
    unsafe { put(to, MatmulAlgorithm::default()) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoCheck(
    _handle: u64,
    _operation: u64,
    _a: u64,
    _b: u64,
    _c: u64,
    _d: u64,
    _algorithm: u64,
    result: *mut HeuristicResult,
) -> StatusCode {
    unsafe { put(result, HeuristicResult::default()) };
    SUCCESS
}

/// All settings of an algorithm are zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    _algorithm: u64,
    _which: i32,
    to: *mut u8,
    size: usize,
    written: *mut usize,
) -> StatusCode {
    unsafe {
        if !to.is_null() {
            std::ptr::write_bytes(to, 0, size);
        }
        put(written, size);
    }
    SUCCESS
}
