//! Jobs drawn with known faults: each is found, and none is invented.

use super::*;
use crate::drawn::{DrawnRank, MIB, rank};

const GIB: u64 = 1 << 30;

/// Differences below 1% that look random, the same in every run.
fn noise(number: u32) -> u64 {
    u64::from(number.wrapping_mul(2_654_435_761) >> 8) % (40 * MIB)
}

/// A job of 8 ranks per node with 4 stages: the last one holds `lm_head`.
fn job(ranks: u32) -> Vec<DrawnRank> {
    let stages = 4;
    let drawn = |number: u32| {
        let stage = number * stages / ranks;
        let held = rank(number)
            .holds(10, "model.layers", 10 * GIB + noise(number))
            .at("pp", stage, stages)
            .at("dp", number % (ranks / stages), ranks / stages)
            .on(number / 8, number % 8);
        if stage == 3 { held.holds(44, "lm_head", 5 * GIB) } else { held }
    };
    (0..ranks).map(drawn).collect()
}

fn answer(ranks: Vec<DrawnRank>) -> FleetAnswer {
    let records: Vec<RankRecord> = ranks.into_iter().map(DrawnRank::record).collect();
    FleetAnswer::new(&records, None).expect("an answer")
}

#[test]
fn the_stage_explains_the_peaks_and_its_line_the_difference() {
    let answer = answer(job(64));
    let names: Vec<&str> = answer.dimensions.iter().map(|dimension| dimension.name.as_str()).collect();
    assert_eq!(names, ["pp"], "neither nodes, which follow stages, nor replicas explain anything more");
    assert!(answer.dimensions[0].explained > 0.95);
    let last = &answer.dimensions[0].values[3];
    assert_eq!((last.value.as_str(), last.of, last.ranks), ("3", 4, 16));
    assert!(last.difference.bytes.unsigned_abs().abs_diff(5 * GIB) < 100 * MIB);
    assert_eq!(last.difference.module.as_ref().map(|(name, _)| name.as_str()), Some("lm_head"));
    assert_eq!(last.difference.site.as_ref().map(|(site, _)| site.line), Some(44));
    assert!(answer.spread < 0.01, "{}", answer.spread);
    assert_eq!(answer.deviations, []);
    assert_eq!((answer.read, answer.expected, answer.nodes), (64, 64, 8));
}

#[test]
fn equal_ranks_have_no_dimensions_and_no_deviations() {
    let ranks =
        (0..64).map(|number| rank(number).holds(1, "m", 10 * GIB + noise(number)).on(number / 8, number % 8));
    let answer = answer(ranks.collect());
    assert_eq!(answer.dimensions, []);
    assert_eq!(answer.deviations, []);
    assert!(answer.failure.is_none() && answer.findings.is_empty() && answer.missing.is_empty());
}

#[test]
fn a_rank_out_of_line_with_its_stage_is_named_with_its_line() {
    let mut ranks = job(64);
    // Within all ranks, 12 GiB is nothing special: within its stage it is.
    ranks[5] = ranks[5].clone().holds(91, "extra", 2 * GIB);
    let answer = answer(ranks);
    assert_eq!(answer.deviations.len(), 1);
    let found = &answer.deviations[0];
    assert_eq!((found.ranks[0].rank, found.node.as_deref()), (Some(5), None));
    assert!(found.difference.bytes.unsigned_abs().abs_diff(2 * GIB) < 100 * MIB);
    assert_eq!(found.difference.site.as_ref().map(|(site, _)| site.line), Some(91));
}

#[test]
fn the_ranks_of_a_node_out_of_line_are_one_deviation() {
    let mut ranks = job(128);
    for rank in &mut ranks[40..48] {
        *rank = rank.clone().holds(12, "cache", GIB);
    }
    let answer = answer(ranks);
    assert_eq!(answer.deviations.len(), 1);
    assert_eq!((answer.deviations[0].node.as_deref(), answer.deviations[0].ranks.len()), (Some("node5"), 8));
}

/// A job whose first stage has all ranks of `node0` and one of each other node.
fn job_with_a_majority() -> Vec<DrawnRank> {
    let drawn = |number: u32| {
        let (node, local_rank) = (number / 8, number % 8);
        let stage = u32::from(node > 0 && local_rank > 0);
        let held = rank(number)
            .holds(10, "model.layers", 10 * GIB + noise(number))
            .at("pp", stage, 2)
            .on(node, local_rank);
        if stage == 1 { held.holds(44, "lm_head", 5 * GIB) } else { held }
    };
    (0..48).map(drawn).collect()
}

#[test]
fn a_node_with_most_ranks_of_a_stage_does_not_decide_what_is_normal() {
    assert_eq!(answer(job_with_a_majority()).deviations, []);
    let mut ranks = job_with_a_majority();
    for rank in &mut ranks[..8] {
        *rank = rank.clone().holds(12, "cache", GIB);
    }
    let answer = answer(ranks);
    let found: Vec<(Option<&str>, usize)> =
        answer.deviations.iter().map(|found| (found.node.as_deref(), found.ranks.len())).collect();
    assert_eq!(found, [(Some("node0"), 8)]);
    let difference = &answer.deviations[0].difference;
    assert!(difference.bytes > 0 && difference.bytes.unsigned_abs().abs_diff(GIB) < 100 * MIB);
    assert_eq!(difference.site.as_ref().map(|(site, _)| site.line), Some(12));
}

#[test]
fn two_dimensions_can_explain_the_peaks_together() {
    let drawn = |number: u32| {
        let (stage, part) = (number / 32, number % 2);
        rank(number)
            .holds(1, "m", 10 * GIB + u64::from(stage) * 4 * GIB + u64::from(part) * GIB + noise(number))
            .at("pp", stage, 2)
            .at("tp", part, 2)
            .on(number / 8, number % 8)
    };
    let answer = answer((0..64).map(drawn).collect());
    let names: Vec<&str> = answer.dimensions.iter().map(|dimension| dimension.name.as_str()).collect();
    assert_eq!(names, ["pp", "tp"]);
    assert!(answer.spread < 0.01 && answer.deviations.is_empty());
}

#[test]
fn the_first_to_run_out_is_decided_by_time() {
    let mut ranks = job(64);
    ranks[9] = ranks[9].clone().holds(91, "extra", 3 * GIB).runs_out(2_000, 91);
    ranks[2] = ranks[2].clone().runs_out(3_000, 10);
    let answer = answer(ranks);
    let failure = answer.failure.expect("a failure");
    assert_eq!((failure.first.rank, failure.ranks.len(), failure.time_us), (Some(9), 2, Some(2_000)));
    assert_eq!(failure.site.map(|site| site.line), Some(91));
    assert_eq!(failure.difference.and_then(|by| by.module).map(|(name, _)| name).as_deref(), Some("extra"));
    assert_eq!(failure.endings[0], EndedRanks { ended: "unknown".to_owned(), ranks: 62 });
    assert_eq!(answer.deviations, [], "a rank that ran out is not named twice");
}

#[test]
fn findings_and_settings_are_grouped_over_ranks() {
    let ranks = job(64).into_iter().enumerate().map(|(number, rank)| {
        let mut rank = rank.leaks(88, MIB);
        let torch = if number < 60 { "2.11.0" } else { "2.10.0" };
        rank.summary.settings.push(("torch".to_owned(), torch.to_owned()));
        rank
    });
    let answer = answer(ranks.collect());
    assert_eq!(answer.findings.len(), 1);
    assert_eq!((answer.findings[0].ranks.len(), answer.findings[0].bytes_per_step), (64, Some(MIB)));
    assert_eq!(answer.variants.len(), 1);
    let sizes: Vec<usize> = answer.variants[0].values.iter().map(|value| value.ranks.len()).collect();
    assert_eq!(sizes, [60, 4]);
}

#[test]
fn broken_and_missing_ranks_are_named_and_stop_nothing() {
    let mut records: Vec<RankRecord> = job(64).into_iter().map(DrawnRank::record).collect();
    records[7].summary = Err("is cut short".to_owned());
    records.remove(3);
    let answer = FleetAnswer::new(&records, None).expect("an answer");
    assert_eq!((answer.read, answer.expected), (62, 64));
    assert_eq!(answer.missing, [3]);
    assert_eq!(answer.broken[0].label.rank, Some(7));
    assert_eq!(answer.dimensions.len(), 1);
}

#[test]
fn a_dimension_that_nobody_has_is_an_error_with_those_that_exist() {
    let records: Vec<RankRecord> = job(64).into_iter().map(DrawnRank::record).collect();
    let failure = FleetAnswer::new(&records, Some("ep")).expect_err("an unknown dimension");
    assert_eq!(failure.hint(), Some("the ranks differ in `pp`, `dp`, `local_rank`, `node`"));
    let by_node = FleetAnswer::new(&records, Some("node")).expect("an answer");
    assert_eq!(by_node.dimensions[0].values.len(), 8);
}
