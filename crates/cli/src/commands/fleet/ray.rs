//! `--engine ray`: the driver in Python reads the ranks on a cluster and leaves their summaries in a folder.

use crate::Host;
use crate::args::python;
use crate::terminal::{Failure, TALK};
use fleet::RankRecord;
use std::path::Path;
use std::process::Command;

/// Exit code of the driver where Ray is not installed.
const NOT_INSTALLED: i32 = 3;

/// Reads all ranks on a Ray cluster.
pub(super) fn read(inputs: &[String], host: &Host) -> anyhow::Result<Vec<RankRecord>> {
    let folder = tempfile::Builder::new().prefix("oomph-fleet-").tempdir()?;
    let python = python(host);
    let mut driver = Command::new(&python);
    driver.args(["-m", "oomph.ray_engine"]).arg(folder.path()).args(inputs);
    // The wheel's own program is Python: the driver then calls `python -m oomph`.
    let program = std::env::current_exe().ok();
    if let Some(program) = program.filter(|path| path.file_stem().is_some_and(|name| name == "oomph")) {
        driver.env("OOMPH", program);
    }
    let install = "install it with `pip install oomph[ray]`";
    let status = driver.status().map_err(|error| {
        let what = format!("`{}` could not be started", crate::terminal::shown_path(&python));
        Failure::new(what, Some(error.to_string()), Some(install))
    })?;
    match status.code() {
        Some(0) => {}
        Some(NOT_INSTALLED) => {
            let cause = format!("`{}` has no module `ray`", crate::terminal::shown_path(&python));
            return Err(Failure::new("Ray is not installed", Some(cause), Some(install)).into());
        }
        _ => {
            // The driver has said why.
            let cause = format!("its driver ended with {status}");
            return Err(Failure::new("the ranks could not be read on Ray", Some(cause), None).into());
        }
    }
    summaries(folder.path())
}

fn summaries(folder: &Path) -> anyhow::Result<Vec<RankRecord>> {
    Ok(fleet::read(&fleet::list(&[folder.to_string_lossy().into_owned()])?, &TALK))
}
