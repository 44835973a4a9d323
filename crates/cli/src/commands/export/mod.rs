//! `oomph export`: the tables of a snapshot, for other tools.

use crate::ExitCode;
use crate::args::ExportArgs;
use crate::terminal::{Failure, TALK, Terminal, shown_path};
use analysis::words::grouped;
use export::ExportTarget;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &ExportArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let path = only(&args.input)?;
    let output = ExportTarget::new(args.output.clone(), args.to.into(), &path)?;
    let input = inputs::load(&path, &TALK)?;
    let devices = input.devices();
    let written = export::write(&input.snapshot, &devices, args.to.into(), &output)
        .map_err(|error| failure(&output, error))?;
    let caveats = devices.iter().flat_map(|device| &device.history.caveats).chain(&input.snapshot.caveats);
    for note in caveats.chain(&written.notes) {
        terminal.say(&format!("note: {note}"));
    }
    let counts: Vec<String> =
        written.counts.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
    terminal.say(&format!("wrote {} to {output}", counts.join(" · ")));
    Ok(0)
}

/// The snapshot that is meant: a folder or bundle with one is as good as its name.
pub(super) fn only(input: &Path) -> anyhow::Result<PathBuf> {
    let mut files = inputs::expand(&[input.to_owned()])?;
    match files.len() {
        1 => Ok(files.remove(0)),
        count => Err(Failure::new(
            format!("`{}` has {count} snapshots", shown_path(input)),
            Some("the tables are those of one".to_owned()),
            Some(&format!("name one of them, such as {}", shown_path(&files[0]))),
        )
        .into()),
    }
}

/// An error from a format's library is best explained by its root: `No space left on device`.
fn failure(output: &ExportTarget, error: anyhow::Error) -> Failure {
    error.downcast().unwrap_or_else(|error| {
        Failure::new(
            format!("`{output}` could not be written"),
            Some(error.root_cause().to_string()),
            Some("check the space left on its disk; nothing was left behind"),
        )
    })
}
