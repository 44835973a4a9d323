//! cuSPARSELt: matrices of which every second element is zero. PyTorch computes by itself how large a compressed one is;
//! the library's own workspace is not modelled.

use crate::{SUCCESS, Status, notes, put};

does_nothing! {
    cusparseLtInit
    cusparseLtDenseDescriptorInit cusparseLtStructuredDescriptorInit cusparseLtMatDescriptorDestroy
    cusparseLtMatmulDescriptorInit cusparseLtMatmulDescSetAttribute
    cusparseLtMatmulAlgSelectionInit cusparseLtMatmulAlgSetAttribute
    cusparseLtMatmulPlanInit cusparseLtMatmulPlanDestroy
    cusparseLtMatmul cusparseLtMatmulSearch cusparseLtSpMMACompress2
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseLtMatmulGetWorkspace(_handle: u64, _plan: u64, to: *mut u64) -> Status {
    notes::modelled("cuSPARSELt workspace");
    unsafe { put(to, 0) };
    SUCCESS
}

/// PyTorch uses the second size only, of the workspace to compress.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseLtSpMMACompressedSize2(
    _handle: u64,
    _matrix: u64,
    compressed: *mut u64,
    workspace: *mut u64,
) -> Status {
    notes::modelled("cuSPARSELt workspace");
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
) -> Status {
    if !to.is_null() {
        unsafe { std::ptr::write_bytes(to, 0, size) };
    }
    SUCCESS
}
