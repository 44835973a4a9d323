//! cuDNN: planning is real, execution does nothing.
//!
//! cuDNN contains a private CUDA runtime, so it cannot be given the emulated card the way PyTorch is. But
//! since 9.8 it has a documented deviceless mode: a description of the card in place of a handle. So
//! [`backend`] lets the real library choose engines and compute their workspaces. Engines that it cannot plan
//! for without a device are added ([`matrix_product`], [`fourier`], [`winograd`]), workspaces that it
//! computes for a different card than described are recomputed ([`cluster`]), and queries of the older
//! interfaces, which need a handle, are answered by formulas derived from the answers of an H200
//! ([`batch_norm`], [`rnn`], [`ctc`]).
//!
//! Functions without a handle are not defined here, so PyTorch calls the real ones.

mod autotuning;
mod backend;
mod batch_norm;
mod cluster;
mod ctc;
mod data_type;
mod decision_tree;
mod deviceless;
mod dropout;
mod emulated_engine;
mod first_choice;
mod fourier;
mod graph;
mod images;
mod legacy;
mod listed;
mod matrix_product;
mod real;
mod rnn;
mod rnn_memory;
mod tensor;
mod winograd;

use crate::memory::{self, Library};
use crate::{StatusCode, put};
use std::ffi::c_void;

const SUCCESS: StatusCode = 0;
const NOT_INITIALIZED: StatusCode = 1001;
const BAD_PARAMETER: StatusCode = 2000;
const NOT_SUPPORTED: StatusCode = 3000;

/// A descriptor of any kind; only the real library looks inside.
type Descriptor = *mut c_void;

/// A handle; PyTorch only asks for its stream.
struct CudnnHandle {
    stream: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnCreate(to: *mut *mut CudnnHandle) -> StatusCode {
    if !memory::take_library_memory(Library::Cudnn) {
        return NOT_INITIALIZED;
    }
    unsafe { put(to, Box::into_raw(Box::new(CudnnHandle { stream: 0 }))) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnDestroy(handle: *mut CudnnHandle) -> StatusCode {
    if handle.is_null() {
        return BAD_PARAMETER;
    }
    drop(unsafe { Box::from_raw(handle) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetStream(handle: *mut CudnnHandle, stream: u64) -> StatusCode {
    crate::graphs::record_work();
    match unsafe { handle.as_mut() } {
        Some(handle) => {
            handle.stream = stream;
            SUCCESS
        }
        None => BAD_PARAMETER,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetStream(handle: *const CudnnHandle, to: *mut u64) -> StatusCode {
    match unsafe { handle.as_ref() } {
        Some(handle) => {
            unsafe { put(to, handle.stream) };
            SUCCESS
        }
        None => BAD_PARAMETER,
    }
}

// Functions that only launch kernels.
no_op! {
    cudnnBatchNormalizationForwardTrainingEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationBackwardEx
    cudnnConvolutionForward cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnPoolingForward
    cudnnRNNForward cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfSamplerForward cudnnSpatialTfSamplerBackward
    cudnnCTCLoss cudnnCTCLoss_v8
}

// Driver functions that cuDNN's runtime compiler looks up under their original names. It calls none of them
// to plan, but without them it considers itself unusable, and engines that a real card offers would be
// missing.
no_op! {
    cuCtxPopCurrent cuCtxPushCurrent cuLinkCreate cuLinkAddData
}
