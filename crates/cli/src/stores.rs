//! The line of the user's source that stores a reference, by the name that it is stored under.
//!
//! A name is all that is known: `history` in this file. So lines are looked at as text, without comments, and the one that most
//! looks like it adds to the name is taken: `history.append(loss)` before `history[step] = loss` before `history = []`.

use crate::source;
use analysis::{Place, Store};

/// A line that stores something.
pub(crate) struct Line {
    pub(crate) place: Place,
    pub(crate) code: String,
}

/// Calls that add to a container.
const ADDING: [&str; 11] = [
    "append",
    "appendleft",
    "extend",
    "insert",
    "add",
    "update",
    "setdefault",
    "put",
    "push",
    "write",
    "register_buffer",
];

/// The likeliest line in the files, the first file first. `near` is a line that is known to have to do with it.
pub(crate) fn find(store: &Store, near: Option<&Place>) -> Option<Line> {
    let mut files: Vec<&str> = store.files.iter().map(String::as_str).collect();
    files.extend(
        near.map(|place| place.file.as_str()).filter(|file| !store.files.iter().any(|known| known == file)),
    );
    let mut best: Option<(u32, u64, Line)> = None;
    for file in files {
        let Some(text) = source::whole(file) else { continue };
        for (number, line) in (1u32..).zip(text.lines()) {
            let code = without_comment(line);
            let score = store.names.iter().map(|name| score(code, name)).max().unwrap_or(0);
            if score == 0 {
                continue;
            }
            let distance =
                near.filter(|place| place.file == file).map_or(0, |place| distance(place.line, number));
            if best.as_ref().is_none_or(|(most, nearest, _)| (score, *nearest) > (*most, distance)) {
                let place = Place { file: file.to_owned(), line: number, function: String::new() };
                best = Some((score, distance, Line { place, code: source::shown(line) }));
            }
        }
    }
    best.map(|(_, _, line)| line)
}

/// What is stored is made before it is stored: a line above is farther.
fn distance(made: u32, stored: u32) -> u64 {
    if stored >= made { u64::from(stored - made) } else { 4 * u64::from(made - stored) }
}

/// How much a line looks like it adds to a name; 0 not at all.
fn score(code: &str, name: &str) -> u32 {
    let mut most = 0;
    let mut from = 0;
    while let Some(found) = code[from..].find(name) {
        let (start, end) = (from + found, from + found + name.len());
        from = end;
        let is_part =
            |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
        if !is_part(code[..start].chars().next_back()) && !is_part(code[end..].chars().next()) {
            most = most.max(score_at(code, start, end, name));
        }
    }
    most
}

fn score_at(code: &str, start: usize, end: usize, name: &str) -> u32 {
    let rest = code[end..].trim_start();
    if let Some(call) = rest.strip_prefix('.') {
        let method: String =
            call.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let is_call = call[method.len()..].trim_start().starts_with('(');
        return if is_call && ADDING.contains(&method.as_str()) { 5 } else { 0 };
    }
    if rest.starts_with('[') {
        // `features[name].append(x)`, `cache[key] = x`
        let behind = behind_brackets(rest);
        let adds =
            behind.strip_prefix('.').is_some_and(|call| ADDING.iter().any(|each| call.starts_with(each)));
        return if adds || is_assignment(behind) { 5 } else { 0 };
    }
    let operator = ["+=", "|=", "*=", "-="].iter().any(|operator| rest.starts_with(operator));
    if operator {
        return 5;
    }
    if is_assignment(rest) {
        let value = rest[1..].trim();
        // What is written anew from itself carries on.
        if score_as_word(value, name) {
            return 4;
        }
        let is_empty =
            matches!(value, "" | "[]" | "{}" | "()" | "None" | "set()" | "dict()" | "list()" | "0" | "0.0")
                || value.starts_with("deque(")
                || value.starts_with("defaultdict(");
        return if is_empty { 1 } else { 3 };
    }
    // `self.other, other.other = other, self`
    let is_target = code[end..].split_once('=').is_some_and(|(between, after)| {
        !after.starts_with('=')
            && between.chars().all(|letter| letter.is_alphanumeric() || " ,._*".contains(letter))
    });
    u32::from(is_target && (code[..start].ends_with('.') || rest.starts_with(','))) * 3
}

fn score_as_word(text: &str, name: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == name)
}

/// `= x`, but not `== x`.
fn is_assignment(rest: &str) -> bool {
    let rest = rest.trim_start();
    let is_plain = rest.starts_with('=') && !rest.starts_with("==");
    is_plain || ["+=", "|="].iter().any(|operator| rest.starts_with(operator))
}

/// What follows the brackets that a text begins with.
fn behind_brackets(text: &str) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + 1..];
        }
    }
    ""
}

/// A line without its comment. A `#` in quotes is not one.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') => return &line[..at],
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str, name: &str) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.py");
        std::fs::write(&path, source).expect("written");
        let file = path.to_str().expect("a path").to_owned();
        let store = Store { names: vec![name.to_owned()], files: vec![file] };
        find(&store, None).map(|line| format!("{}: {}", line.place.line, line.code))
    }

    #[test]
    fn the_line_that_adds_to_a_name_is_found() {
        for (source, name, expected) in [
            (
                "history = []\nhistory.append(loss)\nprint(history)\n",
                "history",
                Some("2: history.append(loss)"),
            ),
            ("my_history.append(x)\nhistory[i] = x\n", "history", Some("2: history[i] = x")),
            ("f.setdefault(n, []).append(o)\n", "f", Some("1: f.setdefault(n, []).append(o)")),
            ("f[n].append(o)\n", "f", Some("1: f[n].append(o)")),
            (
                "total = zeros(())\ntotal = total * 0.9 + loss\n",
                "total",
                Some("2: total = total * 0.9 + loss"),
            ),
            ("total += loss  # total = 1\n", "total", Some("1: total += loss  # total = 1")),
            (
                "self.other, other.other = other, self\n",
                "other",
                Some("1: self.other, other.other = other, self"),
            ),
            ("if history == []: pass\n# history.append(x)\nx = history[0]\n", "history", None),
            ("self.store = {}\nself.store['a'] += [x]\n", "store", Some("2: self.store['a'] += [x]")),
            ("best = model(x)\nuse(best)\n", "best", Some("1: best = model(x)")),
        ] {
            assert_eq!(found(source, name).as_deref(), expected, "{source}");
        }
    }

    #[test]
    fn of_equal_lines_the_one_below_what_was_made_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.py");
        std::fs::write(&path, "kept.append(a)\n\n\nx = f()\nkept.append(x)\n").expect("written");
        let file = path.to_str().expect("a path").to_owned();
        let near = Place { file: file.clone(), line: 4, function: String::new() };
        let line =
            find(&Store { names: vec!["kept".to_owned()], files: vec![file] }, Some(&near)).expect("a line");
        assert_eq!(line.place.line, 5);
    }
}
