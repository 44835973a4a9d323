//! Engines that convolve by Fourier transform.
//!
//! They use cuBLASLt for their products, so the deviceless mode leaves them out. The heuristics rarely prefer
//! them, but `cudnn.benchmark=True` tries them, and their workspaces of up to gigabytes then dominate the
//! peak. Of 1,267 workspaces that an H200 (cuDNN 9.19) returned, the formulas reproduced 1,191 to the byte
//! and 36 within 64 bytes, before the one for gradients with stride 2 was corrected; it reproduces 156
//! others. Filters of up to 112 positions on a side and images in half precision follow them as well.
//!
//! The heuristics do not list them for every convolution to which they apply ([`super::listed`]).

use super::data_type::{FLOAT, HALF};
use super::emulated_engine::EmulatedEngine;
use super::graph::Pass;
use super::images::{FLOAT_BYTES, Images, aligned, area, longer};

/// Indices of the engines: forward pass, gradient of filters, gradient of inputs.
pub(super) const ENGINES: [i64; 3] = [FORWARD, FILTER_GRADIENT, INPUT_GRADIENT];
const FORWARD: i64 = 3;
const FILTER_GRADIENT: i64 = 18;
const INPUT_GRADIENT: i64 = 50;

const COMPLEX_BYTES: i64 = 8;

/// Largest image, including padding, that is transformed as a whole.
const MAX_WHOLE_SIDE: i64 = 256;
const MIN_WHOLE_SIDE: i64 = 16;

/// Tile size of the engine that splits images.
const TILE_SIDE: i64 = 32;

/// Output channels of a convolution that was split by its stride are a multiple of this.
const OUTPUTS_UNIT: i64 = 8;

/// Bytes of the description of a convolution that was split by its stride.
const DESCRIPTION_BYTES: i64 = 16;

/// The engine, if a real card offers it.
pub(super) fn engine(pass: Pass, images: &Images) -> Option<EmulatedEngine> {
    let has_type = match pass {
        Pass::BackwardFilter => images.data_type == FLOAT,
        _ => [FLOAT, HALF].contains(&images.data_type),
    };
    let applies = match pass {
        Pass::BackwardData => images.filter.iter().all(|side| *side > 1),
        _ => images.stride == 1 && images.padded_side() <= MAX_WHOLE_SIDE,
    };
    if !has_type || !applies {
        return None;
    }
    let (engine, workspace) = match (pass, images.stride) {
        (Pass::Forward, _) => (FORWARD, forward(images)),
        (Pass::BackwardFilter, _) => (FILTER_GRADIENT, filter_gradient(images)),
        (Pass::BackwardData, 1) => (INPUT_GRADIENT, input_gradient(images)),
        (Pass::BackwardData, _) => (INPUT_GRADIENT, strided_input_gradient(images)),
    };
    Some(EmulatedEngine {
        engine,
        workspace: images.of_all_groups(workspace),
        uses_tensor_cores: false,
        model: "cuDNN Fourier transform engines",
    })
}

fn forward(images: &Images) -> i64 {
    let (inputs, outputs, filters) = images.planes();
    let transforms = 2 * whole(images) * (inputs + filters).max(outputs);
    aligned(transforms + filters * area(images.filter) * FLOAT_BYTES) + copies(images)
}

fn filter_gradient(images: &Images) -> i64 {
    let (inputs, outputs, filters) = images.planes();
    let transforms = 2 * whole(images) * filters.max(inputs + outputs);
    aligned(transforms + outputs * area(images.output) * FLOAT_BYTES) + copies(images)
}

fn input_gradient(images: &Images) -> i64 {
    let (inputs, outputs, filters) = images.planes();
    let sides = [0, 1].map(|side| images.input[side] + images.filter[side] - 1);
    aligned(transform(TILE_SIDE) * (filters + tiles(sides) * (inputs + outputs))) + copies(images)
}

/// A convolution with stride 2 is split into four with stride 1: of each other row and column. Their tensors
/// are copied, whatever the layout.
fn strided_input_gradient(images: &Images) -> i64 {
    let input = images.input.map(|side| (side + 1) / 2);
    // With odd padding, the filter begins with the second row and column of a pair.
    let filter = [0, 1].map(|side| (images.filter[side] + images.padding[side] % 2 + 1) / 2);
    let sides = [0, 1].map(|side| input[side] + filter[side] - 1);
    // Padding that is the same on both sides needs no copy.
    let output = [0, 1].map(|side| images.output[side] + (sides[side] - images.output[side]).rem_euclid(2));
    let channels = images.inputs + images.inputs % 2;
    let outputs = (images.outputs + OUTPUTS_UNIT - 1) / OUTPUTS_UNIT * OUTPUTS_UNIT;
    let value = images.value_bytes();
    let transform = transform(TILE_SIDE);
    let of_filters = 4 * (transform + area(filter) * value);
    let of_inputs = 4 * (transform * tiles(sides) + area(input) * value);
    let of_outputs = transform * tiles(sides) + area(output) * value;
    channels * outputs * of_filters
        + images.count * (channels * of_inputs + outputs * of_outputs)
        + DESCRIPTION_BYTES
}

/// Bytes of the transform of a whole image.
fn whole(images: &Images) -> i64 {
    let side = images.padded_side().max(MIN_WHOLE_SIDE);
    transform(side.unsigned_abs().next_power_of_two().cast_signed())
}

/// Bytes for copies of the tensors in the layout that the engines need.
fn copies(images: &Images) -> i64 {
    if images.is_channels_last {
        images.channels_first_copies()
    } else if images.is_grouped() && images.count > 1 {
        images.group_copies()
    } else {
        0
    }
}

/// Tiles that are transformed at the same time: the second while the first is in use.
fn tiles(sides: [i64; 2]) -> i64 {
    if longer(sides) <= TILE_SIDE { 1 } else { 2 }
}

/// Bytes of the transform of a real plane of `side` × `side`, which is half as wide.
fn transform(side: i64) -> i64 {
    side * (side / 2 + 1) * COMPLEX_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::data_type::BFLOAT16;
    use super::super::graph::Convolution;
    use super::super::images::tests::{FIRST, LAST, square};
    use super::*;

    fn workspace(convolution: &Convolution) -> Option<i64> {
        engine(convolution.pass, &Images::of(convolution)?).map(|engine| engine.workspace)
    }

    #[test]
    fn workspaces_match_measurements() {
        for (pass, images, channels, filter, layout, measured) in [
            // images, side; channels, filters, groups; filter, stride, padding
            (Pass::BackwardData, (64, 112), (32, 16, 1), (7, 1, 3), FIRST, 28_966_912),
            (Pass::BackwardData, (2, 64), (3, 16, 1), (4, 1, 0), FIRST, 539_648),
            (Pass::BackwardData, (512, 64), (64, 64, 1), (4, 2, 2), FIRST, 2_177_237_008),
            (Pass::BackwardData, (64, 28), (96, 96, 1), (3, 2, 1), FIRST, 319_512_592),
            (Pass::BackwardData, (64, 40), (32, 64, 1), (4, 2, 1), FIRST, 109_084_688),
            (Pass::BackwardData, (16, 28), (18, 18, 1), (3, 2, 1), FIRST, 15_481_360),
            (Pass::BackwardData, (32, 224), (3, 10, 1), (3, 2, 1), FIRST, 61_872_144),
            (Pass::BackwardData, (8, 128), (32, 96, 1), (3, 1, 1), LAST, 89_501_712),
            (Pass::BackwardData, (1, 28), (16, 96, 1), (7, 1, 3), LAST, 8_311_824),
            (Pass::BackwardData, (8, 32), (96, 512, 1), (7, 2, 1), LAST, 906_248_208),
            (Pass::BackwardData, (100, 8), (512, 128, 1), (5, 2, 0), LAST, 2_110_595_088),
            (Pass::BackwardData, (256, 4), (64, 128, 2), (3, 1, 1), FIRST, 234_881_056),
            (Pass::BackwardData, (8, 256), (256, 512, 2), (3, 1, 0), FIRST, 1_932_591_136),
            (Pass::BackwardData, (32, 64), (512, 1024, 2), (3, 2, 0), FIRST, 5_830_213_664),
            (Pass::BackwardData, (64, 14), (512, 512, 4), (7, 2, 3), FIRST, 1_904_738_368),
            (Pass::BackwardData, (100, 4), (256, 256, 2), (3, 1, 1), LAST, 369_885_216),
            (Pass::BackwardData, (32, 7), (256, 256, 32), (3, 1, 0), LAST, 20_678_784),
            (Pass::BackwardData, (4, 28), (256, 512, 32), (5, 2, 0), LAST, 25_755_776),
            (Pass::BackwardData, (512, 4), (512, 1024, 2), (7, 2, 3), LAST, 11_511_267_360),
            (Pass::BackwardFilter, (100, 7), (64, 128, 1), (3, 1, 1), FIRST, 46_745_600),
            (Pass::BackwardFilter, (2, 16), (32, 512, 1), (1, 1, 0), FIRST, 38_797_312),
            (Pass::BackwardFilter, (16, 4), (128, 64, 1), (1, 1, 0), LAST, 19_136_528),
            (Pass::BackwardFilter, (100, 28), (96, 128, 1), (1, 1, 0), LAST, 305_356_816),
            (Pass::BackwardFilter, (32, 8), (256, 256, 256), (7, 1, 3), FIRST, 1_376_384),
            (Pass::BackwardFilter, (32, 4), (256, 256, 256), (1, 1, 0), FIRST, 1_228_928),
            (Pass::BackwardFilter, (256, 32), (256, 512, 32), (7, 1, 3), LAST, 1_996_689_536),
            (Pass::BackwardFilter, (32, 7), (256, 256, 32), (3, 1, 0), LAST, 10_266_752),
            (Pass::Forward, (100, 16), (128, 64, 1), (4, 1, 1), FIRST, 183_238_656),
            (Pass::Forward, (100, 7), (16, 64, 1), (4, 1, 2), FIRST, 14_811_136),
            (Pass::Forward, (2, 8), (512, 512, 1), (7, 1, 1), LAST, 709_427_216),
            (Pass::Forward, (100, 128), (96, 96, 1), (1, 1, 0), LAST, 3_763_114_000),
            (Pass::Forward, (100, 8), (64, 128, 8), (5, 1, 2), FIRST, 34_508_928),
            (Pass::Forward, (512, 7), (256, 256, 256), (1, 1, 0), FIRST, 11_061_504),
            (Pass::Forward, (4, 16), (64, 64, 32), (5, 1, 2), LAST, 973_184),
            (Pass::Forward, (32, 7), (256, 256, 32), (3, 1, 0), LAST, 6_541_440),
        ] {
            let convolution = square(pass, FLOAT, layout, images, channels, filter);
            assert_eq!(
                workspace(&convolution),
                Some(measured),
                "{pass:?} {images:?} {channels:?} {filter:?}"
            );
        }
    }

    #[test]
    fn half_precision_is_transformed_as_fp32() {
        let of = |pass, data_type, layout, images, channels, filter| {
            workspace(&square(pass, data_type, layout, images, channels, filter))
        };
        use Pass::{BackwardData, BackwardFilter, Forward};
        for (pass, data_type, layout, images, channels, filter, measured) in [
            // images, side; channels, filters, groups; filter, stride, padding
            (Forward, HALF, FIRST, (512, 56), (256, 256, 256), (3, 1, 0), Some(188_260_864)),
            (BackwardData, HALF, FIRST, (10, 4), (2048, 2048, 64), (3, 2, 1), Some(198_702_208)),
            (BackwardData, HALF, FIRST, (10, 64), (3, 96, 1), (7, 2, 0), Some(18_424_720)),
            (Forward, HALF, FIRST, (16, 10), (96, 288, 1), (1, 1, 0), Some(67_350_528)),
            (Forward, HALF, LAST, (20, 2), (112, 672, 1), (1, 1, 0), Some(178_995_728)),
            // The gradient of a gradient: the output is the filter.
            (Forward, HALF, FIRST, (3, 128), (16, 64, 1), (128, 1, 1), Some(633_536_512)),
            (Forward, BFLOAT16, FIRST, (512, 56), (256, 256, 256), (3, 1, 0), None),
            (BackwardFilter, HALF, FIRST, (32, 28), (64, 64, 1), (3, 1, 1), None),
        ] {
            assert_eq!(
                of(pass, data_type, layout, images, channels, filter),
                measured,
                "{pass:?} {images:?}"
            );
        }
    }

    #[test]
    fn filters_of_one_position_have_no_gradient_by_transform() {
        let of = |pass| square(pass, FLOAT, FIRST, (16, 64), (64, 64, 1), (1, 1, 0));
        assert!(workspace(&of(Pass::Forward)).is_some());
        assert_eq!(workspace(&of(Pass::BackwardData)), None);
    }
}
