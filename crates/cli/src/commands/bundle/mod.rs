//! `oomph bundle`: a recording and its report in one file, for a bug report or a colleague.

use crate::ExitCode;
use crate::args::{BundleArgs, ReportArgs};
use crate::commands::report;
use crate::terminal::{Failure, TALK, Terminal, shown_path};
use bundle::BundleOptions;
use std::path::PathBuf;

pub(crate) fn run(args: &BundleArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if args.output.exists() && !args.force {
        let what = format!("`{}` exists", shown_path(&args.output));
        return Err(Failure::new(what, None, Some("name another file with -o, or add --force")).into());
    }
    let mut snapshots = Vec::new();
    for path in inputs::expand(&args.inputs)? {
        let input = inputs::load(&path, &TALK)?;
        snapshots.push((path, input));
    }
    let options = BundleOptions {
        anonymize: args.anonymize,
        max_bytes: args.max_size,
        version: env!("CARGO_PKG_VERSION"),
    };
    let written = bundle::write(snapshots, options, &args.output, report_json)?;
    for left_out in &written.left_out {
        terminal.say(&format!("left out: {left_out}"));
    }
    let (name, bytes) = (shown_path(&args.output), written.bytes);
    terminal.say(&format!("wrote {name}, {bytes}: {}", written.files.join(", ")));
    if !args.anonymize {
        terminal.say("it contains paths and names from your program; --anonymize replaces them with numbers");
    }
    Ok(0)
}

/// The JSON of `oomph report`, with the names that files have in the bundle.
fn report_json(paths: &[PathBuf]) -> anyhow::Result<Vec<u8>> {
    let mut terminal = Terminal::in_memory();
    let args = ReportArgs { inputs: paths.to_vec(), json: true, ..ReportArgs::for_new_run() };
    report::run(&args, &mut terminal)?;
    let (json, _) = terminal.kept();
    // The bundle still has a temporary name.
    let folder =
        paths.first().and_then(|path| path.parent()).map(|folder| format!("{}/", folder.to_string_lossy()));
    let text = String::from_utf8_lossy(&json).replace(&folder.unwrap_or_default(), "");
    Ok(text.into_bytes())
}
