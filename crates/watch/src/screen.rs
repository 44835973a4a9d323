//! The screen: a list of rows if there are several, details of the chosen one, and the keys.

use crate::details::Details;
use crate::keys::{self, KeyAction};
use crate::palette::Palette;
use crate::signals;
use crate::state::{WatchRow, WatchState};
use crate::verdict::{GrowthVerdict, Tone, duration, process_status};
use analysis::words::{grouped, printable, shortened};
use live::Watcher;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};
use snapshot::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// Time between two frames. Keys are handled at once.
const FRAME_INTERVAL: Duration = Duration::from_millis(250);

/// Draws the screen until the user quits. Restores the terminal afterwards, even after a panic or a signal.
pub fn run(watcher: &Watcher, has_color: bool) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    signals::exit_on_signals()?;
    let mut screen = Screen::new(watcher, has_color);
    let result = loop {
        screen.refresh();
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        match wait_for_key() {
            Ok(Some(KeyAction::Quit)) => break Ok(()),
            Ok(Some(action)) => screen.act(action),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore()?;
    Ok(result?)
}

fn wait_for_key() -> io::Result<Option<KeyAction>> {
    if !event::poll(FRAME_INTERVAL)? {
        return Ok(None);
    }
    match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => Ok(keys::action(key)),
        _ => Ok(None),
    }
}

struct Screen<'a> {
    watcher: &'a Watcher,
    state: WatchState,
    /// Key of the chosen row.
    chosen: String,
    shows_sites: bool,
    is_paused: bool,
    shows_help: bool,
    /// Result of the last key.
    message: Option<String>,
    /// Requested recordings: name of the recorder, and number of recordings it had written before.
    dumps: BTreeMap<String, u64>,
    palette: Palette,
}

impl Screen<'_> {
    fn new(watcher: &Watcher, has_color: bool) -> Screen<'_> {
        let state = WatchState::new(watcher);
        let chosen = state.rows.first().map(WatchRow::key).unwrap_or_default();
        Screen {
            watcher,
            state,
            chosen,
            shows_sites: true,
            is_paused: false,
            shows_help: false,
            message: None,
            dumps: BTreeMap::new(),
            palette: Palette::new(has_color),
        }
    }

    fn refresh(&mut self) {
        if !self.is_paused {
            self.state = WatchState::new(self.watcher);
        }
        if !self.state.rows.iter().any(|row| row.key() == self.chosen) {
            self.chosen = self.state.rows.first().map(WatchRow::key).unwrap_or_default();
        }
        self.report_finished_dumps();
    }

    fn report_finished_dumps(&mut self) {
        for row in &self.state.rows {
            let WatchRow::Recorded { name, recorder, .. } = row else { continue };
            if self.dumps.get(name).is_some_and(|&before| recorder.state.dumps > before) {
                self.dumps.remove(name);
                let folder = printable(&recorder.state.folder).into_owned();
                self.message = Some(format!("recording written: oomph report {folder}"));
            }
        }
    }

    fn chosen_index(&self) -> usize {
        self.state.rows.iter().position(|row| row.key() == self.chosen).unwrap_or(0)
    }

    fn act(&mut self, action: KeyAction) {
        self.message = None;
        let rows = self.state.rows.len();
        match action {
            KeyAction::Up | KeyAction::Down if rows > 0 => {
                let step = if action == KeyAction::Up { rows - 1 } else { 1 };
                self.chosen = self.state.rows[(self.chosen_index() + step) % rows].key();
            }
            KeyAction::Dump => self.dump(),
            KeyAction::Sites => {
                self.shows_sites = !self.shows_sites;
                self.watcher.want_stacks(self.shows_sites);
            }
            KeyAction::Pause => self.is_paused = !self.is_paused,
            KeyAction::Help => self.shows_help = !self.shows_help,
            KeyAction::Up | KeyAction::Down | KeyAction::Quit => {}
        }
    }

    fn dump(&mut self) {
        let message = match self.state.rows.get(self.chosen_index()) {
            Some(WatchRow::Recorded { recorder, .. }) if recorder.exit.is_some() => {
                "the process has ended".to_owned()
            }
            Some(WatchRow::Recorded { name, recorder, .. }) => {
                if self.watcher.dump(name) {
                    self.dumps.insert(name.clone(), recorder.state.dumps);
                    format!("asked process {} for a recording …", recorder.state.pid)
                } else {
                    "a recording can only be requested on the machine itself".to_owned()
                }
            }
            _ => "no recorder here can write one".to_owned(),
        };
        self.message = Some(message);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rows = self.state.rows.len() as u16;
        // At most a third of the screen for the list, and only if there is a choice.
        let list = if rows > 1 { rows.min(frame.area().height / 3).max(1) + 1 } else { 0 };
        let [head, list, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(list),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(head), head);
        if self.shows_help {
            frame.render_widget(self.help(), Rect { height: list.height + body.height, ..list.union(body) });
        } else {
            self.draw_list(frame, list);
            match self.state.rows.get(self.chosen_index()) {
                Some(row) => {
                    let details = Details { row, shows_sites: self.shows_sites, palette: self.palette };
                    frame.render_widget(details, body);
                }
                None => frame.render_widget(self.no_rows(), body),
            }
        }
        let foot_text = match (&self.message, self.is_paused) {
            (Some(message), _) => Line::styled(message.clone(), self.palette.tone(Tone::Unsure)),
            (None, true) => Line::styled("paused: p resumes", self.palette.tone(Tone::Unsure)),
            (None, false) => match self.state.notes.first() {
                Some(note) => Line::styled(note.clone(), self.palette.tone(Tone::Unsure)),
                None => Line::styled(keys::KEY_SUMMARY, self.palette.dim()),
            },
        };
        frame.render_widget(foot_text, foot);
    }

    fn head(&self, area: Rect) -> Line<'static> {
        let mut spans = vec![Span::styled("oomph watch", self.palette.bold())];
        if let Some(WatchRow::Recorded { recorder, .. }) = self.state.rows.get(self.chosen_index()) {
            let state = &recorder.state;
            let rank =
                state.rank.map(|rank| format!(" · rank {rank} of {}", state.world_size)).unwrap_or_default();
            let pace =
                recorder.time_per_step().map(|time| format!(", {} each", duration(time))).unwrap_or_default();
            let text = format!("   {}{rank} · step {}{pace}", state.job(), grouped(state.count));
            let room = usize::from(area.width).saturating_sub("oomph watch".len());
            spans.push(Span::raw(shortened(&printable(&text), room.max(2))));
        }
        Line::from(spans)
    }

    /// Draws one line per row; if not all fit, those around the chosen one.
    fn draw_list(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(height) = area.height.checked_sub(1).filter(|&height| height > 0) else { return };
        let (height, chosen) = (usize::from(height), self.chosen_index());
        let first = chosen.saturating_sub(height / 2).min(self.state.rows.len().saturating_sub(height));
        let shown = self.state.rows.iter().enumerate().skip(first).take(height);
        let lines: Vec<Line<'_>> =
            shown.map(|(at, row)| self.list_line(row, at == chosen, area.width)).collect();
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn list_line(&self, row: &WatchRow, is_chosen: bool, width: u16) -> Line<'static> {
        let width = usize::from(width);
        let name = shortened(&row.title(), 28.min(width / 3).max(2));
        let (numbers, short, tone) = match row {
            WatchRow::Recorded { recorder, device, .. } => {
                let verdict = GrowthVerdict::new(recorder, device.device);
                let (tone, short) = match process_status(recorder) {
                    Some((tone, status)) => (tone, status),
                    None => (verdict.tone, verdict.short),
                };
                let (allocated, reserved) =
                    (Bytes(device.allocated).to_string(), Bytes(device.reserved).to_string());
                (format!("{allocated:>9} tensors {reserved:>9} reserved"), short, tone)
            }
            WatchRow::DriverOnly(gpu) => {
                let (used, total) = (Bytes(gpu.used).to_string(), Bytes(gpu.total));
                (format!("{used:>9} in use of {total}"), String::new(), Tone::Quiet)
            }
        };
        let text = format!("{name:<28} {numbers:<37}");
        let room = width.saturating_sub(text.chars().count() + 1);
        let line = Line::from(vec![
            Span::raw(text),
            Span::raw(" "),
            Span::styled(shortened(&printable(&short), room.max(2)), self.palette.tone(tone)),
        ]);
        if is_chosen { line.style(self.palette.chosen()) } else { line }
    }

    fn help(&self) -> Paragraph<'static> {
        let mut lines = vec![Line::default()];
        for (key, what) in keys::KEY_HELP {
            lines.push(Line::from(vec![
                Span::styled(format!("  {key:<16}"), self.palette.bold()),
                Span::raw(what),
            ]));
        }
        lines.push(Line::default());
        lines.push(Line::raw(
            "  Tensors are live; cached memory is reserved by PyTorch and free for new tensors.",
        ));
        lines.push(Line::raw(
            "  Timeline: tensors at the ends of steps, memory used within steps above, reserved on top.",
        ));
        Paragraph::new(lines)
    }

    fn no_rows(&self) -> Paragraph<'static> {
        let mut text = "No program of yours is being recorded. Start one with `oomph run train.py`, or call \
            `oomph.record()` in it: it appears here once it uses CUDA."
            .to_owned();
        if let Some(why) = &self.state.no_driver {
            text.push_str(&format!("\n\nNo GPU is visible either: {why}."));
        }
        Paragraph::new(text).wrap(Wrap { trim: true })
    }
}
