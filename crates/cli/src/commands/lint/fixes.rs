//! `--fix` and `--diff`.

use super::settings::LintSettings;
use super::{LintResults, LintedFile};
use crate::args::LintArgs;
use crate::terminal::{Style, Terminal};
use analysis::words::{counted, printable};
use lint::{Applicability, Fix, Rule};
use similar::TextDiff;
use std::io::Write;
use std::path::Path;

/// The fixes that the user allows.
pub(super) fn allowed(args: &LintArgs) -> Applicability {
    if args.unsafe_fixes { Applicability::Unsafe } else { Applicability::Safe }
}

/// What more could be fixed, and how; nothing where that is allowed already.
pub(super) fn more(looked: &LintResults, args: &LintArgs) -> Option<String> {
    let count = looked.fixable(Applicability::Unsafe);
    let fixes = if count == 1 { "fix" } else { "fixes" };
    (count > 0 && !args.unsafe_fixes).then(|| format!("{count} more {fixes} available with --unsafe-fixes"))
}

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

const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// The file after its fixes; `bytes` are what is on disk.
pub(super) fn fix(
    mode: Mode,
    path: &Path,
    bytes: &[u8],
    file: LintedFile,
    rules: &[&'static Rule],
    settings: &LintSettings,
    looked: &mut LintResults,
) -> LintedFile {
    let is_allowed = |fix: &Fix| fix.applicability <= settings.allowed;
    let can_be_fixed =
        mode != Mode::Leave && file.found.iter().any(|found| found.fix.as_ref().is_some_and(is_allowed));
    if mode == Mode::Print {
        looked.output = Some(bytes.to_vec());
    }
    let obstacle = if !can_be_fixed {
        return file;
    } else if file.source.is_notebook() {
        Some("notebooks are not changed; apply the fixes by hand")
    } else if std::str::from_utf8(bytes).is_err() {
        Some("not UTF-8, so it is not changed")
    } else {
        None
    };
    if let Some(obstacle) = obstacle {
        looked.warnings.push(format!("{}: {obstacle}", file.name));
        return file;
    }
    let LintedFile { name, source, found, .. } = file;
    let before = source.text().to_owned();
    let fixed = lint::fix(source, found, rules, settings.allowed, |found| found.severity >= settings.least);
    let after = fixed.source.text();
    let whole = [if bytes.starts_with(UTF8_BOM) { UTF8_BOM } else { b"" }, after.as_bytes()].concat();
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
    LintedFile { name, source: fixed.source, found: fixed.left, fixed: fixed.count, diff }
}

/// Writes a temporary file first, so that no reader ever sees half a file.
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
    TextDiff::from_lines(before, after).unified_diff().header(&printable(name), &printable(name)).to_string()
}

/// What `--fix` would do.
pub(super) fn print_diff(
    looked: &LintResults,
    args: &LintArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    for file in &looked.files {
        for line in file.diff.split_inclusive('\n') {
            let text = line.trim_end_matches(['\n', '\r']);
            let style = match text.as_bytes().first() {
                Some(b'+') => Some(Style::Green),
                Some(b'-') => Some(Style::Red),
                Some(b'@') => Some(Style::Cyan),
                _ => None,
            };
            // A patch must apply, so its bytes are escaped on a terminal only.
            if terminal.is_seen() {
                let text =
                    style.map_or_else(|| printable(text).into_owned(), |style| terminal.paint(style, text));
                writeln!(terminal.out(), "{text}")?;
            } else {
                terminal.data().write_all(line.as_bytes())?;
            }
        }
    }
    let (fixed, left) = (looked.fixed(), looked.findings().count());
    let files = looked.files.iter().filter(|file| file.fixed > 0).count();
    let mut parts = vec![
        format!("{} would be fixed in {}", counted(fixed as u64, "finding"), counted(files as u64, "file")),
        format!("{} left", if left == 1 { "1 is".to_owned() } else { format!("{left} are") }),
    ];
    parts.extend(more(looked, args));
    terminal.say(&parts.join(" · "));
    Ok(())
}
