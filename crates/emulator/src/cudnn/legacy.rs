//! The convolution queries of cuDNN 7, which PyTorch uses only under `TORCH_CUDNN_V8_API_DISABLED=1`.
//!
//! They need a handle, and their algorithms are not the engines that the deviceless mode knows, so each fails
//! with its name.

use super::{NOT_SUPPORTED, StatusCode};
use crate::notes;

macro_rules! uncovered {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> StatusCode {
            notes::uncovered(stringify!($name), NOT_SUPPORTED)
        }
    )*};
}

uncovered! {
    cudnnFindConvolutionForwardAlgorithmEx cudnnFindConvolutionBackwardDataAlgorithmEx
    cudnnFindConvolutionBackwardFilterAlgorithmEx
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnGetConvolutionBackwardDataAlgorithm_v7
    cudnnGetConvolutionBackwardFilterAlgorithm_v7
    cudnnGetConvolutionForwardWorkspaceSize cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterWorkspaceSize
}
