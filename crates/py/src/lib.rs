//! `oomph._native`: the command and the reading API for Python. It contains bindings and no logic.
//!
//! Everything that takes time runs detached from the interpreter, so that other threads of the program
//! continue.

mod holding;
mod snapshot;
mod table;

use cli::{Failure, Host};
use pyo3::exceptions::{
    PyFileNotFoundError, PyIsADirectoryError, PyNotADirectoryError, PyOSError, PyPermissionError,
    PyValueError,
};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

#[global_allocator]
static ALLOCATOR: cli::HugePages = cli::HugePages;

/// Python module `oomph._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::holding::holding;
    #[pymodule_export]
    use super::snapshot::{PySnapshot, holders, load};
    #[pymodule_export]
    use super::table::PyTable;
    #[pymodule_export]
    use super::{PyAlarm, PyGrowth, run, size};

    use pyo3::prelude::*;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("TABLES", cli::api::TABLES.to_vec())
    }
}

/// Runs the command line and returns its exit code. Takes the arguments including the program's name, the
/// interpreter for users' programs, and the folder with the CUDA emulator.
#[pyfunction]
fn run(py: Python<'_>, arguments: Vec<OsString>, python: Option<PathBuf>, libraries: PathBuf) -> u8 {
    let host = Host { python, libraries: Some(libraries) };
    py.detach(|| cli::run(arguments, &host))
}

/// Detector of growing memory, for the recorder.
#[pyclass(name = "Alarm")]
#[derive(Default)]
struct PyAlarm(cli::api::RecorderAlarm);

#[pymethods]
impl PyAlarm {
    #[new]
    fn new() -> PyAlarm {
        PyAlarm::default()
    }

    /// Adds the allocated bytes at the end of a step; returns the growth once it is detected.
    fn step(&mut self, allocated: u64) -> Option<PyGrowth> {
        let cli::api::Growth { message, step, bytes_per_step, allocated } = self.0.step(allocated)?;
        Some(PyGrowth { message, step, bytes_per_step, allocated })
    }
}

/// Memory that grows step after step.
#[pyclass(frozen, get_all, name = "Growth")]
struct PyGrowth {
    message: String,
    step: usize,
    bytes_per_step: u64,
    allocated: u64,
}

/// Formats a number of bytes as every output of oomph does.
#[pyfunction]
fn size(bytes: u64) -> String {
    cli::api::size(bytes)
}

/// Returns the built-in exception for a failure, with its whole message.
fn exception(failure: Failure) -> PyErr {
    let message = failure.message();
    match failure.refusal() {
        None => PyValueError::new_err(message),
        Some(ErrorKind::NotFound) => PyFileNotFoundError::new_err(message),
        Some(ErrorKind::PermissionDenied) => PyPermissionError::new_err(message),
        Some(ErrorKind::IsADirectory) => PyIsADirectoryError::new_err(message),
        Some(ErrorKind::NotADirectory) => PyNotADirectoryError::new_err(message),
        Some(_) => PyOSError::new_err(message),
    }
}
