//! A table as a stream of batches that keeps the snapshot it is made from.

use super::{Loaded, TABLES};
use crate::terminal::Failure;
use export::tables::{self, ExportTable};
use export::{ArrowError, RecordBatch, RecordBatchReader, SchemaRef};
use self_cell::self_cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

self_cell!(
    pub(super) struct Rows {
        owner: Arc<Loaded>,
        #[not_covariant]
        dependent: ExportTable,
    }
);

impl Rows {
    pub(super) fn of(loaded: Arc<Loaded>, name: &str) -> Result<Rows, Failure> {
        Rows::try_new(loaded, |loaded| {
            match tables::table(name, &loaded.input().snapshot, loaded.devices()) {
                Some(table) => Ok(table?),
                None => Err(Failure::new(
                    format!("there is no table `{name}`"),
                    Some(format!("the tables are {}", TABLES.join(", "))),
                    None,
                )),
            }
        })
    }
}

impl Iterator for Rows {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.with_dependent_mut(|_, table| next_of(&mut table.batches))
    }
}

impl RecordBatchReader for Rows {
    fn schema(&self) -> SchemaRef {
        self.with_dependent(|_, table| table.schema.clone())
    }
}

/// The next batch. Panics are caught: callers use a C interface, where one would end their process.
fn next_of(
    batches: &mut dyn Iterator<Item = anyhow::Result<RecordBatch>>,
) -> Option<Result<RecordBatch, ArrowError>> {
    let next = catch_unwind(AssertUnwindSafe(|| batches.next()));
    let next = next.unwrap_or_else(|_| Some(Err(anyhow::anyhow!("oomph failed while it made this table"))));
    next.map(|batch| batch.map_err(|error| ArrowError::ExternalError(error.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let mut batches = std::iter::from_fn(|| panic!("a bug"));
        let error = next_of(&mut batches).expect("a result").expect_err("an error");
        assert!(error.to_string().contains("oomph failed"), "{error}");
    }
}
