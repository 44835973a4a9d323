//! The line of the user's source that stores a reference, by the name that it is stored under.
//!
//! A name is all that is known: `history` in this file. Of the lines that store something under it (`lint::stores`), the one
//! that adds most is taken: `history.append(loss)` before `total = total + loss` before `history = []`.

use analysis::{SiteName, Store};
use lint::PythonSource;

/// A line that stores something.
pub struct Line {
    pub place: SiteName,
    pub code: String,
}

/// The likeliest line in the files, the first file first. `near` is a line that is known to have to do with it.
pub fn find(store: &Store, near: Option<&SiteName>) -> Option<Line> {
    let near_file = near.map(|place| place.file.as_str());
    let files = store.files.iter().map(String::as_str);
    let files = files.chain(near_file.filter(|file| !store.files.iter().any(|known| known == file)));
    let mut best = None;
    for (order, file) in files.enumerate() {
        let Some(text) = crate::whole(file) else { continue };
        let source = PythonSource::python(text.as_bytes());
        let found = store.names.iter().flat_map(|name| lint::stores(&source, name).unwrap_or_default());
        let near = near.filter(|place| place.file == file);
        for lint::StoringLine { line, how } in found {
            let distance = near.map_or(0, |near| distance(near.line as usize, line));
            let rank = (std::cmp::Reverse(how), distance, order, line);
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                let code = crate::shown(text.lines().nth(line - 1).unwrap_or_default());
                let place = SiteName { file: file.to_owned(), line: line as u32, function: String::new() };
                best = Some((rank, Line { place, code }));
            }
        }
    }
    best.map(|(_, line)| line)
}

/// What is stored is made before it is stored: a line above is farther.
fn distance(made: usize, stored: usize) -> usize {
    if stored >= made { stored - made } else { 4 * (made - stored) }
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
        let line =
            find(&Store { names: vec!["kept".to_owned()], files: vec![file] }, Some(&near)).expect("a line");
        assert_eq!(line.place.line, 5);
    }
}
