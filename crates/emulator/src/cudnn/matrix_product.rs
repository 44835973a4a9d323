//! The engine that passes 1×1 convolutions to cuBLASLt.
//!
//! On a real card, cuDNN's heuristics prefer it for most of them. Without a device, cuBLASLt cannot be
//! initialized, so the deviceless mode leaves the engine out, and the emulator puts it back. When it comes
//! first, and the workspace it needs, are modeled on the answers of an H200 (cuDNN 9.19) for the layers of
//! ResNet-50.

use super::data_type::FLOAT;
use super::emulated_engine::EmulatedEngine;
use super::graph::{Convolution, Pass};
use crate::card::card;

/// Bytes that a split product needs in addition to its partial sums.
const DESCRIPTION_BYTES: i64 = 272;

/// Bytes of a partial sum, for any input type.
const SUM_BYTES: i64 = 4;

/// The engine, if a real card's heuristics would put it first.
pub(super) fn first_choice(convolution: &Convolution) -> Option<EmulatedEngine> {
    if !convolution.is_matrix_product() {
        return None;
    }
    let is_float = convolution.x.data_type == FLOAT;
    let (engine, workspace) = match (convolution.pass, convolution.x.is_channels_last()) {
        (Pass::Forward, true) => (58, unsplit(is_float)),
        (Pass::BackwardData, true) => (63, unsplit(is_float)),
        (Pass::BackwardFilter, true) => (62, split_sum(convolution, is_float)),
        _ if convolution.x.positions() % 4 != 0 => return None,
        (Pass::Forward, false) => (58, unsplit(is_float)),
        (Pass::BackwardData, false) => (63, unsplit(is_float)),
        (Pass::BackwardFilter, false) => (62, sum_over_images(convolution, is_float)?),
    };
    Some(EmulatedEngine {
        engine,
        workspace,
        uses_tensor_cores: true,
        model: "cuDNN 1×1 convolutions through cuBLASLt",
    })
}

/// Workspace in bytes of a product that is not split: at most room for its own description.
fn unsplit(is_float: bool) -> i64 {
    if is_float { 400 } else { 0 }
}

/// Workspace in channels-first layout, where each image has its own product and the products are summed; if
/// they are larger than the images themselves, another engine is faster.
fn sum_over_images(convolution: &Convolution, is_float: bool) -> Option<i64> {
    let (x, y) = (&convolution.x, &convolution.y);
    let value = if is_float { 4 } else { 2 };
    let products = x.size(1) * y.size(1) * SUM_BYTES;
    let images = (x.size(1) + y.size(1)) * x.positions() * value;
    (10 * products < 14 * images).then(|| x.size(0) * products)
}

/// Workspace in channels-last layout, where there is one product over all positions of all images, split
/// until all multiprocessors are busy.
fn split_sum(convolution: &Convolution, is_float: bool) -> i64 {
    let (rows, columns) = (convolution.y.size(1), convolution.x.size(1));
    let multiprocessors = i64::from(card().multiprocessors);
    let tiles = |tall: i64| (rows + tall - 1) / tall * ((columns + 127) / 128);
    let splits = if is_float { multiprocessors / tiles(256) } else { multiprocessors * 4 / 7 / tiles(128) };
    if splits < 3 { 0 } else { DESCRIPTION_BYTES + rows * columns * SUM_BYTES * splits }
}
