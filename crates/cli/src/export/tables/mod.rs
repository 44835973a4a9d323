//! The tables of an export: the one definition of their columns, described for users in `docs/tables.md`.

mod blocks;
mod columns;
mod events;
mod frames;
mod segments;
mod words;

use analysis::Device;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use columns::Columns;
use snapshot::{PoolId, Snapshot};

/// A table whose rows are made as they are asked for.
pub(super) struct Table<'a> {
    pub(super) name: &'static str,
    pub(super) schema: SchemaRef,
    pub(super) batches: Box<dyn Iterator<Item = anyhow::Result<RecordBatch>> + 'a>,
}

/// Rows per batch: enough that the work per batch vanishes, few enough that a batch is some megabytes.
const BATCH: usize = 65_536;

/// All tables, in the order of the documentation.
pub(super) fn tables<'a>(
    snapshot: &'a Snapshot,
    devices: &'a [Device<'a>],
) -> anyhow::Result<Vec<Table<'a>>> {
    Ok(vec![
        events::events(snapshot, devices)?,
        blocks::blocks(snapshot, devices)?,
        segments::segments(snapshot)?,
        frames::frames(snapshot)?,
        frames::stacks(snapshot)?,
    ])
}

impl<'a> Table<'a> {
    /// Cuts `rows` into batches of `columns`; those of no rows at all give the schema.
    fn new<Row: 'a>(
        name: &'static str,
        mut rows: impl Iterator<Item = Row> + 'a,
        columns: impl for<'r> Fn(Columns<'r, Row>) -> anyhow::Result<Columns<'r, Row>> + 'a,
    ) -> anyhow::Result<Table<'a>> {
        let batch = move |rows: &[Row]| columns(Columns::new(rows))?.batch();
        let schema = batch(&[])?.schema();
        let mut buffer = Vec::new();
        let batches = std::iter::from_fn(move || {
            buffer.clear();
            buffer.extend(rows.by_ref().take(BATCH));
            (!buffer.is_empty()).then(|| batch(&buffer))
        });
        Ok(Table { name, schema, batches: Box::new(batches) })
    }
}

/// A pool as text: `0,0` is the default.
fn pool_name(PoolId(first, second): PoolId) -> String {
    format!("{first},{second}")
}
