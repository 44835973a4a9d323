//! Snapshots of ranks that are out of line, read in full where summaries do not name the line.

use crate::answer::{Deviation, Difference, DifferenceBasis, FleetAnswer};
use crate::listing::{RankContent, RankSource, list};
use crate::reading::load;
use crate::summary::SummarizedRank;
use inputs::ProgressReporter;
use std::collections::BTreeSet;

/// Most ranks out of line whose snapshots are read.
const MAX_OPENED: usize = 4;

/// Compares the snapshots of ranks that are out of line with those of their peers, where the summaries do not
/// list every line: one rank for each peer, and a few in all. Snapshots that cannot be read are noted.
pub fn open_outliers(answer: &mut FleetAnswer, progress: &ProgressReporter) {
    let mut peers = BTreeSet::new();
    let unclear = answer.deviations.iter_mut().filter(|deviation| {
        deviation.difference.basis == DifferenceBasis::ShortenedSummaries
            && peers.insert((deviation.peer.source.clone(), deviation.difference.bytes > 0))
    });
    for deviation in unclear.take(MAX_OPENED) {
        match compared(deviation, progress) {
            Ok(difference) => deviation.difference = difference,
            Err(reason) => deviation.unread = Some(reason),
        }
    }
}

fn compared(deviation: &Deviation, progress: &ProgressReporter) -> Result<Difference, String> {
    let in_full = |source: &str| {
        let files = list(&[source.to_owned()]).map_err(|error| error.to_string())?;
        let is_snapshot = |file: &&RankSource| matches!(file.content, RankContent::Snapshot { .. });
        let file = files.iter().find(is_snapshot).ok_or_else(|| format!("`{source}` has no snapshot"))?;
        let input = load(file, progress).map_err(|error| error.to_string())?;
        Ok::<SummarizedRank, String>(SummarizedRank::in_full(&input))
    };
    let (rank, peer) = (in_full(&deviation.ranks[0].source)?, in_full(&deviation.peer.source)?);
    let difference = Difference::new(&rank, &peer, deviation.difference.bytes);
    Ok(Difference { basis: DifferenceBasis::Snapshots, ..difference })
}
