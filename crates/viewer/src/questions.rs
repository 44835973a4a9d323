//! Every question that the page can ask. A new one is a type that implements [`Question`], and a line of the
//! table below.

use crate::answers::block::BlockQuery;
use crate::answers::findings::FindingsQuery;
use crate::answers::flame::FlameQuery;
use crate::answers::group::GroupQuery;
use crate::answers::holders::HoldersQuery;
use crate::answers::layout::LayoutQuery;
use crate::answers::overview::{InputQuery, OverviewQuery};
use crate::answers::process::ProcessQuery;
use crate::answers::ranks::RanksQuery;
use crate::answers::table::TableQuery;
use crate::answers::what_if::WhatIfQuery;
use crate::picture::map::MapQuery;
use crate::picture::tile::TileBytes;
use crate::picture::timeline::TimelineQuery;
use crate::question::{AnswerBody, ExportPart, IntoBody, Question};
use crate::run::runs::LoadedInput;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer, no_such_run, query};
use std::sync::{Arc, PoisonError};

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
    /// One of many inputs, which the overview does not describe.
    Input(InputQuery);
    /// The memory of the process by owner, and the phases of the program.
    Process(ProcessQuery);
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

    /// The input or what-if that has a device.
    pub(crate) fn loaded(&self, run: usize) -> Result<Arc<LoadedInput>, Problem> {
        match self.inputs.with_device(run) {
            Some(input) => self.inputs.get(input),
            None => {
                self.what_ifs.read().unwrap_or_else(PoisonError::into_inner).with(run).ok_or_else(no_such_run)
            }
        }
    }
}
