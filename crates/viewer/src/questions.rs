//! Every question that the page can ask, with its query and its answer. A new one is a line of the table
//! below.

use crate::answers::block::BlockQuery;
use crate::answers::findings::FindingsQuery;
use crate::answers::flame::FlameQuery;
use crate::answers::group::GroupQuery;
use crate::answers::holders::HoldersQuery;
use crate::answers::layout::LayoutQuery;
use crate::answers::table::TableQuery;
use crate::answers::what_if::WhatIfQuery;
use crate::picture::map::MapQuery;
use crate::picture::timeline::TimelineQuery;
use crate::run::runs::LoadedInput;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer, answers, no_such_run, query};
use analysis::words::{is_hidden, printable};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, PoisonError};

/// The query of a question that has no parameters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct NoQuery {}

/// Makes the enum of all questions from a table, and the table of their TypeScript types for the test that
/// writes them.
macro_rules! questions {
    ($($(#[doc = $doc:literal])* $name:literal $variant:ident($query:ty) -> $answer:ty;)*) => {
        /// A question of the page.
        #[derive(Clone, PartialEq, Debug)]
        pub(crate) enum PageQuestion {
            $($(#[doc = $doc])* $variant($query),)*
        }

        impl PageQuestion {
            /// Reads `NAME?query`.
            pub(crate) fn parse(address: &str) -> Result<PageQuestion, Problem> {
                let (name, query) = address.split_once('?').unwrap_or((address, ""));
                match name {
                    $($name => query::parse(query).map(PageQuestion::$variant),)*
                    _ => Err(Problem::new(format!("there is no question `{name}`"))),
                }
            }

            /// Writes `NAME?query` just as the page does.
            pub(crate) fn address(&self) -> String {
                let (name, query) = match self {
                    $(PageQuestion::$variant(query) => ($name, query::format(query)),)*
                };
                if query.is_empty() { name.to_owned() } else { format!("{name}?{query}") }
            }

            /// Members of the TypeScript interface that gives each question its query and its answer.
            #[cfg(test)]
            pub(crate) fn typescript(config: &ts_rs::Config) -> Vec<String> {
                use ts_rs::TS;
                vec![$(format!(
                    "{}  {}: {{ query: {}; answer: {} }};\n",
                    concat!($("  /**", $doc, " */\n"),*),
                    $name,
                    <$query>::name(config),
                    <$answer>::name(config),
                ),)*]
            }
        }
    };
}

questions! {
    /// The inputs, and how they belong together.
    "overview" Overview(NoQuery) -> answers::overview::Overview;
    /// Bands or blocks over events or time.
    "timeline" Timeline(TimelineQuery) -> crate::picture::tile::TileBytes;
    /// Addresses over events or time.
    "map" Map(MapQuery) -> crate::picture::tile::TileBytes;
    /// One block.
    "block" Block(BlockQuery) -> answers::block::BlockDetails;
    /// One group of blocks at a position.
    "group" Group(GroupQuery) -> answers::group::GroupDetails;
    /// The segments at a position.
    "layout" Layout(LayoutQuery) -> answers::layout::Layout;
    /// Memory by call stack at a position, or its mean over an interval.
    "flame" Flame(FlameQuery) -> answers::flame::FlameAnswer;
    /// A page of a table.
    "table" Table(TableQuery) -> answers::table::TablePage;
    /// The findings of `oomph report`.
    "findings" Findings(FindingsQuery) -> answers::findings::Findings;
    /// A replay with other settings or on another GPU.
    "whatif" WhatIf(WhatIfQuery) -> answers::what_if::WhatIfAnswer;
    /// The dominator tree of `oomph holders`.
    "holders" Holders(HoldersQuery) -> crate::documents::HolderTree;
    /// The runs as ranks of one job.
    "ranks" Ranks(NoQuery) -> answers::ranks::Ranks;
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
        let question = PageQuestion::parse(address)?;
        Ok(match question {
            PageQuestion::Overview(_) => AnswerBody::json(&self.overview()),
            PageQuestion::Ranks(_) => AnswerBody::json(&self.ranks()),
            PageQuestion::Holders(query) => AnswerBody::json(&self.holders(&query)?),
            PageQuestion::WhatIf(query) => AnswerBody::json(&self.what_if(&query)?),
            PageQuestion::Timeline(query) => self.tile(address, query.run, |view| query.tile(view))?,
            PageQuestion::Map(query) => self.tile(address, query.run, |view| query.tile(view))?,
            PageQuestion::Block(query) => {
                self.about(query.run, |view| answers::block::block(view, query.row))?
            }
            PageQuestion::Group(query) => {
                self.about(query.run, |view| answers::group::group(view, &query))?
            }
            PageQuestion::Layout(query) => {
                self.about(query.run, |view| Ok(answers::layout::layout(view, &query)))?
            }
            PageQuestion::Flame(query) => self.about(query.run, |view| self.flame(view, &query))?,
            PageQuestion::Table(query) => {
                self.about(query.run, |view| Ok(answers::table::table(view, &query)))?
            }
            PageQuestion::Findings(query) => self.about(query.run, |view| Ok(self.findings(view)))?,
        })
    }

    /// Answers a question about one device.
    fn about<A: Serialize>(
        &self,
        run: usize,
        answer: impl FnOnce(&DeviceView<'_>) -> Result<A, Problem>,
    ) -> Result<AnswerBody, Problem> {
        let loaded = self.loaded(run)?;
        let view = loaded.view(run).ok_or_else(no_such_run)?;
        Ok(AnswerBody::json(&answer(&view)?))
    }

    /// Draws a tile, unless it is one of those drawn last.
    fn tile(
        &self,
        address: &str,
        run: usize,
        draw: impl FnOnce(&DeviceView<'_>) -> Vec<u8>,
    ) -> Result<AnswerBody, Problem> {
        if let Some(tile) = self.tiles.get(address) {
            return Ok(AnswerBody::Tile(tile));
        }
        let loaded = self.loaded(run)?;
        let tile = Arc::new(draw(&loaded.view(run).ok_or_else(no_such_run)?));
        self.tiles.put(address, tile.clone());
        Ok(AnswerBody::Tile(tile))
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
