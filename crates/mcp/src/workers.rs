//! Processes that run commands of oomph for a server: limited in number, time and output.

use crate::answers::CallError;
use analysis::words::shown_path;
use failure::Failure;
use launch::Host;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Most that a command may write to standard output, in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Most that is kept of standard error, in bytes.
const MAX_ERROR_BYTES: u64 = 64 << 10;
/// Exit codes of commands that have an answer.
const MAX_ANSWER_CODE: i32 = 1;

/// Starts workers.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    program: PathBuf,
    /// Words before the command's own.
    words: Vec<OsString>,
    /// Folder in which the program starts; a worker then changes to its root.
    start: Option<PathBuf>,
    roots: Vec<PathBuf>,
    time_limit: Duration,
    free: Semaphore,
}

/// What a command wrote.
pub(crate) struct WorkerOutput {
    /// Standard output.
    pub(crate) text: String,
    /// Lines of standard error.
    pub(crate) notes: Vec<String>,
}

/// A command for a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerCommand {
    /// The root to work in.
    pub(crate) folder: PathBuf,
    /// The words after `oomph`.
    pub(crate) words: Vec<OsString>,
    /// Standard input.
    pub(crate) input: Option<String>,
    /// Whether it runs the user's program, and so cannot be confined.
    pub(crate) runs_programs: bool,
}

impl WorkerPool {
    /// Prepares workers that are this program again.
    pub(crate) fn new(roots: &[PathBuf], time_limit: Duration, host: &Host) -> Result<WorkerPool, Failure> {
        let own = || {
            std::env::current_exe()
                .map_err(|error| Failure::new("this program cannot be found", Some(error.to_string()), None))
        };
        // In a wheel, this process is Python. It looks for modules in the folder that it starts in, which
        // must not be one of the user's.
        let (program, words, start) = match (&host.python, &host.libraries) {
            (Some(python), Some(package)) => {
                let words = ["-m", "oomph"].map(OsString::from).to_vec();
                (python.clone(), words, package.parent().map(Path::to_owned))
            }
            _ => (own()?, Vec::new(), None),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let free = Semaphore::new(cores.max(2));
        Ok(WorkerPool { program, words, start, roots: roots.to_vec(), time_limit, free })
    }

    /// Runs a command. The process is killed when this is dropped.
    pub(crate) async fn run(&self, command: WorkerCommand) -> Result<WorkerOutput, CallError> {
        let limit = self.time_limit.as_secs();
        let too_slow = || {
            CallError::new(
                &format!("the call took longer than {limit} s"),
                "the server's time limit ended it",
            )
            .hinting("name one recording, or have the server started with a higher `--time-limit`")
        };
        tokio::time::timeout(self.time_limit, self.finished(command))
            .await
            .unwrap_or_else(|_| Err(too_slow()))
    }

    async fn finished(&self, command: WorkerCommand) -> Result<WorkerOutput, CallError> {
        let failed =
            |error: std::io::Error| CallError::new("the command could not be run", &error.to_string());
        let _turn = self.free.acquire().await;
        let mut child = self.process(&command).spawn().map_err(failed)?;
        if let (Some(mut to), Some(text)) = (child.stdin.take(), &command.input) {
            // A command that does not read it says why on standard error.
            let _ = to.write_all(text.as_bytes()).await;
        }
        let (output, error) = (child.stdout.take(), child.stderr.take());
        let (output, error, status) =
            tokio::join!(all_of(output, MAX_OUTPUT_BYTES), all_of(error, MAX_ERROR_BYTES), child.wait());
        let status = status.map_err(failed)?;
        if output.len() as u64 > MAX_OUTPUT_BYTES {
            return Err(CallError::new("the answer is too large", "it has more than 64 MiB")
                .hinting("lower `top` or `limit`, or name one recording"));
        }
        match status.code() {
            Some(code) if code <= MAX_ANSWER_CODE => {
                Ok(WorkerOutput { text: output, notes: error.lines().map(str::to_owned).collect() })
            }
            Some(_) => Err(CallError::from_output(&error)
                .unwrap_or_else(|| CallError::new("the command failed", error.trim()))),
            None => Err(CallError::new("the command was killed", &status.to_string())
                .hinting("the recording may need more memory than a call may use: run oomph in a shell")),
        }
    }

    fn process(&self, command: &WorkerCommand) -> Command {
        let mut process = Command::new(&self.program);
        process.args(&self.words).args(["--color", "never", "mcp"]);
        if command.runs_programs {
            process.arg("--allow-run");
        }
        for root in &self.roots {
            process.arg("--root").arg(root);
        }
        process.arg("--folder").arg(&command.folder).arg("--").args(&command.words);
        process.envs([("COLUMNS", "100"), ("GITHUB_ACTIONS", "")]);
        if let Some(start) = &self.start {
            process.current_dir(start);
        }
        let input = if command.input.is_some() { Stdio::piped() } else { Stdio::null() };
        process.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        process
    }

    /// Returns the roots as a list, for the instructions to the model.
    pub(crate) fn roots_in_words(&self) -> String {
        self.roots.iter().map(shown_path).collect::<Vec<_>>().join(", ")
    }
}

/// A stream to its end, or to one byte more than the limit.
async fn all_of(stream: Option<impl AsyncRead + Unpin>, limit: u64) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What arrived before an error is an answer that does not parse.
        let _ = stream.take(limit + 1).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
