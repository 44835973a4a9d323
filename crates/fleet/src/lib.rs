//! Thousands of ranks of one job: a summary of each, and what sets them apart.
//!
//! | module | from → to |
//! |---|---|
//! | `storage` | folders, globs and addresses → files, and ranges of their bytes |
//! | `listing` | files → one [`RankSource`] per rank |
//! | `summary`, `tables`, `arrow` | a snapshot → [`SummarizedRank`], as Arrow IPC |
//! | `reading` | all files → [`RankRecord`]s, on all cores, within a memory budget |
//! | `answer` | [`RankRecord`]s → [`FleetAnswer`]: which dimension explains the peaks, who is out of line |
//! | `outliers` | ranks out of line → their snapshots, where summaries do not name the line |
//! | `partitions` | [`RankRecord`]s → Parquet files that other tools read |
//!
//! ```
//! use fleet::{FleetAnswer, RankRecord, SummarizedRank};
//!
//! let record = |rank: u32, gib: u64| {
//!     let mut summary = SummarizedRank::default();
//!     summary.place.rank = Some(rank);
//!     summary.peaks.allocated = gib << 30;
//!     RankRecord { source: format!("rank{rank}.pickle"), summary: Ok(summary) }
//! };
//! let records: Vec<RankRecord> = (0..8).map(|rank| record(rank, if rank == 5 { 14 } else { 10 })).collect();
//! let answer = FleetAnswer::new(&records, None)?;
//! assert_eq!(answer.deviations.len(), 1);
//! assert_eq!(answer.deviations[0].difference.bytes, 4 << 30);
//! # Ok::<(), failure::Failure>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod arrow;
#[cfg(test)]
mod drawn;
mod listing;
mod outliers;
mod partitions;
mod reading;
mod storage;
mod summary;
mod tables;

pub use answer::{
    BrokenRank, Deviation, DeviationMetric, Difference, DifferenceBasis, DimensionAnswer, DimensionValue,
    Distribution, EndedRanks, FailureAnswer, FleetAnswer, FleetFinding, FleetVariant, NodeMemory, RankLabel,
    VariantValue,
};
pub use arrow::RankRecord;
pub use listing::{RankSource, list};
pub use outliers::open_outliers;
pub use partitions::write_parquet;
pub use reading::{load, rank_numbers, read, read_one, summarize};
pub use storage::{StoredFile, without_credentials};
pub use summary::{NamedBytes, OomRequest, RankPeaks, RankedFinding, SnapshotIdentity, SummarizedRank};
