//! Engines that convolve by Fourier transform.
//!
//! They use cuBLASLt for their products, so the deviceless mode leaves them out. The heuristics never prefer
//! them, but `cudnn.benchmark=True` tries them, and their workspaces of up to gigabytes then dominate the
//! peak. For filters with stride 1, the formulas reproduce 49 of 50 workspaces returned by an H200 (cuDNN
//! 9.19) for the forward pass and the filter's gradient; for the input's gradient, 14 were checked by hand.
//! For stride 2 they are a rough fit.

use super::emulated_engine::EmulatedEngine;
use super::graph::{Convolution, GraphTensor, Pass};

/// `CUDNN_DATA_FLOAT`, the type for which these engines are offered.
const FLOAT: i32 = 0;

const FLOAT_BYTES: i64 = 4;
const COMPLEX_BYTES: i64 = 8;

/// Largest image, including padding, that is transformed as a whole, and tile size of the engine that splits
/// images.
const MAX_IMAGE_SIZE: i64 = 256;
const TILE_SIZE: i64 = 32;

/// The engine, if a real card offers it.
pub(super) fn last_choice(convolution: &Convolution) -> Option<EmulatedEngine> {
    let Convolution { x, y, w, .. } = convolution;
    let padded = convolution.padded_size();
    let has_stride_two = convolution.pass == Pass::BackwardData && convolution.has_stride(2);
    let applies = x.data_type == FLOAT
        && x.sizes.len() == 4
        && w.positions() > 1
        && (convolution.has_stride(1) || has_stride_two)
        && convolution.is_ungrouped()
        && padded <= MAX_IMAGE_SIZE;
    if !applies {
        return None;
    }
    let (inputs, outputs, filters) = (planes(x), planes(y), planes(w));
    let whole = transform(padded.unsigned_abs().next_power_of_two().cast_signed());
    let (engine, workspace) = match convolution.pass {
        Pass::Forward => (3, 2 * whole * (inputs + filters).max(outputs) + bytes(w)),
        Pass::BackwardFilter => (18, 2 * whole * filters.max(inputs + outputs) + bytes(x).max(bytes(y))),
        // A filter with stride 2 is split into four.
        Pass::BackwardData if has_stride_two => {
            (50, transform(TILE_SIZE) * (4 * filters + 3 * (inputs + outputs)))
        }
        Pass::BackwardData => {
            let tiles = if padded <= TILE_SIZE { 1 } else { 2 };
            (50, transform(TILE_SIZE) * (filters + tiles * (inputs + outputs)))
        }
    };
    let layout = if x.is_channels_last() { bytes(x) + bytes(y) + bytes(w) + 16 } else { 0 };
    Some(EmulatedEngine {
        engine,
        workspace: workspace + layout,
        uses_tensor_cores: false,
        model: "cuDNN Fourier transform engines",
    })
}

/// Complex values in the transform of a real plane of `size` × `size`, which is half as wide.
fn transform(size: i64) -> i64 {
    size * (size / 2 + 1) * COMPLEX_BYTES
}

fn planes(tensor: &GraphTensor) -> i64 {
    tensor.size(0) * tensor.size(1)
}

fn bytes(tensor: &GraphTensor) -> i64 {
    planes(tensor) * tensor.positions() * FLOAT_BYTES
}
