//! Snapshots in memory. Questions and answers are texts: the options of a command, and its output.

use crate::exception;
use crate::table::Table;
use cli::Failure;
use cli::api::{self, Answer, Loaded};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// One snapshot, or the ranks of one job.
#[pyclass(frozen, module = "oomph._native")]
pub(crate) struct Snapshot {
    ranks: Vec<Arc<Loaded>>,
}

/// What a command prints, and its notes.
type Printed = (String, Vec<String>);

/// Reads files; folders and globs give the snapshots in them.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Snapshot> {
    let read = || -> Result<Snapshot, Failure> {
        let files = api::files(&paths)?;
        let ranks = files.iter().map(|file| Ok(Arc::new(Loaded::open(file)?)));
        Ok(Snapshot { ranks: ranks.collect::<Result<_, Failure>>()? })
    };
    py.detach(read).map_err(exception)
}

#[pymethods]
impl Snapshot {
    /// The files that were read.
    #[getter]
    fn files(&self) -> Vec<&str> {
        self.ranks.iter().map(|rank| rank.name()).collect()
    }

    /// Each file by itself.
    #[getter]
    fn ranks(&self) -> Vec<Snapshot> {
        self.ranks.iter().map(|rank| Snapshot { ranks: vec![rank.clone()] }).collect()
    }

    /// `oomph report`.
    fn report(&self, py: Python<'_>, options: Vec<String>) -> PyResult<Printed> {
        answer(py, || api::report(&self.ranks, &options))
    }

    /// `oomph simulate`.
    fn simulate(&self, py: Python<'_>, options: Vec<String>) -> PyResult<Printed> {
        answer(py, || api::simulate(&self.ranks, &options))
    }

    /// `oomph diff`, from this one to the other.
    fn diff(&self, py: Python<'_>, after: &Snapshot, options: Vec<String>) -> PyResult<Printed> {
        answer(py, || api::diff(&self.ranks, &after.ranks, &options))
    }

    /// A table of a single snapshot; `TABLES` has the names.
    fn table(&self, name: String) -> PyResult<Table> {
        Table::new(api::only(&self.ranks).map_err(exception)?.clone(), name)
    }
}

fn answer(py: Python<'_>, work: impl FnOnce() -> Result<Answer, Failure> + Send) -> PyResult<Printed> {
    let Answer { text, notes } = py.detach(work).map_err(exception)?;
    Ok((text, notes))
}

/// `oomph holders` for this process: its graph as JSON; of one tensor the device, ordinal and address.
#[pyfunction]
pub(crate) fn holders(
    py: Python<'_>,
    graph: String,
    tensor: Option<(String, u32, u64)>,
    options: Vec<String>,
) -> PyResult<Printed> {
    answer(py, || api::holders(&graph, tensor, &options))
}
