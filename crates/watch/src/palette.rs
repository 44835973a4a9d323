//! Colours, and the letters that do without them.

use crate::verdict::Tone;
use ratatui::style::{Color, Modifier, Style};

/// How things look on this terminal.
#[derive(Clone, Copy)]
pub struct Palette {
    has_color: bool,
    is_unicode: bool,
}

/// What a part of a device's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Tensors,
    Cached,
    NonPyTorch,
    Others,
    UnknownOwner,
    Free,
}

impl Part {
    pub const ALL: [Part; 6] =
        [Part::Tensors, Part::Cached, Part::NonPyTorch, Part::Others, Part::UnknownOwner, Part::Free];

    pub fn name(self) -> &'static str {
        match self {
            Part::Tensors => "tensors",
            Part::Cached => "cached",
            Part::NonPyTorch => "outside PyTorch",
            Part::Others => "other processes",
            Part::UnknownOwner => "driver and unseen",
            Part::Free => "free",
        }
    }
}

impl Palette {
    pub fn new(has_color: bool) -> Palette {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        // Where nothing is said, as in a container, terminals of today are taken for what they are.
        let is_unicode =
            locale.is_none_or(|locale| locale.to_ascii_lowercase().replace('-', "").contains("utf8"));
        Palette { has_color, is_unicode }
    }

    fn color(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    pub fn part(self, part: Part) -> (char, Style) {
        let (letter, plain, color) = match part {
            Part::Tensors => ('█', '#', Color::Cyan),
            Part::Cached => ('▓', '=', Color::Blue),
            Part::NonPyTorch => ('▒', '%', Color::Magenta),
            Part::Others => ('░', 'o', Color::Yellow),
            Part::UnknownOwner => ('╌', '-', Color::DarkGray),
            Part::Free => ('·', '.', Color::DarkGray),
        };
        (if self.is_unicode { letter } else { plain }, self.color(color))
    }

    /// Tensors that a step needs and gives back.
    pub fn within_steps(self) -> (char, Style) {
        (if self.is_unicode { '▒' } else { '+' }, self.color(Color::LightCyan))
    }

    pub fn tone(self, tone: Tone) -> Style {
        match tone {
            Tone::Bad => self.color(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Unsure => self.color(Color::Yellow),
            Tone::Good => self.color(Color::Green),
            Tone::Quiet => self.dim(),
        }
    }

    pub fn dim(self) -> Style {
        if self.has_color {
            Style::new().fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The row that is chosen.
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Whether a cell can show two colours, and eighths of itself.
    pub fn is_fine(self) -> bool {
        self.has_color && self.is_unicode
    }

    /// The letters of axes: upright, corner, lying, a mark on it.
    pub fn axis(self) -> [char; 4] {
        if self.is_unicode { ['│', '└', '─', '┴'] } else { ['|', '+', '-', '+'] }
    }
}
