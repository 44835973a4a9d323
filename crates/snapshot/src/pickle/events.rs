//! Takes events off the window, several spans at a time, and puts the spans together in order.

use super::machine::Machine;
use super::span::{Known, Span};
use super::value::{Kind, Value};
use crate::error::Error;
use crate::stacks::StackId;
use std::io::Read;
use std::thread;

/// Below this a second thread costs more than it saves.
const SMALLEST: usize = 128 << 10;
const LARGEST: usize = 1 << 20;

/// The spans that decode at the same time, and how their numbers translate into the machine's.
pub(super) struct Ahead {
    workers: Vec<Worker>,
    /// Bytes to give each worker: grows while all goes well, starts over when a span had to stop.
    stretch: usize,
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
        Ahead { workers: (0..count).map(|_| worker()).collect(), stretch: SMALLEST }
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
        let Ahead { workers, stretch } = &mut self.ahead;
        let starts = split(bytes, workers, *stretch);
        let last_end = starts.len() * *stretch;
        let ends = starts.iter().copied().skip(1).chain([last_end]);
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
        let mut taken = 0;
        self.ahead.stretch = (self.ahead.stretch * 2).min(LARGEST);
        for (place, &start) in starts.iter().enumerate() {
            // A span counts only if the one before it ended where it begins.
            if taken != start {
                self.ahead.stretch = SMALLEST;
                break;
            }
            taken += self.ahead.workers[place].span.length;
            self.merge(place)?;
        }
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
                return Err(Error::malformed(offset, format!("frames that refer to memo {slot}, which is no stack,")));
            };
            self.builder.events.set_stack((first_row + row) as usize, stack);
        }
        let (batches, rows) = (std::mem::take(&mut span.batches), span.rows.len() as u32);
        let mut from = 0;
        for to in batches {
            self.stack.extend((from..to).map(|row| Value::new(Kind::Event(first_row + row))));
            self.step(b'e')?;
            self.step(b'(')?;
            from = to;
        }
        self.stack.extend((from..rows).map(|row| Value::new(Kind::Event(first_row + row))));
        Ok(())
    }
}

/// Where each worker begins: at the first event of its stretch, if there is enough for more than one.
fn split(bytes: &[u8], workers: &[Worker], stretch: usize) -> Vec<usize> {
    let mut starts = vec![0];
    let Some(event_start) = workers.first().and_then(|worker| worker.span.event_start()) else { return starts };
    for from in (1..workers.len()).map(|place| place * stretch) {
        let Some(rest) = bytes.get(from..).filter(|rest| rest.len() >= SMALLEST) else { break };
        match rest.windows(event_start.len()).position(|found| found == event_start) {
            Some(offset) => starts.push(from + offset),
            None => break,
        }
    }
    starts
}
