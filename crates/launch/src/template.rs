//! A process that has imported torch, from which the variants of a program are forked (`template.py`).

use crate::{Job, OutputFolder, ProgramOutput, RunFolder, prepare, system, waiting};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two checks whether a variant has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// File name in the folder of a run for how it ended.
const ENDED_FILE: &str = "ended";

/// A process that forks for the variants of a program.
pub struct ForkTemplate {
    process: Mutex<Child>,
    requests: Mutex<Option<ChildStdin>>,
    program: Vec<OsString>,
    /// Its libraries and Python files are in use for as long as there are variants.
    _folder: RunFolder,
}

impl std::fmt::Debug for ForkTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForkTemplate").field("program", &self.program).finish_non_exhaustive()
    }
}

/// A variant to run: the fields that `template.py` reads.
#[derive(Serialize)]
struct VariantRequest<'a> {
    arguments: Vec<&'a str>,
    own_arguments: usize,
    environment: BTreeMap<String, String>,
    output: &'a str,
    ended: &'a str,
}

impl Job {
    /// Returns the same job with a template for its variants, where its program allows one: a script or
    /// module that Python runs.
    #[must_use]
    pub fn with_template(&self) -> Job {
        Job { template: ForkTemplate::start(self).map(Arc::new), ..self.clone() }
    }
}

impl ForkTemplate {
    /// Starts a process that imports torch in the background.
    fn start(job: &Job) -> Option<ForkTemplate> {
        let (python, arguments) = job.command.split_first()?;
        let is_python = Path::new(python).file_name()?.to_str()?.starts_with("python");
        own_arguments(arguments).filter(|_| is_python)?;
        let folder = RunFolder::new(OutputFolder::Temporary).ok()?;
        let library = job.emulated.as_ref().and_then(|emulated| crate::emulator_library(emulated).ok())?;
        let mut command = Command::new(python);
        command.args(arguments);
        prepare(&mut command, job, &folder, Some(&library), None, true).ok()?;
        let log = system::create_private(&folder.scratch.at("output")).ok()?;
        command.stdin(Stdio::piped()).stdout(log.try_clone().ok()?).stderr(log);
        let mut process = command.spawn().ok()?;
        waiting::begin(process.id()).ok()?;
        let requests = Mutex::new(process.stdin.take());
        Some(ForkTemplate {
            process: Mutex::new(process),
            requests,
            program: job.command.clone(),
            _folder: folder,
        })
    }

    /// Runs a variant and waits for it; `None` if it needs an interpreter of its own.
    pub(crate) fn run(
        &self,
        job: &Job,
        folder: &RunFolder,
        command: &Command,
        output: &Path,
    ) -> Option<io::Result<ExitStatus>> {
        let own = own_arguments(job.command.get(1..)?)?;
        // The environment of the program is read when Python and torch start.
        if job.output != ProgramOutput::Captured
            || !job.environment.is_empty()
            || job.command.get(..=own) != self.program.get(..=own)
        {
            return None;
        }
        let ended = folder.scratch.at(ENDED_FILE);
        let mut environment: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            environment.insert(name.into_string().ok()?, value.into_string().ok()?);
        }
        for (name, value) in command.get_envs() {
            let name = name.to_str()?.to_owned();
            match value {
                Some(value) => environment.insert(name, value.to_str()?.to_owned()),
                None => environment.remove(&name),
            };
        }
        let request = VariantRequest {
            arguments: job.command[1..].iter().map(|word| word.to_str()).collect::<Option<_>>()?,
            own_arguments: own,
            environment,
            output: output.to_str()?,
            ended: ended.to_str()?,
        };
        let _ = std::fs::remove_file(&ended);
        let mut line = serde_json::to_vec(&request).ok()?;
        line.push(b'\n');
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.as_mut()?.write_all(&line).ok()?;
        drop(requests);
        self.wait(&ended)
    }

    /// Waits for a variant; `None` if the template has ended without one.
    fn wait(&self, ended: &Path) -> Option<io::Result<ExitStatus>> {
        loop {
            if let Ok(text) = std::fs::read_to_string(ended) {
                let status = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into());
                return Some(status.map(system::exit_status));
            }
            if waiting::stop_signal().is_some() {
                return Some(Err(io::ErrorKind::Interrupted.into()));
            }
            let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(process.try_wait(), Ok(None)) {
                return None;
            }
            drop(process);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for ForkTemplate {
    fn drop(&mut self) {
        drop(self.requests.get_mut().map(Option::take));
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        waiting::end(process.id());
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// Returns the number of arguments before those of the program: its script, or `-m` and its module.
fn own_arguments(arguments: &[OsString]) -> Option<usize> {
    let first = arguments.first()?;
    match first.to_str()? {
        "-m" => Some(2).filter(|&count| arguments.len() >= count),
        text => {
            (!text.starts_with('-') && Path::new(text).extension() == Some(OsStr::new("py"))).then_some(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_runs_scripts_and_modules() {
        let own =
            |text: &str| own_arguments(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(own("train.py --batch 4"), Some(1));
        assert_eq!(own("-m package.train --batch 4"), Some(2));
        assert_eq!((own("-c pass"), own("-u train.py"), own("-m"), own("")), (None, None, None, None));
    }
}
