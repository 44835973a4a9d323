//! The engine that passes 1×1 convolutions to cuBLASLt.
//!
//! On a real card, cuDNN's heuristics prefer it for 77 to 94% of them, by pass. Without a device, cuBLASLt
//! cannot be initialized, so the deviceless mode leaves the engine out, and the emulator puts it back.
//!
//! For fp32 with channels first, the decision trees in `one_by_one.txt` say when it comes first, and whether
//! its workspace has room for a description. They are fitted to the first choices of an H200 (cuDNN 9.19) for
//! 160,000 convolutions by `measure/one_by_one.py`: of convolutions that were left out of the fit, 98.2 to
//! 99.3% are given to the right engine, and 95.2 to 97.5% have the right workspace as well. For other types
//! and layouts, both are modeled on the layers of ResNet-50.

use super::data_type::FLOAT;
use super::decision_tree::DecisionTree;
use super::emulated_engine::EmulatedEngine;
use super::graph::{Convolution, Pass};
use crate::card::card;
use std::sync::LazyLock;

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
        (pass, false) if is_float => measured(convolution, pass)?,
        (Pass::Forward, true) => (58, unsplit(is_float)),
        (Pass::BackwardData, true) => (63, unsplit(is_float)),
        (Pass::BackwardFilter, true) => (62, split_sum(convolution, is_float)),
        _ if convolution.x.positions() % 4 != 0 => return None,
        (Pass::Forward, false) => (58, unsplit(is_float)),
        (Pass::BackwardData, false) => (63, unsplit(is_float)),
        (Pass::BackwardFilter, false) => (62, sum_over_images(convolution)?),
    };
    Some(EmulatedEngine {
        engine,
        workspace,
        uses_tensor_cores: true,
        model: "cuDNN 1×1 convolutions through cuBLASLt",
    })
}

const TREES: &str = include_str!("one_by_one.txt");

const FEATURES: [&str; 10] = [
    "images",
    "inputs",
    "outputs",
    "positions",
    "alignment",
    "columns",
    "planes",
    "read",
    "written",
    "products",
];

/// Engine and workspace in fp32 with channels first, by the trees. Their answers are the bytes that the
/// workspace has besides partial sums, or -1 where another engine comes first.
fn measured(convolution: &Convolution, pass: Pass) -> Option<(i64, i64)> {
    static OF_PASSES: LazyLock<[DecisionTree; 3]> =
        LazyLock::new(|| DecisionTree::of_passes(TREES, &FEATURES));
    let (x, y) = (&convolution.x, &convolution.y);
    let (images, inputs, outputs, positions) = (x.size(0), x.size(1), y.size(1), x.positions());
    let (columns, planes) = (images * positions, inputs * outputs);
    let (read, written) = (columns * inputs, columns * outputs);
    let products = columns.saturating_mul(planes);
    let values =
        [images, inputs, outputs, positions, positions % 4, columns, planes, read, written, products];
    let [forward, input, filter] = &*OF_PASSES;
    let (engine, tree, sums) = match pass {
        Pass::Forward => (58, forward, 0),
        Pass::BackwardData => (63, input, 0),
        // Each image has its own product, and the products are summed.
        Pass::BackwardFilter => (62, filter, images * planes * SUM_BYTES),
    };
    Some(tree.answer(&values)).filter(|more| *more >= 0).map(|more| (engine, sums + more))
}

/// Workspace in bytes of a product that is not split: at most room for its own description.
fn unsplit(is_float: bool) -> i64 {
    if is_float { 400 } else { 0 }
}

/// Workspace in channels-first layout, where each image has its own product and the products are summed; if
/// they are larger than the images themselves, another engine is faster.
fn sum_over_images(convolution: &Convolution) -> Option<i64> {
    const HALF_BYTES: i64 = 2;
    let (x, y) = (&convolution.x, &convolution.y);
    let products = x.size(1) * y.size(1) * SUM_BYTES;
    let images = (x.size(1) + y.size(1)) * x.positions() * HALF_BYTES;
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

#[cfg(test)]
mod tests {
    use super::super::decision_tree;
    use super::*;

    #[test]
    fn the_trees_are_complete() {
        decision_tree::check(TREES, &FEATURES, &[-1, 0, 400]);
    }

    #[test]
    fn gradients_of_filters_are_summed_over_images() {
        let sizes = [[128, 72, 28, 28], [176, 72, 1, 1], [128, 176, 28, 28]];
        let convolution = Convolution::example(Pass::BackwardFilter, FLOAT, false, sizes, 1);
        // As an H200 answers.
        assert_eq!(first_choice(&convolution).map(|engine| engine.workspace), Some(128 * 72 * 176 * 4 + 400));
    }
}
