//! Row-by-row access to a batch, for formats that are not columnar.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, BooleanArray, DictionaryArray, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::DataType;

/// One value of one row.
pub(crate) enum CellValue<'a> {
    Null,
    Unsigned(u64),
    Signed(i64),
    Flag(bool),
    Text(&'a str),
}

/// A column of any type that the tables use.
pub(crate) enum Cells<'a> {
    Small(&'a UInt32Array),
    Large(&'a UInt64Array),
    Signed(&'a Int64Array),
    Flag(&'a BooleanArray),
    Text(&'a StringArray),
    Dictionary(&'a DictionaryArray<Int32Type>, &'a StringArray),
}

/// Returns the columns of a batch.
pub(crate) fn columns(batch: &RecordBatch) -> anyhow::Result<Vec<Cells<'_>>> {
    batch.columns().iter().map(|column| cells(column)).collect()
}

fn cells(column: &dyn Array) -> anyhow::Result<Cells<'_>> {
    Ok(match column.data_type() {
        DataType::UInt32 => Cells::Small(column.as_primitive::<UInt32Type>()),
        DataType::UInt64 => Cells::Large(column.as_primitive::<UInt64Type>()),
        DataType::Int64 => Cells::Signed(column.as_primitive::<Int64Type>()),
        DataType::Boolean => Cells::Flag(column.as_boolean()),
        DataType::Utf8 => Cells::Text(column.as_string()),
        DataType::Dictionary(..) => {
            let dictionary = column.as_dictionary::<Int32Type>();
            Cells::Dictionary(dictionary, dictionary.values().as_string())
        }
        other => anyhow::bail!("columns of {other} have no form in this format"),
    })
}

impl<'a> Cells<'a> {
    pub(crate) fn get(&self, row: usize) -> CellValue<'a> {
        fn or_null<'a, Of: Array>(
            column: &'a Of,
            row: usize,
            cell: impl Fn(&'a Of) -> CellValue<'a>,
        ) -> CellValue<'a> {
            if column.is_null(row) { CellValue::Null } else { cell(column) }
        }
        match *self {
            Cells::Small(column) => or_null(column, row, |of| CellValue::Unsigned(of.value(row).into())),
            Cells::Large(column) => or_null(column, row, |of| CellValue::Unsigned(of.value(row))),
            Cells::Signed(column) => or_null(column, row, |of| CellValue::Signed(of.value(row))),
            Cells::Flag(column) => or_null(column, row, |of| CellValue::Flag(of.value(row))),
            Cells::Text(column) => or_null(column, row, |of| CellValue::Text(of.value(row))),
            Cells::Dictionary(column, values) => {
                or_null(column, row, |of| CellValue::Text(values.value(of.keys().value(row) as usize)))
            }
        }
    }
}
