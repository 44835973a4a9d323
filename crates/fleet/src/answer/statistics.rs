//! Robust statistics: a few ranks that are out of line do not change what is normal.

/// Standard deviations per median absolute deviation, for normally distributed values.
const DEVIATIONS_PER_MAD: f64 = 1.4826;
/// Deviations from the median beyond which a value is out of line.
const MAX_DEVIATIONS: f64 = 6.0;
/// Share of the median within which values count as equal, however close the others are.
pub(super) const EQUAL_SHARE: f64 = 0.02;
/// Bytes within which values count as equal.
pub(super) const EQUAL_BYTES: f64 = (1u64 << 20) as f64;

/// Returns the lower median; 0 without values.
pub(super) fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Returns how far a value may be from the median before it is out of line, by the distances of all values
/// from it.
pub(super) fn tolerance(distances: &[u64], median_value: u64) -> f64 {
    let spread = median(distances) as f64 * DEVIATIONS_PER_MAD * MAX_DEVIATIONS;
    spread.max(median_value as f64 * EQUAL_SHARE).max(EQUAL_BYTES)
}

fn distances(values: &[u64], from: u64) -> Vec<u64> {
    values.iter().map(|value| value.abs_diff(from)).collect()
}

/// Returns the largest distance from the median, as a share of it, once values out of line are left out.
pub(super) fn spread(values: &[u64]) -> f64 {
    let middle = median(values);
    let distances = distances(values, middle);
    let limit = tolerance(&distances, middle);
    let within = distances.iter().map(|&far| far as f64).filter(|&far| far <= limit);
    within.fold(0.0, f64::max) / middle.max(1) as f64
}

/// Returns the mean distance of each value from the median of its group, in bytes, with a penalty for many
/// groups: as many groups as values explain nothing.
pub(super) fn distance_within(groups: &[Vec<u64>]) -> f64 {
    let count: usize = groups.iter().map(Vec::len).sum();
    if count <= groups.len() {
        return f64::INFINITY;
    }
    let sum: f64 = groups
        .iter()
        .map(|group| {
            let middle = median(group);
            group.iter().map(|value| value.abs_diff(middle) as f64).sum::<f64>()
        })
        .sum();
    sum / (count - groups.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_few_outliers_change_neither_the_median_nor_the_tolerance() {
        let mut values: Vec<u64> = (0..100).map(|index| 1000 * MIB + index % 7 * MIB / 2).collect();
        let limit = |values: &[u64], middle: u64| tolerance(&distances(values, middle), middle);
        let before = (median(&values), limit(&values, median(&values)));
        values[3] = 9000 * MIB;
        values[50] = 1;
        assert_eq!(median(&values), before.0);
        assert!((limit(&values, before.0) - before.1).abs() < MIB as f64);
        assert!(spread(&values) < 0.01);
    }

    #[test]
    fn one_group_per_value_explains_nothing() {
        let values: Vec<Vec<u64>> = (0..8).map(|index| vec![index * MIB]).collect();
        assert_eq!(distance_within(&values), f64::INFINITY);
        assert_eq!(distance_within(&[vec![5, 5, 5], vec![9, 9]]), 0.0);
    }
}
