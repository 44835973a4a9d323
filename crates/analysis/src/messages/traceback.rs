//! The line of the user's own code in the traceback above a message.

use super::log::pattern;
use crate::trace::site::is_user_file;
use regex::Regex;
use std::collections::VecDeque;
use std::sync::LazyLock;

/// A line of code, as a traceback names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracebackSite {
    /// Path of the file, or the name of a notebook's cell.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// Name of the function, `<module>` outside of one.
    pub function: String,
    /// The text of the line, where the traceback has it.
    pub code: Option<String>,
}

impl TracebackSite {
    /// Returns the short name, `train.py:20`.
    pub fn short(&self) -> String {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or(&self.file);
        format!("{}:{}", crate::words::printable(name), self.line)
    }
}

/// The last frames of the tracebacks in a log, each rank's apart.
#[derive(Default)]
pub(super) struct Frames {
    seen: VecDeque<TracebackFrame>,
}

struct TracebackFrame {
    log_line: u64,
    rank: Option<u32>,
    /// `None` for the line that begins a traceback.
    code: Option<TracebackSite>,
    /// Whether its code is marked by an arrow, not just below.
    is_drawn: bool,
}

/// More frames than the tracebacks of all ranks of a large job that fail at once.
const MAX_FRAMES: usize = 4096;
/// Lines between the last frame and the message: its code, marks below it, notes, the wrapped beginning of
/// the message.
const MAX_LINES_TO_MESSAGE: u64 = 12;
/// Lines between the last frame and the message where several ranks write at once.
const MAX_LINES_TO_MESSAGE_AMONG_RANKS: u64 = 2000;

impl Frames {
    /// Looks at one clean line of a log.
    pub(super) fn look_at(&mut self, log_line: u64, rank: Option<u32>, text: &str) {
        // A line of JSON holds a whole traceback.
        if text.contains("\\n") && text.contains("File ") {
            for part in text.split("\\n") {
                self.look_at_one(log_line, rank, &part.replace("\\\"", "\""));
            }
        } else {
            self.look_at_one(log_line, rank, text);
        }
    }

    fn look_at_one(&mut self, log_line: u64, rank: Option<u32>, text: &str) {
        // Rich draws a frame around its tracebacks.
        let text = text.trim_matches(|letter: char| letter.is_whitespace() || "│╭╮╰╯─|".contains(letter));
        if text.contains("Traceback (most recent call last)") {
            return self.push(TracebackFrame { log_line, rank, code: None, is_drawn: false });
        }
        if let Some(code) = frame(text) {
            return self.push(TracebackFrame { log_line, rank, code: Some(code), is_drawn: false });
        }
        if let Some(code) = drawn(text) {
            return self.push(TracebackFrame { log_line, rank, code: Some(code), is_drawn: true });
        }
        if let Some((number, code)) = marked(text) {
            self.mark(log_line, rank, number, code);
            return;
        }
        // The line below a frame is its code, unless it is already the message.
        let Some(TracebackFrame { log_line: above, rank: of, code: Some(last), is_drawn }) =
            self.seen.back_mut()
        else {
            return;
        };
        let is_next = !*is_drawn && log_line - *above <= 1 && *of == rank && last.code.is_none();
        let is_code = !text.is_empty() && !text.starts_with(['^', '~']) && !EXCEPTION.is_match(text);
        if is_next && is_code {
            last.code = Some(text.chars().take(200).collect());
        }
    }

    /// The line that an arrow marks is where the frame above stands.
    fn mark(&mut self, log_line: u64, rank: Option<u32>, number: u64, code: &str) {
        let last = self.seen.back_mut().filter(|last| last.rank == rank);
        let Some(last) = last.and_then(|frame| frame.code.as_mut()) else {
            // The name of the file is not in the text: the line is only known by its code.
            let code = Some(code.chars().take(200).collect());
            let site = TracebackSite { file: String::new(), line: 0, function: String::new(), code };
            return self.push(TracebackFrame { log_line, rank, code: Some(site), is_drawn: true });
        };
        if last.line == 0 || last.line == number {
            last.line = number;
            last.code = Some(code.chars().take(200).collect());
        }
    }

    fn push(&mut self, frame: TracebackFrame) {
        if self.seen.len() == MAX_FRAMES {
            self.seen.pop_front();
        }
        self.seen.push_back(frame);
    }

    /// Whether the traceback that ends with the message at this line ends in a call that pins memory.
    pub(super) fn is_pinning(&self, log_line: u64, rank: Option<u32>) -> bool {
        let own = self.seen.iter().rev().find(|frame| frame.rank == rank && frame.log_line <= log_line);
        let innermost = own.filter(|frame| log_line - frame.log_line <= MAX_LINES_TO_MESSAGE);
        let pins = |code: &str| PINS.is_match(code);
        innermost.and_then(|frame| frame.code.as_ref()?.code.as_deref()).is_some_and(pins)
    }

    /// The innermost frame of the user's own code in the traceback that ends with the message at this line.
    pub(super) fn above(&self, log_line: u64, rank: Option<u32>) -> Option<TracebackSite> {
        let near = if rank.is_some() { MAX_LINES_TO_MESSAGE_AMONG_RANKS } else { MAX_LINES_TO_MESSAGE };
        let mut below = log_line;
        let mut own = self.seen.iter().rev().filter(|frame| frame.rank == rank && frame.log_line <= log_line);
        let first = own.next()?;
        if log_line - first.log_line > near {
            return None;
        }
        for frame in std::iter::once(first).chain(own) {
            let code = frame.code.as_ref()?;
            if below - frame.log_line > near {
                return None;
            }
            if code.line > 0 && is_user_file(&code.file) {
                return Some(code.clone());
            }
            below = frame.log_line;
        }
        None
    }
}

/// `ValueError: …`, `torch.OutOfMemoryError: …`
static EXCEPTION: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[\w.]*(?:Error|Exception|Warning)(?-u:\b)"));

/// `x.pin_memory()`, `torch.empty(n, pin_memory=True)`
static PINS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"\.pin_memory\(|(?-u:\b)(?:empty|zeros|ones|full|rand|randn|tensor)\w*\(.*pin_memory=True")
});

/// `----> 3 code` of IPython, `❱ 42 │   │   code` of rich: the number and the code.
fn marked(text: &str) -> Option<(u64, &str)> {
    static MARKED: LazyLock<Regex> = LazyLock::new(|| pattern(r"^(?:-+>|❱)\s*(\d+)\s*[│|\s]*(.*)$"));
    if !text.starts_with(['-', '❱']) {
        return None;
    }
    let found = MARKED.captures(text)?;
    Some((found[1].parse().ok()?, found.get(2)?.as_str().trim()))
}

/// `train.py:42 in main` of rich; `train.py in main(x)` and `<ipython-input-5-…> in <cell line: 3>()` of
/// older IPython, whose line an arrow marks further down.
fn drawn(text: &str) -> Option<TracebackSite> {
    static DRAWN: LazyLock<Regex> = LazyLock::new(|| {
        pattern(concat!(
            r"^\[?(?<file><ipython-input-[\w-]+>|[^\s:]*(?::[\\/][^\s:]*)?\.py)(?:\]\([^)\s]*\))?",
            r"(?::(?<line>\d+))? in (?<function><?\w[\w.]*(?: line: \d+)?>?)(?:\(.*)?$"
        ))
    });
    if !text.contains(" in ") {
        return None;
    }
    let found = DRAWN.captures(text)?;
    let line = found.name("line").map_or(Some(0), |line| line.as_str().parse().ok())?;
    let function = match &found["function"] {
        name if name.starts_with("<cell") => "<module>",
        name => name,
    };
    Some(TracebackSite { file: found["file"].to_owned(), line, function: function.to_owned(), code: None })
}

/// `File "train.py", line 20, in step`, and what IPython makes of it.
fn frame(text: &str) -> Option<TracebackSite> {
    static FRAME: LazyLock<Regex> = LazyLock::new(|| {
        pattern(concat!(
            r#"^(?:File "(?<file>[^"]+)", line (?<line>\d+)(?:, in (?<function>.+))?|File "#,
            r#"(?<ifile>[^"\s]+\.py):(?<iline>\d+), in (?<ifunction>[\w.<>]+)|"#,
            r#"(?<cell>Cell In ?\[\d+\]), line (?<cline>\d+)(?:, in (?<cfunction>[\w.<>]+))?)"#
        ))
    });
    if !text.starts_with("File ") && !text.starts_with("Cell In") {
        return None;
    }
    let found = FRAME.captures(text)?;
    let any = |names: [&str; 3]| {
        names.iter().find_map(|name| found.name(name)).map(|part| part.as_str().to_owned())
    };
    Some(TracebackSite {
        file: any(["file", "ifile", "cell"])?,
        line: any(["line", "iline", "cline"])?.parse().ok()?,
        function: any(["function", "ifunction", "cfunction"]).unwrap_or_else(|| "<module>".to_owned()),
        code: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above(log: &str) -> Option<String> {
        let mut frames = Frames::default();
        let mut last = 0;
        for (number, line) in (1..).zip(log.lines()) {
            frames.look_at(number, None, line);
            last = number;
        }
        frames
            .above(last, None)
            .map(|site| format!("{} {} | {}", site.short(), site.function, site.code.unwrap_or_default()))
    }

    #[test]
    fn the_innermost_line_of_the_user_is_found() {
        let log = r#"Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    main()
  File "/home/me/train.py", line 20, in main
    out = model(batch)
          ^^^^^^^^^^^^
  File "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", line 1518, in _call_impl
    return forward_call(*args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory."#;
        assert_eq!(above(log).as_deref(), Some("train.py:20 main | out = model(batch)"));
        assert_eq!(above(&format!("{log}\n{}torch.OutOfMemoryError", "step 1\n".repeat(40))), None);
        assert_eq!(above("Traceback (most recent call last):\ntorch.OutOfMemoryError"), None);
    }

    #[test]
    fn the_line_that_an_arrow_marks_is_found() {
        let colab = "OutOfMemoryError   Traceback (most recent call last)\n<ipython-input-11-f4c8> in <cell \
             line: 3>()\n      1 import torch\n----> 3 video = pipe(prompt)\n      4 \
             \n/usr/lib/python3/dist-packages/torch/nn/modules/module.py in _call_impl(self, *input)\n  \
              1516  else:\n-> 1518      return forward_call(*args)\nOutOfMemoryError";
        assert_eq!(
            above(colab).as_deref(),
            Some("<ipython-input-11-f4c8>:3 <module> | video = pipe(prompt)")
        );
        let link = "[<ipython-input-11-f4c8>](https://localhost:8080/#) in <cell line: 0>()\n----> 1 video \
             = pipe(prompt)\nOutOfMemoryError";
        assert_eq!(above(link).as_deref(), Some("<ipython-input-11-f4c8>:1 <module> | video = pipe(prompt)"));
        let rich = "╭──── Traceback (most recent call last) ────╮\n│ /home/me/proj/train.py:42 in main  \
             │\n│   │\n│   41 │   for x in dl:  │\n│ ❱ 42 │   │   loss = model(x)   │\n│   43 │   │   \
             loss.backward()  │\n╰────╯\nOutOfMemoryError";
        assert_eq!(above(rich).as_deref(), Some("train.py:42 main | loss = model(x)"));
    }

    #[test]
    fn a_traceback_in_one_line_of_json_and_a_notebook_are_read() {
        let log = concat!(
            r#"{"exc": "Traceback (most recent call last):\n  File \"/w/a.py\", line 3, i"#,
            r#"n f\n    x = y @ z\nRuntimeError"}"#
        );
        assert_eq!(above(log).as_deref(), Some("a.py:3 f | x = y @ z"));
        let log = "Cell In[5], line 3\n  1 import torch\nFile /opt/lib/site-packages/torch/x.py:3, in \
             g(a)\nOutOfMemoryError";
        assert_eq!(above(log).as_deref(), Some("Cell In[5]:3 <module> | 1 import torch"));
    }
}
