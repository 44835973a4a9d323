//! Removes what terminals, loggers and chats put between the words of a message.

use regex::Regex;
use std::borrow::Cow;
use std::sync::LazyLock;

/// A line without colors and prefixes.
pub(super) struct CleanLine<'a> {
    pub(super) text: Cow<'a, str>,
    /// The rank that its prefix names.
    pub(super) rank: Option<u32>,
    /// The process ID that its prefix names.
    pub(super) pid: Option<u64>,
}

/// Removes colors and prefixes from a line.
pub(super) fn clean(line: &str) -> CleanLine<'_> {
    let text = without_escapes(line);
    let task = task(&text);
    let task_end = task.map_or(0, |(_, end)| end);
    let prefix_end = task_end + PREFIXES.find(&text[task_end..]).map_or(0, |found| found.end());
    let prefix = &text[task_end..prefix_end];
    let rank = rank(prefix).or(task.map(|(task, _)| task));
    let pid = pid(prefix);
    let text = match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[prefix_end..]),
        Cow::Owned(text) => Cow::Owned(text[prefix_end..].to_owned()),
    };
    CleanLine { text, rank, pid }
}

/// Stands for bytes that no log has between the words of a message.
pub(super) const UNREADABLE: char = '\u{1}';

/// Removes the zeros next to each letter in UTF-16, which PowerShell writes.
pub(super) fn narrow(line: &str) -> Cow<'_, str> {
    let zeros = line.bytes().filter(|&byte| byte == 0).count();
    if zeros > 0 && zeros * 5 >= line.len() * 2 { line.replace('\0', "").into() } else { line.into() }
}

/// Adds a clean line to a text that has no white space at all. `\n` in a line of JSON is white space too.
pub(super) fn squeeze(line: &str, into: &mut String) {
    let mut rest = line;
    let begin = into.len();
    while !rest.is_empty() {
        let plain = rest.bytes().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
        // Two numbers of a line stay two.
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
        if plain > 0 && is_digit(into.as_bytes()[begin..].last()) && is_digit(rest.as_bytes().first()) {
            into.push(' ');
        }
        into.push_str(&rest[..plain]);
        rest = &rest[plain..];
        let mut letters = rest.chars();
        let Some(letter) = letters.next() else { return };
        rest = letters.as_str();
        match letter {
            '\\' if rest.starts_with(['n', 'r', 't']) => rest = &rest[1..],
            '\\' if rest.starts_with(['"', '\'', '\\', '/']) => {}
            // Backticks, asterisks and hashes are markdown's and comments'; a byte order mark and zero-width
            // spaces come with pasted text.
            '`' | '*' | '#' | '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{fffd}' => {}
            letter if letter.is_whitespace() => {}
            // Words with such bytes between them are a table of texts in a program.
            letter if letter.is_control() => into.push(UNREADABLE),
            letter => into.push(letter),
        }
    }
}

/// Whether a byte is a letter that stays.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'`' | b'*' | b'#')
}

/// A pattern whose classes are ASCII's: what it is for is written by machines, and it is much faster.
pub(crate) fn pattern(text: &str) -> Regex {
    let ascii = text
        .replace(r"\w", "[A-Za-z0-9_]")
        .replace(r"\d", "[0-9]")
        .replace(r"\s", r"[ \t\r\n]")
        .replace(r"\D", "[^0-9]");
    Regex::new(&ascii).expect("the pattern is right")
}

/// Prefixes that loggers put in front of a line, possibly several.
static PREFIXES: LazyLock<Regex> = LazyLock::new(|| {
    let parts = [
        r"\s+",
        // Quotes of mails and issues, comments, markdown.
        r"[>|#]+(?:\s|$)",
        r"```\w*",
        // Ranks: torchrun (also behind the name of the node), its tee, mpirun, workers that are called by
        // their rank.
        r"(?:[\w.-]+: )?\[(?:[Rr]ank|RANK)[ :=]?\d+\]:?",
        r"[Rr](?:ank|ANK) ?\d+ ?[:|]",
        r"\[default\d+\]:",
        r"\[\d+,\d+\]<\w+>:?",
        r"\([\w.:<>@ -]*pid=\d+[^)\n]{0,80}\)",
        // docker compose and kubectl: `vllm-1  | `.
        r"[\w.-]+ +\| ",
        // Times: ISO, also with SGLang's ranks (`[2025-03-29 18:18:34 DP0 TP1]`), clock, seconds since boot,
        // `[Sun Mar 30 08:24:00 2025]`, syslog with its host and program.
        concat!(
            r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?",
            r"(?: (?:ATTN_CP|MOE_DP|DP|PP|TP|EP)\d+)*\]?"
        ),
        r"\[?(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?",
        r"\[ *\d+\.\d+\]",
        r"\[\w{3} \w{3} +\d+ \d\d:\d\d:\d\d(?: \d{4})?\]",
        r"\w{3} +\d+ \d\d:\d\d:\d\d [\w.-]+ [\w./-]+(?:\[\d+\])?:",
        // Levels, with the logger or the line of code that they come from.
        r"\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|E|W|I)\]?(?::[\w.]+:|:| +\||\s)",
        r"\[[\w./-]+\.(?:py|cc|cpp):\d+\]:?",
        r"[\w./-]+\.(?:py|cc|cpp):\d+\]",
    ];
    pattern(&format!("^(?:{})+", parts.join("|")))
});

/// The number that `srun --label` puts in front of a line. Behind a number in the middle of a message, where
/// a line may be wrapped, no capital follows.
fn task(line: &str) -> Option<(u32, usize)> {
    let (number, rest) = line.split_at(line.get(..6.min(line.len()))?.find(": ")?);
    let begins = |letter: char| letter.is_ascii_uppercase() || letter == '[' || letter == ' ';
    let task = number.parse().ok()?;
    (rest[2..].starts_with(begins) || rest[2..].starts_with("torch.")).then_some((task, number.len() + 2))
}

fn rank(prefix: &str) -> Option<u32> {
    static RANK: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"(?:[Rr]ank|RANK|_TP|_DP|TP)[ _:=]?(\d+)|\[default(\d+)\]|\[\d+,(\d+)\]<"));
    RANK.captures(prefix)?.iter().skip(1).flatten().next()?.as_str().parse().ok()
}

fn pid(prefix: &str) -> Option<u64> {
    let (_, rest) = prefix.split_once("pid=")?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Removes terminal control sequences and HTML's escapes.
fn without_escapes(line: &str) -> Cow<'_, str> {
    // The first one first: text that was escaped twice is read as well.
    const HTML: [(&str, &str); 6] =
        [("&amp;", "&"), ("&nbsp;", " "), ("&gt;", ">"), ("&lt;", "<"), ("&quot;", "\""), ("&#39;", "'")];
    if !line.contains('&') || !HTML.iter().any(|(escape, _)| line.contains(escape)) {
        return without_control_sequences(line);
    }
    let plain = HTML.iter().fold(line.to_owned(), |text, (escape, letter)| text.replace(escape, letter));
    Cow::Owned(without_control_sequences(&plain).into_owned())
}

/// Removes terminal control sequences, also where JSON has escaped them.
fn without_control_sequences(line: &str) -> Cow<'_, str> {
    static ESCAPES: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]{0,200}\x07|[@-Z])")
    });
    let bytes = line.as_bytes();
    if bytes.contains(&b'\x1b') || bytes.contains(&b'\\') {
        ESCAPES.replace_all(line, "")
    } else {
        Cow::Borrowed(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, text: &str, rank: Option<u32>) {
        let clean = clean(line);
        assert_eq!((&*clean.text, clean.rank), (text, rank), "{line}");
    }

    #[test]
    fn prefixes_of_loggers_and_launchers_are_taken_off() {
        check("[rank3]: RuntimeError: x", "RuntimeError: x", Some(3));
        check("worker-1: [rank9]: RuntimeError: x", "RuntimeError: x", Some(9));
        check("12: RuntimeError: x", "RuntimeError: x", Some(12));
        check("[1,2]<stderr>:RuntimeError", "RuntimeError", Some(2));
        check("[default5]:RuntimeError", "RuntimeError", Some(5));
        check("(RayWorkerWrapper pid=123, ip=10.0.0.2) RuntimeError", "RuntimeError", None);
        check("(Worker_TP1 pid=9) ERROR 09-03 11:03:37 [core.py:712] ValueError", "ValueError", Some(1));
        check("[2025-07-02 07:41:58 DP1 TP3] Load weight end.", "Load weight end.", Some(3));
        check("2025-11-12T11:25:13.4961658Z ERROR: x", "x", None);
        check("vllm-1  | ERROR 11-18 18:07:28 engine.py:366] ValueError", "ValueError", None);
        check("> > # [rank0]: x", "x", Some(0));
        check("[2059991.491542] Out of memory: Killed", "Out of memory: Killed", None);
        check("Apr 25 19:05:01 node1 kernel: [ 7097.005193] Killed", "Killed", None);
        check("\x1b[1;31mRuntimeError\x1b[0m: x", "RuntimeError: x", None);
        check("Tried to allocate 12.50&nbsp;MiB &gt; x", "Tried to allocate 12.50 MiB > x", None);
        check("23.69 GiB of which", "23.69 GiB of which", None);
    }

    #[test]
    fn a_process_is_known_by_its_prefix() {
        assert_eq!(clean("(VllmWorkerProcess pid=521) INFO x").pid, Some(521));
        assert_eq!(clean("(RayWorkerWrapper pid=7, ip=10.0.0.2) x").pid, Some(7));
        assert_eq!(clean("INFO x pid=9").pid, None);
    }

    #[test]
    fn nothing_but_words_is_left() {
        let mut text = String::new();
        for line in [r#"{"m": "a\n\tb \"c\""}"#, "2.00 Gi", "B `free` 1", "2 3"] {
            squeeze(line, &mut text);
        }
        assert_eq!(text, r#"{"m":"ab"c""}2.00GiBfree12 3"#);
    }
}
