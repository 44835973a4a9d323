//! The TypeScript types of the protocol, generated from the types of this crate.
//!
//! `make page-types` (or `UPDATE_PROTOCOL=1 cargo test -p oomph-viewer typescript`) writes them into
//! `web/src/protocol/answers.ts`.

use crate::answers::block::{BlockDetails, BlockQuery, BlockSegment};
use crate::answers::findings::{FindingCard, FindingFocus, Findings, FindingsQuery};
use crate::answers::flame::{FlameAnswer, FlameNode, FlameQuery};
use crate::answers::group::{GroupDetails, GroupPeak, GroupQuery, GroupStack};
use crate::answers::holders::HoldersQuery;
use crate::answers::layout::{LaidSegment, Layout, LayoutQuery, PinningBlock};
use crate::answers::overview::{
    ExportedMoments, FailedAllocation, Overview, RunEnd, RunOverview, RunPeak, RunRelation, RunSteps,
};
use crate::answers::ranks::{RankFindingShape, RankSkew, RankSummary, Ranks, SiteChange};
use crate::answers::table::{TableCell, TableCellKind, TableColumn, TableOf, TablePage, TableQuery};
use crate::answers::what_if::{WhatIfAnswer, WhatIfQuery};
use crate::documents::*;
use crate::picture::columns::XAxis;
use crate::picture::map::MapQuery;
use crate::picture::tile::{TileBytes, TileHeader};
use crate::picture::timeline::{TimelineBy, TimelineQuery};
use crate::questions::{NoQuery, PageQuestion};
use crate::run::groups::GroupBy;
use crate::run::shapes::{BlockGroup, StackFrame};
use std::path::Path;
use ts_rs::{Config, TS};

const HEADER: &str = "// Generated from crates/viewer by `make page-types`. Do not edit.

";

/// Declares a type with its doc comment, each documented field on its own lines.
fn declaration<T: TS>(config: &Config) -> String {
    let docs = T::docs().unwrap_or_default().replace("/**\n * ", "/** ").replace("\n */", " */");
    let fields = T::decl(config).replace(" \n/**\n * ", "\n  /** ").replace("\n */\n", " */\n  ");
    format!("{docs}export {fields}\n\n")
}

macro_rules! declarations {
    ($config:expr, $($type:ty),* $(,)?) => {
        [$(declaration::<$type>($config)),*].concat()
    };
}

fn generated() -> String {
    let config = &Config::default().with_large_int("number");
    let types = declarations!(
        config,
        Overview,
        RunRelation,
        ExportedMoments,
        RunOverview,
        RunPeak,
        RunEnd,
        RunSteps,
        FailedAllocation,
        BlockGroup,
        StackFrame,
        GroupBy,
        TimelineBy,
        XAxis,
        TimelineQuery,
        MapQuery,
        TileBytes,
        TileHeader,
        BlockQuery,
        BlockDetails,
        BlockSegment,
        GroupQuery,
        GroupDetails,
        GroupPeak,
        GroupStack,
        LayoutQuery,
        Layout,
        LaidSegment,
        PinningBlock,
        FlameQuery,
        FlameAnswer,
        FlameNode,
        TableQuery,
        TableOf,
        TablePage,
        TableColumn,
        TableCellKind,
        TableCell,
        FindingsQuery,
        Findings,
        FindingCard,
        FindingFocus,
        FindingDocument,
        SeverityName,
        SiteDocument,
        WhatIfQuery,
        WhatIfAnswer,
        ReplayReport,
        SegmentCounts,
        RecordedCounts,
        ReplayedOom,
        HoldersQuery,
        HolderTree,
        HolderBranch,
        RetainedSize,
        ReferenceCycle,
        Ranks,
        RankSummary,
        RankFindingShape,
        RankSkew,
        SiteChange,
        NoQuery,
    );
    let questions = PageQuestion::typescript(config).concat();
    format!(
        "{HEADER}{types}/** Every question of the page, with its query and its answer. */\n\
         export interface Questions {{\n{questions}}}\n"
    )
}

#[test]
fn the_types_of_the_page_are_those_of_this_crate() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/src/protocol/answers.ts");
    if std::env::var_os("UPDATE_PROTOCOL").is_some() {
        std::fs::write(&file, generated()).expect("web/src/protocol/answers.ts can be written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == generated(), "web/src/protocol/answers.ts is out of date: run `make page-types`");
}
