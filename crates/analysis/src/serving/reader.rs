//! Reads a log once, for its messages and for the figures of the engine that wrote it.

use super::figures::{EngineLaunch, WorkerName};
use super::lines::{FoundLine, LineEvent, next_line};
use super::{Engine, ServingFailure, ServingReport, Stage};
use crate::messages::{Message, MessageReader, SearchedText, TextObserver, TextOrigin};
use snapshot::Bytes;

/// Finds messages and an engine's figures in a log that is handed over in pieces.
#[derive(Default)]
pub struct LogReader {
    messages: MessageReader,
    launches: LastLaunch,
}

impl LogReader {
    /// Reads the next piece of the log.
    pub fn read(&mut self, bytes: &[u8]) {
        self.messages.read_observed(bytes, &mut self.launches);
    }

    /// Number of lines read, with the last one if it has no end.
    pub fn lines(&self) -> u64 {
        self.messages.lines()
    }

    /// The messages of all that was read, how many more there were than are kept, and what an engine's last
    /// launch shows. `gpu_memory` is the memory of its GPU, for logs that do not have it.
    pub fn finish(mut self, gpu_memory: Option<Bytes>) -> (Vec<Message>, u64, Option<ServingReport>) {
        let (messages, more) = self.messages.finish_observed(&mut self.launches);
        let serving = ServingReport::new(&self.launches.launch, &messages, gpu_memory);
        (messages, more, serving)
    }
}

/// The last launch in a log: a container that is restarted again and again prints them all into one.
#[derive(Default)]
struct LastLaunch {
    launch: EngineLaunch,
}

impl TextObserver for LastLaunch {
    fn observe(&mut self, text: &SearchedText<'_>) {
        let mut at = 0;
        while let Some(found) = next_line(text.text, at).filter(|found| found.at < text.end) {
            at = found.end;
            let origin = text.origin(found.at);
            // A sentence that quotes a failure is none.
            let is_quoted = matches!(found.row.event, LineEvent::Failed(_))
                && text.text[..found.at].ends_with(['"', '\'', '“', '‘']);
            if !origin.is_code && !is_quoted {
                self.take(&found, origin);
            }
        }
    }
}

impl LastLaunch {
    fn take(&mut self, found: &FoundLine<'_>, origin: TextOrigin) {
        let (engine, event) = (found.row.engine, found.row.event);
        if event != LineEvent::Setting {
            self.begin(engine, event == LineEvent::Launch, origin.line);
        }
        let worker = WorkerName::of(origin);
        for &(name, figure) in &found.figures {
            self.launch.set(worker, name, figure);
        }
        match event {
            LineEvent::Reached(stage) if stage > self.launch.stage() => {
                self.launch.stages.push((origin.line, stage));
            }
            LineEvent::Failed(failure) => self.fail(failure, origin.line),
            _ => {}
        }
    }

    /// Begins another launch if this line belongs to one: the engine starts again, or another one does.
    fn begin(&mut self, engine: Engine, is_launch: bool, line: u64) {
        let launch = &mut self.launch;
        let has_run = launch.stage() > Stage::Starting || launch.failure.is_some();
        if launch.engine.is_some_and(|known| known != engine) || (is_launch && has_run) {
            *launch = EngineLaunch { line, ..EngineLaunch::default() };
        }
        launch.engine = Some(engine);
    }

    fn fail(&mut self, failure: ServingFailure, line: u64) {
        let is_warning = |failure: ServingFailure| failure == ServingFailure::Retracted;
        self.launch.retractions += u64::from(is_warning(failure));
        let known = self.launch.failure;
        if known.is_none_or(|(_, known)| is_warning(known) && !is_warning(failure)) {
            self.launch.failure = Some((line, failure));
        }
    }
}
