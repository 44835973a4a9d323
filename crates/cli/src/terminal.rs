//! Where output goes: data to stdout, talk to stderr, colour only where somebody sees it. A caller from another language
//! gets both as text instead.

use crate::args::Color;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The two streams of the process, and what they can show.
pub(crate) struct Terminal {
    out: Out,
    color: bool,
    error_color: bool,
    width: usize,
}

/// Where data and talk end up.
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

/// Columns of text that goes into a file or a pipe.
const WIDTH: usize = 100;

/// How a piece of text should look.
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
    fn code(self) -> &'static str {
        match self {
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Red => "1;31",
            Style::Yellow => "33",
            Style::Green => "32",
            Style::Cyan => "36",
        }
    }
}

impl Terminal {
    pub(crate) fn new(color: Color) -> Terminal {
        let wanted = |is_terminal: bool| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                is_terminal
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        };
        Terminal {
            color: wanted(io::stdout().is_terminal()),
            error_color: wanted(io::stderr().is_terminal()),
            width: terminal_size::terminal_size_of(io::stdout())
                .map_or(WIDTH, |(width, _)| usize::from(width.0).clamp(40, 120)),
            out: Out::Process(BufWriter::new(io::stdout().lock())),
        }
    }

    /// One that keeps everything: what a pipe would get.
    pub(crate) fn in_memory() -> Terminal {
        let out = Out::Memory { data: Vec::new(), talk: RefCell::default() };
        Terminal { out, color: false, error_color: false, width: WIDTH }
    }

    /// What was written to [`Terminal::in_memory`]: the data, and what was said beside it.
    pub(crate) fn kept(self) -> (Vec<u8>, Vec<String>) {
        match self.out {
            Out::Process(_) => Default::default(),
            Out::Memory { data, talk } => (data, talk.into_inner()),
        }
    }

    /// The stream for data.
    pub(crate) fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    /// Columns for running text.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Whether stdout shows colour.
    pub(crate) fn shows_color(&self) -> bool {
        self.color
    }

    /// `text` in `style`, where stdout shows colour.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.color, style, text)
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
    }

    /// Says something that is not data.
    pub(crate) fn say(&self, text: &str) {
        match &self.out {
            Out::Process(_) => say(text),
            Out::Memory { talk, .. } => talk.borrow_mut().push(text.to_owned()),
        }
    }

    /// Says why something could not be done.
    pub(crate) fn failure(&self, failure: &Failure) {
        let label = |style, text| paint(self.error_color, style, text);
        self.say(&format!("{} {}", label(Style::Red, "error:"), failure.what));
        if let Some(cause) = &failure.cause {
            self.say(&format!("  {} {cause}", label(Style::Dim, "cause:")));
        }
        if let Some(hint) = &failure.hint {
            self.say(&format!("{} {hint}", label(Style::Cyan, "hint:")));
        }
    }
}

/// Says something that is not data, from any thread.
#[allow(clippy::print_stderr)] // this is the one place that talks
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

fn paint(color: bool, style: Style, text: &str) -> String {
    if color { format!("\x1b[{}m{text}\x1b[0m", style.code()) } else { text.to_owned() }
}

/// How far something is, shown once it has taken a second; gone when it is dropped.
pub(crate) struct Progress {
    what: &'static str,
    steps: u64,
    begun: Instant,
    done: AtomicU64,
    bar: OnceLock<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(what: &'static str, steps: usize) -> Progress {
        let steps = steps as u64;
        Progress { what, steps, begun: Instant::now(), done: AtomicU64::new(0), bar: OnceLock::new() }
    }

    /// One more step is done; any thread may say so.
    pub(crate) fn advance(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if self.begun.elapsed() > Duration::from_secs(1) {
            // indicatif draws nothing where stderr is not a terminal.
            let bar = self.bar.get_or_init(|| {
                let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len}, {eta} left")
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

/// What could not be done, why, and the way out.
#[derive(Debug)]
pub struct Failure {
    what: String,
    cause: Option<String>,
    hint: Option<String>,
    refusal: Option<io::ErrorKind>,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, cause: Option<String>, hint: Option<&str>) -> Failure {
        Failure { what: what.into(), cause, hint: hint.map(str::to_owned), refusal: None }
    }

    /// The same, for callers who tell a file that is not there from one that makes no sense.
    pub(crate) fn refused(self, by_system: io::ErrorKind) -> Failure {
        Failure { refusal: Some(by_system), ..self }
    }

    /// What the operating system said, if the failure is about a file that it did not give us.
    pub fn refusal(&self) -> Option<io::ErrorKind> {
        self.refusal
    }

    /// All of it, as the terminal shows it behind `error:`.
    pub fn message(&self) -> String {
        let cause = self.cause.as_ref().map(|cause| format!("\n  cause: {cause}"));
        let hint = self.hint.as_ref().map(|hint| format!("\nhint: {hint}"));
        format!("{}{}{}", self.what, cause.unwrap_or_default(), hint.unwrap_or_default())
    }

    /// Why it could not be done.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// A file that could not be read as a snapshot.
    pub(crate) fn reading(name: &str, error: &snapshot::Error) -> Failure {
        Failure {
            what: format!("`{name}` {}", error.what),
            cause: Some(error.cause.clone()),
            hint: Some(error.hint.clone()),
            refusal: error.refusal(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        match error.downcast::<Failure>() {
            Ok(failure) => failure,
            Err(error) => {
                let cause = error.chain().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": ");
                let refusal = error.chain().find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
                let cause = (!cause.is_empty()).then_some(cause);
                Failure { what: error.to_string(), cause, hint: None, refusal }
            }
        }
    }
}
