//! Workspaces of the engines that run in clusters of thread blocks (Hopper).
//!
//! These engines keep as many clusters running as fit on the card, and distribute the tiles of the result to
//! them in waves. If the last wave has fewer tiles than there are clusters, its tiles are split along the
//! sum, and the partial sums are added up in the workspace. Without a device, cuDNN assumes a card with 18
//! multiprocessors, whatever the description says, and returns a different workspace. So the emulator
//! computes it.
//!
//! The rule was derived from workspaces returned by an H200 (cuDNN 9.19): 12,274 of 801 convolutions, and
//! the first choices for 245,000 random ones, of which it reproduces 99.7%. Where the last wave follows
//! others and can be split, the number of parts is a fit, which is right for 99.6% of 35,600. Of 3,000 first
//! choices for grouped convolutions of public models, it reproduces 99.5%. The last two and unmeasured cases
//! are noted as modeled.

use super::backend::{attribute, kind, value};
use super::data_type::{self, BFLOAT16, FLOAT};
use super::graph::{Convolution, GraphTensor, Pass};
use super::images::{MAX_GROUPS_AT_ONCE, aligned};
use super::{Descriptor, SUCCESS, real};
use crate::card::card;
use crate::notes;

const WORKSPACE_NOTE: &str = "cuDNN convolution workspaces";

/// What the rule was measured with: the cuDNN release without its patch number, and the card's
/// multiprocessors.
const MEASURED_RELEASE: usize = 9_19;
const MEASURED_MULTIPROCESSORS: i64 = 132;

/// Multiprocessors of the card that cuDNN assumes without a device. All can share clusters.
const DEVICELESS_MULTIPROCESSORS: i64 = 18;

/// Numbers of multiprocessors of an H200 that can share a cluster of three or more blocks.
const CLUSTER_PARTITIONS: [i64; 8] = [18, 18, 16, 16, 16, 16, 16, 8];

/// Sums of this type are split less often.
const BFLOAT16_SPLIT_PENALTY: i64 = 8;

/// Tensors are read in rows of channels that are multiples of this many bytes, at addresses that are too.
const CHANNEL_BYTES: i64 = 16;

/// Parts are summed in single precision; counters of tiles and of parts have the same size.
const SUM_BYTES: i64 = 4;
const COUNTER_BYTES: i64 = 4;

/// Bytes before the parts, and most bytes lost to alignment.
const PARTS_HEADER_BYTES: i64 = 32;
const ALIGNMENT_BYTES: i64 = 127;

/// Above this many waves, blocks get their next tile from a counter; up to it, the assignment is static.
const MAX_STATIC_WAVES: i64 = 2;

/// Above this many parts, sums are split as far as the clusters and the shortest sum allow.
const MAX_WEIGHED_PARTS: i64 = 8;
const MIN_SUM_TERMS: i64 = 1024;

/// Most parts of a sum.
const MAX_PARTS: i64 = 128;

/// Terms of the shortest part in the last of several waves.
const MIN_LAST_TERMS: i64 = 128;

/// Tile and most waves of the kernel that does not split its last wave if it follows more of them.
const UNSPLIT_TILE: (i64, i64) = (128, 64);
const MAX_SPLIT_WAVES: i64 = 5;

/// How an engine computes one tile.
#[derive(Clone, Copy, Debug, PartialEq)]
struct EngineTile {
    rows: i64,
    columns: i64,
    /// Terms of a sum that one more level of pairwise addition costs, in the only wave: the least and the
    /// most that agree with the measurements.
    only_level: [LevelCost; 2],
    /// Terms from which on a sum in the last of several waves has two, four, eight and as many parts as
    /// possible, fitted.
    last_terms: [i64; 4],
}

/// What the first level of pairwise addition costs, and each other.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LevelCost {
    first: i64,
    other: i64,
}

impl LevelCost {
    /// Of the least and the most that agree with the measurements.
    const fn both(costs: [i64; 2]) -> [LevelCost; 2] {
        let [least, most] = costs;
        [LevelCost { first: least, other: least }, LevelCost { first: most, other: most }]
    }

    fn of(self, levels: i64) -> i64 {
        if levels == 0 { 0 } else { self.first + (levels - 1) * self.other }
    }

    fn midpoint([least, most]: [LevelCost; 2]) -> LevelCost {
        LevelCost {
            first: i64::midpoint(least.first, most.first),
            other: i64::midpoint(least.other, most.other),
        }
    }
}

/// For gradients of filters in single precision, the kernel with this tile has other costs.
const FLOAT_FILTER_TILE: (i64, i64) = (128, 64);
const FLOAT_FILTER_LEVEL: [LevelCost; 2] =
    [LevelCost { first: 576, other: 488 }, LevelCost { first: 600, other: 510 }];

/// Tile of a value of `CUDNN_KNOB_TYPE_TILE_SIZE`, if known.
fn tile(knob: i64) -> Option<EngineTile> {
    const UNMEASURED: [i64; 2] = [128, 896];
    let (rows, columns, only_level, last_terms) = match knob {
        0 => (128, 128, [416, 428], [432, 856, 1408, 1840]),
        1 => (128, 64, [520, 572], [512, 1048, 1680, 2288]),
        2 => (128, 32, UNMEASURED, [680, 1456, 2336, 3304]),
        3 => (256, 128, [352, 380], [384, 768, 1168, 1592]),
        4 => (256, 64, [392, 428], [432, 856, 1368, 1776]),
        5 => (64, 64, [784, 812], [680, 1456, 2336, 3304]),
        6 => (128, 256, [256, 508], [376, 728, 1328, 1568]),
        7 => (64, 128, [520, 572], [512, 1056, 1704, 2296]),
        8 => (64, 32, UNMEASURED, [680, 1456, 2336, 3304]),
        9 => (64, 256, [416, 516], [432, 848, 1392, 1832]),
        16 => (256, 32, UNMEASURED, [392, 1096, 1736, 2296]),
        18 => (64, 192, UNMEASURED, [480, 752, 1384, 1896]),
        19 => (128, 192, UNMEASURED, [376, 728, 1328, 1568]),
        20 => (256, 96, [128, 508], [408, 728, 1304, 1640]),
        _ => return None,
    };
    Some(EngineTile { rows, columns, only_level: LevelCost::both(only_level), last_terms })
}

/// An engine with the knobs of its plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kernel {
    tile: Option<EngineTile>,
    /// `CUDNN_KNOB_TYPE_TILEK`: whether half-precision sums take 64 terms per step instead of 32.
    has_long_steps: bool,
    /// `CUDNN_KNOB_TYPE_WORKSPACE`: whether sums are never split.
    never_splits: bool,
    cluster_rows: i64,
    cluster_columns: i64,
}

impl Kernel {
    /// Kernel of a configuration, if it runs in clusters. The caller must not hold the emulator's locks.
    pub(super) fn of(pass: Pass, configuration: Descriptor) -> Option<Kernel> {
        let engines: [i64; 2] = match pass {
            Pass::Forward => [62, 67],
            Pass::BackwardData => [67, 71],
            Pass::BackwardFilter => [65, 68],
        };
        let engine = engine_of(configuration)?;
        if !engines.contains(&engine) {
            return None;
        }
        Kernel::from_knobs(&knobs_of(configuration))
    }

    fn from_knobs(knobs: &[(i32, i64)]) -> Option<Kernel> {
        // `cudnnBackendKnobType_t`
        const TILE_SIZE: i32 = 2;
        const TILE_K: i32 = 13;
        const WORKSPACE: i32 = 25;
        const CLUSTER_ROWS: i32 = 27;
        const CLUSTER_COLUMNS: i32 = 28;
        let knob = |wanted| knobs.iter().find_map(|(kind, value)| (*kind == wanted).then_some(*value));
        Some(Kernel {
            tile: tile(knob(TILE_SIZE)?),
            has_long_steps: knob(TILE_K)? != 0,
            never_splits: knob(WORKSPACE)? != 0,
            cluster_rows: knob(CLUSTER_ROWS)?.max(1),
            cluster_columns: knob(CLUSTER_COLUMNS)?.max(1),
        })
    }
}

/// Workspace on the card in bytes, for a plan whose workspace the library computes here as `here`.
pub(super) fn workspace(convolution: &Convolution, kernel: Kernel, here: i64) -> i64 {
    let multiprocessors = i64::from(card().multiprocessors);
    let workspace = compute(convolution, kernel, multiprocessors, here);
    let is_measured =
        multiprocessors == MEASURED_MULTIPROCESSORS && real::version() / 100 == MEASURED_RELEASE;
    if !is_measured || !workspace.is_some_and(|workspace| workspace.is_exact) {
        notes::modeled(WORKSPACE_NOTE);
    }
    workspace.map_or(here, |workspace| workspace.bytes)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Workspace {
    bytes: i64,
    is_exact: bool,
}

/// Workspace on a card, unless the rule does not cover the convolution.
fn compute(convolution: &Convolution, kernel: Kernel, multiprocessors: i64, here: i64) -> Option<Workspace> {
    let tile = kernel.tile?;
    let is_strided_back = convolution.pass == Pass::BackwardData && !convolution.has_stride(1);
    if is_strided_back || !convolution.fits_a_card() {
        return None;
    }
    if convolution.groups() > 1 {
        return grouped(convolution, kernel, tile, multiprocessors, here);
    }
    let copies = copy_bytes(convolution);
    // What the library returns beyond the copies must be nothing, a counter, or parts.
    let rest = here - copies;
    let counter = COUNTER_BYTES + ALIGNMENT_BYTES;
    let is_known = rest == 0 || rest >= counter;
    is_known.then(|| {
        let sums = sum_workspace(convolution, kernel, tile, multiprocessors);
        Workspace { bytes: copies + sums.bytes, ..sums }
    })
}

/// The same for a grouped convolution.
fn grouped(
    convolution: &Convolution,
    kernel: Kernel,
    tile: EngineTile,
    multiprocessors: i64,
    here: i64,
) -> Option<Workspace> {
    let sums = |convolution: &Convolution, multiprocessors| {
        sum_workspace(convolution, kernel, tile, multiprocessors).bytes
    };
    let group = convolution.group();
    let at_once = convolution.groups().min(MAX_GROUPS_AT_ONCE);
    let group_by_group =
        |multiprocessors| at_once * aligned(copy_bytes(&group) + sums(&group, multiprocessors));
    let bytes = if group_by_group(DEVICELESS_MULTIPROCESSORS) == here {
        group_by_group(multiprocessors)
    } else {
        // One kernel has all groups. What the library returns beyond its sums are copies.
        let copies = here - sums(convolution, DEVICELESS_MULTIPROCESSORS);
        (copies >= 0).then_some(copies)? + sums(convolution, multiprocessors)
    };
    Some(Workspace { bytes, is_exact: false })
}

/// Workspace for sums on a card: their parts, and counters.
fn sum_workspace(
    convolution: &Convolution,
    kernel: Kernel,
    tile: EngineTile,
    multiprocessors: i64,
) -> Workspace {
    let problem = Problem::of(convolution, kernel, tile);
    let cluster = kernel.cluster_rows * kernel.cluster_columns;
    let tiles = problem.products
        * problem.rows.div_ceil_by(tile.rows).div_ceil_by(kernel.cluster_rows)
        * (problem.columns.div_ceil_by(tile.columns) * problem.columns_times)
            .div_ceil_by(kernel.cluster_columns);
    let clusters = clusters(multiprocessors, cluster);
    let last = if tiles > clusters { tiles % clusters } else { tiles };
    let has_short_half_steps = convolution.x.data_type != FLOAT && !kernel.has_long_steps;
    let stays_whole = (tile.rows, tile.columns) == UNSPLIT_TILE
        && has_short_half_steps
        && tiles > MAX_SPLIT_WAVES * clusters;
    let max_parts = if kernel.never_splits || stays_whole || last == 0 { 1 } else { clusters / last };
    let (parts, is_exact) = match max_parts {
        1 => (1, true),
        _ if tiles <= clusters => problem.parts_in_only_wave(max_parts),
        _ => (problem.parts_in_last_wave(tile, max_parts), false),
    };

    let mut bytes = 0;
    if tiles > MAX_STATIC_WAVES * clusters {
        bytes += COUNTER_BYTES;
    }
    if parts > 1 {
        let of_block = tile.rows * tile.columns * SUM_BYTES * parts + COUNTER_BYTES * pairwise_sums(parts);
        bytes += PARTS_HEADER_BYTES + last * cluster * of_block;
    }
    if bytes > 0 {
        bytes += ALIGNMENT_BYTES;
    }
    Workspace { bytes, is_exact }
}

/// A convolution as matrix products.
struct Problem {
    /// Number of matrix products: one for each set of groups that share a tile.
    products: i64,
    rows: i64,
    columns: i64,
    /// Number of repetitions of the columns: one per filter position if the filter is the result.
    columns_times: i64,
    /// Steps of a sum, and terms per step.
    steps: i64,
    step: i64,
    only_level: [LevelCost; 2],
    /// How much more a level of addition costs than in single and half precision.
    split_penalty: i64,
}

impl Problem {
    fn of(convolution: &Convolution, kernel: Kernel, tile: EngineTile) -> Problem {
        let Convolution { pass, x, w, y, .. } = convolution;
        let step = if x.data_type != FLOAT && kernel.has_long_steps { 64 } else { 32 };
        let split_penalty = if x.data_type == BFLOAT16 { BFLOAT16_SPLIT_PENALTY } else { 1 };
        let groups = convolution.groups();
        let (channels, filters) = (w.size(1), y.size(1) / groups);
        let tile_channels = match pass {
            Pass::BackwardFilter => tile.rows.min(tile.columns),
            _ => tile.columns,
        };
        let group_channels = whole(channels.max(filters), x.data_type);
        let groups_per_tile = (tile_channels / group_channels).clamp(1, groups);
        let (channels, filters) = (channels * groups_per_tile, filters * groups_per_tile);
        let all_positions = |tensor: &GraphTensor| tensor.size(0) * tensor.positions();
        let (rows, columns, columns_times, steps) = match pass {
            Pass::Forward => (all_positions(y), filters, 1, w.positions() * channels.div_ceil_by(step)),
            Pass::BackwardData => (all_positions(x), channels, 1, w.positions() * filters.div_ceil_by(step)),
            Pass::BackwardFilter => (filters, channels, w.positions(), all_positions(y).div_ceil_by(step)),
        };
        let products = groups.div_ceil_by(groups_per_tile);
        let is_float_filter = *pass == Pass::BackwardFilter && x.data_type == FLOAT;
        let only_level = match (tile.rows, tile.columns) {
            FLOAT_FILTER_TILE if is_float_filter => FLOAT_FILTER_LEVEL,
            _ => tile.only_level,
        };
        Problem { products, rows, columns, columns_times, steps, step, only_level, split_penalty }
    }

    /// Number of parts if all tiles run in one wave, and whether it is certain.
    fn parts_in_only_wave(&self, max_parts: i64) -> (i64, bool) {
        let parts = max_parts.min(self.steps / (MIN_SUM_TERMS / self.step + 1));
        if parts <= MAX_WEIGHED_PARTS {
            let [least, most] = self.only_level;
            let parts = self.parts(LevelCost::midpoint(self.only_level), max_parts);
            (parts, self.parts(least, max_parts) == self.parts(most, max_parts))
        } else {
            (self.evened(parts.min(MAX_PARTS)), true)
        }
    }

    /// Number of parts if the tiles are in the last of several waves.
    fn parts_in_last_wave(&self, tile: EngineTile, max_parts: i64) -> i64 {
        let terms = self.steps * self.step / self.split_penalty;
        let [two, four, eight, all] = tile.last_terms;
        // Three parts take about as long as two.
        let four = if max_parts == 3 { four + four / 16 } else { four };
        let parts = match terms {
            terms if terms < two => 1,
            terms if terms < four => 2,
            terms if terms < eight => 4,
            terms if terms < all => 8,
            _ => self.steps * self.step / MIN_LAST_TERMS,
        };
        self.evened(parts.min(max_parts).min(self.steps))
    }

    /// The fewest parts whose longest has as many steps as with this many.
    fn evened(&self, parts: i64) -> i64 {
        self.steps.div_ceil_by(self.steps.div_ceil_by(parts.max(1)))
    }

    /// Number of parts, at most `max_parts`, for which the longest part and the levels of addition together
    /// take the least time.
    fn parts(&self, level: LevelCost, max_parts: i64) -> i64 {
        let time = |parts: i64| {
            self.steps.div_ceil_by(parts) * self.step + level.of(levels(parts)) * self.split_penalty
        };
        (1..=max_parts.min(self.steps)).min_by_key(|parts| time(*parts)).unwrap_or(1)
    }
}

/// Levels of pairwise addition needed to sum the parts.
fn levels(parts: i64) -> i64 {
    i64::from(i64::BITS - (parts - 1).leading_zeros())
}

/// Number of additions on all levels; a part without a partner counts as one.
fn pairwise_sums(parts: i64) -> i64 {
    std::iter::successors(Some(parts), |parts| Some(parts.div_ceil_by(2)))
        .skip(1)
        .take(levels(parts) as usize)
        .sum()
}

/// Clusters that the card runs at the same time.
fn clusters(multiprocessors: i64, blocks: i64) -> i64 {
    if blocks <= 2 || multiprocessors == DEVICELESS_MULTIPROCESSORS {
        return (multiprocessors / blocks).max(1);
    }
    let measured: i64 = CLUSTER_PARTITIONS.iter().map(|partition| partition / blocks).sum();
    (measured * multiprocessors / MEASURED_MULTIPROCESSORS).max(1)
}

/// Channels in whole rows.
fn whole(channels: i64, data_type: i32) -> i64 {
    let of_row = CHANNEL_BYTES / data_type::bytes(data_type);
    channels.div_ceil_by(of_row) * of_row
}

/// Bytes for copies of tensors that are not in the layout that the engines need: channels last, in whole
/// rows.
fn copy_bytes(convolution: &Convolution) -> i64 {
    let Convolution { x, w, y, .. } = convolution;
    let value = data_type::bytes(x.data_type);
    let whole = |channels: i64| whole(channels, x.data_type);
    let is_ragged = |channels: i64| whole(channels) != channels;
    let is_channels_first =
        |tensor: &GraphTensor| !tensor.is_channels_last() && tensor.positions() > 1 && tensor.size(1) > 1;
    let (channels, filters) = (x.size(1), y.size(1));
    let images = |tensor: &GraphTensor| {
        let is_copied = is_channels_first(tensor) || is_ragged(tensor.size(1)) || tensor.is_slice;
        if is_copied { tensor.size(0) * tensor.positions() * whole(tensor.size(1)) * value } else { 0 }
    };
    let is_filter_copied = is_channels_first(w) || is_ragged(channels) || is_ragged(filters);
    let filter = if is_filter_copied { w.positions() * whole(channels) * whole(filters) * value } else { 0 };
    let bytes = images(x) + images(y) + filter;
    if bytes > 0 { bytes + CHANNEL_BYTES } else { 0 }
}

trait DivCeil {
    fn div_ceil_by(self, other: i64) -> i64;
}

impl DivCeil for i64 {
    /// Like `div_ceil` for unsigned numbers; neither may be negative.
    fn div_ceil_by(self, other: i64) -> i64 {
        (self + other - 1) / other
    }
}

/// Index of a configuration's engine.
fn engine_of(configuration: Descriptor) -> Option<i64> {
    let engine = Owned::new(kind::ENGINE)?;
    let mut descriptor = engine.0;
    get(configuration, attribute::ENGINE_CONFIGURATION_ENGINE, value::DESCRIPTOR, &mut descriptor)?;
    let mut number = 0_i64;
    get(engine.0, attribute::ENGINE_GLOBAL_INDEX, value::INTEGER, &mut number)?;
    Some(number)
}

/// Kinds and values of a configuration's knobs.
fn knobs_of(configuration: Descriptor) -> Vec<(i32, i64)> {
    const MAX_KNOBS: usize = 44; // more than `CUDNN_KNOB_TYPE_COUNTS`
    let choices: Vec<Owned> = (0..MAX_KNOBS).filter_map(|_| Owned::new(kind::KNOB_CHOICE)).collect();
    let mut descriptors: Vec<Descriptor> = choices.iter().map(|choice| choice.0).collect();
    let mut found = 0;
    let status = unsafe {
        real::cudnnBackendGetAttribute(
            configuration,
            attribute::ENGINE_CONFIGURATION_KNOBS,
            value::DESCRIPTOR,
            descriptors.len() as i64,
            &mut found,
            descriptors.as_mut_ptr().cast(),
        )
    };
    if status != SUCCESS {
        return Vec::new();
    }
    let knob = |choice: &Owned| {
        let (mut knob, mut chosen) = (0_i32, 0_i64);
        get(choice.0, attribute::KNOB_CHOICE_KIND, value::KNOB_KIND, &mut knob)?;
        get(choice.0, attribute::KNOB_CHOICE_VALUE, value::INTEGER, &mut chosen)?;
        Some((knob, chosen))
    };
    choices.iter().take(usize::try_from(found).unwrap_or_default()).filter_map(knob).collect()
}

/// Reads one value from the real library.
fn get<T>(descriptor: Descriptor, name: i32, kind: i32, to: &mut T) -> Option<()> {
    let mut found = 0;
    let status = unsafe {
        real::cudnnBackendGetAttribute(descriptor, name, kind, 1, &mut found, (&raw mut *to).cast())
    };
    (status == SUCCESS && found == 1).then_some(())
}

/// A descriptor that the emulator owns in the real library.
struct Owned(Descriptor);

impl Owned {
    fn new(kind: i32) -> Option<Owned> {
        let mut descriptor: Descriptor = std::ptr::null_mut();
        let status = unsafe { real::cudnnBackendCreateDescriptor(kind, &mut descriptor) };
        (status == SUCCESS).then_some(Owned(descriptor))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        unsafe { real::cudnnBackendDestroyDescriptor(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::data_type::HALF;
    use super::super::images::tests::{self as images, FIRST, LAST};
    use super::*;

    /// Convolution of 32 images of `channels` × `side` × `side` with `filters` filters of `size` × `size` and
    /// a stride.
    fn square(
        pass: Pass,
        data_type: i32,
        is_channels_last: bool,
        (channels, side): (i64, i64),
        (filters, size, step): (i64, i64, i64),
    ) -> Convolution {
        let padding = if size % 2 == 1 { size / 2 } else { 0 };
        let (channels, filter) = ((channels, filters, 1), (size, step, padding));
        images::square(pass, data_type, is_channels_last, (32, side), channels, filter)
    }

    fn kernel(tile_size: i64, tile_k: i64, workspace: i64, rows: i64, columns: i64) -> Kernel {
        Kernel {
            tile: tile(tile_size),
            has_long_steps: tile_k == 1,
            never_splits: workspace == 1,
            cluster_rows: rows,
            cluster_columns: columns,
        }
    }

    fn on_h200(convolution: &Convolution, kernel: Kernel, here: i64) -> Option<(i64, bool)> {
        compute(convolution, kernel, MEASURED_MULTIPROCESSORS, here)
            .map(|workspace| (workspace.bytes, workspace.is_exact))
    }

    #[test]
    fn kernels_by_their_knobs() {
        let knobs = [(2, 7), (13, 1), (18, 0), (25, 0), (27, 4), (28, 2)];
        assert_eq!(Kernel::from_knobs(&knobs), Some(kernel(7, 1, 0, 4, 2)));
        assert_eq!(Kernel::from_knobs(&knobs[..4]), None);
    }

    #[test]
    fn unsplit_sums_match_measurements() {
        // One wave without a counter, and many waves.
        let small = square(Pass::BackwardData, BFLOAT16, LAST, (64, 16), (128, 3, 1));
        assert_eq!(on_h200(&small, kernel(7, 1, 1, 8, 1), 131), Some((0, true)));
        let large = square(Pass::Forward, HALF, LAST, (128, 28), (512, 1, 1));
        assert_eq!(on_h200(&large, kernel(6, 0, 1, 7, 1), 131), Some((131, true)));
        let copied = square(Pass::BackwardData, HALF, FIRST, (64, 32), (64, 3, 1));
        assert_eq!(on_h200(&copied, kernel(3, 1, 1, 1, 1), 8_462_483), Some((8_462_352, true)));
    }

    #[test]
    fn sums_split_in_the_only_wave_match_measurements() {
        let weighed = square(Pass::Forward, FLOAT, LAST, (2048, 7), (512, 1, 1));
        assert_eq!(on_h200(&weighed, kernel(0, 0, 0, 1, 2), 131), Some((6_816_111, true)));
        let far = square(Pass::BackwardFilter, FLOAT, LAST, (512, 28), (256, 1, 1));
        assert_eq!(on_h200(&far, kernel(0, 0, 0, 1, 1), 1_048_767), Some((8_389_247, true)));
        let ragged = square(Pass::BackwardFilter, FLOAT, LAST, (1, 28), (32, 3, 1));
        assert_eq!(on_h200(&ragged, kernel(7, 0, 0, 1, 2), 406_032), Some((4_666_591, true)));
        // The first level of addition costs more than the others.
        let tall = images::square(Pass::BackwardFilter, FLOAT, FIRST, (128, 4), (512, 512, 1), (1, 1, 0));
        assert_eq!(on_h200(&tall, kernel(1, 0, 0, 1, 2), 8_388_624), Some((12_583_471, true)));
        let bfloat = square(Pass::BackwardFilter, BFLOAT16, LAST, (256, 56), (512, 1, 2));
        assert_eq!(on_h200(&bfloat, kernel(7, 1, 0, 4, 4), 0), Some((2_097_439, true)));
    }

    #[test]
    fn sums_split_in_the_last_wave_match_measurements() {
        let forward = square(Pass::Forward, HALF, FIRST, (64, 32), (64, 3, 1));
        assert_eq!(on_h200(&forward, kernel(20, 0, 0, 4, 1), 8_462_483), Some((10_035_407, false)));
        let data = square(Pass::BackwardData, FLOAT, FIRST, (64, 32), (64, 3, 1));
        assert_eq!(on_h200(&data, kernel(0, 0, 0, 4, 1), 16_924_819), Some((19_022_067, false)));
        let small = images::square(Pass::BackwardFilter, FLOAT, FIRST, (128, 4), (512, 512, 1), (3, 1, 1));
        assert_eq!(on_h200(&small, kernel(0, 0, 0, 1, 1), 24_117_759), Some((26_477_295, false)));
        let patches = square(Pass::Forward, FLOAT, LAST, (3, 224), (96, 4, 4));
        assert_eq!(on_h200(&patches, kernel(9, 0, 0, 4, 1), 25_714_835), Some((26_763_475, false)));
    }

    #[test]
    fn grouped_convolutions_match_measurements() {
        // One kernel, with a tile for a group, or for two and four groups.
        let two = images::square(Pass::BackwardFilter, HALF, LAST, (20, 120), (256, 256, 2), (3, 2, 1));
        assert_eq!(on_h200(&two, kernel(0, 1, 0, 1, 3), 0), Some((7_078_479, false)));
        let ragged = images::square(Pass::BackwardData, FLOAT, FIRST, (256, 56), (144, 144, 2), (3, 1, 1));
        assert_eq!(on_h200(&ragged, kernel(3, 0, 0, 4, 1), 1_645_346_963), Some((1_657_930_291, false)));
        let pairs = images::square(Pass::Forward, FLOAT, FIRST, (16, 16), (512, 512, 32), (3, 1, 1));
        assert_eq!(on_h200(&pairs, kernel(16, 0, 1, 2, 1), 17_072_275), Some((17_072_144, false)));
        let fours = images::square(Pass::BackwardFilter, HALF, LAST, (256, 14), (1024, 1024, 64), (3, 1, 1));
        assert_eq!(on_h200(&fours, kernel(5, 1, 0, 1, 5), 131), Some((1_638_759, false)));
        // Group by group, up to eight at a time.
        let both = images::square(Pass::BackwardData, BFLOAT16, LAST, (50, 7), (512, 1024, 2), (3, 1, 1));
        assert_eq!(on_h200(&both, kernel(1, 1, 0, 1, 4), 7_526_720), Some((7_526_432, false)));
        let many = images::square(Pass::BackwardFilter, HALF, FIRST, (100, 24), (7392, 7392, 28), (3, 2, 1));
        assert_eq!(on_h200(&many, kernel(1, 1, 0, 1, 8), 314_165_504), Some((345_627_520, false)));
    }

    #[test]
    fn the_rule_rejects_unsupported_convolutions() {
        let strided = square(Pass::BackwardData, HALF, LAST, (64, 32), (64, 3, 2));
        assert_eq!(compute(&strided, kernel(0, 1, 0, 1, 1), MEASURED_MULTIPROCESSORS, 131), None);
        let plain = square(Pass::Forward, HALF, LAST, (64, 32), (64, 3, 1));
        assert_eq!(compute(&plain, kernel(99, 1, 0, 1, 1), MEASURED_MULTIPROCESSORS, 131), None);
        let empty = square(Pass::Forward, HALF, LAST, (0, 32), (64, 3, 1));
        assert_eq!(compute(&empty, kernel(0, 1, 0, 1, 1), MEASURED_MULTIPROCESSORS, 131), None);
        // The library computes something else.
        assert_eq!(compute(&plain, kernel(0, 1, 0, 1, 1), MEASURED_MULTIPROCESSORS, 100), None);
    }

    #[test]
    fn clusters_of_an_h200() {
        let measured =
            [(1, 132), (2, 66), (3, 39), (4, 30), (5, 22), (6, 17), (7, 15), (8, 15), (14, 7), (16, 7)];
        for (blocks, at_once) in measured {
            assert_eq!(clusters(MEASURED_MULTIPROCESSORS, blocks), at_once, "clusters of {blocks}");
        }
    }

    #[test]
    fn parts_are_added_in_pairs() {
        for (parts, counters) in
            [(1, 0), (2, 1), (3, 3), (4, 3), (7, 7), (14, 14), (18, 20), (66, 70), (93, 95)]
        {
            assert_eq!(pairwise_sums(parts), counters, "{parts} parts");
        }
    }
}
