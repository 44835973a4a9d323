//! Whether cuDNN's heuristics list a Fourier or Winograd engine for a convolution, first or not.
//!
//! With `cudnn.benchmark=True`, PyTorch allocates the largest workspace of all listed engines, and the
//! deviceless mode cannot tell whether these are among them. The decision trees in `listed.txt` are fitted to
//! lists of an H200 (cuDNN 9.19) by `measure/listed.py`: for 333,000 random convolutions (engines 3 and 18),
//! 261,000 (50) and 155,000 (17). Of convolutions that were left out of the fit, they are right for 94.9%
//! with engine 3, 98.8% with 50, 95.8% with 17 and 97.1% with 18; 77%, 87%, 74% and 83% of them are listed.

use super::data_type::FLOAT;
use super::decision_tree::DecisionTree;
use super::first_choice::{self, MEASURED_MAJOR};
use super::images::{Images, area};
use crate::card::card;
use std::sync::LazyLock;

const TEXT: &str = include_str!("listed.txt");

/// Engines in the order of their trees.
const ENGINES: [i64; 4] = [3, 50, 17, 18];

/// After those of first choices.
const MORE_FEATURES: [&str; 3] = ["stride", "last", "weights"];

fn feature_names() -> Vec<&'static str> {
    [first_choice::FEATURES.as_slice(), &MORE_FEATURES].concat()
}

/// Whether an engine that applies is listed. Assumed of cards that were not measured.
pub(super) fn is_listed(engine: i64, images: &Images) -> bool {
    card().major != MEASURED_MAJOR || is_listed_by_h200(engine, images)
}

/// The same for an H200. Assumed of convolutions that were not measured.
fn is_listed_by_h200(engine: i64, images: &Images) -> bool {
    static TREES: LazyLock<[DecisionTree; ENGINES.len()]> =
        LazyLock::new(|| DecisionTree::read_all(TEXT, &feature_names()));
    let is_in_range = images.filter[0] <= 11
        && images.input[0] <= 256
        && images.count <= 1024
        && images.inputs.max(images.outputs) <= 2048;
    let is_measured = images.data_type == FLOAT && !images.is_grouped() && images.is_square() && is_in_range;
    let tree = ENGINES.iter().position(|other| *other == engine).map(|place| &TREES[place]);
    tree.filter(|_| is_measured).is_none_or(|tree| tree.answer(&features(images)) == 1)
}

fn features(images: &Images) -> Vec<i64> {
    let more = [images.stride, i64::from(images.is_channels_last), images.inputs * area(images.filter)];
    [first_choice::features(images).as_slice(), &more].concat()
}

#[cfg(test)]
mod tests {
    use super::super::decision_tree;
    use super::super::graph::Pass;
    use super::super::images::tests::{FIRST, square};
    use super::*;

    #[test]
    fn the_trees_are_complete() {
        decision_tree::check(
            TEXT,
            &["engine_3", "engine_50", "engine_17", "engine_18"],
            &feature_names(),
            |answer| [0, 1].contains(&answer),
        );
    }

    #[test]
    fn engines_are_listed_as_on_the_card() {
        let is_listed = |engine, pass, images, channels, filter| {
            let convolution = square(pass, FLOAT, FIRST, images, channels, filter);
            Images::of(&convolution).map(|images| is_listed_by_h200(engine, &images))
        };
        for (engine, pass, images, channels, filter, listed) in [
            // The layers of ConvNeXt between its stages.
            (50, Pass::BackwardData, (16, 56), (96, 192, 1), (2, 2, 0), false),
            (50, Pass::BackwardData, (32, 28), (192, 384, 1), (2, 2, 0), false),
            (50, Pass::BackwardData, (64, 56), (64, 128, 1), (3, 2, 1), true),
            (3, Pass::Forward, (128, 14), (512, 1024, 1), (1, 1, 0), true),
            // Not for filters whose padding is as large.
            (3, Pass::Forward, (128, 14), (512, 1024, 1), (1, 1, 1), false),
        ] {
            assert_eq!(
                is_listed(engine, pass, images, channels, filter),
                Some(listed),
                "{engine} {images:?}"
            );
        }
    }
}
