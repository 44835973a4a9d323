//! Keys of the screen and their actions.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    /// Quits.
    Quit,
    /// Chooses the row above.
    Up,
    /// Chooses the row below.
    Down,
    /// Asks the chosen program to write a recording.
    Dump,
    /// Shows or hides the lines of code that hold most.
    Sites,
    /// Pauses or resumes the screen.
    Pause,
    /// Shows or hides the help.
    Help,
}

/// Returns the action of a key, if it has one.
pub fn action(key: KeyEvent) -> Option<KeyAction> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if is_control => KeyAction::Quit,
        _ if is_control => return None,
        KeyCode::Char('q') | KeyCode::Esc => KeyAction::Quit,
        KeyCode::Up | KeyCode::Char('k') => KeyAction::Up,
        KeyCode::Down | KeyCode::Char('j') | KeyCode::Tab => KeyAction::Down,
        KeyCode::Char('d') => KeyAction::Dump,
        KeyCode::Char('s') => KeyAction::Sites,
        KeyCode::Char('p' | ' ') => KeyAction::Pause,
        KeyCode::Char('?' | 'h') => KeyAction::Help,
        _ => return None,
    })
}

/// Summary of the keys, for the last line of the screen.
pub const KEY_SUMMARY: &str = "q quit  ↑↓ choose  d write a recording  s lines  p pause  ? help";

/// Keys and what they do, for the help.
pub const KEY_HELP: [(&str, &str); 6] = [
    ("q, Esc, Ctrl-C", "quit; the programs continue"),
    ("up, down, j, k", "choose another rank or GPU"),
    ("d", "ask the chosen program to write a recording now"),
    ("s", "show or hide the lines of code that hold most"),
    ("p, space", "pause or resume the screen"),
    ("?", "this help"),
];
