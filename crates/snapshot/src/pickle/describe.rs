//! Text forms of values: JSON for values kept without a column, a short description for messages.

use super::lower::PickleLowering;
use super::number::Number;
use super::value::{PickleValue, ValueKind};

/// Maximum length of the text kept for a value without a column, in bytes.
pub(super) const MAX_EXTRA_BYTES: usize = 4 << 10;
/// Maximum number of items of a list or dictionary that are kept.
pub(super) const MAX_ITEMS: usize = 1000;

impl PickleLowering<'_> {
    /// Writes any value as JSON. Shared and nested values could make the text explode, so it is cut off
    /// at a limit with `"…"`.
    pub(super) fn write_json(&self, value: PickleValue, depth: u32, into: &mut String) {
        if into.len() > MAX_EXTRA_BYTES || depth > 16 {
            into.push_str("\"…\"");
            return;
        }
        match self.nodes.resolve(value).kind() {
            ValueKind::Unset | ValueKind::None => into.push_str("null"),
            ValueKind::Bool(bool) => into.push_str(if bool { "true" } else { "false" }),
            ValueKind::Int(int) => into.push_str(&int.to_string()),
            ValueKind::Number(index) => match &self.nodes.numbers[index as usize] {
                Number::Wide(wide) => into.push_str(&wide.to_string()),
                Number::Float(float) if float.is_finite() => into.push_str(&format!("{float:?}")),
                Number::Float(float) => into.push_str(&json_string(&float.to_string())),
                Number::Huge(text) => into.push_str(&json_string(text)),
            },
            ValueKind::Str(text) => {
                into.push_str(&json_string(clipped(self.builder.strings.get(text), MAX_EXTRA_BYTES)));
            }
            ValueKind::Pair(a, b) => into.push_str(&format!("[{a},{b}]")),
            ValueKind::List(_) | ValueKind::Tuple(_) => {
                into.push('[');
                for (place, item) in self.first_items(value, MAX_ITEMS).into_iter().enumerate() {
                    if place > 0 {
                        into.push(',');
                    }
                    self.write_json(item, depth + 1, into);
                    if into.len() > MAX_EXTRA_BYTES {
                        break;
                    }
                }
                into.push(']');
            }
            ValueKind::Dict(_) => {
                into.push('{');
                for (place, (key, value)) in self.pairs(value).into_iter().take(MAX_ITEMS).enumerate() {
                    if place > 0 {
                        into.push(',');
                    }
                    let key = match key.kind() {
                        ValueKind::Str(text) => clipped(self.builder.strings.get(text), 200).to_owned(),
                        _ => self.describe(key),
                    };
                    into.push_str(&json_string(&key));
                    into.push(':');
                    self.write_json(value, depth + 1, into);
                    if into.len() > MAX_EXTRA_BYTES {
                        break;
                    }
                }
                into.push('}');
            }
            ValueKind::Opaque
            | ValueKind::Event(_)
            | ValueKind::Block(_)
            | ValueKind::Segment(_)
            | ValueKind::Frame(_)
            | ValueKind::Stack(_) => {
                into.push_str(&json_string(&self.describe(value)));
            }
        }
    }

    /// Describes a value in a few words, for messages.
    pub(super) fn describe(&self, value: PickleValue) -> String {
        match self.nodes.resolve(value).kind() {
            ValueKind::Unset | ValueKind::None => "None".to_owned(),
            ValueKind::Bool(_) => "a boolean".to_owned(),
            ValueKind::Int(int) => format!("the number {int}"),
            ValueKind::Number(_) => "a number".to_owned(),
            ValueKind::Str(text) => {
                format!("`{}`", clipped(self.builder.strings.get(text), 60))
            }
            ValueKind::Opaque => "bytes or a set".to_owned(),
            ValueKind::List(_) => "a list that is not a list of segments".to_owned(),
            ValueKind::Tuple(_) | ValueKind::Pair(..) => "a tuple".to_owned(),
            ValueKind::Dict(_) => "a dictionary".to_owned(),
            ValueKind::Event(_) => "a single trace event".to_owned(),
            ValueKind::Block(_) => "a single block".to_owned(),
            ValueKind::Segment(_) => "a single segment".to_owned(),
            ValueKind::Frame(_) => "a stack frame".to_owned(),
            ValueKind::Stack(_) => "a list of stack frames".to_owned(),
        }
    }
}

/// Returns the start of `text`, at most `most` bytes.
pub(super) fn clipped(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

pub(super) fn json_string(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}
