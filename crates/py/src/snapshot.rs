//! Snapshots in memory. Requests and results are text: the options of a command, and its output.

use crate::exception;
use crate::table::PyTable;
use cli::Failure;
use cli::api::{self, CommandOutput, Loaded};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// One snapshot, or the ranks of one job.
#[pyclass(frozen, name = "Snapshot", module = "oomph._native")]
pub(crate) struct PySnapshot {
    ranks: Vec<Arc<Loaded>>,
}

/// Output of a command, and its notes.
type Printed = (String, Vec<String>);

/// Reads files; folders and globs give the snapshots in them.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<PySnapshot> {
    let read = || -> Result<PySnapshot, Failure> {
        let files = api::files(&paths)?;
        let ranks = files.iter().map(|file| Ok(Arc::new(Loaded::open(file)?)));
        Ok(PySnapshot { ranks: ranks.collect::<Result<_, Failure>>()? })
    };
    py.detach(read).map_err(exception)
}

#[pymethods]
impl PySnapshot {
    /// Files that were read.
    #[getter]
    fn files(&self) -> Vec<&str> {
        self.ranks.iter().map(|rank| rank.name()).collect()
    }

    /// Each file as a snapshot of its own.
    #[getter]
    fn ranks(&self) -> Vec<PySnapshot> {
        self.ranks.iter().map(|rank| PySnapshot { ranks: vec![rank.clone()] }).collect()
    }

    /// Runs `oomph report`.
    fn report(&self, py: Python<'_>, options: Vec<String>) -> PyResult<Printed> {
        answer(py, || api::report(&self.ranks, &options))
    }

    /// Runs `oomph simulate`.
    fn simulate(&self, py: Python<'_>, options: Vec<String>) -> PyResult<Printed> {
        answer(py, || api::simulate(&self.ranks, &options))
    }

    /// Runs `oomph diff` from this snapshot to another.
    fn diff(&self, py: Python<'_>, after: &PySnapshot, options: Vec<String>) -> PyResult<Printed> {
        answer(py, || api::diff(&self.ranks, &after.ranks, &options))
    }

    /// Returns a table of a single snapshot; `TABLES` has the names.
    fn table(&self, name: String) -> PyResult<PyTable> {
        PyTable::new(api::only(&self.ranks).map_err(exception)?.clone(), name)
    }
}

fn answer(py: Python<'_>, work: impl FnOnce() -> Result<CommandOutput, Failure> + Send) -> PyResult<Printed> {
    let CommandOutput { text, notes } = py.detach(work).map_err(exception)?;
    Ok((text, notes))
}

/// Runs `oomph holders` for this process: its graph as JSON and, for one tensor, the device, ordinal and
/// address.
#[pyfunction]
pub(crate) fn holders(
    py: Python<'_>,
    graph: String,
    tensor: Option<(String, u32, u64)>,
    options: Vec<String>,
) -> PyResult<Printed> {
    answer(py, || api::holders(&graph, tensor, &options))
}
