//! Lays annotations out in lanes.
//!
//! Slices of one track must nest, but ranges of several threads need not: `backward()` runs in another
//! thread. A range that overlaps another one without nesting goes to a separate lane.

use snapshot::{Annotation, StrId};
use std::collections::HashMap;

/// One end of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SliceEnd {
    pub(super) name: StrId,
    pub(super) start: bool,
    pub(super) time_us: i64,
    pub(super) lane: usize,
}

/// Returns the ends of all ranges in order of time, and the number of ranges without a lane. Ends whose
/// other end is missing are left out: the history is a ring buffer and may have dropped it.
pub(super) fn lanes(annotations: impl Iterator<Item = Annotation>) -> (Vec<SliceEnd>, usize) {
    let mut annotations: Vec<Annotation> = annotations.collect();
    annotations.sort_by_key(|annotation| annotation.time_us);
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    let mut placed = Vec::new();
    let mut left_out = 0;
    for (from, to) in ranges(&annotations) {
        match lane_for(&mut lanes, from, to) {
            Some(lane) => placed.extend([(from, lane), (to, lane)]),
            None => left_out += 1,
        }
    }
    placed.sort_unstable();
    let ends = placed.into_iter().map(|(index, lane)| {
        let Annotation { name, start, time_us, .. } = annotations[index];
        SliceEnd { name, start, time_us, lane }
    });
    (ends.collect(), left_out)
}

/// Returns the indices of the start and end of each range, ordered by start. An end closes the latest start
/// of its name.
fn ranges(annotations: &[Annotation]) -> Vec<(usize, usize)> {
    let mut open: HashMap<StrId, Vec<usize>> = HashMap::new();
    let mut ranges = Vec::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let starts = open.entry(annotation.name).or_default();
        if annotation.start {
            starts.push(index);
        } else if let Some(start) = starts.pop() {
            ranges.push((start, index));
        }
    }
    ranges.sort_unstable();
    ranges
}

/// Largest number of lanes: bounds the time for a malicious file, and exceeds the threads that annotate at
/// once.
const MAX_LANES: usize = 32;

/// Returns the first lane in which the range nests. A lane is the list of ends of its open ranges,
/// innermost last.
fn lane_for(lanes: &mut Vec<Vec<usize>>, from: usize, to: usize) -> Option<usize> {
    let found = lanes.iter_mut().position(|lane| {
        while lane.last().is_some_and(|&end| end < from) {
            lane.pop();
        }
        lane.last().is_none_or(|&end| to < end)
    });
    let lane = match found {
        Some(lane) => lane,
        None if lanes.len() == MAX_LANES => return None,
        None => {
            lanes.push(Vec::new());
            lanes.len() - 1
        }
    };
    lanes[lane].push(to);
    Some(lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends in order of time: `a` starts, `A` ends the range of that name; the answer adds each one's lane.
    fn check(drawn: &str, expected: &str) {
        let annotations = drawn.chars().enumerate().map(|(time, letter)| Annotation {
            name: StrId(letter.to_ascii_lowercase() as u32),
            start: letter.is_lowercase(),
            device: 0,
            time_us: time as i64,
        });
        let (ends, left_out) = lanes(annotations);
        let laid_out: String = ends
            .iter()
            .map(|end| {
                let letter = char::from_u32(end.name.0).unwrap_or('?');
                format!("{}{}", if end.start { letter } else { letter.to_ascii_uppercase() }, end.lane)
            })
            .collect();
        assert_eq!(laid_out, expected, "{drawn}");
        assert_eq!(left_out, 0);
    }

    #[test]
    fn ranges_that_nest_share_a_lane() {
        check("abBcCA", "a0b0B0c0C0A0");
        check("aaAA", "a0a0A0A0");
    }

    #[test]
    fn ranges_that_cross_do_not() {
        check("abAB", "a0b1A0B1");
        check("abAcBC", "a0b1A0c0B1C0");
    }

    #[test]
    fn ends_without_their_other_end_are_left_out() {
        check("AbB", "b0B0");
        check("abB", "b0B0");
    }

    #[test]
    fn lanes_have_a_limit() {
        let annotation = |name, start, time_us| Annotation { name: StrId(name), start, device: 0, time_us };
        let starts = (0..40).map(|name| annotation(name, true, i64::from(name)));
        let ends = (0..40).map(|name| annotation(name, false, 100 + i64::from(name)));
        let (ends, left_out) = lanes(starts.chain(ends));
        assert_eq!((ends.len(), left_out), (2 * MAX_LANES, 40 - MAX_LANES));
    }
}
