//! `oomph._native`: the command and the reading API for Python. It binds and holds no logic.
//!
//! Whatever takes time runs detached from the interpreter, so that other threads of the program go on.

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

/// The Python module.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::holding::holding;
    #[pymodule_export]
    use super::snapshot::{Snapshot, holders, load};
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::{Alarm, Growth, run, size};

    use pyo3::prelude::*;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("TABLES", cli::api::TABLES.to_vec())
    }
}

/// The command line: arguments with the program's name in front, the interpreter for users' programs, and the folder with
/// the CUDA emulator. Gives the exit code.
#[pyfunction]
fn run(py: Python<'_>, arguments: Vec<OsString>, python: Option<PathBuf>, libraries: PathBuf) -> u8 {
    let host = Host { python, libraries: Some(libraries) };
    py.detach(|| cli::run(arguments, &host))
}

/// Whether memory grows, for the recorder.
#[pyclass]
#[derive(Default)]
struct Alarm(cli::api::Alarm);

#[pymethods]
impl Alarm {
    #[new]
    fn new() -> Alarm {
        Alarm::default()
    }

    /// Hears what is allocated at the end of a step; says once that it grows.
    fn step(&mut self, allocated: u64) -> Option<Growth> {
        let cli::api::Growth { message, step, bytes_per_step, allocated } = self.0.step(allocated)?;
        Some(Growth { message, step, bytes_per_step, allocated })
    }
}

/// Memory that grows step after step.
#[pyclass(frozen, get_all)]
struct Growth {
    message: String,
    step: usize,
    bytes_per_step: u64,
    allocated: u64,
}

/// Bytes as every output of oomph writes them.
#[pyfunction]
fn size(bytes: u64) -> String {
    cli::api::size(bytes)
}

/// The built-in exception for a failure, with its whole message.
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
