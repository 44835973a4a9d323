//! Ranks drawn for tests.

use crate::arrow::RankRecord;
use crate::summary::{NamedBytes, OomRequest, RankPeaks, RankedFinding, SnapshotIdentity, SummarizedRank};
use analysis::{SiteName, SiteUsage};
use recording::MeshCoordinate;
use snapshot::Bytes;

pub(crate) const MIB: u64 = 1 << 20;

/// A rank under construction.
#[derive(Clone)]
pub(crate) struct DrawnRank {
    pub(crate) summary: SummarizedRank,
}

/// A rank that holds nothing.
pub(crate) fn rank(number: u32) -> DrawnRank {
    let mut summary = SummarizedRank::default();
    summary.place.rank = Some(number);
    DrawnRank { summary }
}

pub(crate) fn line(number: u32) -> SiteName {
    SiteName { file: "/job/train.py".to_owned(), line: number, function: "forward".to_owned() }
}

impl DrawnRank {
    /// Adds memory that a line holds at the peak.
    pub(crate) fn holds(mut self, at_line: u32, module: &str, bytes: u64) -> DrawnRank {
        self.summary.peaks.allocated += bytes;
        self.summary.peaks.reserved += bytes;
        let (site, bytes_held) = (Some(line(at_line)), Bytes(bytes));
        let usage =
            SiteUsage { site, in_backward: false, bytes: bytes_held, requested: bytes_held, count: 1 };
        self.summary.sites.push(usage);
        self.summary.modules.push(NamedBytes { name: module.to_owned(), bytes });
        self.summary.categories.push(NamedBytes { name: "activation".to_owned(), bytes });
        self
    }

    pub(crate) fn at(mut self, name: &str, index: u32, size: u32) -> DrawnRank {
        self.summary.place.dimensions.push(MeshCoordinate { name: name.to_owned(), index, size });
        self
    }

    pub(crate) fn on(mut self, node: u32, local_rank: u32) -> DrawnRank {
        self.summary.place.node = Some(format!("node{node}"));
        self.summary.place.local_rank = Some(local_rank);
        self
    }

    /// Fails an allocation at a time, in microseconds.
    pub(crate) fn runs_out(mut self, time_us: u64, at_line: u32) -> DrawnRank {
        self.summary.peaks.ended = Some("out_of_memory".to_owned());
        self.summary.peaks.out_of_memory =
            Some(OomRequest { time_us: Some(time_us), requested: MIB, site: Some(line(at_line)) });
        self
    }

    pub(crate) fn leaks(mut self, at_line: u32, bytes_per_step: u64) -> DrawnRank {
        self.summary.findings.push(RankedFinding {
            kind: "leak".to_owned(),
            severity: "high".to_owned(),
            summary: "a leak".to_owned(),
            fix: "detach it".to_owned(),
            site: Some(line(at_line)),
            bytes: 10 * bytes_per_step,
            bytes_per_step: Some(bytes_per_step),
        });
        self
    }

    /// Fills every part that is still empty.
    pub(crate) fn full(self) -> DrawnRank {
        let mut full =
            self.holds(7, "model.h.0", 3 * MIB).at("pp", 1, 4).on(2, 3).runs_out(1_700, 9).leaks(7, MIB);
        let summary = &mut full.summary;
        summary.made_from = SnapshotIdentity::new(99, b"end");
        summary.place.id = Some("job 77".to_owned());
        summary.place.world_size = Some(64);
        summary.step_peaks = vec![1, 5, 9];
        summary.settings =
            vec![("torch".to_owned(), "2.11.0".to_owned()), ("allocator".to_owned(), String::new())];
        summary.peaks = RankPeaks {
            device_name: "GPU 0".to_owned(),
            device_total: Some(80 << 30),
            allocated_step: Some(3),
            non_pytorch: Some(MIB),
            other_processes: Some(0),
            exception: Some("OutOfMemoryError".to_owned()),
            ..summary.peaks.clone()
        };
        full
    }

    pub(crate) fn record(self) -> RankRecord {
        let number = self.summary.place.rank.unwrap_or(0);
        RankRecord { source: format!("run/rank{number}.pickle"), summary: Ok(self.summary) }
    }
}
