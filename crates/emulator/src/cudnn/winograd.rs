//! Engines that convolve by Winograd's transform, with products by cuBLASLt.
//!
//! The deviceless mode leaves them out, like those of [`super::fourier`]. Of 350 workspaces
//! that an H200 (cuDNN 9.19) returned, the formulas reproduce 339 to the byte and the others within 64 bytes.

use super::data_type::{BFLOAT16, FLOAT, HALF};
use super::emulated_engine::EmulatedEngine;
use super::graph::Pass;
use super::images::{FLOAT_BYTES, Images, aligned};

/// Some kernels take this many images at a time.
const BATCH: i64 = 16;

/// Outputs that a tile computes in each direction, and the values that it takes for them.
struct WinogradTile {
    outputs: i64,
    inputs: i64,
}

/// The engine, if a real card offers it.
pub(super) fn engine(pass: Pass, images: &Images) -> Option<EmulatedEngine> {
    let tile = match images.filter {
        _ if images.stride != 1 => return None,
        [3, 3] => WinogradTile { outputs: 4, inputs: 6 },
        [5, 5] => WinogradTile { outputs: 9, inputs: 13 },
        _ => return None,
    };
    let is_half = [HALF, BFLOAT16].contains(&images.data_type);
    let applies_to_images = is_half && images.is_grouped() && !images.is_channels_last;
    let (engine, applies, sides, has_batches) = match pass {
        Pass::Forward => (6, applies_to_images, images.output, true),
        Pass::BackwardData => (7, applies_to_images, images.input, true),
        Pass::BackwardFilter => {
            (17, is_half || images.data_type == FLOAT, images.output, images.filter == [5, 5])
        }
    };
    if !applies {
        return None;
    }
    let count = if has_batches { (images.count + BATCH - 1) / BATCH * BATCH } else { images.count };
    let tiles = count * sides.iter().map(|side| (side + tile.outputs - 1) / tile.outputs).product::<i64>();
    let values = tiles * (images.inputs + images.outputs) + images.inputs * images.outputs;
    let copies = if images.is_channels_last { images.channels_first_copies() } else { 0 };
    let workspace = aligned(tile.inputs * tile.inputs * FLOAT_BYTES * values) + copies;
    Some(EmulatedEngine {
        engine,
        workspace: images.of_all_groups(workspace),
        uses_tensor_cores: false,
        model: "cuDNN Winograd engines",
    })
}

#[cfg(test)]
mod tests {
    use super::super::graph::Convolution;
    use super::super::images::tests::{FIRST, LAST, square};
    use super::*;

    fn of(convolution: &Convolution) -> Option<EmulatedEngine> {
        engine(convolution.pass, &Images::of(convolution)?)
    }

    #[test]
    fn workspaces_match_measurements() {
        for (pass, data_type, images, channels, filter, layout, measured) in [
            // images, side; channels, filters, groups; filter, stride, padding
            (Pass::BackwardData, HALF, (32, 28), (256, 256, 256), (3, 1, 1), FIRST, 3_613_824),
            (Pass::BackwardData, HALF, (2, 112), (3, 3, 3), (5, 1, 2), FIRST, 10_969_488),
            (Pass::BackwardData, BFLOAT16, (2, 28), (96, 96, 96), (3, 1, 1), FIRST, 1_807_488),
            (Pass::BackwardData, BFLOAT16, (8, 128), (128, 128, 128), (5, 1, 2), FIRST, 38_943_104),
            (Pass::BackwardFilter, FLOAT, (64, 8), (128, 128, 1), (3, 1, 1), FIRST, 11_796_480),
            (Pass::BackwardFilter, FLOAT, (32, 224), (128, 128, 8), (5, 1, 0), FIRST, 3_462_504_448),
            (Pass::BackwardFilter, FLOAT, (64, 8), (64, 64, 32), (3, 1, 0), LAST, 1_595_136),
            (Pass::BackwardFilter, FLOAT, (512, 7), (256, 256, 8), (5, 1, 2), LAST, 234_946_688),
            (Pass::BackwardFilter, HALF, (8, 8), (16, 16, 16), (3, 1, 1), FIRST, 74_880),
            (Pass::BackwardFilter, HALF, (8, 14), (16, 16, 16), (5, 1, 0), FIRST, 697_728),
            (Pass::BackwardFilter, HALF, (32, 14), (512, 512, 32), (3, 1, 0), LAST, 13_734_016),
            (Pass::BackwardFilter, BFLOAT16, (1, 256), (256, 256, 256), (3, 1, 0), FIRST, 9_438_336),
            (Pass::BackwardFilter, BFLOAT16, (8, 128), (128, 128, 128), (5, 1, 2), FIRST, 38_943_104),
            (Pass::BackwardFilter, BFLOAT16, (512, 4), (128, 256, 32), (3, 1, 1), LAST, 8_692_352),
            (Pass::BackwardFilter, HALF, (32, 4), (32, 128, 1), (3, 1, 1), FIRST, 1_327_104),
            (Pass::BackwardFilter, BFLOAT16, (4, 13), (32, 64, 1), (3, 1, 1), LAST, 1_346_320),
            (Pass::Forward, HALF, (4, 8), (128, 256, 8), (3, 1, 0), FIRST, 4_128_768),
            (Pass::Forward, HALF, (1, 128), (256, 256, 32), (5, 1, 2), FIRST, 311_846_912),
            (Pass::Forward, BFLOAT16, (256, 28), (64, 64, 64), (3, 1, 1), FIRST, 28_902_528),
            (Pass::Forward, BFLOAT16, (256, 28), (64, 128, 8), (5, 1, 1), FIRST, 299_732_992),
        ] {
            let convolution = square(pass, data_type, layout, images, channels, filter);
            let workspace = of(&convolution).map(|engine| engine.workspace);
            assert_eq!(workspace, Some(measured), "{pass:?} {images:?} {channels:?} {filter:?}");
        }
    }

    #[test]
    fn only_filters_of_three_and_five_apply() {
        let with = |filter| square(Pass::BackwardFilter, FLOAT, FIRST, (16, 32), (64, 64, 1), filter);
        assert!(of(&with((3, 1, 1))).is_some());
        for filter in [(1, 1, 0), (4, 1, 1), (7, 1, 3), (3, 2, 1)] {
            assert!(of(&with(filter)).is_none(), "{filter:?}");
        }
    }
}
