//! Output streams: data to stdout, messages to stderr, color only on a terminal. Callers from another
//! language get both as text.
//!
//! Names and texts from outside (files, snapshots, logs, arguments) must not control a terminal. Two
//! layers prevent that: [`shown_path`] and [`printable`] put a name on one line, and all output passes
//! [`Cleaner`], which admits only text and the styles of [`Style`]. Only [`Terminal::data`] writes raw bytes.

use crate::args::Color;
pub(crate) use analysis::words::shown_path;
use analysis::words::{printable, push_printable};
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Reset};
pub use failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use inputs::ProgressReporter;
use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, StdoutLock, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The output streams of the process, and what they can show.
pub(crate) struct Terminal {
    out: Text,
    is_seen: bool,
    error_color: bool,
    width: usize,
}

/// Destination of data and messages.
enum Out {
    Process(BufWriter<StdoutLock<'static>>),
    Memory { data: Vec<u8>, talk: RefCell<Vec<String>> },
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Process(out) => out.write(bytes),
            Out::Memory { data, .. } => data.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Process(out) => out.flush(),
            Out::Memory { .. } => Ok(()),
        }
    }
}

/// The stream for data as text.
struct Text {
    to: Out,
    cleaner: Cleaner,
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write_all(self.cleaner.clean(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Removes from text what would control a terminal, or GitHub Actions if the output is its log.
///
/// Hidden characters are written as JSON escapes, so that JSON keeps its meaning.
#[derive(Clone, Copy)]
struct Cleaner {
    /// Whether styles are let through.
    has_styles: bool,
    /// Whether lines are read as commands by GitHub Actions.
    is_github_log: bool,
    line: LineStart,
}

/// Start of a line, as far as it matters for workflow commands (`::error::`, `##[error]`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineStart {
    Empty,
    Colon,
    Begun,
    Hash,
    Hashes,
}

impl Cleaner {
    fn new(has_styles: bool) -> Cleaner {
        let is_github_log = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
        Cleaner { has_styles, is_github_log, line: LineStart::Empty }
    }

    fn clean<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        let is_plain = |byte: &u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\n' | b'\t');
        if !self.is_github_log && text.as_bytes().iter().all(is_plain) {
            return text.into();
        }
        let mut clean = String::with_capacity(text.len() + 16);
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            if let Some(style) = style_at(rest).filter(|_| self.has_styles) {
                clean.push_str(style);
                rest = &rest[style.len()..];
                continue;
            }
            rest = &rest[letter.len_utf8()..];
            match letter {
                '\n' | '\t' => clean.push(letter),
                letter if self.is_github_log && self.begins_command(letter) => {
                    clean.push_str(&format!("\\u{:04x}", letter as u32));
                }
                letter => push_printable(&mut clean, letter),
            }
            self.line = self.after(letter);
        }
        clean.into()
    }

    /// Whether this character would complete the beginning of a workflow command.
    fn begins_command(&self, letter: char) -> bool {
        matches!((self.line, letter), (LineStart::Colon, ':') | (LineStart::Hashes, '['))
    }

    fn after(&self, letter: char) -> LineStart {
        match (self.line, letter) {
            (_, '\n') => LineStart::Empty,
            // Actions trims a line before it looks for a command.
            (LineStart::Empty, letter) if letter.is_whitespace() => LineStart::Empty,
            (LineStart::Empty, ':') => LineStart::Colon,
            (LineStart::Hash | LineStart::Hashes, '#') => LineStart::Hashes,
            (_, '#') => LineStart::Hash,
            _ => LineStart::Begun,
        }
    }
}

/// The style that a text begins with, as [`paint`] writes it.
fn style_at(text: &str) -> Option<&str> {
    let styles =
        text.starts_with('\x1b').then(|| Style::ALL.map(|style| style.ansi().render().to_string()))?;
    let reset = Reset.render().to_string();
    let lengths = styles.iter().chain([&reset]).filter(|style| text.starts_with(*style)).map(String::len);
    text.get(..lengths.max()?)
}

/// A command-line argument in a form that is safe to print.
pub(crate) fn shown_argument(argument: impl AsRef<Path>) -> String {
    Cleaner::new(false).clean(&shown_path(argument)).into_owned()
}

/// Columns of text written to a file or pipe.
const DEFAULT_COLUMNS: usize = 100;

/// Style of a piece of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Bold,
    Dim,
    Red,
    Yellow,
    Green,
    Cyan,
}

impl Style {
    const ALL: [Style; 6] = [Style::Bold, Style::Dim, Style::Red, Style::Yellow, Style::Green, Style::Cyan];

    fn ansi(self) -> anstyle::Style {
        match self {
            Style::Bold => anstyle::Style::new().bold(),
            Style::Dim => anstyle::Style::new().dimmed(),
            Style::Red => AnsiColor::Red.on_default().bold(),
            Style::Yellow => AnsiColor::Yellow.on_default(),
            Style::Green => AnsiColor::Green.on_default(),
            Style::Cyan => AnsiColor::Cyan.on_default(),
        }
    }
}

impl Terminal {
    pub(crate) fn new(color: Color) -> Terminal {
        // `Auto` respects NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM.
        let wanted = |choice: ColorChoice| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => choice != ColorChoice::Never,
        };
        let color = wanted(AutoStream::choice(&io::stdout()));
        Terminal {
            is_seen: color || io::stdout().is_terminal(),
            error_color: wanted(AutoStream::choice(&io::stderr())),
            width: columns().map_or(DEFAULT_COLUMNS, |width| width.clamp(40, 120)),
            out: Text { to: Out::Process(BufWriter::new(io::stdout().lock())), cleaner: Cleaner::new(color) },
        }
    }

    /// A terminal that keeps what a pipe would get.
    pub(crate) fn in_memory() -> Terminal {
        let to = Out::Memory { data: Vec::new(), talk: RefCell::default() };
        let out = Text { to, cleaner: Cleaner::new(false) };
        Terminal { out, is_seen: false, error_color: false, width: DEFAULT_COLUMNS }
    }

    /// Data and messages written to [`Terminal::in_memory`].
    pub(crate) fn kept(self) -> (Vec<u8>, Vec<String>) {
        match self.out.to {
            Out::Process(_) => Default::default(),
            Out::Memory { data, talk } => (data, talk.into_inner()),
        }
    }

    /// The stream for data that is text or JSON.
    pub(crate) fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    /// The stream for data whose bytes matter: a fixed program, a patch.
    pub(crate) fn data(&mut self) -> &mut impl Write {
        self.out.cleaner.line = LineStart::Begun;
        &mut self.out.to
    }

    /// Writes a workflow command of GitHub Actions.
    pub(crate) fn command(&mut self, line: &str) -> io::Result<()> {
        // The cleaner must let this command through, but none inside the line.
        let mut cleaner = Cleaner { has_styles: false, is_github_log: true, line: LineStart::Begun };
        writeln!(self.out.to, "{}", cleaner.clean(line))
    }

    /// Columns for running text.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Whether stdout shows color.
    pub(crate) fn shows_color(&self) -> bool {
        self.out.cleaner.has_styles
    }

    /// Whether stdout is read in a terminal, directly or through a pager.
    pub(crate) fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// `text` on one line in `style`, where stdout shows color.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.out.cleaner.has_styles, style, text)
    }

    /// A line of a unified diff, in the color of its kind.
    pub(crate) fn diff_line(&self, line: &str) -> String {
        let style = match line.as_bytes().first() {
            Some(b'+') => Style::Green,
            Some(b'-') => Style::Red,
            Some(b'@') => Style::Cyan,
            _ => return printable(line).into_owned(),
        };
        self.paint(style, line)
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
    }

    /// Writes a one-line message.
    pub(crate) fn say(&self, line: &str) {
        self.tell(&printable(line), false);
    }

    fn tell(&self, text: &str, has_styles: bool) {
        match &self.out.to {
            Out::Process(_) => tell(text, has_styles),
            Out::Memory { talk, .. } => {
                talk.borrow_mut().push(Cleaner::new(false).clean(text).into_owned());
            }
        }
    }

    /// Writes an error with its cause and hint.
    pub(crate) fn failure(&self, failure: &Failure) {
        self.explained(Style::Red, "error:", failure);
    }

    /// Writes what went wrong without being an error of the command.
    pub(crate) fn warning(&self, failure: &Failure) {
        self.explained(Style::Yellow, "warning:", failure);
    }

    fn explained(&self, style: Style, word: &str, failure: &Failure) {
        let label = |style, text| paint(self.error_color, style, text);
        let say = |text: &str| self.tell(text, self.error_color);
        say(&format!("{} {}", label(style, word), printable(&failure.to_string())));
        if let Some(cause) = failure.cause() {
            say(&format!("  {} {cause}", label(Style::Dim, "cause:")));
        }
        if let Some(hint) = failure.hint() {
            say(&format!("{} {}", label(Style::Cyan, "hint:"), printable(hint)));
        }
    }
}

/// Writes a one-line message from any thread.
pub(crate) fn say(line: &str) {
    tell(&printable(line), false);
}

#[allow(clippy::print_stderr)] // the one place that writes messages
fn tell(text: &str, has_styles: bool) {
    eprintln!("{}", Cleaner::new(has_styles).clean(text));
}

fn paint(color: bool, style: Style, text: &str) -> String {
    let text = printable(text);
    let style = style.ansi();
    if color { format!("{style}{text}{style:#}") } else { text.into_owned() }
}

/// Width of the terminal; without one, what COLUMNS says.
fn columns() -> Option<usize> {
    let seen = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    seen.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok())
}

/// Bar of a task that is counted in steps.
const STEPS_BAR: &str = "{msg} {bar:30} {pos} of {len}, {eta} left";
/// Bar of a task that is counted in bytes.
const BYTES_BAR: &str = "{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

/// Progress bar of a task, shown after a second and cleared on drop.
pub(crate) struct Progress {
    what: &'static str,
    template: &'static str,
    steps: u64,
    begun: Instant,
    done: AtomicU64,
    bar: OnceLock<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(what: &'static str, steps: usize) -> Progress {
        Progress::with_bar(what, STEPS_BAR, steps as u64)
    }

    fn with_bar(what: &'static str, template: &'static str, steps: u64) -> Progress {
        let (begun, done, bar) = (Instant::now(), AtomicU64::new(0), OnceLock::new());
        Progress { what, template, steps, begun, done, bar }
    }

    /// Counts one more step as done, from any thread.
    pub(crate) fn advance(&self) {
        self.advance_by(1);
    }

    fn advance_by(&self, by: u64) {
        let done = self.done.fetch_add(by, Ordering::Relaxed) + by;
        if self.begun.elapsed() > Duration::from_secs(1) {
            // indicatif draws nothing where stderr is not a terminal.
            let bar = self.bar.get_or_init(|| {
                let style = ProgressStyle::with_template(self.template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
                ProgressBar::new(self.steps).with_style(style).with_message(self.what)
            });
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

/// Reader that shows a progress bar once reading has taken a second.
pub(crate) struct ReadProgress {
    file: File,
    length: u64,
    name: String,
    begun: Instant,
    read: u64,
    bar: Option<ProgressBar>,
}

impl ReadProgress {
    pub(crate) fn new(file: File, length: u64, name: &str) -> ReadProgress {
        ReadProgress {
            file,
            length,
            name: printable(name).into_owned(),
            begun: Instant::now(),
            read: 0,
            bar: None,
        }
    }

    fn show(&mut self) {
        let style =
            ProgressStyle::with_template("reading {msg} {bar:30} {bytes} of {total_bytes}, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(self.length).with_style(style).with_message(self.name.clone());
        bar.set_position(self.read);
        self.bar = Some(bar);
    }
}

impl Read for ReadProgress {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.read += count as u64;
        match &self.bar {
            Some(bar) => bar.set_position(self.read),
            // indicatif draws nothing where stderr is not a terminal.
            None if self.begun.elapsed() > Duration::from_secs(1) => self.show(),
            None => {}
        }
        Ok(count)
    }
}

impl Drop for ReadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How libraries write messages and show progress.
pub(crate) const TALK: ProgressReporter = ProgressReporter {
    say,
    reading: |file, length, name| Box::new(ReadProgress::new(file, length, name)),
    steps: |what, steps| {
        let progress = Progress::new(what, steps);
        Box::new(move || progress.advance())
    },
    bytes: |what, bytes| {
        let progress = Progress::with_bar(what, BYTES_BAR, bytes);
        Box::new(move |by| progress.advance_by(by))
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(has_styles: bool, is_github_log: bool, pieces: &[&str]) -> String {
        let mut cleaner = Cleaner { has_styles, is_github_log, line: LineStart::Empty };
        pieces.iter().map(|piece| cleaner.clean(piece).into_owned()).collect()
    }

    #[test]
    fn only_text_and_own_styles_pass() {
        let painted = paint(true, Style::Red, "x");
        assert_eq!(clean(true, false, &[&painted]), painted);
        assert_eq!(clean(false, false, &[&painted]), r"\u001b[1m\u001b[31mx\u001b[0m");
        assert_eq!(
            clean(true, false, &["\x1b[8mx\x1b]0;t\x07\r\u{202e}"]),
            r"\u001b[8mx\u001b]0;t\u0007\r\u202e"
        );
        assert_eq!(clean(true, false, &["größe\n\tx"]), "größe\n\tx");
        assert_eq!(paint(true, Style::Bold, "\x1b[0m\n"), "\x1b[1m\\u001b[0m\\n\x1b[0m");
    }

    #[test]
    fn no_line_begins_a_workflow_command() {
        assert_eq!(clean(false, true, &["::error::x\n  ", ":", ":stop"]), ":\\u003aerror::x\n  :\\u003astop");
        assert_eq!(
            clean(false, true, &["a ##[error] ###", "[x] #[y]"]),
            r"a ##\u005berror] ###\u005bx] #[y]"
        );
        assert_eq!(clean(false, true, &["a::b"]), "a::b");
        assert_eq!(clean(false, false, &["::error::x ##[error]"]), "::error::x ##[error]");
    }
}
