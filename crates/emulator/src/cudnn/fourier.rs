//! The engines that convolve by Fourier transform.
//!
//! They take cuBLASLt for their products, so that the deviceless mode leaves them out. The heuristics never prefer them,
//! but `cudnn.benchmark=True` tries them, and their workspaces, up to gigabytes, are then what the peak is made of. Of the
//! workspaces that an H200 named (cuDNN 9.19) for filters that move by one position, the formulas give 49 of 50 exactly,
//! forward and for the filter's gradient; for the input's gradient they were checked by hand on 14. Where a filter moves
//! by two they are a rough fit.

use super::graph::{Convolution, Pass, Tensor};
use super::shadow::Shadow;

/// `CUDNN_DATA_FLOAT`: what they are offered for.
const FLOAT: i32 = 0;

const FLOAT_BYTES: i64 = 4;
const COMPLEX_BYTES: i64 = 8;

/// The largest image, with its padding, that is transformed as a whole, and the tiles of the engine that cuts images.
const LARGEST: i64 = 256;
const TILE: i64 = 32;

/// The engine, where a real card offers it.
pub(super) fn last_choice(convolution: &Convolution) -> Option<Shadow> {
    let Convolution { x, y, w, .. } = convolution;
    let padded = convolution.padded_size();
    let by_two = convolution.pass == Pass::BackwardData && convolution.moves_by(2);
    let applies = x.data_type == FLOAT
        && x.sizes.len() == 4
        && w.positions() > 1
        && (convolution.moves_by(1) || by_two)
        && convolution.is_ungrouped()
        && padded <= LARGEST;
    if !applies {
        return None;
    }
    let (inputs, outputs, filters) = (planes(x), planes(y), planes(w));
    let whole = transform(padded.unsigned_abs().next_power_of_two().cast_signed());
    let (engine, workspace) = match convolution.pass {
        Pass::Forward => (3, 2 * whole * (inputs + filters).max(outputs) + bytes(w)),
        Pass::BackwardFilter => (18, 2 * whole * filters.max(inputs + outputs) + bytes(x).max(bytes(y))),
        // A filter that moves by two is taken apart into four.
        Pass::BackwardData if by_two => (50, transform(TILE) * (4 * filters + 3 * (inputs + outputs))),
        Pass::BackwardData => {
            let tiles = if padded <= TILE { 1 } else { 2 };
            (50, transform(TILE) * (filters + tiles * (inputs + outputs)))
        }
    };
    let layout = if x.is_channels_last() { bytes(x) + bytes(y) + bytes(w) + 16 } else { 0 };
    Some(Shadow {
        engine,
        workspace: workspace + layout,
        uses_tensor_cores: false,
        model: "cuDNN Fourier transform engines",
    })
}

/// The transform of a real plane of `size` × `size` is half as wide.
fn transform(size: i64) -> i64 {
    size * (size / 2 + 1) * COMPLEX_BYTES
}

fn planes(tensor: &Tensor) -> i64 {
    tensor.size(0) * tensor.size(1)
}

fn bytes(tensor: &Tensor) -> i64 {
    planes(tensor) * tensor.positions() * FLOAT_BYTES
}
