//! The engine that passes 1×1 convolutions to cuBLASLt.
//!
//! On a real card, cuDNN's heuristics prefer it for 66 to 99% of them, by pass and type. Without a device,
//! cuBLASLt cannot be initialized, so the deviceless mode leaves the engine out, and the emulator puts it
//! back.
//!
//! The decision trees in `one_by_one` say when it comes first, and with which workspace. They are fitted to
//! the first choices of an H200 (cuDNN 9.19) for 4,521,000 convolutions by `measure/one_by_one.py`, half of
//! them of public models, 3,060,000 of them in fp32 with channels first. The share of convolutions that get
//! the right engine, and the right workspace too, among those left out of the fit:
//!
//! | trees | engine | workspace too |
//! |---|---|---|
//! | fp32, channels first | 98.7 to 99.7% | 96.9 to 98.1% |
//! | half precision, channels first | 95.6 to 98.2% | 90.2 to 91.9% |
//! | channels last | 93.3 to 97.4% | 63 to 86% |

use super::data_type::{self, BFLOAT16, FLOAT};
use super::decision_tree::DecisionTree;
use super::emulated_engine::EmulatedEngine;
use super::graph::{Convolution, Pass};
use std::sync::LazyLock;

/// Indices of the engine in the three passes.
pub(super) const ENGINES: [i64; 3] = [FORWARD, INPUT_GRADIENT, FILTER_GRADIENT];
const FORWARD: i64 = 58;
const INPUT_GRADIENT: i64 = 63;
const FILTER_GRADIENT: i64 = 62;

/// Bytes that a kernel reads at once.
const READ_BYTES: i64 = 16;

/// Channels from which it matters how a kernel reads.
const MANY_CHANNELS: i64 = 256;

/// Bytes of a partial sum, for any input type.
const SUM_BYTES: i64 = 4;

/// An answer of the trees is the number of parts that are summed in the workspace, times this number, and the
/// other bytes of the workspace; or -1 where another engine comes first.
const PARTS_UNIT: i64 = 1000;

/// Dimensions of a tensor of volumes.
const VOLUME_DIMENSIONS: usize = 5;

const FLOAT_TREES: &str = include_str!("one_by_one/float.txt");
const HALF_TREES: &str = include_str!("one_by_one/half.txt");
const CHANNELS_LAST_TREES: &str = include_str!("one_by_one/channels_last.txt");

const FEATURES: [&str; 15] = [
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
    "bfloat16",
    "float",
    "depth",
    "height",
    "width",
];

/// Trees of the three passes.
type Trees = LazyLock<[DecisionTree; 3]>;

/// The engine, if a real card's heuristics would put it first.
pub(super) fn first_choice(convolution: &Convolution) -> Option<EmulatedEngine> {
    static FIRST_FLOAT: Trees = LazyLock::new(|| DecisionTree::read_all(FLOAT_TREES, &FEATURES));
    static FIRST_HALF: Trees = LazyLock::new(|| DecisionTree::read_all(HALF_TREES, &FEATURES));
    static LAST: Trees = LazyLock::new(|| DecisionTree::read_all(CHANNELS_LAST_TREES, &FEATURES));
    if !convolution.is_matrix_product() {
        return None;
    }
    let (x, y) = (&convolution.x, &convolution.y);
    let (images, inputs, outputs, positions) = (x.size(0), x.size(1), y.size(1), x.positions());
    let (columns, planes) = (images * positions, inputs * outputs);
    let (read, written) = (columns * inputs, columns * outputs);
    let from_last = |index: usize| x.sizes.iter().rev().nth(index).copied().unwrap_or(1);
    let values = [
        images,
        inputs,
        outputs,
        positions,
        positions % 4,
        columns,
        planes,
        read,
        written,
        columns.saturating_mul(planes),
        i64::from(x.data_type == BFLOAT16),
        i64::from(x.data_type == FLOAT),
        if x.sizes.len() == VOLUME_DIMENSIONS { x.size(2) } else { 0 },
        from_last(1),
        from_last(0),
    ];
    let is_channels_last = x.is_channels_last();
    let [forward, input, filter] = match (is_channels_last, x.data_type) {
        (true, _) => &*LAST,
        (false, FLOAT) => &*FIRST_FLOAT,
        (false, _) => &*FIRST_HALF,
    };
    let (engine, tree, result) = match convolution.pass {
        Pass::Forward => (FORWARD, forward, written),
        Pass::BackwardData => (INPUT_GRADIENT, input, read),
        Pass::BackwardFilter => (FILTER_GRADIENT, filter, planes),
    };
    let answer = Some(tree.answer(&values)).filter(|answer| *answer >= 0)?;
    let (parts, others) = (answer / PARTS_UNIT, answer % PARTS_UNIT);
    let sums = match convolution.pass {
        // A single product, over all positions of all images, which may be split.
        _ if is_channels_last || images == 1 => parts * result,
        // Each image has its own product, and the products are summed.
        Pass::BackwardFilter => images * planes,
        _ => 0,
    };
    Some(EmulatedEngine {
        engine,
        workspace: sums * SUM_BYTES + others,
        uses_tensor_cores: true,
        model: "cuDNN 1×1 convolutions through cuBLASLt",
    })
}

/// Whether other engines are faster. With channels first, the positions of an image are a row of a matrix.
/// If it does not end where a read ends, the others do not begin there either, and a kernel reads value by
/// value. Of 40 such trials on an H200 with 256 channels or more, this engine was the fastest in four; where
/// rows end with a read, in 64 of 74.
pub(super) fn is_slow(convolution: &Convolution) -> bool {
    let Convolution { x, y, .. } = convolution;
    let positions = x.positions();
    !x.is_channels_last()
        && positions > 1
        && positions % (READ_BYTES / data_type::bytes(x.data_type)) != 0
        && x.size(1).min(y.size(1)) >= MANY_CHANNELS
}

#[cfg(test)]
mod tests {
    use super::super::data_type::HALF;
    use super::super::decision_tree;
    use super::*;

    #[test]
    fn the_trees_are_complete() {
        let others = [0, 256, 272, 288, 304, 320, 336, 400, 416];
        let is_answer = |answer: i64| answer == -1 || others.contains(&answer.rem_euclid(PARTS_UNIT));
        for text in [FLOAT_TREES, HALF_TREES, CHANNELS_LAST_TREES] {
            decision_tree::check(text, &decision_tree::PASSES, &FEATURES, is_answer);
        }
    }

    fn workspace(pass: Pass, data_type: i32, is_channels_last: bool, sizes: [[i64; 4]; 3]) -> Option<i64> {
        let convolution = Convolution::example(pass, data_type, is_channels_last, sizes, 1);
        first_choice(&convolution).map(|engine| engine.workspace)
    }

    // As an H200 answers.

    #[test]
    fn gradients_of_filters_are_summed_over_images() {
        let sizes = [[128, 72, 28, 28], [176, 72, 1, 1], [128, 176, 28, 28]];
        assert_eq!(workspace(Pass::BackwardFilter, FLOAT, false, sizes), Some(128 * 72 * 176 * 4 + 400));
        let sizes = [[128, 100, 28, 28], [224, 100, 1, 1], [128, 224, 28, 28]];
        assert_eq!(workspace(Pass::BackwardFilter, HALF, false, sizes), Some(128 * 100 * 224 * 4));
    }

    #[test]
    fn rows_that_do_not_end_with_a_read_are_slow() {
        let is_slow = |data_type, is_channels_last, channels, side| {
            let sizes = [[16, channels, side, side], [512, channels, 1, 1], [16, 512, side, side]];
            is_slow(&Convolution::example(Pass::Forward, data_type, is_channels_last, sizes, 1))
        };
        assert!(is_slow(HALF, false, 1536, 14));
        assert!(is_slow(FLOAT, false, 1536, 7));
        assert!(!is_slow(FLOAT, false, 1536, 14)); // 196 values are 49 reads of four
        assert!(!is_slow(HALF, false, 1536, 28));
        assert!(!is_slow(HALF, false, 1536, 1));
        assert!(!is_slow(HALF, false, 128, 14));
        assert!(!is_slow(HALF, true, 1536, 14));
    }

    #[test]
    fn products_over_all_images_are_split() {
        let sizes = [[32, 640, 14, 14], [480, 640, 1, 1], [32, 480, 14, 14]];
        assert_eq!(workspace(Pass::BackwardFilter, HALF, true, sizes), Some(4 * 640 * 480 * 4 + 272));
        assert_eq!(workspace(Pass::Forward, HALF, true, sizes), Some(0));
    }

    #[test]
    fn dilation_has_no_effect_on_one_position() {
        let sizes = [[96, 192, 32, 32], [32, 192, 1, 1], [96, 32, 32, 32]];
        let plain = Convolution::example(Pass::BackwardData, FLOAT, false, sizes, 1);
        let workspace = first_choice(&plain).map(|engine| engine.workspace);
        assert!(workspace.is_some());
        assert_eq!(first_choice(&plain.dilated(2)).map(|engine| engine.workspace), workspace);
    }

    #[test]
    fn other_engines_come_first_for_some() {
        let sizes = [[128, 192, 7, 7], [160, 192, 1, 1], [128, 160, 7, 7]];
        assert_eq!(workspace(Pass::Forward, BFLOAT16, false, sizes), None);
    }
}
