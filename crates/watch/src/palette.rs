//! Colors, and the symbols that replace them.

use crate::verdict::Tone;
use ratatui::style::{Color, Modifier, Style};

/// Colors and symbols that this terminal supports.
#[derive(Clone, Copy)]
pub struct Palette {
    has_color: bool,
    is_unicode: bool,
}

/// Part of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Memory of live tensors.
    Tensors,
    /// Memory reserved by PyTorch and not in use.
    Cached,
    /// Non-PyTorch memory of the process.
    NonPyTorch,
    /// Memory of other processes.
    Others,
    /// Memory in use by the driver or by processes that are not visible.
    UnknownOwner,
    /// Free memory.
    Free,
}

impl Part {
    /// All parts, in the order of the bar.
    pub const ALL: [Part; 6] =
        [Part::Tensors, Part::Cached, Part::NonPyTorch, Part::Others, Part::UnknownOwner, Part::Free];

    /// Returns the name in the legend.
    pub fn name(self) -> &'static str {
        match self {
            Part::Tensors => "tensors",
            Part::Cached => "cached",
            Part::NonPyTorch => "non-PyTorch",
            Part::Others => "other processes",
            Part::UnknownOwner => "driver and unknown",
            Part::Free => "free",
        }
    }
}

impl Palette {
    /// Returns the palette for the locale of the environment.
    pub fn new(has_color: bool) -> Palette {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        // Without a locale, as in a container, the terminal is assumed to support Unicode.
        let is_unicode =
            locale.is_none_or(|locale| locale.to_ascii_lowercase().replace('-', "").contains("utf8"));
        Palette { has_color, is_unicode }
    }

    fn color(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns the symbol and style of a part.
    pub fn part(self, part: Part) -> (char, Style) {
        let (symbol, ascii, color) = match part {
            Part::Tensors => ('█', '#', Color::Cyan),
            Part::Cached => ('▓', '=', Color::Blue),
            Part::NonPyTorch => ('▒', '%', Color::Magenta),
            Part::Others => ('░', 'o', Color::Yellow),
            Part::UnknownOwner => ('╌', '-', Color::DarkGray),
            Part::Free => ('·', '.', Color::DarkGray),
        };
        (if self.is_unicode { symbol } else { ascii }, self.color(color))
    }

    /// Returns the symbol and style of tensors that are freed within a step.
    pub fn within_steps(self) -> (char, Style) {
        (if self.is_unicode { '▒' } else { '+' }, self.color(Color::LightCyan))
    }

    /// Returns the style of a tone.
    pub fn tone(self, tone: Tone) -> Style {
        match tone {
            Tone::Bad => self.color(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Unsure => self.color(Color::Yellow),
            Tone::Good => self.color(Color::Green),
            Tone::Quiet => self.dim(),
        }
    }

    /// Returns the style of secondary text.
    pub fn dim(self) -> Style {
        if self.has_color {
            Style::new().fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    /// Returns the style of headings.
    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of the chosen row.
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns whether a cell can show two colors, divided at eighths of its height.
    pub fn is_fine(self) -> bool {
        self.has_color && self.is_unicode
    }

    /// Returns the symbols of axes: vertical, corner, horizontal, tick mark.
    pub fn axis(self) -> [char; 4] {
        if self.is_unicode { ['│', '└', '─', '┴'] } else { ['|', '+', '-', '+'] }
    }
}
