//! Whether cuDNN's heuristics list a Fourier or Winograd engine first.
//!
//! They do so for 4% of convolutions in fp32, and the deviceless mode cannot tell for which. The
//! decision trees in `first_choice.txt` are fitted to the first choices of an H200 (cuDNN 9.19) by
//! `measure/first_choice.py`: for 727,000 convolutions with filters of up to 7 positions on a side, 645,000
//! with larger ones. Of convolutions that were left out of the fit, they find 94 to 99.6% of these choices in
//! the forward pass, 99 to 99.9% for gradients of inputs and 98% for gradients of filters; one in 600 to
//! 25,000 others is taken for one.

use super::data_type::FLOAT;
use super::decision_tree::DecisionTree;
use super::graph::Pass;
use super::images::{Images, area};
use crate::card::card;
use std::sync::LazyLock;

/// Compute capability of the cards for which the trees hold.
pub(super) const MEASURED_MAJOR: i32 = 9;

const TEXT: &str = include_str!("first_choice.txt");

pub(super) const FEATURES: [&str; 10] =
    ["images", "inputs", "outputs", "side", "filter", "padding", "positions", "pixels", "planes", "products"];

/// Index of the engine that is listed first, if it is a Fourier or Winograd engine.
pub(super) fn engine(pass: Pass, images: &Images) -> Option<i64> {
    static TREES: LazyLock<[DecisionTree; 3]> = LazyLock::new(|| DecisionTree::read_all(TEXT, &FEATURES));
    let is_in_range = (3..=11).contains(&images.filter[0])
        && (1..=256).contains(&images.input[0])
        && [images.count, images.inputs, images.outputs].iter().all(|number| *number <= 2048);
    let is_measured = card().major == MEASURED_MAJOR
        && images.data_type == FLOAT
        && !images.is_channels_last
        && !images.is_grouped()
        && images.stride == 1
        && is_in_range
        && images.is_square();
    if !is_measured {
        return None;
    }
    let [forward, input, filter] = &*TREES;
    let tree = match pass {
        Pass::Forward => forward,
        Pass::BackwardData => input,
        Pass::BackwardFilter => filter,
    };
    Some(tree.answer(&features(images))).filter(|engine| *engine != 0)
}

pub(super) fn features(images: &Images) -> [i64; FEATURES.len()] {
    let Images { count, inputs, outputs, input: [side, _], filter: [filter, _], .. } = *images;
    let positions = count * area(images.output);
    let planes = inputs * outputs;
    let products = positions.saturating_mul(planes * filter * filter);
    let pixels = count * side * side;
    [count, inputs, outputs, side, filter, images.padding[0], positions, pixels, planes, products]
}

#[cfg(test)]
mod tests {
    use super::super::decision_tree;
    use super::*;

    #[test]
    fn the_trees_are_complete() {
        decision_tree::check(TEXT, &decision_tree::PASSES, &FEATURES, |engine| {
            [0, 3, 17, 18, 50].contains(&engine)
        });
    }
}
