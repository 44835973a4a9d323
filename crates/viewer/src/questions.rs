//! Every question that the page can ask. A new one is a type that implements [`Question`], and a line of the
//! table below.

use crate::answers::block::BlockQuery;
use crate::answers::findings::FindingsQuery;
use crate::answers::flame::FlameQuery;
use crate::answers::group::GroupQuery;
use crate::answers::holders::HoldersQuery;
use crate::answers::layout::LayoutQuery;
use crate::answers::overview::OverviewQuery;
use crate::answers::ranks::RanksQuery;
use crate::answers::table::TableQuery;
use crate::answers::what_if::WhatIfQuery;
use crate::export::ExportPart;
use crate::picture::map::MapQuery;
use crate::picture::tile::TileBytes;
use crate::picture::timeline::TimelineQuery;
use crate::run::runs::LoadedInput;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer, no_such_run, query};
use analysis::words::{is_hidden, printable};
use serde::Serialize;
use std::sync::{Arc, PoisonError};

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

/// Makes the enum of all questions from a table.
macro_rules! questions {
    ($($(#[doc = $doc:literal])* $variant:ident($query:ty);)*) => {
        /// A question of the page.
        #[derive(Clone, PartialEq, Debug)]
        pub(crate) enum PageQuestion {
            $($(#[doc = $doc])* $variant($query),)*
        }

        impl PageQuestion {
            /// Reads `NAME?query`.
            pub(crate) fn parse(address: &str) -> Result<PageQuestion, Problem> {
                let (name, query) = address.split_once('?').unwrap_or((address, ""));
                $(if name == <$query>::NAME {
                    return query::parse(query).map(PageQuestion::$variant);
                })*
                Err(Problem::new(format!("there is no question `{name}`")))
            }

            /// Writes `NAME?query` just as the page does.
            pub(crate) fn address(&self) -> String {
                match self {
                    $(PageQuestion::$variant(query) => query.address(),)*
                }
            }

            /// Answers the question.
            fn answer(&self, viewer: &Viewer<'_>) -> Result<AnswerBody, Problem> {
                match self {
                    $(PageQuestion::$variant(query) => Ok(query.answer(viewer)?.into_body()),)*
                }
            }

            /// The questions whose answers an exported page has, for one part of it.
            pub(crate) fn exported(part: &ExportPart<'_>) -> Vec<PageQuestion> {
                let mut questions = Vec::new();
                $(questions.extend(<$query>::exported(part).into_iter().map(PageQuestion::$variant));)*
                questions
            }

            /// Members of the TypeScript interface that gives each question its query and its answer.
            #[cfg(test)]
            pub(crate) fn typescript(config: &ts_rs::Config) -> Vec<String> {
                use ts_rs::TS;
                vec![$(format!(
                    "{}  {}: {{ query: {}; answer: {} }};\n",
                    concat!($("  /**", $doc, " */\n"),*),
                    <$query>::NAME,
                    <$query>::name(config),
                    <<$query as Question>::Answer as TS>::name(config),
                ),)*]
            }

            /// Shows a visitor the queries and answers of all questions.
            #[cfg(test)]
            pub(crate) fn visit_types(visitor: &mut impl ts_rs::TypeVisitor) {
                $(
                    visitor.visit::<$query>();
                    visitor.visit::<<$query as Question>::Answer>();
                )*
            }
        }
    };
}

// In the order in which the answers go into an exported page.
questions! {
    /// The inputs, and how they belong together.
    Overview(OverviewQuery);
    /// The findings of `oomph report`.
    Findings(FindingsQuery);
    /// The runs as ranks of one job.
    Ranks(RanksQuery);
    /// The dominator tree of `oomph holders`.
    Holders(HoldersQuery);
    /// Bands or blocks over events or time.
    Timeline(TimelineQuery);
    /// Addresses over events or time.
    Map(MapQuery);
    /// Memory by call stack at a position, or its mean over an interval.
    Flame(FlameQuery);
    /// The segments at a position.
    Layout(LayoutQuery);
    /// A page of a table.
    Table(TableQuery);
    /// One group of blocks at a position.
    Group(GroupQuery);
    /// One block.
    Block(BlockQuery);
    /// A replay with other settings or on another GPU.
    WhatIf(WhatIfQuery);
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

impl Viewer<'_> {
    /// Answers `NAME?query`.
    pub(crate) fn answer(&self, address: &str) -> Result<AnswerBody, Problem> {
        PageQuestion::parse(address)?.answer(self)
    }

    /// Answers a question about one device.
    pub(crate) fn about<A>(
        &self,
        run: usize,
        answer: impl FnOnce(&DeviceView<'_>) -> Result<A, Problem>,
    ) -> Result<A, Problem> {
        let loaded = self.loaded(run)?;
        answer(&loaded.view(run).ok_or_else(no_such_run)?)
    }

    /// Draws a tile, unless it is one of those drawn last.
    pub(crate) fn tile(
        &self,
        address: &str,
        run: usize,
        draw: impl FnOnce(&DeviceView<'_>) -> Vec<u8>,
    ) -> Result<TileBytes, Problem> {
        if let Some(tile) = self.tiles.get(address) {
            return Ok(TileBytes(tile));
        }
        let tile = self.about(run, |view| Ok(Arc::new(draw(view))))?;
        self.tiles.put(address, tile.clone());
        Ok(TileBytes(tile))
    }

    /// The inputs, without what-ifs.
    pub(crate) fn inputs(&self) -> Vec<Arc<LoadedInput>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).inputs()
    }

    /// The input or what-if that has a device.
    pub(crate) fn loaded(&self, run: usize) -> Result<Arc<LoadedInput>, Problem> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).with(run).ok_or_else(no_such_run)
    }
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
