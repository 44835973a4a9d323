//! Whether cuDNN's heuristics list a Fourier or Winograd engine for a convolution, first or not.
//!
//! With `cudnn.benchmark=True`, PyTorch allocates the largest workspace of all listed engines, and the
//! deviceless mode cannot tell whether these are among them. The decision trees in `listed/` are fitted to
//! lists of an H200 (cuDNN 9.19) by `measure/listed.py`. The share of random convolutions that get the right
//! answer, of those left out of the fit, and how many of the listed ones are found:
//!
//! | trees | convolutions | right | listed ones found |
//! |---|---|---|---|
//! | fp32, filters of up to 11 | 155,000 to 333,000 by engine | 94.9 to 98.8% | |
//! | half precision, filters of up to 11 | 227,000 | 97.6 to 99.3% | 80 to 86% |
//! | with groups | 198,000 | 93.8 to 97.4% | 94.4 to 98.4% |
//! | larger filters | 149,000 | 93.9 to 97.7% | 95.3 to 97.2% |

use super::data_type::{BFLOAT16, FLOAT, HALF};
use super::decision_tree::DecisionTree;
use super::first_choice::{self, MEASURED_MAJOR};
use super::images::{Images, area};
use crate::card::card;
use std::sync::LazyLock;

/// Largest filter that is not wide.
pub(super) const MAX_NARROW_FILTER: i64 = 11;

/// Values that a kernel reads at once, at most.
const MAX_ALIGNMENT: i64 = 8;

/// Engines in the order of their trees.
const ENGINES: [i64; 6] = [3, 6, 50, 7, 17, 18];

/// After those of first choices. The trees for narrow filters in fp32 ask only for the first three of them.
const MORE_FEATURES: [&str; 10] = [
    "stride",
    "last",
    "weights",
    "groups",
    "half",
    "bfloat16",
    "input_alignment",
    "output_alignment",
    "image_alignment",
    "result_alignment",
];

/// Whether heuristics list an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listing {
    Missing,
    Listed,
    First,
}

impl Listing {
    fn from_answer(answer: i64) -> Listing {
        match answer {
            0 => Listing::Missing,
            1 => Listing::Listed,
            _ => Listing::First,
        }
    }
}

/// Filters of up to 11 positions on a side in fp32, without groups. Which engine is first is in
/// [`first_choice`].
const NARROW: &str = include_str!("listed/narrow.txt");
/// The same in half precision.
const HALF_PRECISION: &str = include_str!("listed/half.txt");
/// The same in all types, with groups.
const GROUPED: &str = include_str!("listed/grouped.txt");
/// Larger filters without groups, as in gradients of gradients.
const WIDE: &str = include_str!("listed/wide.txt");

type Trees = [DecisionTree; ENGINES.len()];

/// Whether heuristics list an engine that applies. Cards and convolutions that were not measured get the
/// answer that most others get: listed in fp32, not listed otherwise.
pub(super) fn listing(engine: i64, images: &Images) -> Listing {
    let usual = if images.data_type == FLOAT { Listing::Listed } else { Listing::Missing };
    if card().major == MEASURED_MAJOR { listing_on_h200(engine, images).unwrap_or(usual) } else { usual }
}

/// `None` if no such convolution was measured.
fn listing_on_h200(engine: i64, images: &Images) -> Option<Listing> {
    static TREES: LazyLock<[Trees; 4]> = LazyLock::new(|| {
        [NARROW, HALF_PRECISION, GROUPED, WIDE].map(|text| DecisionTree::read_all(text, &feature_names()))
    });
    let [narrow, half_precision, grouped, wide] = &*TREES;
    let is_in_range = images.input[0] <= 256
        && images.count <= 1024
        && images.inputs.max(images.outputs) * images.groups <= 2048;
    if !is_in_range || !images.is_square() {
        return None;
    }
    let is_wide = images.filter[0] > MAX_NARROW_FILTER;
    let trees = match (images.data_type, images.is_grouped(), is_wide) {
        (FLOAT, false, false) => narrow,
        (HALF | BFLOAT16, false, false) => half_precision,
        (_, true, false) => grouped,
        (FLOAT | HALF, false, true) => wide,
        _ => return None,
    };
    let place = ENGINES.iter().position(|other| *other == engine)?;
    Some(Listing::from_answer(trees[place].answer(&features(images))))
}

fn feature_names() -> Vec<&'static str> {
    [first_choice::FEATURES.as_slice(), &MORE_FEATURES].concat()
}

fn features(images: &Images) -> Vec<i64> {
    let more = [images.stride, i64::from(images.is_channels_last), images.inputs * area(images.filter)];
    let types = [HALF, BFLOAT16].map(|data_type| i64::from(images.data_type == data_type));
    let alignments = [images.inputs, images.outputs, area(images.input), area(images.output)].map(alignment);
    [first_choice::features(images).as_slice(), &more, &[images.groups], &types, &alignments].concat()
}

/// The largest power of two that divides a number of values.
fn alignment(values: i64) -> i64 {
    (values & -values).min(MAX_ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::super::decision_tree;
    use super::super::graph::Pass;
    use super::super::images::tests::{FIRST, LAST, square};
    use super::*;

    #[test]
    fn the_trees_are_complete() {
        let headings = ["engine_3", "engine_6", "engine_50", "engine_7", "engine_17", "engine_18"];
        for text in [NARROW, HALF_PRECISION, GROUPED, WIDE] {
            decision_tree::check(text, &headings, &feature_names(), |answer| [0, 1, 2].contains(&answer));
        }
    }

    #[test]
    fn engines_are_listed_as_on_the_card() {
        let listed = |engine, pass, data_type, layout, images, channels, filter| {
            let convolution = square(pass, data_type, layout, images, channels, filter);
            Images::of(&convolution).and_then(|images| listing_on_h200(engine, &images))
        };
        use Listing::{Listed, Missing};
        for (engine, pass, data_type, layout, images, channels, filter, expected) in [
            // The layers of ConvNeXt between its stages.
            (50, Pass::BackwardData, FLOAT, FIRST, (16, 56), (96, 192, 1), (2, 2, 0), Missing),
            (50, Pass::BackwardData, FLOAT, FIRST, (32, 28), (192, 384, 1), (2, 2, 0), Missing),
            (50, Pass::BackwardData, FLOAT, FIRST, (64, 56), (64, 128, 1), (3, 2, 1), Listed),
            (3, Pass::Forward, FLOAT, FIRST, (128, 14), (512, 1024, 1), (1, 1, 0), Listed),
            // Not for filters whose padding is as large.
            (3, Pass::Forward, FLOAT, FIRST, (128, 14), (512, 1024, 1), (1, 1, 1), Missing),
            // In half precision, for some dozens of small images, as in DenseNet.
            (3, Pass::Forward, HALF, FIRST, (32, 13), (256, 512, 1), (1, 1, 0), Listed),
            (3, Pass::Forward, HALF, FIRST, (32, 7), (512, 128, 1), (1, 1, 0), Listed),
            (3, Pass::Forward, HALF, FIRST, (32, 28), (512, 128, 1), (1, 1, 0), Missing),
            // The gradient of a gradient: the output is the filter.
            (3, Pass::Forward, HALF, FIRST, (3, 128), (16, 64, 1), (128, 1, 1), Listed),
            (3, Pass::Forward, FLOAT, LAST, (16, 50), (40, 40, 1), (12, 1, 2), Listed),
            // NFNet.
            (6, Pass::Forward, BFLOAT16, FIRST, (16, 14), (384, 384, 6), (3, 1, 1), Missing),
        ] {
            let found = listed(engine, pass, data_type, layout, images, channels, filter);
            assert_eq!(found, Some(expected), "{engine} {images:?} {channels:?} {filter:?}");
        }
    }
}
