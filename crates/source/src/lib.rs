//! Lines of the user's source code, read from the paths in a snapshot if the files are there.
//!
//! [`linted`] has what the linter says about such a line, [`stores`] the line that stores a reference.
//!
//! ```
//! assert_eq!(source::shortened_line("    loss.backward()  "), "loss.backward()");
//! assert_eq!(source::line("no-such-file.py", 1), None);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod linted;
pub mod stores;

use analysis::is_user_file;
use analysis::words::{counted, is_hidden, shown_path};
use snapshot::Snapshot;
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::SystemTime;

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Longest line that is shown, in characters.
const MAX_LINE_CHARS: usize = 72;

/// Returns line `line` of a Python file without its indentation; `None` if there is no such file or line.
pub fn line(path: &str, line: u32) -> Option<String> {
    let reader = open(path)?;
    let text = reader.lines().nth((line as usize).checked_sub(1)?)?.ok()?;
    Some(shortened_line(&text))
}

/// Returns the text of a Python file, if it can be read.
pub fn read_file(path: &str) -> Option<String> {
    let mut text = Vec::new();
    open(path)?.read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Returns a line of code without indentation and hidden characters, shortened to 72 characters.
pub fn shortened_line(text: &str) -> String {
    let text: String = text.trim().chars().filter(|letter| !is_hidden(*letter)).collect();
    if text.chars().count() <= MAX_LINE_CHARS {
        return text;
    }
    text.chars().take(MAX_LINE_CHARS - 1).chain(['…']).collect()
}

/// The caveat of a snapshot written at `time` whose source files were changed later; `None` if none was.
pub fn changed_since(snapshot: &Snapshot, time: SystemTime) -> Option<String> {
    let files: BTreeSet<_> = snapshot.stacks.all_frames().iter().map(|frame| frame.file).collect();
    let files = files.into_iter().map(|file| snapshot.strings.get(file));
    let is_changed = |file: &&str| {
        let about = is_user_file(file).then(|| metadata(file)).flatten();
        about.and_then(|about| about.modified().ok()).is_some_and(|changed| changed > time)
    };
    let changed: Vec<&str> = files.filter(is_changed).collect();
    let which = match changed[..] {
        [] => return None,
        [file] => format!("`{}` has", shown_path(Path::new(file))),
        [file, ..] => {
            let others = counted(changed.len() as u64 - 1, "more source file");
            format!("`{}` and {others} have", shown_path(Path::new(file)))
        }
    };
    Some(format!(
        "{which} changed since the recording: line numbers refer to the recorded version, the code shown is \
         the current one"
    ))
}

/// Opens a Python file. The path comes from the snapshot, so no other file is opened.
fn open(path: &str) -> Option<impl BufRead> {
    let about = metadata(path)?;
    if about.len() > MAX_FILE_BYTES {
        return None;
    }
    Some(BufReader::new(File::open(path).ok()?.take(MAX_FILE_BYTES)))
}

/// What the system says of a Python file; `None` if it is not an ordinary file of this machine.
fn metadata(path: &str) -> Option<Metadata> {
    let is_python = Path::new(path).extension().is_some_and(|ending| ending == "py");
    // On some systems such a path names another machine.
    let is_remote = path.chars().take_while(|letter| matches!(letter, '/' | '\\')).count() > 1;
    if !is_python || is_remote {
        return None;
    }
    std::fs::metadata(path).ok().filter(Metadata::is_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_python_files_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "import torch\n    loss.backward()\n").expect("written");
            path.to_str().expect("a path").to_owned()
        };
        let script = write("train.py");
        assert_eq!(line(&script, 2).as_deref(), Some("loss.backward()"));
        assert_eq!((line(&script, 3), line(&script, 0)), (None, None));
        assert_eq!(line(&write("notes.txt"), 1), None);
        assert_eq!(line(&format!("/{script}"), 1), None);
        assert_eq!(line(&format!(r"\{script}"), 1), None);
        assert_eq!(line(folder.path().to_str().expect("a path"), 1), None);
    }
}
