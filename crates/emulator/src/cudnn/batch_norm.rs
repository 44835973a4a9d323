//! Batch norm: the scratch memory of its training passes.
//!
//! The queries have no deviceless mode. The formulas here reproduce, to the byte, all 9,709 sizes returned by
//! an H200 (cuDNN 9.19; half, bfloat16 and float; two and three spatial dimensions). They do not depend on
//! the card.

use super::data_type::FLOAT;
use super::tensor::TensorDescriptor;
use super::{BAD_PARAMETER, Descriptor, NOT_SUPPORTED, SUCCESS, StatusCode};
use crate::{notes, put};

/// `CUDNN_BATCHNORM_SPATIAL_PERSISTENT`: used by PyTorch in channels-last layout; other modes need no memory.
const SPATIAL_PERSISTENT: i32 = 2;

/// `CUDNN_BATCHNORM_OPS_BN`: no fused activation, the only case that PyTorch uses.
const NORM_ONLY: i32 = 0;

const FLOAT_BYTES: usize = 4;

/// How the kernels tile the tensor: strips of channels, and tiles of rows in each strip. Each tile stores its
/// partial sums in the scratch memory.
struct Tiling {
    strip: usize,
    strips: usize,
    tiles: usize,
}

impl Tiling {
    fn new(x: &TensorDescriptor, rows_per_tile: usize) -> Tiling {
        // Channels that cannot be read four at a time get narrow strips, and very few channels get taller
        // tiles.
        let (strip, taller) = match x.channels() {
            channels if channels.is_multiple_of(4) => (64, 1),
            0..4 => (4, 4),
            _ => (16, 1),
        };
        Tiling {
            strip,
            strips: x.channels().div_ceil(strip),
            tiles: x.positions().div_ceil(rows_per_tile * taller),
        }
    }

    /// Bytes of two sums per channel in each tile, `per_tile` more bytes per tile, and `fixed` bytes.
    fn bytes(&self, fixed: usize, per_tile: usize) -> usize {
        let tile = 2 * self.strip * FLOAT_BYTES + per_tile;
        fixed + self.strips * (FLOAT_BYTES + self.tiles * tile)
    }
}

fn forward(x: &TensorDescriptor) -> usize {
    let rows = if x.data_type == FLOAT { 64 } else { 160 };
    Tiling::new(x, rows).bytes(1072, FLOAT_BYTES)
}

fn backward(x: &TensorDescriptor) -> usize {
    Tiling::new(x, 96).bytes(1056, 0)
}

/// Answers a query with `size` if the mode needs memory at all.
unsafe fn answer(
    mode: i32,
    ops: i32,
    x: Descriptor,
    to: *mut usize,
    size: fn(&TensorDescriptor) -> usize,
) -> StatusCode {
    if ops != NORM_ONLY {
        return notes::uncovered("cudnnBatchNormalization…Ex with a fused activation", NOT_SUPPORTED);
    }
    let Some(x) = (unsafe { TensorDescriptor::read(x) }) else { return BAD_PARAMETER };
    let bytes = if mode == SPATIAL_PERSISTENT && x.is_channels_last() {
        notes::modeled("cuDNN batch norm workspace");
        size(&x)
    } else {
        0
    };
    unsafe { put(to, bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: u64,
    mode: i32,
    ops: i32,
    x: Descriptor,
    _z: Descriptor,
    _y: Descriptor,
    _scale: Descriptor,
    _activation: Descriptor,
    to: *mut usize,
) -> StatusCode {
    unsafe { answer(mode, ops, x, to, forward) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: u64,
    mode: i32,
    ops: i32,
    x: Descriptor,
    _y: Descriptor,
    _dy: Descriptor,
    _dz: Descriptor,
    _dx: Descriptor,
    _scale: Descriptor,
    _activation: Descriptor,
    to: *mut usize,
) -> StatusCode {
    unsafe { answer(mode, ops, x, to, backward) }
}

/// The backward pass needs nothing from the forward pass beyond what PyTorch keeps itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: u64,
    mode: i32,
    ops: i32,
    _activation: Descriptor,
    x: Descriptor,
    to: *mut usize,
) -> StatusCode {
    unsafe { answer(mode, ops, x, to, |_| 0) }
}

#[cfg(test)]
mod tests {
    use super::super::data_type::HALF;
    use super::*;

    /// Sizes returned by an H200: `[N, C, H, W]`, data type, forward, backward.
    #[test]
    fn agrees_with_an_h200() {
        let measured = [
            ([1, 1, 28, 28], HALF, 1148, 1156),
            ([8, 64, 56, 56], HALF, 82_088, 135_204),
            ([64, 100, 7, 7], HALF, 21_720, 34_856),
            ([64, 2048, 7, 7], HALF, 331_440, 541_856),
            ([59, 7, 52, 66], HALF, 168_188, 271_140),
            ([59, 7, 52, 66], FLOAT, 418_724, 271_140),
            ([35, 264, 16, 64], FLOAT, 1_445_892, 958_516),
        ];
        for (sizes, data_type, forward_bytes, backward_bytes) in measured {
            let x = TensorDescriptor::channels_last(data_type, &sizes);
            assert_eq!((forward(&x), backward(&x)), (forward_bytes, backward_bytes), "{sizes:?}");
        }
    }
}
