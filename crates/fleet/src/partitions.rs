//! Parquet files in hive partitions, `job=…/rank=…/TABLE.parquet`, which DuckDB, Polars and Spark read.

use crate::arrow::RankRecord;
use crate::tables;
use analysis::words::shown_path;
use failure::Failure;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

/// Columns that the folders' names have.
const PARTITION_COLUMNS: [&str; 2] = ["job", "rank"];
/// Name of the folder of ranks that know no job: what Hive calls it.
const NO_JOB: &str = "__HIVE_DEFAULT_PARTITION__";

/// Writes the tables of all ranks that were read, and returns the number of rows of each table.
pub fn write_parquet(
    records: &[RankRecord],
    folder: &Path,
    advance: &(dyn Fn() + Send + Sync),
) -> anyhow::Result<Vec<(&'static str, u64)>> {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut order: Vec<&'static str> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        advance();
        let Ok(summary) = &record.summary else { continue };
        let job = summary.place.id.as_deref().map_or_else(|| NO_JOB.to_owned(), partition_name);
        let rank = summary.place.rank.map_or(index as u64, u64::from);
        let rank_folder = folder.join(format!("job={job}")).join(format!("rank={rank}"));
        fs::create_dir_all(&rank_folder).map_err(|error| unwritable(&rank_folder, &error.to_string()))?;
        for (name, batch) in tables::tables(summary)? {
            let kept: Vec<usize> = (0..batch.num_columns())
                .filter(|&column| !PARTITION_COLUMNS.contains(&batch.schema().field(column).name().as_str()))
                .collect();
            let batch = batch.project(&kept)?;
            if !order.contains(&name) {
                order.push(name);
            }
            *counts.entry(name).or_default() += batch.num_rows() as u64;
            let path = rank_folder.join(format!("{name}.parquet"));
            let part = rank_folder.join(format!(".{name}.{}.partial", std::process::id()));
            let file = File::create(&part).map_err(|error| unwritable(&path, &error.to_string()))?;
            let properties =
                WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties))?;
            let written = writer.write(&batch).and_then(|()| writer.close());
            if let Err(error) = written {
                let _ = fs::remove_file(&part);
                return Err(unwritable(&path, &error.to_string()).into());
            }
            fs::rename(&part, &path).map_err(|error| unwritable(&path, &error.to_string()))?;
        }
    }
    Ok(order.into_iter().map(|name| (name, counts[name])).collect())
}

/// A job's name as part of a path: all but letters, digits and `-_.` is written as `%2F`, as Hive does.
fn partition_name(job: &str) -> String {
    let mut name = String::with_capacity(job.len());
    for byte in job.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            // `..` would leave the folder.
            b'.' if !name.is_empty() => name.push('.'),
            byte => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

fn unwritable(path: &Path, cause: &str) -> Failure {
    let what = format!("`{}` cannot be written", shown_path(path));
    Failure::new(what, Some(cause.to_owned()), Some("choose a folder that you may write to, with free space"))
}

#[cfg(test)]
mod tests {
    use super::partition_name;

    #[test]
    fn names_of_jobs_cannot_leave_the_folder() {
        for (job, name) in [("77", "77"), ("../x", "%2E.%2Fx"), ("a b=c", "a%20b%3Dc"), ("v1.2", "v1.2")] {
            assert_eq!(partition_name(job), name);
        }
    }
}
