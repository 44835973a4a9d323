//! `--diff`: what `--fix` would change.

use crate::args::LintArgs;
use crate::terminal::Terminal;
use analysis::words::counted;
use lint::Applicability;
use project::LintResults;
use std::io::Write;

/// Fixes that need `--unsafe-fixes`; nothing where that is given already. `has_others`: whether other fixes
/// are mentioned before these.
pub(super) fn unsafe_fixes(looked: &LintResults, args: &LintArgs, has_others: bool) -> Option<String> {
    let count = looked.fixable(Applicability::Unsafe);
    let more = if has_others { "more " } else { "" };
    let fixes = if count == 1 { "fix" } else { "fixes" };
    (count > 0 && !args.unsafe_fixes).then(|| format!("{count} {more}{fixes} available with --unsafe-fixes"))
}

pub(super) fn print(looked: &LintResults, args: &LintArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    for file in &looked.files {
        for line in file.diff.split_inclusive('\n') {
            let text = line.trim_end_matches(['\n', '\r']);
            // A patch must apply, so its bytes are escaped on a terminal only.
            if terminal.is_seen() {
                let text = terminal.diff_line(text);
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
    parts.extend(unsafe_fixes(looked, args, fixed > 0));
    terminal.say(&parts.join(" · "));
    Ok(())
}
