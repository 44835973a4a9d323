//! Phases of a program, from a recorder's marks.

use crate::common::recorded;
use analysis::words::site_name;
use analysis::{RunModel, RunPhases, recorded_devices};
use snapshot::Bytes;

const MIB: u64 = 1 << 20;

/// The phases of a trace, and the names of lines that its first phase left something at.
fn phases(text: &str) -> Option<(RunPhases, Vec<String>)> {
    let (snapshot, recording) = recorded(text);
    let devices = recorded_devices(&snapshot, &recording);
    let found = RunPhases::new(&RunModel::new(&devices[0]))?;
    let lines = found.phases[0].last.iter().flat_map(|last| &last.lines);
    let names = lines.filter_map(|line| Some(site_name(&snapshot, line.frame?))).collect();
    Some((found, names))
}

/// Three rollouts, each with some training after it; `by` says how their changes were noted.
fn rollouts(by: &str) -> String {
    let once = |number: u64| {
        format!(
            "phase rollout {} {by}
             +big 64MiB train.py:3 <module>
             -big
             +kept{number} 10MiB train.py:4 <module>
             wait 2
             phase train {} {by}
             +x 16MiB train.py:6 <module>
             -x
             wait 5\n",
            2 * number,
            2 * number + 1
        )
    };
    (0..3).map(once).collect::<String>() + "phase other 6"
}

#[test]
fn a_phase_has_a_peak_a_time_and_what_it_left() {
    let (found, lines) = phases(&rollouts("")).expect("two phases");
    let [rollout, train] = found.phases.as_slice() else { panic!("{found:?}") };
    assert_eq!((rollout.name.as_str(), train.name.as_str()), ("rollout", "train"));
    assert_eq!((rollout.times, train.times), (3, 3));
    assert_eq!(rollout.peak.bytes, Bytes(84 * MIB), "two earlier ones have left 20 MiB");
    assert_eq!(train.peak.bytes, Bytes(46 * MIB));
    assert!((6_000..7_000).contains(&rollout.microseconds), "{}", rollout.microseconds);
    assert!((15_000..16_000).contains(&train.microseconds), "{}", train.microseconds);
    let last = rollout.last.as_ref().expect("it has ended");
    assert_eq!(last.after.allocated, Bytes(30 * MIB));
    assert_eq!((last.releases, last.stayed), (false, Bytes(10 * MIB)));
    assert_eq!(lines, ["train.py:4"]);
    assert_eq!(train.last.as_ref().map(|last| last.stayed), Some(Bytes::ZERO));
    let changes: Vec<(&str, &str, u64)> =
        found.changes.iter().map(|of| (of.from.as_str(), of.to.as_str(), of.times)).collect();
    assert_eq!(changes, [("rollout", "train", 3), ("train", "rollout", 2), ("train", "other", 1)]);
    assert_eq!(found.changes[0].at.allocated, Bytes(30 * MIB), "the last of these changes");
}

#[test]
fn phases_of_one_number_are_one_with_the_others_inside() {
    let (found, lines) = phases(
        "phase rollout 1
         +a 1MiB train.py:3 <module>
         phase score 2
         +b 2MiB train.py:4 <module>
         phase rollout 1
         +c 4MiB train.py:5 <module>
         phase train 3
         +d 8MiB train.py:6 <module>",
    )
    .expect("three phases");
    let times: Vec<(&str, u64)> = found.phases.iter().map(|of| (of.name.as_str(), of.times)).collect();
    assert_eq!(times, [("rollout", 1), ("score", 1), ("train", 1)]);
    assert_eq!(lines, ["train.py:5", "train.py:3"], "what another phase allocated within it is not its own");
    let stayed = |place: usize| found.phases[place].last.as_ref().map(|last| last.stayed);
    assert_eq!((stayed(0), stayed(1)), (Some(Bytes(5 * MIB)), Some(Bytes(2 * MIB))));
    assert_eq!(stayed(2), None, "it has not ended");
}

#[test]
fn a_change_without_counters_is_found_by_its_time() {
    let (expected, _) = phases(&rollouts("")).expect("two phases");
    let (found, _) = phases(&rollouts("by time")).expect("two phases");
    let figures = |of: &RunPhases| -> Vec<(Bytes, Option<Bytes>)> {
        of.phases.iter().map(|of| (of.peak.bytes, of.last.as_ref().map(|last| last.stayed))).collect()
    };
    assert_eq!(figures(&found), figures(&expected));
    assert_eq!(found.changes[0].at.allocated, expected.changes[0].at.allocated);
}

#[test]
fn one_recognized_phase_is_not_worth_a_table() {
    assert_eq!(phases("phase startup 0\n +a 1MiB train.py:3 <module>\n phase train 1"), None);
    assert_eq!(phases("+a 1MiB train.py:3 <module>"), None);
}
