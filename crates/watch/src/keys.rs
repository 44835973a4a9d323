//! What the keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    Quit,
    Up,
    Down,
    Dump,
    Sites,
    Pause,
    Help,
}

/// What a key asks for.
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

/// For the last line.
pub const KEY_SUMMARY: &str = "q quit  ↑↓ choose  d write a recording  s lines  p pause  ? help";

/// For the help.
pub const KEY_HELP: [(&str, &str); 6] = [
    ("q, Esc, Ctrl-C", "quit; the programs go on"),
    ("up, down, j, k", "choose another rank or GPU"),
    ("d", "ask the chosen program to write a recording now"),
    ("s", "show or hide the lines of code that hold most"),
    ("p, space", "stand still, and go on"),
    ("?", "this help"),
];
