//! `oomph summarize`: the summary of each rank, which `oomph fleet` reads in place of its snapshot.

use crate::ExitCode;
use crate::args::SummarizeArgs;
use crate::terminal::{Failure, TALK, Terminal, shown_path};
use analysis::words::counted;
use fleet::{RankRecord, RankSource};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &SummarizeArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let ranks = fleet::list(&args.inputs)?;
    let output = args.output.as_deref();
    if output == Some(Path::new("-")) {
        return to_stdout(&ranks, args.for_fleet, terminal);
    }
    let targets = targets(&ranks, output)?;
    if let Some(folder) = output {
        std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    }
    let advance = (TALK.steps)("summarizing", ranks.len());
    let summarized = write(&ranks, &targets, args.for_fleet, &*advance)?;
    drop(advance);
    for (rank, reason) in &summarized.broken {
        terminal.say(&format!("not summarized: `{}` {reason}", rank.file.name));
    }
    let place = output
        .map_or_else(|| "next to the snapshots".to_owned(), |folder| format!("in {}", shown_path(folder)));
    terminal.say(&format!(
        "wrote {} {place}",
        counted(summarized.written, "summary").replace("summarys", "summaries")
    ));
    Ok(if summarized.broken.is_empty() { 0 } else { 2 })
}

/// What became of the ranks.
struct Summarized<'a> {
    written: u64,
    broken: Vec<(&'a RankSource, String)>,
}

/// Writes the summaries of recordings that have just ended, and says what could not be written.
pub(crate) fn write_next_to(snapshots: &[PathBuf], terminal: &Terminal) {
    let inputs: Vec<String> = snapshots.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let written = fleet::list(&inputs).and_then(|ranks| {
        let targets = targets(&ranks, None)?;
        Ok(write(&ranks, &targets, false, &|| ())?.broken.into_iter().map(|(_, reason)| reason).next())
    });
    let problem = match written {
        Ok(None) => return,
        Ok(Some(reason)) => reason,
        Err(error) => error.to_string(),
    };
    terminal.say(&format!("note: no summary for `oomph fleet`: {problem}"));
}

fn write<'a>(
    ranks: &'a [RankSource],
    targets: &[PathBuf],
    for_fleet: bool,
    advance: &(dyn Fn() + Send + Sync),
) -> anyhow::Result<Summarized<'a>> {
    let mut summarized = Summarized { written: 0, broken: Vec::new() };
    for (rank, target) in ranks.iter().zip(targets) {
        match record(rank, for_fleet) {
            RankRecord { summary: Err(reason), .. } if !for_fleet => summarized.broken.push((rank, reason)),
            record => {
                replace(target, &record.to_arrow()?, rank.file.local_path())?;
                summarized.written += 1;
            }
        }
        advance();
    }
    Ok(summarized)
}

/// The record of a rank. A summary on its own disk does not name the snapshot: both may be moved.
fn record(rank: &RankSource, for_fleet: bool) -> RankRecord {
    if for_fleet {
        return fleet::read_one(rank, &TALK);
    }
    let summary = fleet::summarize(rank).map_err(|error| {
        let failure = Failure::from(error);
        failure.cause().map_or_else(|| failure.to_string(), str::to_owned)
    });
    RankRecord { source: String::new(), summary }
}

fn to_stdout(ranks: &[RankSource], for_fleet: bool, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let [rank] = ranks else {
        let what = format!("{} ranks cannot be written to standard output", ranks.len());
        return Err(Failure::new(what, None, Some("name one snapshot, or a folder with `-o DIR`")).into());
    };
    if !for_fleet {
        // An error of the file is the command's own.
        let record = RankRecord { source: String::new(), summary: Ok(fleet::summarize(rank)?) };
        terminal.data().write_all(&record.to_arrow()?)?;
        return Ok(0);
    }
    terminal.data().write_all(&record(rank, true).to_arrow()?)?;
    Ok(0)
}

/// The file of each summary.
fn targets(ranks: &[RankSource], output: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    let mut taken: BTreeMap<PathBuf, &RankSource> = BTreeMap::new();
    let mut targets = Vec::new();
    for rank in ranks {
        let name = rank.summary_name();
        let target = match (output, rank.file.local_path()) {
            (Some(folder), _) => folder.join(name),
            (None, Some(path)) => path.with_file_name(name),
            (None, None) => {
                let what = format!("no summary can be written next to `{}`", rank.file.name);
                return Err(Failure::new(what, None, Some("name a folder on this machine: `-o DIR`")).into());
            }
        };
        if let Some(other) = taken.insert(target.clone(), rank) {
            return Err(Failure::new(
                format!("`{}` would be written twice", shown_path(&target)),
                Some(format!("`{}` and `{}` have the same name", other.file.name, rank.file.name)),
                Some("summarize each folder by itself"),
            )
            .into());
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Writes a summary under a temporary name and renames it. Whoever may read the snapshot may read it.
fn replace(target: &Path, bytes: &[u8], snapshot: Option<&Path>) -> Result<(), Failure> {
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(target.parent().unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        if let Some(metadata) = snapshot.and_then(|path| std::fs::metadata(path).ok()) {
            file.as_file().set_permissions(metadata.permissions())?;
        }
        file.persist(target).map_err(|error| error.error)
    };
    write().map(drop).map_err(|error| unwritable(target, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let hint = "choose another folder with `-o DIR`";
    Failure::new(format!("`{}` cannot be written", shown_path(path)), Some(error.to_string()), Some(hint))
}
