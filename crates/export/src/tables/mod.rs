//! The tables of an export: the one definition of their columns, described for users in `docs/tables.md`.

mod blocks;
mod columns;
mod dictionary;
mod events;
mod frames;
mod segments;

use analysis::Device;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use columns::Columns;
use snapshot::{PoolId, Snapshot};

/// A table whose rows are made as they are asked for.
pub struct ExportTable<'a> {
    pub(super) name: &'static str,
    /// Names and types of its columns.
    pub schema: SchemaRef,
    /// Its rows.
    pub batches: Box<dyn Iterator<Item = anyhow::Result<RecordBatch>> + Send + 'a>,
}

/// Rows per batch: enough that the work per batch vanishes, few enough that a batch is some megabytes.
const BATCH: usize = 65_536;

/// The tables, in the order of the documentation.
pub const NAMES: [&str; 5] = ["events", "blocks", "segments", "frames", "stacks"];

/// All tables.
pub(super) fn tables<'a>(
    snapshot: &'a Snapshot,
    devices: &'a [Device<'a>],
) -> anyhow::Result<Vec<ExportTable<'a>>> {
    NAMES.iter().filter_map(|name| table(name, snapshot, devices)).collect()
}

/// One table, if there is one of that name.
pub fn table<'a>(
    name: &str,
    snapshot: &'a Snapshot,
    devices: &'a [Device<'a>],
) -> Option<anyhow::Result<ExportTable<'a>>> {
    Some(match name {
        "events" => events::events(snapshot, devices),
        "blocks" => blocks::blocks(snapshot, devices),
        "segments" => segments::segments(snapshot),
        "frames" => frames::frames(snapshot),
        "stacks" => frames::stacks(snapshot),
        _ => return None,
    })
}

impl<'a> ExportTable<'a> {
    /// Cuts `rows` into batches of `columns`; those of no rows at all give the schema.
    fn new<Row: Send + 'a>(
        name: &'static str,
        mut rows: impl Iterator<Item = Row> + Send + 'a,
        columns: impl for<'r> Fn(Columns<'r, Row>) -> anyhow::Result<Columns<'r, Row>> + Send + 'a,
    ) -> anyhow::Result<ExportTable<'a>> {
        let batch = move |rows: &[Row]| columns(Columns::new(rows))?.batch();
        let schema = batch(&[])?.schema();
        let mut buffer = Vec::new();
        let batches = std::iter::from_fn(move || {
            buffer.clear();
            buffer.extend(rows.by_ref().take(BATCH));
            (!buffer.is_empty()).then(|| batch(&buffer))
        });
        Ok(ExportTable { name, schema, batches: Box::new(batches) })
    }
}

/// A pool as text: `0,0` is the default.
fn pool_name(PoolId(first, second): PoolId) -> String {
    format!("{first},{second}")
}
