//! Whether words without a number are a printed error. Source code, issue templates, guides and changelogs
//! name errors too; a wrong answer is worse than none.

use super::kinds::Bare;
use super::log::{UNREADABLE, pattern};
use regex::Regex;
use std::sync::LazyLock;

/// A position in a text without white space.
pub(super) struct MessageContext<'a> {
    /// The text in front, also of the lines above.
    pub(super) before: &'a str,
    /// How much of it is of the same line.
    pub(super) of_line: usize,
    pub(super) after: &'a str,
    /// Whether a line ends there.
    pub(super) ends_line: bool,
}

impl MessageContext<'_> {
    /// Whether words without numbers are printed here as an error, not in a text about errors.
    pub(super) fn is_of_an_error(&self, bare: Bare) -> bool {
        if self.before.ends_with(UNREADABLE) || self.after.starts_with(UNREADABLE) {
            return false;
        }
        // Only the end of a long line is looked at: a log of one line would otherwise be read again for each
        // message in it.
        let near = &self.before
            [self.before.floor_char_boundary(self.before.len().saturating_sub(ERROR_PREFIX_BYTES))..];
        let line = &near[near.len().saturating_sub(self.of_line)..];
        let is_first = self.of_line == 0 || self.of_line <= ERROR_PREFIX_BYTES && BULLET.is_match(line);
        let is_reported = is_first || ERROR.is_match(near);
        let goes_on = !self.ends_line && self.after.starts_with(|letter: char| letter.is_ascii_lowercase());
        match bare {
            Bare::Always => true,
            Bare::Unquoted => !is_quoted(line),
            Bare::AsSentence => {
                let is_word = |letter: char| letter.is_alphanumeric() || letter == ',';
                is_reported && (self.ends_line || !self.after.starts_with(is_word))
            }
            Bare::AsErrorLine => is_reported && (self.ends_line || !goes_on),
            Bare::AsCppException => (is_reported || self.before.ends_with("instanceof'")) && !goes_on,
            Bare::AsRuntimeError => !is_quoted(line) && (!goes_on || self.after.starts_with("at")),
        }
    }
}

/// Bytes in front of a message that say whether it is an error: bullets and the name of an exception are
/// shorter.
const ERROR_PREFIX_BYTES: usize = 256;

/// Where a line begins to look like source code or like a sentence about errors, found by one pass over the
/// line.
#[derive(Default)]
pub(super) struct ErrorTalk {
    /// The line that was looked at last: where it begins, and from which position on it is talk.
    last: Option<(usize, Option<usize>)>,
}

impl ErrorTalk {
    /// Whether the line that begins at `begins` is talk in front of `at`.
    pub(super) fn is_before(&mut self, at: usize, begins: usize, line: &str) -> bool {
        let from = match self.last {
            Some((known, from)) if known == begins => from,
            _ => {
                let from = TALK.shortest_match(line).map(|end| begins + end);
                self.last = Some((begins, from));
                from
            }
        };
        from.is_some_and(|from| from <= at)
    }
}

/// Behind a quotation mark that does not begin a value of JSON.
fn is_quoted(before: &str) -> bool {
    before.ends_with(['"', '\'', '“', '‘']) && !VALUE.is_match(before)
}

/// `"message":"`
static VALUE: LazyLock<Regex> = LazyLock::new(|| pattern(r#"\w"[:=]"$"#));

/// The name of an exception or of what failed, and a colon: `RuntimeError:`, `Server error:`, `Capture cuda
/// graph failed:`.
static ERROR: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r#"(?i-u:(?:error|exception|exit|fail|failed|failure|fatal|critical|warning|what\(\)|"#,
        r#"occurred)(?:\([\w.]{0,60}\))?\]?[:-]|\w"[:=]"|processing!!!)$"#
    ))
});

/// What a terminal or a launcher leaves in front of a line.
static BULLET: LazyLock<Regex> = LazyLock::new(|| pattern(r"^(?:\[[\w.:/-]*\]|[\w.-]*[0-9]:|[>│|-])+$"));

/// Source code and sentences about errors.
static TALK: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r#"(?:logger|logging|log|warnings)\.\w+\(|printf?\(|TORCH_CHECK|e\.g\.|<!--|==["']|^"#,
        r#"(?:elif|except|catch|raise|return|assert)(?-u:\b)|^(?:feat|fix|docs|chore|test)[:(]|^"#,
        r#"(?:If|When)(?:you|the|a|it)"#
    ))
});

#[cfg(test)]
mod tests {
    use crate::messages::find_messages;

    #[test]
    fn what_only_names_an_error_is_no_message() {
        for text in [
            r#"            "OOMKilled": false,"#,
            r#"+                == "OOMKilled""#,
            "Only relaunch failed pod with reason as OOMKilled",
            r#"logger.info("[OOM] CUDA out of memory. Waiting 10 seconds and trying again...")"#,
            r#"          "CUDA out of memory. Tried to allocate ","#,
            r#"elif "CUDA error: out of memory" in str(e) or "CUBLAS_STATUS_ALLOC_FAILED" in str(e):"#,
            r#"<!-- If you see an error, paste the whole log, e.g. "CUDA out of memory" -->"#,
            "outputs = model(inputs) # RuntimeError: CUDA out of memory here",
            "Detection: catch RuntimeError exceptions with 'CUDA out of memory' in the message",
            "torch.cuda.OutOfMemoryError: CUDA out of memory is one of those errors that lies to you.",
            "[INFO] worker 3 exited with exit code 137 threshold config",
            "Exit code 137 means the container was killed by the OOM killer.",
            "If your job exits with code 137, raise the memory limit.",
            "std::bad_alloc is thrown by operator new",
            "* fix: CUDA out of memory when resuming (#124)",
            "* feat: catch RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
            "CUDA\0out\0of\0memory\0CUDA_ERROR_OUT_OF_MEMORY\0cudaErrorMemoryAllocation\0",
            "\u{1}CUDA out of memory\u{2}",
        ] {
            assert_eq!(find_messages(text.as_bytes()), [], "{text}");
        }
    }

    #[test]
    fn an_error_without_numbers_is_one_wherever_it_is_printed() {
        for text in [
            "CUDA out of memory",
            "RuntimeError: CUDA out of memory.",
            "RuntimeError: CUDA out of memory\nnext line",
            "2024-01-02 03:04:05 ERROR Server error: CUDA out of memory",
            r#"{"level": "error", "message": "CUDA out of memory"}"#,
            "RuntimeError: CUDA error: out of memory",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "  what():  std::bad_alloc",
            r#"    "OOMKilled": true,"#,
            "      Reason:       OOMKilled",
            "trainer-0   0/1   OOMKilled   3   5m",
            "[pod-n0-0] terminated with exit code (137). Reason [Error]. Message: ",
            "exited with code 137",
        ] {
            assert_eq!(find_messages(text.as_bytes()).len(), 1, "{text}");
        }
        let wide: Vec<u8> =
            "RuntimeError: CUDA out of memory.\r\n".bytes().flat_map(|byte| [byte, 0]).collect();
        assert_eq!(find_messages(&wide).len(), 1);
    }
}
