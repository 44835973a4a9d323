//! Values in words: as JSON where they are kept without a column, in short where a message names them.

use super::lower::Lowering;
use super::number::Number;
use super::value::{Kind, Value};

/// Longest text kept of a value that this version has no column for.
pub(super) const EXTRA_LIMIT: usize = 4 << 10;
/// Most items of a list or dictionary that are looked at for it.
pub(super) const MOST_ITEMS: usize = 1000;

impl Lowering<'_> {
    /// Writes any value as JSON. Shared and nested values could make the text explode, so it stops growing at
    /// a limit and says `"…"` from there on.
    pub(super) fn write_json(&self, value: Value, depth: u32, into: &mut String) {
        if into.len() > EXTRA_LIMIT || depth > 16 {
            into.push_str("\"…\"");
            return;
        }
        match self.nodes.resolve(value).kind() {
            Kind::Unset | Kind::None => into.push_str("null"),
            Kind::Bool(bool) => into.push_str(if bool { "true" } else { "false" }),
            Kind::Int(int) => into.push_str(&int.to_string()),
            Kind::Number(index) => match &self.nodes.numbers[index as usize] {
                Number::Wide(wide) => into.push_str(&wide.to_string()),
                Number::Float(float) if float.is_finite() => into.push_str(&format!("{float:?}")),
                Number::Float(float) => into.push_str(&json_string(&float.to_string())),
                Number::Huge(text) => into.push_str(&json_string(text)),
            },
            Kind::Str(text) => {
                into.push_str(&json_string(clipped(self.builder.strings.get(text), EXTRA_LIMIT)));
            }
            Kind::Pair(a, b) => into.push_str(&format!("[{a},{b}]")),
            Kind::List(_) | Kind::Tuple(_) => {
                into.push('[');
                for (place, item) in self.first_items(value, MOST_ITEMS).into_iter().enumerate() {
                    if place > 0 {
                        into.push(',');
                    }
                    self.write_json(item, depth + 1, into);
                    if into.len() > EXTRA_LIMIT {
                        break;
                    }
                }
                into.push(']');
            }
            Kind::Dict(_) => {
                into.push('{');
                for (place, (key, value)) in self.pairs(value).into_iter().take(MOST_ITEMS).enumerate() {
                    if place > 0 {
                        into.push(',');
                    }
                    let key = match key.kind() {
                        Kind::Str(text) => clipped(self.builder.strings.get(text), 200).to_owned(),
                        _ => self.describe(key),
                    };
                    into.push_str(&json_string(&key));
                    into.push(':');
                    self.write_json(value, depth + 1, into);
                    if into.len() > EXTRA_LIMIT {
                        break;
                    }
                }
                into.push('}');
            }
            Kind::Opaque
            | Kind::Event(_)
            | Kind::Block(_)
            | Kind::Segment(_)
            | Kind::Frame(_)
            | Kind::Stack(_) => {
                into.push_str(&json_string(&self.describe(value)));
            }
        }
    }

    /// A value in a few words, for messages.
    pub(super) fn describe(&self, value: Value) -> String {
        match self.nodes.resolve(value).kind() {
            Kind::Unset | Kind::None => "None".to_owned(),
            Kind::Bool(_) => "a boolean".to_owned(),
            Kind::Int(int) => format!("the number {int}"),
            Kind::Number(_) => "a number".to_owned(),
            Kind::Str(text) => {
                format!("`{}`", clipped(self.builder.strings.get(text), 60))
            }
            Kind::Opaque => "bytes or a set".to_owned(),
            Kind::List(_) => "a list that is not a list of segments".to_owned(),
            Kind::Tuple(_) | Kind::Pair(..) => "a tuple".to_owned(),
            Kind::Dict(_) => "a dictionary".to_owned(),
            Kind::Event(_) => "a single trace event".to_owned(),
            Kind::Block(_) => "a single block".to_owned(),
            Kind::Segment(_) => "a single segment".to_owned(),
            Kind::Frame(_) => "a stack frame".to_owned(),
            Kind::Stack(_) => "a list of stack frames".to_owned(),
        }
    }
}

/// The start of `text`, at most `most` bytes of it.
pub(super) fn clipped(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

pub(super) fn json_string(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}
