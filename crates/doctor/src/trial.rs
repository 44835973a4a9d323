//! Small programs, recorded for a test.

use crate::{Check, CheckState};
use inputs::ProgressReporter;
use launch::{CompletedRun, EmulatedGpu, GpuModel, Host, Job, OutputFolder, ProgramOutput, RunFolder};
use std::path::Path;

/// Allocates one tensor of a known size on the CPU.
const ON_CPU: &str = "import torch\nkept = torch.zeros(1 << 18)\n";
/// The same on a GPU.
const ON_GPU: &str = "import torch\nkept = torch.zeros(1 << 18, device='cuda')\n";
/// The GPU to emulate.
const EMULATED: &str = "h100";

/// Whether a private folder can be created.
pub(crate) fn private_folder() -> Check {
    match RunFolder::new(OutputFolder::Temporary) {
        Ok(_) => Check::ok("cache", "private files can be written"),
        Err(error) => Check::of_failure("cache", CheckState::Failed, error),
    }
}

pub(crate) fn recorder(python: &Path, progress: ProgressReporter) -> Check {
    let job = Job { is_on_cpu: true, ..job(python, ON_CPU, None, progress) };
    match recorded(&job) {
        Ok(()) => Check::ok("recorder", "recorded a test program"),
        Err(error) => Check::of_failure("recorder", CheckState::Failed, error),
    }
}

pub(crate) fn emulator(python: &Path, host: &Host, progress: ProgressReporter) -> Check {
    let Some(model) = GpuModel::find(EMULATED) else {
        return Check::warning("emulator", "no GPU to emulate", None);
    };
    let emulated = EmulatedGpu::new(model, None, 1, host);
    match recorded(&job(python, ON_GPU, Some(emulated), progress)) {
        Ok(()) => Check::ok("emulator", "ran a test program on an emulated GPU"),
        Err(error) => Check::of_failure("emulator", CheckState::Warning, error),
    }
}

fn job(python: &Path, program: &str, emulated: Option<EmulatedGpu>, progress: ProgressReporter) -> Job {
    let command = vec![python.into(), "-c".into(), program.into()];
    Job { output: ProgramOutput::Captured, ..Job::new(command, emulated, Some(0), progress) }
}

fn recorded(job: &Job) -> anyhow::Result<()> {
    let done: CompletedRun = launch::run_to_end(job, &RunFolder::new(OutputFolder::Temporary)?)?;
    if !done.status.success() || done.ranks.is_empty() {
        return Err(launch::nothing_recorded(&done).into());
    }
    Ok(())
}
