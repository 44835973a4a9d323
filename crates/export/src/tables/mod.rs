//! Tables of an export with the only definition of their columns. `docs/reference/tables.md` describes them
//! for users.

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

/// A table whose rows are computed on demand.
pub struct ExportTable<'a> {
    pub(super) name: &'static str,
    /// Names and types of the columns.
    pub schema: SchemaRef,
    /// Rows, in batches.
    pub batches: Box<dyn Iterator<Item = anyhow::Result<RecordBatch>> + Send + 'a>,
}

/// Rows per batch: enough that the work per batch is negligible, few enough that a batch is a few megabytes.
const BATCH_ROWS: usize = 65_536;

/// Names of the tables, in the order of the documentation.
pub const NAMES: [&str; 5] = ["events", "blocks", "segments", "frames", "stacks"];

/// Returns all tables.
pub(super) fn tables<'a>(
    snapshot: &'a Snapshot,
    devices: &'a [Device<'a>],
) -> anyhow::Result<Vec<ExportTable<'a>>> {
    NAMES.iter().filter_map(|name| table(name, snapshot, devices)).collect()
}

/// Returns the table of a name, if there is one.
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
    /// Splits `rows` into batches of `columns`. The columns of an empty batch give the schema.
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
            buffer.extend(rows.by_ref().take(BATCH_ROWS));
            (!buffer.is_empty()).then(|| batch(&buffer))
        });
        Ok(ExportTable { name, schema, batches: Box::new(batches) })
    }
}

/// Returns a pool as text; `0,0` is the default pool.
fn pool_name(PoolId(first, second): PoolId) -> String {
    format!("{first},{second}")
}
