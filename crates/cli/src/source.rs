//! The user's own source, where it lies where the snapshot says.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Longest file that is read for one line.
const MOST_BYTES: u64 = 4 << 20;
/// Longest line that is shown.
const WIDTH: usize = 72;

/// Line `line` of a Python file, without its indentation; `None` if there is no such file or line. The path comes from
/// the snapshot, so nothing but ordinary Python files is opened.
pub(crate) fn line(path: &str, line: u32) -> Option<String> {
    let is_python = std::path::Path::new(path).extension().is_some_and(|ending| ending == "py");
    let about = std::fs::metadata(path).ok().filter(|about| is_python && about.is_file())?;
    if about.len() > MOST_BYTES || line == 0 {
        return None;
    }
    let reader = BufReader::new(File::open(path).ok()?.take(MOST_BYTES));
    let text = reader.lines().nth(line as usize - 1)?.ok()?;
    let text: String = text.trim().chars().filter(|letter| !letter.is_control()).collect();
    if text.chars().count() <= WIDTH {
        return Some(text);
    }
    Some(text.chars().take(WIDTH - 1).chain(['…']).collect())
}
