//! Builds Arrow columns from rows: each column is a name and a function that reads its value from a row.

use super::dictionary::{Dictionary, strings};
use arrow_array::types::{ArrowPrimitiveType, Int32Type};
use arrow_array::{ArrayRef, BooleanArray, DictionaryArray, PrimitiveArray, RecordBatch};
use std::sync::Arc;

/// Columns of some rows, added one by one. Whether a column may contain nulls is part of its definition, so
/// that it does not depend on the rows.
pub(super) struct Columns<'r, Row> {
    rows: &'r [Row],
    columns: Vec<(&'static str, ArrayRef, bool)>,
}

impl<'r, Row> Columns<'r, Row> {
    pub(super) fn new(rows: &'r [Row]) -> Columns<'r, Row> {
        Columns { rows, columns: Vec::new() }
    }

    pub(super) fn number<T: ArrowPrimitiveType>(
        self,
        name: &'static str,
        of: impl Fn(&Row) -> T::Native,
    ) -> Self {
        let values = PrimitiveArray::<T>::from_iter_values(self.rows.iter().map(of));
        self.with(name, Arc::new(values), false)
    }

    pub(super) fn optional_number<T: ArrowPrimitiveType>(
        self,
        name: &'static str,
        of: impl Fn(&Row) -> Option<T::Native>,
    ) -> Self {
        let values: PrimitiveArray<T> = self.rows.iter().map(of).collect();
        self.with(name, Arc::new(values), true)
    }

    pub(super) fn flag(self, name: &'static str, of: impl Fn(&Row) -> bool) -> Self {
        let values: Vec<bool> = self.rows.iter().map(of).collect();
        self.with(name, Arc::new(BooleanArray::from(values)), false)
    }

    /// Adds a column of text that differs from row to row.
    pub(super) fn optional_text<'t>(
        self,
        name: &'static str,
        of: impl Fn(&Row) -> Option<&'t str>,
    ) -> anyhow::Result<Self> {
        let values = strings(self.rows.iter().map(&of))?;
        Ok(self.with(name, Arc::new(values), true))
    }

    /// Adds a dictionary column. `of` returns the index in the sequence from which `dictionary` was made.
    pub(super) fn dictionary(
        self,
        name: &'static str,
        dictionary: &Dictionary,
        of: impl Fn(&Row) -> usize,
    ) -> anyhow::Result<Self> {
        self.dictionary_column(name, dictionary, |row| Some(of(row)), false)
    }

    /// Adds a dictionary column that may contain nulls.
    pub(super) fn optional_dictionary(
        self,
        name: &'static str,
        dictionary: &Dictionary,
        of: impl Fn(&Row) -> Option<usize>,
    ) -> anyhow::Result<Self> {
        self.dictionary_column(name, dictionary, of, true)
    }

    fn dictionary_column(
        self,
        name: &'static str,
        dictionary: &Dictionary,
        of: impl Fn(&Row) -> Option<usize>,
        nullable: bool,
    ) -> anyhow::Result<Self> {
        let keys: PrimitiveArray<Int32Type> =
            self.rows.iter().map(|row| of(row).and_then(|index| dictionary.key(index))).collect();
        let values = DictionaryArray::try_new(keys, dictionary.values())?;
        Ok(self.with(name, Arc::new(values), nullable))
    }

    fn with(mut self, name: &'static str, values: ArrayRef, nullable: bool) -> Self {
        self.columns.push((name, values, nullable));
        self
    }

    pub(super) fn batch(self) -> anyhow::Result<RecordBatch> {
        Ok(RecordBatch::try_from_iter_with_nullable(self.columns)?)
    }
}
