//! Reads a log piece by piece, whatever its length, in one pass and with little memory.

use super::context::{ErrorTalk, MessageContext};
use super::log::{clean, narrow, pattern, squeeze};
use super::traceback::Frames;
use super::{Backend, Message, MessageKind, Numbers, allocator_message, matching};
use regex::Regex;
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Finds messages in a log that is handed over in pieces.
#[derive(Default)]
pub struct MessageReader {
    /// Beginning of a line whose end has not been read yet.
    begun: Vec<u8>,
    line: u64,
    /// Clean text without white space that has not been searched yet.
    text: String,
    /// Where lines begin in it.
    starts: Vec<Start>,
    frames: Frames,
    found: Vec<Message>,
    /// The messages in `found` by kind and numbers, for those that are printed again.
    known: FxHashMap<String, Vec<usize>>,
    /// Others, of which there were too many to keep.
    more: u64,
    /// Whether the log says who kills processes, and not for their memory.
    is_killer_named: bool,
    /// The inference server that writes the log.
    server: Option<InferenceServer>,
}

struct Start {
    at: usize,
    line: u64,
    rank: Option<u32>,
    pid: Option<u64>,
    /// A line of source code that raises the message is not the message.
    is_code: bool,
}

/// A server of language models, which divides a GPU by its own settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InferenceServer {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl InferenceServer {
    /// The server that a line of a log is from, where its prefix or the paths in it say so.
    fn of(line: &str) -> Option<InferenceServer> {
        static VLLM: LazyLock<Regex> = LazyLock::new(|| {
            pattern(concat!(
                r"EngineCore|MQLLMEngine|VllmWorker|multiproc_executor\.py|gpu_model_runner\.py|",
                r"/vllm/[\w/]+\.py"
            ))
        });
        static SGLANG: LazyLock<Regex> = LazyLock::new(|| pattern(r"/sglang/[\w/]+\.py|sglang::scheduler"));
        if VLLM.is_match(line) {
            Some(InferenceServer::Vllm)
        } else {
            SGLANG.is_match(line).then_some(InferenceServer::Sglang)
        }
    }
}

/// Text of a log without white space, as it is searched for messages, and the lines that it comes from.
pub(crate) struct SearchedText<'a> {
    pub(crate) text: &'a str,
    /// What begins at this position or later is searched again, with the text that follows.
    pub(crate) end: usize,
    starts: &'a [Start],
}

/// Where a piece of text comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TextOrigin {
    /// The line on which it begins, from 1.
    pub(crate) line: u64,
    pub(crate) rank: Option<u32>,
    pub(crate) pid: Option<u64>,
    /// Whether it is a line of source code in a traceback.
    pub(crate) is_code: bool,
}

impl SearchedText<'_> {
    /// The line at a position of the text.
    pub(crate) fn origin(&self, at: usize) -> TextOrigin {
        let start = self.starts.partition_point(|start| start.at <= at).saturating_sub(1);
        let unknown = TextOrigin { line: 1, rank: None, pid: None, is_code: false };
        self.starts.get(start).map_or(unknown, |&Start { line, rank, pid, is_code, .. }| TextOrigin {
            line,
            rank,
            pid,
            is_code,
        })
    }
}

/// Looks for something else than messages in the text of a log, which is cleaned only once.
pub(crate) trait TextObserver {
    fn observe(&mut self, text: &SearchedText<'_>);
}

impl TextObserver for () {
    fn observe(&mut self, _: &SearchedText<'_>) {}
}

/// Bytes of text that are searched at once.
const SEARCH_CHUNK_BYTES: usize = 1 << 20;
/// Maximum length of a message without its white space, in bytes.
const MAX_MESSAGE_BYTES: usize = 8 << 10;
/// Maximum number of messages between one and its repetition in part: those of the other ranks.
const MAX_REPEAT_DISTANCE: usize = 64;
/// Different messages that are kept; a job that skips a batch on every failure can print any number.
const MAX_MESSAGES: usize = 2_000;
/// Maximum length of a line in bytes; a longer one is read in parts.
const MAX_LINE_BYTES: usize = 1 << 20;

impl MessageReader {
    /// Reads the next piece of the log.
    pub fn read(&mut self, bytes: &[u8]) {
        self.read_observed(bytes, &mut ());
    }

    /// Reads the next piece of the log, and shows its text to an observer.
    pub(crate) fn read_observed(&mut self, bytes: &[u8], observer: &mut dyn TextObserver) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.begun.is_empty() && part.ends_with(b"\n") {
                self.take_line(part, observer);
                continue;
            }
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() > MAX_LINE_BYTES {
                let line = std::mem::take(&mut self.begun);
                self.take_line(&line, observer);
            }
        }
    }

    /// Number of lines read, with the last one if it has no end.
    pub fn lines(&self) -> u64 {
        self.line + u64::from(!self.begun.is_empty())
    }

    /// The messages of all that was read, in its order, and how many more there were than are kept.
    pub fn finish(self) -> (Vec<Message>, u64) {
        self.finish_observed(&mut ())
    }

    /// The same, with the rest of the text for an observer.
    pub(crate) fn finish_observed(mut self, observer: &mut dyn TextObserver) -> (Vec<Message>, u64) {
        let last = std::mem::take(&mut self.begun);
        self.take_line(&last, observer);
        self.look_through(self.text.len(), observer);
        self.drop_echoes();
        self.found.iter_mut().for_each(|message| message.server = self.server);
        (self.found, self.more)
    }

    fn take_line(&mut self, bytes: &[u8], observer: &mut dyn TextObserver) {
        let line = self.line + 1;
        if bytes.ends_with(b"\n") {
            self.line = line;
        }
        let text = String::from_utf8_lossy(bytes);
        let text = narrow(&text);
        // A progress bar redraws itself after each carriage return.
        text.trim_end_matches(['\n', '\r']).split('\r').for_each(|part| self.take_part(part, line));
        if self.text.len() > SEARCH_CHUNK_BYTES {
            self.look_through(self.text.len() - MAX_MESSAGE_BYTES, observer);
        }
    }

    fn take_part(&mut self, part: &str, line: u64) {
        let clean = clean(part);
        if clean.text.is_empty() {
            return;
        }
        self.frames.look_at(line, clean.rank, &clean.text);
        let code = clean.text.trim_start();
        let is_code = code.starts_with("raise ") || code.starts_with("if ");
        let at = self.text.len();
        self.starts.push(Start { at, line, rank: clean.rank, pid: clean.pid, is_code });
        self.is_killer_named |= names_killer(code);
        self.server = self.server.or_else(|| InferenceServer::of(part));
        if is_killed(code) {
            self.add(MessageKind::Killed, Backend::Host, None, Numbers::default(), line, clean.rank);
        }
        if code.trim_end() == "MemoryError" {
            self.add(MessageKind::Python, Backend::Host, None, Numbers::default(), line, clean.rank);
        }
        squeeze(&clean.text, &mut self.text);
    }

    /// Looks for messages that begin before `end`, and forgets the text up to there.
    fn look_through(&mut self, end: usize, observer: &mut dyn TextObserver) {
        let text = std::mem::take(&mut self.text);
        let mut end = end;
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let mut at = 0;
        let mut talk = ErrorTalk::default();
        while let Some(found) = BEGINNING.find_at(&text, at).filter(|found| found.start() < end) {
            at = found.start() + self.message_at(&text, found.start(), &mut talk);
            while !text.is_char_boundary(at) {
                at += 1;
            }
        }
        let keep = at.max(end).min(text.len());
        observer.observe(&SearchedText { text: &text, end: keep, starts: &self.starts });
        let kept_starts = self.starts.partition_point(|start| start.at <= keep).saturating_sub(1);
        self.starts.drain(..kept_starts);
        self.starts.iter_mut().for_each(|start| start.at = start.at.saturating_sub(keep));
        self.text.push_str(&text[keep..]);
    }

    /// Reads the message at this position; returns how many bytes it has.
    fn message_at(&mut self, whole: &str, at: usize, talk: &mut ErrorTalk) -> usize {
        let text = &whole[..whole.ceil_char_boundary(at + MAX_MESSAGE_BYTES)];
        let start = self.starts.partition_point(|start| start.at <= at).saturating_sub(1);
        let (line, rank, is_code, begins) = self
            .starts
            .get(start)
            .map_or((1, None, false, 0), |start| (start.line, start.rank, start.is_code, start.at));
        let (before, rest) = text.split_at(at);
        let read = |rest| matching::read(rest).or_else(|| allocator_message::read(rest));
        let Some(parsed) = read(rest) else {
            return rest.chars().next().map_or(1, char::len_utf8);
        };
        let next_line = self.line_that_begins_in_last_number(text, at + parsed.end);
        let parsed = next_line.and_then(|next| read(&text[at..next])).unwrap_or(parsed);
        let end = at + parsed.end;
        let ends_line = self.starts.binary_search_by_key(&end, |start| start.at).is_ok() || end >= text.len();
        let begins = begins.min(at);
        let is_error = |talk: &mut ErrorTalk| {
            let line_end = self.starts.get(start + 1).map_or(whole.len(), |next| next.at);
            let talks = talk.is_before(at, begins, &whole[begins..line_end.max(at)]);
            let context = MessageContext { before, of_line: at - begins, after: &text[end..], ends_line };
            !talks && context.is_of_an_error(parsed.kind.row().bare)
        };
        let is_bare = parsed.numbers.is_empty() && parsed.device.is_none();
        if !is_code && !parsed.is_harmless && (!is_bare || is_error(talk)) {
            let is_pinning = parsed.kind == MessageKind::CudaError && self.frames.is_pinning(line, rank);
            let (kind, backend) =
                if is_pinning { (MessageKind::Pinned, Backend::Host) } else { (parsed.kind, parsed.backend) };
            self.add(kind, backend, parsed.device, parsed.numbers, line, rank);
        }
        parsed.end.max(1)
    }

    /// Where a line begins in the number before `end`. Unless the number ends as in a sentence, where it may
    /// have been wrapped, the line has a number of its own: a time, the percentage of a progress bar.
    fn line_that_begins_in_last_number(&self, text: &str, end: usize) -> Option<usize> {
        let digits = text[..end].bytes().rev().take_while(u8::is_ascii_digit).count();
        let first = self.starts.partition_point(|start| start.at <= end - digits);
        let begins = self.starts.get(first).map(|start| start.at).filter(|&begins| begins < end)?;
        let line_end = self.starts.get(first + 1).map_or(text.len(), |next| next.at.min(text.len()));
        let mut after = text[end..line_end.max(end)].chars();
        let is_sentence = after.next().is_none_or(|letter| ".,;)\\\"'".contains(letter))
            && !after.next().is_some_and(|letter| letter.is_ascii_digit());
        (!is_sentence).then_some(begins)
    }

    fn add(
        &mut self,
        kind: MessageKind,
        backend: Backend,
        device: Option<u32>,
        numbers: Numbers,
        line: u64,
        rank: Option<u32>,
    ) {
        let mut message = Message {
            kind,
            backend,
            device,
            rank,
            numbers,
            lines: vec![line],
            count: 1,
            site: None,
            server: None,
        };
        let key = format!("{kind:?} {device:?} {:?}", message.numbers);
        let alike = self.known.get(&key).into_iter().flatten();
        let known = alike.copied().find(|&known| self.found[known].repeats(&message));
        if let Some(known) = known {
            let known = &mut self.found[known];
            known.count += 1;
            known.rank = known.rank.or(message.rank);
            if known.lines.len() < Message::LINES && known.lines.last() != Some(&line) {
                known.lines.push(line);
            }
        } else if self.found.len() < MAX_MESSAGES {
            // Looks through thousands of frames, which a message that repeats does not need.
            message.site = self.frames.above(line, rank);
            self.known.entry(key).or_default().push(self.found.len());
            self.found.push(message);
        } else {
            self.more += 1;
        }
    }

    /// Whether an allocator's complete message is nearby: repetitions are printed soon before or after it.
    fn is_cut_off(&self, place: usize) -> bool {
        let message = &self.found[place];
        let nearby =
            place.saturating_sub(MAX_REPEAT_DISTANCE)..(place + MAX_REPEAT_DISTANCE).min(self.found.len());
        message.kind.row().is_allocators
            && self.found[nearby].iter().any(|whole| {
                let same_rank = message.rank == whole.rank || message.rank.is_none() || whole.rank.is_none();
                let same_device = message.device.is_none() || message.device == whole.device;
                let same_kind = whole.kind.row().is_allocators && message.backend == whole.backend;
                same_rank && same_device && same_kind && message.numbers.is_part_of(&whole.numbers)
            })
    }

    /// Copies the limit of a container, which the kernel writes above the process that it kills there.
    fn copy_cgroup_limits(&mut self) {
        let mut usage = None;
        for message in self.found.iter_mut().filter(|message| message.kind == MessageKind::Cgroup) {
            if message.numbers.limit.is_some() {
                usage = Some((message.numbers.used, message.numbers.limit));
            } else if let (Some((used, limit)), Some(_)) = (usage, message.numbers.resident) {
                (message.numbers.used, message.numbers.limit) = (used, limit);
            }
        }
    }

    /// Drops what only repeats another message with less in it: the shell's "Killed" below the kernel's own
    /// record, the line of an exception that a logger has shortened.
    fn drop_echoes(&mut self) {
        self.copy_cgroup_limits();
        let kernel =
            self.found.iter().any(|message| message.kind.is_kernels() && message.numbers.resident.is_some());
        let host = self.found.iter().any(|message| message.kind.row().explains_kill);
        let is_cut_off: Vec<bool> = (0..self.found.len()).map(|place| self.is_cut_off(place)).collect();
        let mut is_cut_off = is_cut_off.into_iter();
        self.found.retain(|message| match message.kind {
            _ if is_cut_off.next() == Some(true) => false,
            MessageKind::Killed => !host && !self.is_killer_named,
            kind if kind.is_kernels() => !(kernel && message.numbers.resident.is_none()),
            _ => true,
        });
        self.found.sort_by_key(Message::line);
    }
}

static BEGINNING: LazyLock<Regex> = LazyLock::new(|| {
    let all = format!("{}|{}", allocator_message::BEGINNINGS, matching::beginnings());
    pattern(&all)
});

/// A line that says who kills processes, and not for their memory: a scheduler at a time limit, or Docker
/// Compose.
fn names_killer(line: &str) -> bool {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| {
        pattern(concat!(
            r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|TERM_RUNLIMIT|",
            r"^Gracefully stopping"
        ))
    });
    NAMED.is_match(line)
}

/// A line that says that a program was killed: a shell's, alone or with the number of the job and the
/// command, or one that names the exit code. Numbers at the end of a line are only safe to read as long as
/// lines are.
fn is_killed(line: &str) -> bool {
    static KILLED: LazyLock<Regex> = LazyLock::new(|| {
        let shell = concat!(
            r"^(?:Killed(?:: 9)?\s*$|(?:[\w./-]+: )?(?:line \d+: )?\s*\d+ Killed\s|",
            r"\[\d+\]\s*\+?\s*\d* ?[Kk]illed\s|zsh: killed\s)"
        );
        let code = concat!(
            r"(?i-u:exit ?code|exit status|return ?code|with code|status)[ :=(]*(?:137|-9)(?:\s*$|",
            r"[^\w\s]|\s+(?:[(\[-]|pid|on |at |after ))"
        );
        pattern(&format!("{shell}|{code}"))
    });
    static ADVICE: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r"(?:^|\s)(?:[Ii]f|[Ww]hen|means|indicates|shows?|e\.g\.|usually|exits? with)\s")
    });
    let may_be = line.contains("illed") || line.contains("137") || line.contains("-9");
    may_be && !ADVICE.is_match(line) && KILLED.is_match(line)
}
