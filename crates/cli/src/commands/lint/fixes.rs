//! `--fix` and `--diff`.

use super::{File, Looked};
use crate::args::LintArgs;
use crate::terminal::{Style, Terminal};
use analysis::words::{counted, printable};
use lint::{Rule, Severity};
use similar::TextDiff;
use std::io::Write;
use std::path::Path;

/// What to do with fixes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Leave,
    Show,
    Write,
    /// What came from standard input goes to standard output.
    Print,
}

impl Mode {
    pub(super) fn new(args: &LintArgs) -> Mode {
        match (args.diff, args.fix) {
            (true, _) => Mode::Show,
            (false, false) => Mode::Leave,
            (false, true) if args.paths[0].as_os_str() == "-" => Mode::Print,
            (false, true) => Mode::Write,
        }
    }
}

const MARK: &[u8] = b"\xef\xbb\xbf";

/// The file after its fixes; `bytes` are what is on disk.
pub(super) fn fix(
    mode: Mode,
    path: &Path,
    bytes: &[u8],
    file: File,
    rules: &[&'static Rule],
    least: Severity,
    looked: &mut Looked,
) -> File {
    let can_be_fixed = mode != Mode::Leave && file.found.iter().any(|found| found.fix.is_some());
    if mode == Mode::Print {
        looked.output = Some(bytes.to_vec());
    }
    let obstacle = if !can_be_fixed {
        return file;
    } else if file.source.is_notebook() {
        Some("notebooks are not changed; the fixes are left to you")
    } else if std::str::from_utf8(bytes).is_err() {
        Some("not UTF-8, so it is not changed")
    } else {
        None
    };
    if let Some(obstacle) = obstacle {
        looked.warnings.push(format!("{}: {obstacle}", file.name));
        return file;
    }
    let File { name, source, found, .. } = file;
    let before = source.text().to_owned();
    let fixed = lint::fix(source, found, rules, |found| found.severity >= least);
    let after = fixed.source.text();
    let whole = [if bytes.starts_with(MARK) { MARK } else { b"" }, after.as_bytes()].concat();
    let mut diff = String::new();
    match mode {
        Mode::Leave => {}
        Mode::Show => diff = unified(&name, &before, after),
        Mode::Print => looked.output = Some(whole),
        Mode::Write if fixed.count == 0 => {}
        Mode::Write => {
            if let Err(error) = replace(path, &whole) {
                looked.warnings.push(format!("{name}: could not be written: {error}"));
            }
        }
    }
    File { name, source: fixed.source, found: fixed.left, fixed: fixed.count, diff }
}

/// Under another name first, so that nobody ever sees half a file.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let permissions = std::fs::metadata(&path)?.permissions();
    if permissions.readonly() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(permissions)?;
    file.persist(&path)?;
    Ok(())
}

fn unified(name: &str, before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().header(name, name).to_string()
}

/// What `--fix` would do.
pub(super) fn print_diff(looked: &Looked, terminal: &mut Terminal) -> anyhow::Result<()> {
    for file in &looked.files {
        for line in file.diff.split_inclusive('\n') {
            let text = line.trim_end_matches(['\n', '\r']);
            // A patch has to be what it says: control characters are only replaced where a terminal would obey them.
            let style = match text.as_bytes().first() {
                Some(b'+') => Some(Style::Green),
                Some(b'-') => Some(Style::Red),
                Some(b'@') => Some(Style::Cyan),
                _ => None,
            };
            let line = match style {
                Some(style) if terminal.shows_color() => {
                    format!("{}\n", terminal.paint(style, &printable(text)))
                }
                _ => line.to_owned(),
            };
            terminal.out().write_all(line.as_bytes())?;
        }
    }
    let (fixed, left) = (looked.fixed(), looked.findings().count());
    let files = looked.files.iter().filter(|file| file.fixed > 0).count();
    terminal.say(&format!(
        "{} would be fixed in {} · {} left",
        counted(fixed as u64, "finding"),
        counted(files as u64, "file"),
        if left == 1 { "1 is".to_owned() } else { format!("{left} are") },
    ));
    Ok(())
}
