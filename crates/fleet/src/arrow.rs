//! Summaries as Arrow IPC files, one per rank: a row whose columns are the tables, each a list of records.
//!
//! The same summary always gives the same bytes. Reading trusts no length in the file: the messages are
//! decoded from the bytes that are there, and the footer is not read.

use crate::summary::SummarizedRank;
use crate::tables::{self, TableRows};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{MetadataVersion, root_as_message};
use arrow_schema::{ArrowError, Field, Schema};
use std::panic::catch_unwind;
use std::sync::Arc;

/// Largest summary that is read, in bytes.
pub(crate) const MAX_SUMMARY_BYTES: u64 = 16 << 20;
/// Beginning of an Arrow IPC file. Padding with zeros and an Arrow IPC stream follow.
const FILE_MAGIC: &[u8; 6] = b"ARROW1";
/// Beginning of every message of a stream.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes to which buffers are aligned.
const ALIGNMENT: usize = 8;

/// What is known about one rank: its summary, or why there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct RankRecord {
    /// Path or address of its snapshot; empty in a summary next to it, which has the name of its own.
    pub source: String,
    /// The summary, or the reason for its absence in one sentence.
    pub summary: Result<SummarizedRank, String>,
}

impl RankRecord {
    /// Returns the bytes of an Arrow IPC file.
    pub fn to_arrow(&self) -> Result<Vec<u8>, ArrowError> {
        let mut tables = match &self.summary {
            Ok(summary) => tables::tables(summary)?,
            Err(_) => Vec::new(),
        };
        if !self.source.is_empty() || self.summary.is_err() {
            tables.push(("origin", self.origin()?));
        }
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (name, table) in tables {
            let records = StructArray::from(table);
            let item = Arc::new(Field::new("item", records.data_type().clone(), false));
            let offsets = OffsetBuffer::from_lengths([records.len()]);
            let list = ListArray::try_new(item, offsets, Arc::new(records), None)?;
            fields.push(Field::new(name, list.data_type().clone(), false));
            columns.push(Arc::new(list) as Arc<dyn Array>);
        }
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(schema.clone(), columns)?;
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &schema, options)?;
        writer.write(&batch)?;
        writer.finish()?;
        writer.into_inner()
    }

    fn origin(&self) -> Result<RecordBatch, ArrowError> {
        let source = StringArray::from_iter_values([&self.source]);
        let error: StringArray = [self.summary.as_ref().err()].into_iter().collect();
        RecordBatch::try_from_iter_with_nullable([
            ("source", Arc::new(source) as Arc<dyn Array>, false),
            ("error", Arc::new(error) as Arc<dyn Array>, true),
        ])
    }

    /// Reads an Arrow IPC file that [`RankRecord::to_arrow`] has written. The error completes a sentence that
    /// begins with the file's name.
    pub fn from_arrow(bytes: &[u8]) -> Result<RankRecord, String> {
        let stream = bytes.strip_prefix(FILE_MAGIC).ok_or("is not an Arrow IPC file")?;
        let padding = stream.iter().take_while(|byte| **byte == 0).count();
        let stream = &stream[padding..];
        check_bounds(stream).ok_or("is cut short, or not a summary")?;
        let decode = || StreamDecoder::new().decode(&mut Buffer::from(stream));
        // The decoder trusts what `check_bounds` does not know: types and lengths that contradict each other.
        let decoded =
            catch_unwind(decode).map_err(|_| "is not a readable summary: its columns are damaged")?;
        let batch = decoded.map_err(|error| format!("is not a readable summary: {error}"))?;
        let batch = batch.filter(|batch| batch.num_rows() == 1).ok_or("is cut short, or not a summary")?;
        let table = |name: &str| {
            let list = batch.column_by_name(name).and_then(|column| column.as_list_opt::<i32>());
            TableRows(list.and_then(|list| list.values().as_struct_opt()))
        };
        let origin = table("origin");
        let has_origin = origin.0.is_some_and(|records| !records.is_empty());
        let origin_text = |name| if has_origin { origin.optional_text(name, 0) } else { None };
        let source = origin_text("source").unwrap_or_default();
        let summary = match origin_text("error") {
            Some(error) => Err(error),
            None => Ok(tables::summary(table)?),
        };
        Ok(RankRecord { source, summary })
    }
}

/// Checks that every buffer of a stream lies within its message, which the decoder takes for granted.
fn check_bounds(mut stream: &[u8]) -> Option<()> {
    loop {
        let (marker, rest) = stream.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_le_bytes(*length)).ok()?;
        if *marker != CONTINUATION {
            return None;
        }
        if length == 0 {
            return Some(());
        }
        let message = root_as_message(rest.get(..length)?).ok()?;
        let body = usize::try_from(message.bodyLength()).ok()?;
        let after = rest.get(length..)?;
        if let Some(batch) = message.header_as_record_batch() {
            let is_within = |buffer: &arrow_ipc::Buffer| {
                let end = buffer.offset().checked_add(buffer.length());
                buffer.offset() >= 0
                    && buffer.length() >= 0
                    && end.is_some_and(|end| end <= message.bodyLength())
            };
            let is_whole = batch.buffers().is_some_and(|buffers| buffers.iter().all(is_within));
            if !is_whole || batch.compression().is_some() {
                return None;
            }
        }
        stream = after.get(body..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawn::rank;

    #[test]
    fn a_summary_survives_the_round_trip_and_always_has_the_same_bytes() {
        let record = RankRecord { source: String::new(), summary: Ok(rank(3).full().summary) };
        let bytes = record.to_arrow().expect("written");
        assert_eq!(record.clone().to_arrow().expect("written"), bytes);
        assert_eq!(RankRecord::from_arrow(&bytes), Ok(record));
        let broken =
            RankRecord { source: "s3://b/rank1.pickle".to_owned(), summary: Err("is empty".to_owned()) };
        let bytes = broken.to_arrow().expect("written");
        assert_eq!(RankRecord::from_arrow(&bytes), Ok(broken));
    }

    #[test]
    fn damaged_bytes_are_errors_or_other_numbers_but_never_a_panic() {
        let record = RankRecord { source: String::new(), summary: Ok(rank(3).full().summary) };
        let bytes = record.to_arrow().expect("written");
        for length in (0..bytes.len()).step_by(97) {
            let _ = RankRecord::from_arrow(&bytes[..length]);
        }
        assert!(RankRecord::from_arrow(&bytes[..bytes.len() / 2]).is_err());
        for at in (0..bytes.len()).step_by(17) {
            for flipped in [0x7f, bytes[at] ^ 1] {
                let mut damaged = bytes.clone();
                damaged[at] = flipped;
                let _ = RankRecord::from_arrow(&damaged);
            }
        }
    }
}
