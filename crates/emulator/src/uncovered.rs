//! Functions that PyTorch links but the emulator does not cover; each fails with its name.

use crate::notes::uncovered;
use crate::{NOT_SUPPORTED, StatusCode};
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

/// Defines functions that fail with the "not supported" status of their family.
macro_rules! uncovered {
    ($($kind:ident $status:literal: $($name:ident)*;)*) => {$(
        $kind! {
            $(fn $name() -> StatusCode {
                uncovered(stringify!($name), $status)
            })*
        }
    )*};
}

uncovered! {
    // Runtime: conditional graphs, libraries loaded at run time, pools shared between processes.
    runtime 801:
    cudaDeviceGetGraphMemAttribute cudaDeviceSetGraphMemAttribute
    cudaGraphAddNode cudaGraphConditionalHandleCreate cudaGraphNodeGetDependencies
    cudaStreamUpdateCaptureDependencies
    cudaKernelSetAttributeForDevice cudaLibraryGetGlobal cudaLibraryGetKernel cudaLibraryGetKernelCount
    cudaLibraryGetManaged cudaLibraryGetUnifiedFunction cudaLibraryLoadData cudaLibraryLoadFromFile
    cudaLibraryUnload
    cudaMemPoolExportToShareableHandle cudaMemPoolImportFromShareableHandle
    cudaMemPoolExportPointer cudaMemPoolImportPointer
    cudaMemRangeGetAttribute cudaMemRangeGetAttributes;

    // Driver: functions that PyTorch looks up for memory shared between devices and for parts of a device.
    driver 801:
    cuDeviceGetUuid cuMemGetAddressRange_v2 cuMemRetainAllocationHandle cuMemGetAllocationPropertiesFromHandle
    cuMemsetD32Async cuStreamWriteValue32
    cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastUnbind
    cuDeviceGetDevResource cuDevSmResourceSplitByCount cuDevResourceGenerateDesc
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate cuCtxFromGreenCtx;

    // cuSPARSE: sums and products of sparse matrices, whose size depends on values, and systems with sparse
    // blocks.
    library 10:
    cusparseXcsrgeam2Nnz
    cusparseScsrgeam2 cusparseDcsrgeam2 cusparseCcsrgeam2 cusparseZcsrgeam2
    cusparseScsrgeam2_bufferSizeExt cusparseDcsrgeam2_bufferSizeExt
    cusparseCcsrgeam2_bufferSizeExt cusparseZcsrgeam2_bufferSizeExt
    cusparseSpGEMM_createDescr cusparseSpGEMM_destroyDescr cusparseSpGEMM_workEstimation
    cusparseSpGEMM_compute cusparseSpGEMM_copy
    cusparseCreateBsrsv2Info cusparseDestroyBsrsv2Info cusparseXbsrsv2_zeroPivot
    cusparseSbsrsv2_bufferSize cusparseDbsrsv2_bufferSize cusparseCbsrsv2_bufferSize
    cusparseZbsrsv2_bufferSize
    cusparseSbsrsv2_analysis cusparseDbsrsv2_analysis cusparseCbsrsv2_analysis cusparseZbsrsv2_analysis
    cusparseSbsrsv2_solve cusparseDbsrsv2_solve cusparseCbsrsv2_solve cusparseZbsrsv2_solve
    cusparseCreateBsrsm2Info cusparseDestroyBsrsm2Info cusparseXbsrsm2_zeroPivot
    cusparseSbsrsm2_bufferSize cusparseDbsrsm2_bufferSize cusparseCbsrsm2_bufferSize
    cusparseZbsrsm2_bufferSize
    cusparseSbsrsm2_analysis cusparseDbsrsm2_analysis cusparseCbsrsm2_analysis cusparseZbsrsm2_analysis
    cusparseSbsrsm2_solve cusparseDbsrsm2_solve cusparseCbsrsm2_solve cusparseZbsrsm2_solve;

    // NCCL: communicators that change, memory shared between ranks, and its own estimates.
    library 5:
    ncclCommGetUniqueId ncclCommGrow ncclCommShrink ncclCommRevoke ncclCommSuspend ncclCommResume
    ncclCommMemStats
    ncclCommWindowRegister ncclCommWindowDeregister ncclWinGetUserPtr ncclDevCommCreate ncclDevCommDestroy
    ncclGetLsaMultimemDevicePointer ncclGetPeerDevicePointer ncclPutSignal ncclSignal ncclWaitSignal
    ncclGroupSimulateEnd;
}

/// Names of uncovered functions that were looked up, by slot.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Function that fails with the name in its slot.
extern "C" fn slot<const N: usize>() -> i32 {
    let name = NAMES.lock().unwrap_or_else(PoisonError::into_inner).get(N).cloned().unwrap_or_default();
    uncovered(&name, NOT_SUPPORTED)
}

macro_rules! slots {
    ($($n:literal)*) => { [$(slot::<$n> as extern "C" fn() -> i32),*] };
}

/// Returns a function that fails with its name when called, for a driver function that is not covered.
/// PyTorch looks up every function it might need before it calls any.
pub(crate) fn entry_point(name: &CStr) -> *mut c_void {
    const SLOTS: [extern "C" fn() -> i32; 64] = slots!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41
        42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    );
    let name = name.to_string_lossy().into_owned();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    SLOTS.get(place).map_or(std::ptr::null_mut(), |function| *function as *mut c_void)
}
