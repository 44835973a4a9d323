//! Table for users of Arrow's PyCapsule interface: pandas, polars, pyarrow, duckdb and others.

use crate::exception;
use arrow_array::RecordBatchReader;
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use cli::api::Loaded;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// Names of the interface's capsules.
const STREAM: &std::ffi::CStr = c"arrow_array_stream";
const SCHEMA: &std::ffi::CStr = c"arrow_schema";

/// Table of a snapshot. Every reader gets its own stream, from the first row.
#[pyclass(frozen, name = "Table", module = "oomph._native")]
pub(crate) struct PyTable {
    loaded: Arc<Loaded>,
    /// Name of the table.
    #[pyo3(get)]
    name: String,
    /// Names of its columns.
    #[pyo3(get)]
    columns: Vec<String>,
}

impl PyTable {
    pub(crate) fn new(loaded: Arc<Loaded>, name: String) -> PyResult<PyTable> {
        let schema = loaded.table(&name).map_err(exception)?.schema();
        let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
        Ok(PyTable { loaded, name, columns })
    }

    fn rows(&self, py: Python<'_>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
        py.detach(|| self.loaded.table(&self.name)).map_err(exception)
    }
}

#[pymethods]
impl PyTable {
    /// Returns the rows as a stream of batches. A requested schema is ignored, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(self.rows(py)?), STREAM)
    }

    /// Returns the types of the columns.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.rows(py)?.schema().as_ref())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        PyCapsule::new_with_value(py, schema, SCHEMA)
    }

    fn __repr__(&self) -> String {
        format!("<oomph table {}: {}>", self.name, self.columns.join(", "))
    }
}
