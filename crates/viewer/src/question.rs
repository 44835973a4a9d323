//! What a question is: how it is asked, answered, and exported. The questions themselves are in `answers` and
//! `picture`.

use crate::picture::columns::XAxis;
use crate::picture::tile::TileBytes;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer, query};
use analysis::words::{is_hidden, printable};
use serde::Serialize;
use std::sync::Arc;

/// A question of the page; its fields are the parameters in the address.
pub(crate) trait Question: Serialize + Sized {
    /// Name in the address.
    const NAME: &'static str;
    /// The answer, as the page reads it.
    type Answer: IntoBody;

    /// Answers the question.
    fn answer(&self, viewer: &Viewer<'_>) -> Result<Self::Answer, Problem>;

    /// Questions of this kind whose answers an exported page has, for one part of it; none by default.
    fn exported(_part: &ExportPart<'_>) -> Vec<Self> {
        Vec::new()
    }

    /// Writes `NAME?query` just as the page does.
    fn address(&self) -> String {
        let query = query::format(self);
        if query.is_empty() { Self::NAME.to_owned() } else { format!("{}?{query}", Self::NAME) }
    }
}

/// A part of an exported page; each question says which of its answers belong to it.
pub(crate) enum ExportPart<'a> {
    /// What the page has once.
    Page {
        /// Numbers of the runs.
        runs: &'a [usize],
        /// Numbers of the inputs.
        inputs: &'a [usize],
        /// Whether there are several runs to compare.
        has_ranks: bool,
    },
    /// The tiles of one run over an axis, of a level that is `finer` than the whole run in one tile.
    Pictures {
        /// The run.
        view: &'a DeviceView<'a>,
        /// The x axis.
        axis: XAxis,
        /// How many levels finer.
        finer: u32,
    },
    /// What is shown of one run at a position.
    Moment {
        /// The run.
        view: &'a DeviceView<'a>,
        /// The position.
        at: usize,
    },
    /// Other details of one run.
    Details {
        /// The run.
        view: &'a DeviceView<'a>,
    },
}

/// The body of an answer.
pub(crate) enum AnswerBody {
    Json(String),
    Tile(Arc<Vec<u8>>),
}

impl AnswerBody {
    /// JSON with sorted keys, in which characters that would reorder or hide text on the page are visible.
    pub(crate) fn json(answer: &impl Serialize) -> AnswerBody {
        // Serialization fails only for maps whose keys are not strings; no answer has one.
        let text = serde_json::to_value(answer).unwrap_or_default().to_string();
        AnswerBody::Json(with_visible_text(text))
    }

    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            AnswerBody::Json(_) => "application/json",
            AnswerBody::Tile(_) => "application/octet-stream",
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            AnswerBody::Json(text) => text.as_bytes(),
            AnswerBody::Tile(bytes) => bytes,
        }
    }
}

/// An answer that can be sent to the page.
pub(crate) trait IntoBody {
    /// The bytes to send.
    fn into_body(self) -> AnswerBody;
}

impl<T: Serialize> IntoBody for T {
    fn into_body(self) -> AnswerBody {
        AnswerBody::json(&self)
    }
}

impl IntoBody for TileBytes {
    fn into_body(self) -> AnswerBody {
        AnswerBody::Tile(self.0)
    }
}

/// JSON in which characters that would reorder or hide text on the page are written like `\u202e`. JSON has
/// none of them outside strings, and characters below U+0020 do nothing on a page.
fn with_visible_text(json: String) -> String {
    if !json.contains(is_hidden) {
        return json;
    }
    let mut visible = String::with_capacity(json.len() + 64);
    for letter in json.chars() {
        if is_hidden(letter) {
            visible.push_str(&printable(letter.encode_utf8(&mut [0; 4])).replace('\\', "\\\\"));
        } else {
            visible.push(letter);
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn names_cannot_reorder_or_hide_text_on_the_page() {
        let body =
            AnswerBody::json(&json!({"name": "a\u{202e}b\u{200b}\u{e0041}", "other": "größe \\ \u{1b}"}));
        let shown: Value = serde_json::from_slice(body.bytes()).expect("JSON");
        assert_eq!(shown, json!({"name": r"a\u202eb\u200b\udb40\udc41", "other": "größe \\ \u{1b}"}));
    }
}
