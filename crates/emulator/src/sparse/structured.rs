//! cuSPARSELt: matrices in which every second element is zero. PyTorch computes the size of a compressed
//! matrix itself; the library's own workspace is not modeled.

use crate::{SUCCESS, StatusCode, notes, put};

no_op! {
    cusparseLtInit
    cusparseLtDenseDescriptorInit cusparseLtStructuredDescriptorInit cusparseLtMatDescriptorDestroy
    cusparseLtMatmulDescriptorInit cusparseLtMatmulDescSetAttribute
    cusparseLtMatmulAlgSelectionInit cusparseLtMatmulAlgSetAttribute
    cusparseLtMatmulPlanInit cusparseLtMatmulPlanDestroy
    cusparseLtMatmul cusparseLtMatmulSearch cusparseLtSpMMACompress2
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseLtMatmulGetWorkspace(_handle: u64, _plan: u64, to: *mut u64) -> StatusCode {
    notes::modeled("cuSPARSELt workspace");
    unsafe { put(to, 0) };
    SUCCESS
}

/// PyTorch only uses the second size, of the workspace for compression.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseLtSpMMACompressedSize2(
    _handle: u64,
    _matrix: u64,
    compressed: *mut u64,
    workspace: *mut u64,
) -> StatusCode {
    notes::modeled("cuSPARSELt workspace");
    unsafe {
        put(compressed, 0);
        put(workspace, 0);
    }
    SUCCESS
}

/// All settings of an algorithm are zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseLtMatmulAlgGetAttribute(
    _handle: u64,
    _algorithm: u64,
    _which: i32,
    to: *mut u8,
    size: usize,
) -> StatusCode {
    if !to.is_null() {
        unsafe { std::ptr::write_bytes(to, 0, size) };
    }
    SUCCESS
}
