//! Finds the line of the user's source that stores a reference under a known name.
//!
//! Only the name is known: `history` in some file. Of the lines that store something under it
//! (`lint::stores`), the one that adds most is taken: `history.append(loss)` before `total = total + loss`
//! before `history = []`.

use analysis::{SiteName, StoreHint};
use lint::PythonSource;

/// A line that stores a reference.
pub struct StoreLine {
    /// File and line.
    pub site: SiteName,
    /// Source code of the line.
    pub code: String,
}

/// Returns the likeliest line in the files of `store`, earlier files first. `near` is a line known to be
/// related.
pub fn find(store: &StoreHint, near: Option<&SiteName>) -> Option<StoreLine> {
    let near_file = near.map(|site| site.file.as_str());
    let files = store.files.iter().map(String::as_str);
    let files = files.chain(near_file.filter(|file| !store.files.iter().any(|known| known == file)));
    let mut best = None;
    for (order, file) in files.enumerate() {
        let Some(text) = crate::read_file(file) else { continue };
        let source = PythonSource::python(text.as_bytes());
        let found = store.names.iter().flat_map(|name| lint::stores(&source, name).unwrap_or_default());
        let near = near.filter(|site| site.file == file);
        for lint::StoringLine { line, how } in found {
            let distance = near.map_or(0, |near| distance(near.line as usize, line));
            let rank = (std::cmp::Reverse(how), distance, order, line);
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                let code = crate::shortened_line(text.lines().nth(line - 1).unwrap_or_default());
                let site = SiteName { file: file.to_owned(), line: line as u32, function: String::new() };
                best = Some((rank, StoreLine { site, code }));
            }
        }
    }
    best.map(|(_, line)| line)
}

/// Returns the distance of two lines. An object is created before it is stored, so a line above counts as
/// farther.
fn distance(created: usize, stored: usize) -> usize {
    if stored >= created { stored - created } else { 4 * (created - stored) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_lines_the_one_below_what_was_made_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.py");
        std::fs::write(&path, "kept.append(a)\n\n\nx = f()\nkept.append(x)\n").expect("written");
        let file = path.to_str().expect("a path").to_owned();
        let near = SiteName { file: file.clone(), line: 4, function: String::new() };
        let line = find(&StoreHint { names: vec!["kept".to_owned()], files: vec![file] }, Some(&near))
            .expect("a line");
        assert_eq!(line.site.line, 5);
    }
}
