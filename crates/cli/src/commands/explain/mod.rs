//! `oomph explain [FILE | -]`: what the out-of-memory messages of a log say.

mod text;

use crate::ExitCode;
use crate::args::ExplainArgs;
use crate::commands::document::print_sorted;
use crate::terminal::ReadProgress as Progress;
use crate::terminal::{Failure, Terminal};
use analysis::messages::{Message, MessageReader};
use documents::ExplainDocument;
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
}

pub(crate) fn run(args: &ExplainArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let explained = match &args.file {
        Some(path) if path != Path::new("-") => from_file(path)?,
        _ => from_standard_input(terminal)?,
    };
    if args.json {
        if explained.messages.is_empty() {
            terminal.say(&text::nothing(&explained));
        }
        print_sorted(&ExplainDocument::new(&explained.messages, explained.more), terminal)?;
    } else {
        text::print(&explained, terminal)?;
    }
    Ok(0)
}

fn from_file(path: &Path) -> anyhow::Result<ExplainedLog> {
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
    read(log, name.clone()).map_err(|error| unreadable(error).into())
}

fn from_standard_input(terminal: &Terminal) -> anyhow::Result<ExplainedLog> {
    if io::stdin().is_terminal() {
        terminal.say("paste the message, then Ctrl-D");
    }
    let unreadable =
        |error: io::Error| Failure::new("standard input cannot be read", Some(error.to_string()), None);
    let name = "standard input".to_owned();
    let log = snapshot::unpacked(io::stdin()).map_err(|error| Failure::reading(&name, &error))?;
    read(log, name).map_err(|error| unreadable(error).into())
}

/// Reads in pieces: a log may be larger than the machine's memory.
fn read(mut from: impl Read, name: String) -> io::Result<ExplainedLog> {
    let mut reader = MessageReader::default();
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
    let (messages, more) = reader.finish();
    Ok(ExplainedLog { name, lines, messages, more })
}
