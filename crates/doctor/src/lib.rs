//! Checks this machine: the interpreter and its torch, the driver and its GPUs, the folder for private files,
//! and, by recording two small programs, the recorder and the CUDA emulator.
//!
//! ```
//! use doctor::{Check, CheckState};
//!
//! let checks = [Check::warning("driver", "this machine has no NVIDIA driver", None)];
//! assert!(doctor::is_usable(&checks), "CPU tensors can be recorded without one");
//! assert_eq!(checks[0].state, CheckState::Warning);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod interpreter;
mod trial;

use failure::Failure;
use inputs::ProgressReporter;
use interpreter::Interpreter;
use launch::Host;
use live::Driver;
use snapshot::Bytes;
use std::path::Path;

/// One thing that was looked at.
#[derive(Clone, PartialEq, Debug)]
pub struct Check {
    /// What it is about: `python`, `torch`, `driver`, …
    pub name: &'static str,
    /// How it is.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Something does not work without it, but the rest does.
    Warning,
    /// Programs cannot be recorded.
    Failed,
}

impl Check {
    /// Returns something that is as it should be.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, state: CheckState::Ok, found: found.into(), hint: None }
    }

    /// Returns something that only a part of oomph needs.
    pub fn warning(name: &'static str, found: impl Into<String>, hint: Option<&str>) -> Check {
        Check { name, state: CheckState::Warning, found: found.into(), hint: hint.map(str::to_owned) }
    }

    /// Returns something that keeps programs from being recorded.
    pub fn failed(name: &'static str, found: impl Into<String>, hint: Option<&str>) -> Check {
        Check { name, state: CheckState::Failed, found: found.into(), hint: hint.map(str::to_owned) }
    }

    fn of_failure(name: &'static str, state: CheckState, error: anyhow::Error) -> Check {
        let failure = Failure::from(error);
        let cause = failure.cause().map(|cause| format!(": {cause}")).unwrap_or_default();
        let hint = failure.hint().map(str::to_owned);
        Check { name, state, found: format!("{failure}{cause}"), hint }
    }
}

/// Returns whether nothing keeps programs from being recorded.
pub fn is_usable(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.state != CheckState::Failed)
}

/// Looks at everything; `python` is the interpreter that programs would run with.
pub fn examine(python: &Path, host: &Host, version: &str, progress: ProgressReporter) -> Vec<Check> {
    let platform = format!("{version} on {} {}", std::env::consts::OS, std::env::consts::ARCH);
    let mut checks = vec![Check::ok("oomph", platform)];
    let interpreter = Interpreter::ask(python);
    let has_torch = match &interpreter {
        Ok(interpreter) => {
            checks.extend(interpreter.checks(version));
            interpreter.torch.is_some()
        }
        Err(why) => {
            let hint = "activate the environment of your program, or name its Python with --python";
            let found = format!("{} does not run: {why}", python.to_string_lossy());
            checks.push(Check::failed("python", found, Some(hint)));
            false
        }
    };
    let system = launch::check_system();
    checks.extend(gpus(system.is_ok()));
    if let Err(failure) = system {
        checks.push(Check::of_failure("recorder", CheckState::Failed, failure.into()));
        return checks;
    }
    let folder = trial::private_folder();
    let can_run = has_torch && folder.state == CheckState::Ok;
    checks.push(folder);
    if can_run {
        checks.push(trial::recorder(python, progress));
        checks.push(trial::emulator(python, host, progress));
    }
    checks
}

/// The driver, and one line for each GPU. `can_run`: programs can be run without one.
fn gpus(can_run: bool) -> Vec<Check> {
    let gpus = match Driver::new().and_then(|driver| driver.gpus()) {
        Ok(gpus) => gpus,
        Err(why) => {
            let hint = "CPU tensors can be recorded; `oomph predict` needs no GPU";
            return vec![Check::warning("driver", why, can_run.then_some(hint))];
        }
    };
    if gpus.is_empty() {
        return vec![Check::warning("driver", "the driver lists no GPU", None)];
    }
    let found = |gpu: live::Gpu| {
        let (used, total) = (Bytes(gpu.used), Bytes(gpu.total));
        Check::ok("gpu", format!("GPU {}: {}, {used} of {total} in use", gpu.index, gpu.name))
    };
    gpus.into_iter().map(found).collect()
}
