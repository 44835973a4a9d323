//! The arguments that commands share which run a program.

use super::gpu::GpuParser;
use super::size;
use crate::Host;
use clap::Args;
use launch::{EmulatedGpu, GpuModel};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The Python that runs scripts and modules.
#[derive(Args, Debug)]
pub(crate) struct InterpreterArgs {
    /// The Python interpreter; default: the active environment's, the one oomph is installed for, or python3
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

impl InterpreterArgs {
    pub(crate) fn path(&self, host: &Host) -> PathBuf {
        self.python.clone().unwrap_or_else(|| python(host))
    }

    /// The program of this name next to the interpreter, such as `torchrun`, if that was named.
    fn neighbor(&self, program: &OsString) -> Option<PathBuf> {
        let is_bare = Path::new(program).components().count() == 1;
        let path = self.python.as_ref().filter(|_| is_bare)?.parent()?.join(program);
        path.is_file().then_some(path)
    }
}

/// A program to run.
#[derive(Args, Debug)]
pub(crate) struct ProgramArgs {
    /// The script or `-m MODULE`, and its arguments
    #[arg(required_unless_present = "command", value_name = "SCRIPT", allow_hyphen_values = true)]
    pub(crate) script: Vec<OsString>,

    /// A command that runs Python, such as `python train.py` or `torchrun train.py`, and its arguments
    #[arg(last = true, value_name = "COMMAND", allow_hyphen_values = true, conflicts_with = "script")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) interpreter: InterpreterArgs,
}

impl ProgramArgs {
    /// The program as the user wrote it.
    pub(crate) fn words(&self) -> &[OsString] {
        if self.script.is_empty() { &self.command } else { &self.script }
    }

    /// The interpreter for scripts and modules.
    pub(crate) fn interpreter(&self, host: &Host) -> PathBuf {
        self.interpreter.path(host)
    }

    /// The command to run. A script or `-m MODULE` is run by the interpreter, also after `--`.
    pub(crate) fn command(&self, host: &Host) -> Vec<OsString> {
        if self.script.is_empty() && !is_script(&self.command) {
            let mut command = self.command.clone();
            if let Some(path) = command.first().and_then(|program| self.interpreter.neighbor(program)) {
                command[0] = path.into_os_string();
            }
            return command;
        }
        std::iter::once(self.interpreter(host).into_os_string()).chain(self.words().iter().cloned()).collect()
    }
}

/// The interpreter in a virtual environment, and the one without any.
const IN_ENVIRONMENT: &str = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
const DEFAULT_PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };

/// The interpreter of the active environment, or the one oomph is installed for, or python3.
pub(crate) fn python(host: &Host) -> PathBuf {
    let active = std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join(IN_ENVIRONMENT));
    let active = active.filter(|path| path.exists());
    active.or_else(|| host.python.clone()).unwrap_or_else(|| PathBuf::from(DEFAULT_PYTHON))
}

/// Whether these words are for the interpreter: `train.py …`, `-m MODULE …`, `- …`.
pub(super) fn is_script(words: &[OsString]) -> bool {
    words.first().is_some_and(|first| {
        first == "-m" || first == "-" || Path::new(first).extension().is_some_and(|ending| ending == "py")
    })
}

/// GPUs to emulate, where a program always runs on them.
#[derive(Args, Debug)]
pub(crate) struct EmulatedGpuArgs {
    /// The GPU to emulate: a name, or the memory of any GPU
    #[arg(long, value_name = "NAME|SIZE", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: GpuModel,

    /// Memory of the GPU, if not the usual size
    #[arg(long, value_name = "SIZE", value_parser = size)]
    gpu_memory: Option<u64>,

    /// Number of such GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) gpus: u32,
}

impl EmulatedGpuArgs {
    pub(crate) fn gpu(&self, host: &Host) -> EmulatedGpu {
        EmulatedGpu::new(&self.gpu, self.gpu_memory, self.gpus, host)
    }

    /// `an emulated NVIDIA L4`, or `2 emulated NVIDIA L4`.
    pub(crate) fn words(&self) -> String {
        match self.gpus {
            1 => format!("an emulated {}", self.gpu.name),
            gpus => format!("{gpus} emulated {}", self.gpu.name),
        }
    }
}

/// A GPU to emulate, where that is a choice.
#[derive(Args, Debug)]
pub(crate) struct EmulateArgs {
    /// Run on an emulated GPU instead of a real one; same models as `oomph predict`
    #[arg(long, value_name = "NAME|SIZE", value_parser = GpuParser, hide_possible_values = true)]
    emulate: Option<GpuModel>,

    /// Memory of the emulated GPU, if not the usual size
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "emulate")]
    gpu_memory: Option<u64>,

    /// Number of such GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,

    /// Let the program write checkpoints, although the values of an emulated GPU are not computed
    #[arg(long, requires = "emulate")]
    pub(crate) keep_files: bool,
}

impl EmulateArgs {
    pub(crate) fn gpu(&self, host: &Host) -> Option<EmulatedGpu> {
        Some(EmulatedGpu::new(self.emulate.as_ref()?, self.gpu_memory, self.gpus, host))
    }
}

/// A number of steps; 0 stands for all.
pub(super) fn steps(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(0),
        _ => text
            .parse()
            .ok()
            .filter(|&steps| steps > 0)
            .ok_or_else(|| "expected a number or `all`".to_owned()),
    }
}
