//! The tables of a summary, with the only definition of their columns. `docs/reference/fleet-tables.md`
//! describes them for users.

use crate::summary::{NamedBytes, OomRequest, RankPeaks, RankedFinding, SnapshotIdentity, SummarizedRank};
use analysis::{SiteName, SiteUsage};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StringArray, StructArray, UInt64Array};
use arrow_schema::ArrowError;
use recording::{JobPlace, MeshCoordinate};
use snapshot::Bytes;
use std::sync::Arc;

/// Version of the columns: it changes when a column means something else. A reader refuses newer ones.
pub(crate) const TABLES_VERSION: u64 = 1;

/// Columns of one table, added one by one. Whether a column may contain nulls is part of its definition, so
/// that it does not depend on the rows.
struct SummaryColumns<'r, Row> {
    rows: &'r [Row],
    columns: Vec<(&'static str, ArrayRef, bool)>,
}

impl<'r, Row> SummaryColumns<'r, Row> {
    fn new(rows: &'r [Row]) -> Self {
        SummaryColumns { rows, columns: Vec::new() }
    }

    fn number(mut self, name: &'static str, of: impl Fn(&Row) -> u64) -> Self {
        let values = UInt64Array::from_iter_values(self.rows.iter().map(of));
        self.columns.push((name, Arc::new(values), false));
        self
    }

    fn optional_number(mut self, name: &'static str, of: impl Fn(&'r Row) -> Option<u64>) -> Self {
        let values: UInt64Array = self.rows.iter().map(of).collect();
        self.columns.push((name, Arc::new(values), true));
        self
    }

    fn flag(mut self, name: &'static str, of: impl Fn(&Row) -> bool) -> Self {
        let values: Vec<bool> = self.rows.iter().map(of).collect();
        self.columns.push((name, Arc::new(BooleanArray::from(values)), false));
        self
    }

    fn text(mut self, name: &'static str, of: impl Fn(&'r Row) -> &'r str) -> Self {
        let values = StringArray::from_iter_values(self.rows.iter().map(of));
        self.columns.push((name, Arc::new(values), false));
        self
    }

    fn optional_text(mut self, name: &'static str, of: impl Fn(&'r Row) -> Option<&'r str>) -> Self {
        let values: StringArray = self.rows.iter().map(of).collect();
        self.columns.push((name, Arc::new(values), true));
        self
    }

    fn site(self, of: impl Fn(&'r Row) -> Option<&'r SiteName> + Copy) -> Self {
        self.optional_text("file", move |row| of(row).map(|site| site.file.as_str()))
            .optional_number("line", move |row| of(row).map(|site| u64::from(site.line)))
            .optional_text("function", move |row| of(row).map(|site| site.function.as_str()))
    }

    fn batch(self) -> Result<RecordBatch, ArrowError> {
        RecordBatch::try_from_iter_with_nullable(self.columns)
    }
}

/// Returns all tables of a summary, each with its name.
pub(crate) fn tables(summary: &SummarizedRank) -> Result<Vec<(&'static str, RecordBatch)>, ArrowError> {
    Ok(vec![
        ("peaks", peaks(summary)?),
        (
            "dimensions",
            SummaryColumns::new(&summary.place.dimensions)
                .text("name", |row| &row.name)
                .number("index", |row| u64::from(row.index))
                .number("size", |row| u64::from(row.size))
                .batch()?,
        ),
        (
            "sites",
            SummaryColumns::new(&summary.sites)
                .site(|row| row.site.as_ref())
                .flag("in_backward", |row| row.in_backward)
                .number("bytes", |row| row.bytes.0)
                .number("requested", |row| row.requested.0)
                .number("blocks", |row| row.count)
                .batch()?,
        ),
        ("categories", named(&summary.categories)?),
        ("modules", named(&summary.modules)?),
        (
            "findings",
            SummaryColumns::new(&summary.findings)
                .text("kind", |row| &row.kind)
                .text("severity", |row| &row.severity)
                .text("summary", |row| &row.summary)
                .text("fix", |row| &row.fix)
                .site(|row| row.site.as_ref())
                .number("bytes", |row| row.bytes)
                .optional_number("bytes_per_step", |row| row.bytes_per_step)
                .batch()?,
        ),
        ("steps", {
            let numbered: Vec<(u64, u64)> = (1..).zip(summary.step_peaks.iter().copied()).collect();
            let steps = SummaryColumns::new(&numbered);
            steps.number("step", |row| row.0).number("allocated", |row| row.1).batch()?
        }),
        (
            "settings",
            SummaryColumns::new(&summary.settings)
                .text("name", |row| &row.0)
                .text("value", |row| &row.1)
                .batch()?,
        ),
    ])
}

fn named(rows: &[NamedBytes]) -> Result<RecordBatch, ArrowError> {
    SummaryColumns::new(rows).text("name", |row| &row.name).number("bytes", |row| row.bytes).batch()
}

fn peaks(summary: &SummarizedRank) -> Result<RecordBatch, ArrowError> {
    fn failed(summary: &SummarizedRank) -> Option<&OomRequest> {
        summary.peaks.out_of_memory.as_ref()
    }
    SummaryColumns::new(std::slice::from_ref(summary))
        .number("version", |_| TABLES_VERSION)
        .optional_text("oomph", |row| row.oomph.as_deref())
        .optional_text("job", |row| row.place.id.as_deref())
        .optional_number("rank", |row| row.place.rank.map(u64::from))
        .optional_text("node", |row| row.place.node.as_deref())
        .optional_number("local_rank", |row| row.place.local_rank.map(u64::from))
        .optional_number("world_size", |row| row.place.world_size.map(u64::from))
        .number("snapshot_bytes", |row| row.made_from.bytes)
        .number("snapshot_fingerprint", |row| row.made_from.fingerprint)
        .number("device", |row| u64::from(row.peaks.device))
        .text("device_name", |row| &row.peaks.device_name)
        .optional_number("device_total", |row| row.peaks.device_total)
        .number("events", |row| row.peaks.events)
        .number("steps", |row| row.peaks.steps)
        .number("allocated", |row| row.peaks.allocated)
        .number("allocated_event", |row| row.peaks.allocated_event)
        .optional_number("allocated_step", |row| row.peaks.allocated_step)
        .number("reserved", |row| row.peaks.reserved)
        .number("reserved_event", |row| row.peaks.reserved_event)
        .number("end_allocated", |row| row.peaks.end_allocated)
        .number("end_reserved", |row| row.peaks.end_reserved)
        .optional_number("non_pytorch", |row| row.peaks.non_pytorch)
        .optional_number("other_processes", |row| row.peaks.other_processes)
        .optional_text("ended", |row| row.peaks.ended.as_deref())
        .optional_text("exception", |row| row.peaks.exception.as_deref())
        .flag("failed_allocation", |row| row.peaks.out_of_memory.is_some())
        .optional_number("failed_time_us", |row| failed(row)?.time_us)
        .optional_number("failed_bytes", |row| Some(failed(row)?.requested))
        .site(|row| failed(row)?.site.as_ref())
        .batch()
}

/// Rows of a table that was read. Columns that are missing, or have another type, are empty.
pub(crate) struct TableRows<'a>(pub(crate) Option<&'a StructArray>);

impl<'a> TableRows<'a> {
    fn len(&self) -> usize {
        self.0.map_or(0, Array::len)
    }

    fn column(&self, name: &str) -> Option<&'a ArrayRef> {
        self.0?.column_by_name(name)
    }

    fn optional_number(&self, name: &str, row: usize) -> Option<u64> {
        let values = self.column(name)?.as_primitive_opt::<UInt64Type>()?;
        values.is_valid(row).then(|| values.value(row))
    }

    fn number(&self, name: &str, row: usize) -> u64 {
        self.optional_number(name, row).unwrap_or(0)
    }

    fn small(&self, name: &str, row: usize) -> Option<u32> {
        self.optional_number(name, row).and_then(|number| u32::try_from(number).ok())
    }

    fn flag(&self, name: &str, row: usize) -> bool {
        let values = self.column(name).and_then(|column| column.as_boolean_opt());
        values.is_some_and(|values| values.is_valid(row) && values.value(row))
    }

    pub(crate) fn optional_text(&self, name: &str, row: usize) -> Option<String> {
        let values = self.column(name)?.as_string_opt::<i32>()?;
        values.is_valid(row).then(|| crate::summary::bounded(values.value(row)))
    }

    fn text(&self, name: &str, row: usize) -> String {
        self.optional_text(name, row).unwrap_or_default()
    }

    fn site(&self, row: usize) -> Option<SiteName> {
        let (file, line) = (self.optional_text("file", row)?, self.small("line", row)?);
        Some(SiteName { file, line, function: self.text("function", row) })
    }

    fn all<T>(&self, most: usize, of: impl Fn(&Self, usize) -> T) -> Vec<T> {
        (0..self.len().min(most)).map(|row| of(self, row)).collect()
    }

    fn named(&self, most: usize) -> Vec<NamedBytes> {
        self.all(most, |rows, row| NamedBytes {
            name: rows.text("name", row),
            bytes: rows.number("bytes", row),
        })
    }
}

/// Most rows of a table that are read.
const MAX_ROWS: usize = 4096;

/// Rebuilds a summary from its tables. The error completes a sentence that begins with the file's name.
pub(crate) fn summary<'a>(table: impl Fn(&str) -> TableRows<'a>) -> Result<SummarizedRank, String> {
    let peaks = table("peaks");
    if peaks.len() != 1 {
        return Err("is not a summary: it has no peaks".to_owned());
    }
    let oomph = peaks.optional_text("oomph", 0);
    let version = peaks.number("version", 0);
    if !(1..=TABLES_VERSION).contains(&version) {
        let writer =
            oomph.as_deref().map_or_else(|| "another oomph".to_owned(), |oomph| format!("oomph {oomph}"));
        return Err(format!(
            "is a summary of {writer} with columns of version {version}, which oomph {} does not know \
             (up to {TABLES_VERSION}): update oomph, or remove the file",
            env!("CARGO_PKG_VERSION")
        ));
    }
    let (number, text) = (|name| peaks.number(name, 0), |name| peaks.optional_text(name, 0));
    let optional = |name| peaks.optional_number(name, 0);
    let small = |name| peaks.small(name, 0);
    let dimensions = table("dimensions").all(MAX_ROWS, |rows, row| MeshCoordinate {
        name: rows.text("name", row),
        index: rows.small("index", row).unwrap_or(0),
        size: rows.small("size", row).unwrap_or(0),
    });
    Ok(SummarizedRank {
        oomph,
        made_from: SnapshotIdentity {
            bytes: number("snapshot_bytes"),
            fingerprint: number("snapshot_fingerprint"),
        },
        place: JobPlace {
            id: text("job"),
            node: text("node"),
            rank: small("rank"),
            local_rank: small("local_rank"),
            world_size: small("world_size"),
            dimensions,
        },
        peaks: RankPeaks {
            device: small("device").unwrap_or(0),
            device_name: text("device_name").unwrap_or_default(),
            device_total: optional("device_total"),
            events: number("events"),
            steps: number("steps"),
            allocated: number("allocated"),
            allocated_event: number("allocated_event"),
            allocated_step: optional("allocated_step"),
            reserved: number("reserved"),
            reserved_event: number("reserved_event"),
            end_allocated: number("end_allocated"),
            end_reserved: number("end_reserved"),
            non_pytorch: optional("non_pytorch"),
            other_processes: optional("other_processes"),
            ended: text("ended"),
            exception: text("exception"),
            out_of_memory: peaks.flag("failed_allocation", 0).then(|| OomRequest {
                time_us: optional("failed_time_us"),
                requested: number("failed_bytes"),
                site: peaks.site(0),
            }),
        },
        sites: table("sites").all(MAX_ROWS, |rows, row| SiteUsage {
            site: rows.site(row),
            in_backward: rows.flag("in_backward", row),
            bytes: Bytes(rows.number("bytes", row)),
            requested: Bytes(rows.number("requested", row)),
            count: rows.number("blocks", row),
        }),
        categories: table("categories").named(MAX_ROWS),
        modules: table("modules").named(MAX_ROWS),
        findings: table("findings").all(MAX_ROWS, |rows, row| RankedFinding {
            kind: rows.text("kind", row),
            severity: rows.text("severity", row),
            summary: rows.text("summary", row),
            fix: rows.text("fix", row),
            site: rows.site(row),
            bytes: rows.number("bytes", row),
            bytes_per_step: rows.optional_number("bytes_per_step", row),
        }),
        step_peaks: table("steps").all(MAX_ROWS, |rows, row| rows.number("allocated", row)),
        settings: table("settings")
            .all(MAX_ROWS, |rows, row| (rows.text("name", row), rows.text("value", row))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_newer_version_are_refused_with_the_oomph_that_wrote_them() {
        let newer = SummaryColumns::new(&[()])
            .number("version", |()| TABLES_VERSION + 1)
            .optional_text("oomph", |()| Some("9.1.0"));
        let peaks = StructArray::from(newer.batch().expect("columns of one length"));
        let refused =
            summary(|name| TableRows((name == "peaks").then_some(&peaks))).expect_err("it is newer");
        let own = env!("CARGO_PKG_VERSION");
        assert!(refused.starts_with("is a summary of oomph 9.1.0 with columns of version 2"), "{refused}");
        assert!(refused.contains(&format!("which oomph {own} does not know")), "{refused}");
    }
}
