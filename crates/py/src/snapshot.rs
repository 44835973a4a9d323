//! Snapshots in memory: typed questions, answered with the JSON or the text of a command.

use crate::exception;
use crate::table::PyTable;
use cli::Failure;
use cli::api::{self, Budget, By, CommandOutput, Loaded, WhatIfOptions};
use pyo3::exceptions::PyValueError;
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
    #[pyo3(signature = (json, *, at=None, by=None, top=None))]
    fn report(
        &self,
        py: Python<'_>,
        json: bool,
        at: Option<NumberOrText>,
        by: Option<String>,
        top: Option<usize>,
    ) -> PyResult<Printed> {
        let at = at.map(|at| at.parsed("at", api::moment)).transpose()?;
        let by = by.as_deref().map(grouping).transpose()?;
        answer(py, || api::report(&self.ranks, (at, by, top), json))
    }

    /// Returns the memory timeline of each device as JSON.
    fn timeline(&self, py: Python<'_>, columns: usize) -> String {
        py.detach(|| api::timeline(&self.ranks, columns))
    }

    /// Runs `oomph simulate`.
    #[pyo3(signature = (json, *, conf=None, gpu=None, non_pytorch=None, fraction=None, limit=None,
        search=false, smallest_gpu=false, verify=false, torch=None, recorded_conf=None, device=None,
        output=None))]
    #[allow(clippy::too_many_arguments)] // as many as Python's `Snapshot.simulate` has
    fn simulate(
        &self,
        py: Python<'_>,
        json: bool,
        conf: Option<String>,
        gpu: Option<NumberOrText>,
        non_pytorch: Option<NumberOrText>,
        fraction: Option<f64>,
        limit: Option<NumberOrText>,
        search: bool,
        smallest_gpu: bool,
        verify: bool,
        torch: Option<String>,
        recorded_conf: Option<String>,
        device: Option<u32>,
        output: Option<PathBuf>,
    ) -> PyResult<Printed> {
        let torch = torch.map(|torch| NumberOrText::Text(torch).parsed("torch", api::release)).transpose()?;
        if fraction.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err(PyValueError::new_err("`fraction` is a share from 0 to 1"));
        }
        let question = WhatIfOptions {
            conf,
            gpu: gpu.map(|gpu| gpu.parsed("gpu", api::gpu_memory)).transpose()?,
            non_pytorch: size("non_pytorch", non_pytorch)?.unwrap_or(api::DEFAULT_NON_PYTORCH),
            fraction,
            limit: size("limit", limit)?,
            search,
            smallest_gpu,
            verify,
            torch,
            recorded_conf,
            device,
        };
        answer(py, || api::simulate(&self.ranks, question, output, json))
    }

    /// Runs `oomph check` on this recording.
    #[pyo3(signature = (json, *, max_peak=None, max_reserved=None, no_leaks=false, max_growth=None,
        max_fragmentation=None, baseline=None, tolerance=None))]
    #[allow(clippy::too_many_arguments)] // as many as Python's `Snapshot.check` has
    fn check(
        &self,
        py: Python<'_>,
        json: bool,
        max_peak: Option<NumberOrText>,
        max_reserved: Option<NumberOrText>,
        no_leaks: bool,
        max_growth: Option<NumberOrText>,
        max_fragmentation: Option<f64>,
        baseline: Option<PathBuf>,
        tolerance: Option<String>,
    ) -> PyResult<Printed> {
        if max_fragmentation.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err(PyValueError::new_err("`max_fragmentation` is a share from 0 to 1"));
        }
        if tolerance.is_some() && baseline.is_none() {
            return Err(PyValueError::new_err("`tolerance` is about a `baseline`"));
        }
        let allowed = |text| NumberOrText::Text(text).parsed("tolerance", api::tolerance);
        let budget = Budget {
            max_peak: size("max_peak", max_peak)?,
            max_reserved: size("max_reserved", max_reserved)?,
            no_leaks,
            max_growth: max_growth.map(|value| value.parsed("max_growth", api::growth)).transpose()?,
            max_fragmentation,
            baseline,
            tolerance: tolerance.map(allowed).transpose()?,
            update: false,
        };
        answer(py, || api::check(&self.ranks, &budget, json))
    }

    /// Runs `oomph diff` from this snapshot to another.
    #[pyo3(signature = (after, json, *, top=None))]
    fn diff(&self, py: Python<'_>, after: &PySnapshot, json: bool, top: Option<usize>) -> PyResult<Printed> {
        answer(py, || api::diff(&self.ranks, &after.ranks, top, json))
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
#[pyo3(signature = (graph, tensor, json, *, top=None))]
pub(crate) fn holders(
    py: Python<'_>,
    graph: String,
    tensor: Option<(String, u32, u64)>,
    json: bool,
    top: Option<usize>,
) -> PyResult<Printed> {
    answer(py, || api::holders(&graph, tensor, top, json))
}

/// A size or moment, which Python gives as a number or as text.
#[derive(FromPyObject)]
enum NumberOrText {
    Number(i64),
    Text(String),
}

impl NumberOrText {
    /// Returns the value for the argument `name`; fails as the command line does.
    fn parsed<T>(self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> PyResult<T> {
        let text = match self {
            NumberOrText::Number(number) => number.to_string(),
            NumberOrText::Text(text) => text,
        };
        let refused = |why| PyValueError::new_err(format!("invalid value '{text}' for `{name}`: {why}"));
        parse(&text).map_err(refused)
    }
}

/// Returns the bytes of a size, if one was given.
fn size(name: &str, value: Option<NumberOrText>) -> PyResult<Option<u64>> {
    value.map(|value| value.parsed(name, api::parse_size)).transpose()
}

/// Returns what to group live memory by.
fn grouping(name: &str) -> PyResult<By> {
    Ok(match name {
        "site" => By::Site,
        "category" => By::Category,
        "stack" => By::Stack,
        "module" => By::Module,
        "size" => By::Size,
        _ => {
            let why = "expected site, category, stack, module or size";
            return Err(PyValueError::new_err(format!("invalid value '{name}' for `by`: {why}")));
        }
    })
}
