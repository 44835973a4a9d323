//! `oomph explain [FILE | -]`: what the out-of-memory messages of a log say, and the figures of an engine.

mod serving_text;
mod text;

use crate::ExitCode;
use crate::args::ExplainArgs;
use crate::commands::document::print_sorted;
use crate::terminal::ReadProgress as Progress;
use crate::terminal::{Failure, Terminal};
use analysis::messages::Message;
use analysis::serving::{LogReader, ServingReport};
use documents::ExplainDocument;
use snapshot::Bytes;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// A log, and the messages found in it.
pub(super) struct ExplainedLog {
    /// The file, as the user has named it.
    pub(super) name: String,
    pub(super) lines: u64,
    pub(super) messages: Vec<Message>,
    /// Number of further distinct messages.
    pub(super) more: u64,
    /// What an engine that serves models says about its memory.
    pub(super) serving: Option<ServingReport>,
}

pub(crate) fn run(args: &ExplainArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let gpu_memory = args.gpu.as_ref().map(|gpu| Bytes(gpu.memory));
    let explained = match &args.file {
        Some(path) if path != Path::new("-") => from_file(path, gpu_memory)?,
        _ => from_standard_input(gpu_memory, terminal)?,
    };
    if args.json {
        let ExplainedLog { messages, more, serving, .. } = &explained;
        if messages.is_empty() && serving.is_none() {
            terminal.say(&text::nothing(&explained));
        }
        print_sorted(&ExplainDocument::new(messages, *more, serving.as_ref()), terminal)?;
    } else {
        text::print(&explained, terminal)?;
    }
    Ok(0)
}

fn from_file(path: &Path, gpu_memory: Option<Bytes>) -> anyhow::Result<ExplainedLog> {
    let name = path.to_string_lossy().into_owned();
    let unreadable = |error: io::Error| {
        let kind = error.kind();
        let hint = Some("give a log, or paste the message: oomph explain, then Ctrl-D");
        Failure::new(format!("`{name}` cannot be read"), Some(error.to_string()), hint).refused(kind)
    };
    let file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let log = snapshot::unpacked(Progress::new(file, length, &name));
    let log = log.map_err(|error| Failure::reading(&name, &error))?;
    read(log, name.clone(), gpu_memory).map_err(|error| unreadable(error).into())
}

fn from_standard_input(gpu_memory: Option<Bytes>, terminal: &Terminal) -> anyhow::Result<ExplainedLog> {
    if io::stdin().is_terminal() {
        terminal.say("paste the message, then Ctrl-D");
    }
    let unreadable =
        |error: io::Error| Failure::new("standard input cannot be read", Some(error.to_string()), None);
    let name = "standard input".to_owned();
    let log = snapshot::unpacked(io::stdin()).map_err(|error| Failure::reading(&name, &error))?;
    read(log, name, gpu_memory).map_err(|error| unreadable(error).into())
}

/// Reads in pieces: a log may be larger than the machine's memory.
fn read(mut from: impl Read, name: String, gpu_memory: Option<Bytes>) -> io::Result<ExplainedLog> {
    let mut reader = LogReader::default();
    let mut piece = vec![0; 1 << 20];
    loop {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => reader.read(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let lines = reader.lines();
    let (messages, more, serving) = reader.finish(gpu_memory);
    Ok(ExplainedLog { name, lines, messages, more, serving })
}
