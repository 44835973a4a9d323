//! Takes events off the window, several spans at a time, and puts the spans together in order.

use super::machine::{Machine, ROOM};
use super::span::{Known, Span};
use super::value::{Kind, Value};
use crate::error::Error;
use crate::stacks::StackId;
use std::io::Read;
use std::thread;

/// Below this a second thread costs more than it saves.
const WORTH_A_THREAD: usize = 128 << 10;
/// Most that one worker decodes at a time.
const STRETCH: usize = 1 << 20;
/// After something unusual, this much must go well before several workers start again: where one span ends early,
/// what the others decoded behind it is lost.
const TRUST: usize = 256 << 10;

/// The spans that decode at the same time, and how their numbers translate into the machine's.
pub(super) struct Ahead {
    workers: Vec<Worker>,
    /// Bytes decoded since a span had to stop.
    trusted: usize,
}

struct Worker {
    span: Span,
    /// Global stack of each stack of the span.
    stacks: Vec<StackId>,
    /// Global context of each context of the span.
    contexts: Vec<u32>,
}

impl Ahead {
    pub(super) fn new() -> Ahead {
        let count = thread::available_parallelism().map_or(1, usize::from).clamp(1, 8);
        let worker = || Worker { span: Span::default(), stacks: Vec::new(), contexts: Vec::new() };
        Ahead { workers: (0..count).map(|_| worker()).collect(), trusted: 0 }
    }

    /// Bytes of memory that the workers keep from window to window.
    pub(super) fn footprint(&self) -> usize {
        let translations = |worker: &Worker| (worker.stacks.len() + worker.contexts.len()) * 4;
        self.workers.iter().map(|worker| worker.span.footprint() + translations(worker)).sum()
    }

    /// A memo slot got another value: what refers to it no longer means the same.
    pub(super) fn forget(&mut self) {
        for worker in &mut self.workers {
            worker.span.forget();
        }
    }
}

impl<R: Read> Machine<R> {
    /// Takes as many events as stand at the current position, if any.
    #[inline]
    pub(super) fn take_events(&mut self) -> Result<(), Error> {
        while self.window.rest().first() == Some(&b'}') && self.take_spans()? {}
        Ok(())
    }

    /// Decodes the next stretches of the window; says whether to go on.
    fn take_spans(&mut self) -> Result<bool, Error> {
        let bytes = self.window.rest();
        let known = Known { memo: &self.memo, nodes: &self.nodes, strings: &self.builder.strings };
        let Ahead { workers, trusted } = &mut self.ahead;
        let count = if *trusted < TRUST { 1 } else { workers.len() };
        let stretch = if count == 1 { TRUST } else { (bytes.len() / count).min(STRETCH) };
        let starts = split(bytes, &workers[..count], stretch);
        let end = (starts.len() * stretch).min(bytes.len());
        let ends = starts.iter().copied().skip(1).chain([end]);
        let mut jobs = workers.iter_mut().zip(starts.iter().copied().zip(ends));
        thread::scope(|scope| {
            let first = jobs.next();
            for (worker, (start, end)) in jobs {
                scope.spawn(move || worker.span.decode(&bytes[start..], end - start, known));
            }
            if let Some((worker, (start, end))) = first {
                worker.span.decode(&bytes[start..], end - start, known);
            }
        });
        // An event that the end of the window cuts is nothing unusual.
        let end = end.min(bytes.len().saturating_sub(ROOM));
        let mut taken = 0;
        for (place, &start) in starts.iter().enumerate() {
            // A span counts only if the one before it ended where it begins.
            if taken != start {
                break;
            }
            taken += self.ahead.workers[place].span.length;
            self.merge(place)?;
        }
        self.ahead.trusted = if taken < end { 0 } else { self.ahead.trusted.saturating_add(taken) };
        self.window.advance(taken);
        Ok(taken > 0)
    }

    /// Adds a span to the tables, the memo and the stack, as if the machine had read it.
    fn merge(&mut self, place: usize) -> Result<(), Error> {
        let Worker { span, stacks, contexts } = &mut self.ahead.workers[place];
        for local in stacks.len()..span.habits.stacks.len() {
            stacks.push(self.builder.stacks.intern(span.habits.stacks.frames(StackId(local as u32))));
        }
        for context in &span.habits.contexts.all()[contexts.len()..] {
            contexts.push(self.builder.context(*context));
        }
        let first_row = self.builder.events.len() as u32;
        self.builder.add_rows(&span.rows, stacks, contexts);
        self.memo.extend(span.memo.iter().map(|value| match value.kind() {
            Kind::Event(row) => Value::new(Kind::Event(first_row + row)),
            Kind::Stack(stack) => Value::new(Kind::Stack(stacks[stack.0 as usize])),
            _ => *value,
        }));
        for &(row, slot) in &span.pending {
            // A slot that holds no stack means a strange writer; the event keeps its place without one.
            let value = self.memo.get(slot as usize).map(|value| self.nodes.resolve(*value).kind());
            let Some(Kind::Stack(stack)) = value else {
                let offset = self.window.offset();
                return Err(Error::malformed(
                    offset,
                    format!("frames that refer to memo {slot}, which is no stack,"),
                ));
            };
            self.builder.events.set_stack((first_row + row) as usize, stack);
        }
        let (batches, rows) = (std::mem::take(&mut span.batches), span.rows.len() as u32);
        let mut from = 0;
        for to in batches {
            // Opcodes `e(`: the events since the mark go into the list below it, and a new mark is set.
            if !self.append_rows(first_row + from, to - from) {
                self.stack.extend((from..to).map(|row| Value::new(Kind::Event(first_row + row))));
                self.step(b'e')?;
                self.step(b'(')?;
            }
            from = to;
        }
        self.stack.extend((from..rows).map(|row| Value::new(Kind::Event(first_row + row))));
        Ok(())
    }
}

impl<R> Machine<R> {
    /// Appends whole rows to the list below the topmost mark, if nothing stands on the mark.
    fn append_rows(&mut self, first: u32, count: u32) -> bool {
        match (self.marks.last(), self.stack.last().map(|top| top.kind())) {
            (Some(&mark), Some(Kind::List(list))) if mark == self.stack.len() => {
                self.nodes.append_events(list, first, count)
            }
            _ => false,
        }
    }
}

/// Where each worker begins: at the first event of its stretch, if there is enough for more than one.
fn split(bytes: &[u8], workers: &[Worker], stretch: usize) -> Vec<usize> {
    let mut starts = vec![0];
    let Some(event_start) = workers.first().and_then(|worker| worker.span.event_start()) else {
        return starts;
    };
    for from in (1..workers.len()).map(|place| place * stretch) {
        let Some(rest) = bytes.get(from..).filter(|rest| rest.len() >= WORTH_A_THREAD) else { break };
        match rest.windows(event_start.len()).position(|found| found == event_start) {
            Some(offset) => starts.push(from + offset),
            None => break,
        }
    }
    starts
}
