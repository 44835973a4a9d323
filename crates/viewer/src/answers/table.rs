//! Allocations, sites and segments as tables: sorted, searched, a page at a time.

use super::layout::{OccupiedSegment, segments};
use super::{Moments, hex, pool_name};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::groups::GroupBy;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use snapshot::StackId;
use std::cmp::Ordering;

/// Rows in one answer.
const MAX_PAGE_ROWS: usize = 1_000;
/// Rows in one answer, unless the question says otherwise.
const DEFAULT_PAGE_ROWS: usize = 100;
/// Rows that the page asks for at a time (`PAGE_ROWS` of `web/src/state/pages.ts`).
const PAGE_ROWS: usize = 200;
/// Largest allocations in the table of an exported page.
const MAX_EXPORTED_ROWS: usize = 1_000;

/// Asks for a page of a table. Allocations are those of a position (`at`), of an interval (`from`, `to`), or
/// all; sites and segments are those of a position, or of the end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
pub(crate) struct TableQuery {
    pub(crate) run: usize,
    #[serde(default)]
    pub(crate) of: TableOf,
    pub(crate) at: Option<usize>,
    pub(crate) from: Option<usize>,
    pub(crate) to: Option<usize>,
    /// Key of the column to sort by.
    pub(crate) sort: Option<String>,
    /// Whether the largest come first; so if absent.
    pub(crate) desc: Option<bool>,
    /// Text that a row has to have.
    pub(crate) search: Option<String>,
    /// First row.
    pub(crate) offset: Option<usize>,
    /// Number of rows.
    pub(crate) limit: Option<usize>,
}

impl Question for TableQuery {
    const NAME: &'static str = "table";
    type Answer = TablePage;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<TablePage, Problem> {
        viewer.about(self.run, |view| Ok(table(view, self)))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<TableQuery> {
        let table = |view: &DeviceView<'_>, of, sort: &str, at, offset| TableQuery {
            run: view.id,
            of,
            at,
            sort: Some(sort.to_owned()),
            desc: Some(true),
            offset: Some(offset),
            limit: Some(PAGE_ROWS),
            ..TableQuery::default()
        };
        match *part {
            ExportPart::Moment { view, at } => vec![
                table(view, TableOf::Sites, "now", Some(at), 0),
                table(view, TableOf::Segments, "size", Some(at), 0),
                table(view, TableOf::Allocations, "size", Some(at), 0),
            ],
            ExportPart::Details { view } => {
                let rows = MAX_EXPORTED_ROWS.min(view.history().allocations.len().max(1));
                let offsets = (0..rows).step_by(PAGE_ROWS);
                offsets.map(|offset| table(view, TableOf::Allocations, "size", None, offset)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl TableQuery {
    fn sort(&self) -> &str {
        self.sort.as_deref().unwrap_or_default()
    }

    fn search(&self) -> String {
        self.search.as_deref().unwrap_or_default().to_lowercase()
    }
}

/// What the rows of a table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum TableOf {
    #[default]
    Allocations,
    Sites,
    Segments,
}

/// A page of a table.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "Table"))]
pub(crate) struct TablePage {
    columns: Vec<TableColumn>,
    /// Each row begins with the id to select (an allocation, a site's group, a segment's offset), then has a
    /// cell per column.
    rows: Vec<Vec<TableCell>>,
    /// Rows that match.
    total: usize,
    /// Rows without the search.
    of: usize,
}

/// A column of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct TableColumn {
    /// What to sort by.
    key: &'static str,
    label: &'static str,
    kind: TableCellKind,
}

/// How the cells of a column are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum TableCellKind {
    Bytes,
    Count,
    Event,
    Text,
}

/// A cell of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum TableCell {
    Number(u64),
    Text(String),
    Empty(()),
}

impl From<u64> for TableCell {
    fn from(number: u64) -> TableCell {
        TableCell::Number(number)
    }
}

impl From<u32> for TableCell {
    fn from(number: u32) -> TableCell {
        TableCell::Number(number.into())
    }
}

impl From<usize> for TableCell {
    fn from(number: usize) -> TableCell {
        TableCell::Number(number as u64)
    }
}

impl From<&str> for TableCell {
    fn from(text: &str) -> TableCell {
        TableCell::Text(text.to_owned())
    }
}

impl<T: Into<TableCell>> From<Option<T>> for TableCell {
    fn from(cell: Option<T>) -> TableCell {
        cell.map_or(TableCell::Empty(()), Into::into)
    }
}

const fn column(key: &'static str, label: &'static str, kind: TableCellKind) -> TableColumn {
    TableColumn { key, label, kind }
}

/// Returns a page of a table.
pub(crate) fn table(view: &DeviceView<'_>, query: &TableQuery) -> TablePage {
    let position = view.clamped(query.at.unwrap_or(view.history().len()));
    match query.of {
        TableOf::Allocations => allocations(view, query),
        TableOf::Sites => sites(view, position, query),
        TableOf::Segments => segment_table(view, position, query),
    }
}

const ALLOCATION_COLUMNS: [TableColumn; 8] = [
    column("size", "bytes", TableCellKind::Bytes),
    column("site", "site", TableCellKind::Text),
    column("category", "category", TableCellKind::Text),
    column("alloc", "allocated at", TableCellKind::Event),
    column("free", "freed at", TableCellKind::Event),
    column("lifetime", "lifetime in events", TableCellKind::Count),
    column("requested", "requested", TableCellKind::Bytes),
    column("addr", "address", TableCellKind::Text),
];

fn allocations(view: &DeviceView<'_>, query: &TableQuery) -> TablePage {
    let (history, sites) = (view.history(), view.groups(GroupBy::Site));
    let rows = allocations_at(view, Moments::of(view, query.at, query.from, query.to));
    let of = rows.len();
    let mut rows = matching(view, rows, &query.search());
    let total = rows.len();
    let lifetime = |row: u32| {
        let allocation = &history.allocations[row as usize];
        allocation.free_event().unwrap_or(history.len()).saturating_sub(allocation.alloc_event().unwrap_or(0))
    };
    let key = |row: u32| -> u64 {
        let allocation = &history.allocations[row as usize];
        match query.sort() {
            "alloc" => allocation.alloc_event().map_or(0, |event| event as u64 + 1),
            "free" => allocation.free_event().map_or(u64::MAX, |event| event as u64),
            "lifetime" => lifetime(row) as u64,
            "requested" => allocation.requested.0,
            "addr" => allocation.addr,
            "site" => u64::from(sites.of_allocation[row as usize]),
            "category" => view.model.categories.of(row as usize) as u64,
            _ => allocation.size.0,
        }
    };
    let shown = paged(&mut rows, query, |&a, &b| key(a).cmp(&key(b)), |&a, &b| a.cmp(&b));
    let mut labels: FxHashMap<u32, String> = FxHashMap::default();
    let rows = shown.iter().map(|&row| {
        let allocation = &history.allocations[row as usize];
        let site = sites.of_allocation[row as usize];
        let label = labels.entry(site).or_insert_with(|| view.label(GroupBy::Site, site));
        vec![
            row.into(),
            allocation.size.0.into(),
            label.as_str().into(),
            view.model.categories.of(row as usize).name().into(),
            allocation.alloc_event().into(),
            allocation.free_event().into(),
            lifetime(row).into(),
            allocation.requested.0.into(),
            hex(allocation.addr).as_str().into(),
        ]
    });
    TablePage { rows: rows.collect(), columns: ALLOCATION_COLUMNS.to_vec(), total, of }
}

/// Returns the allocations of a position or an interval, or all of them.
fn allocations_at(view: &DeviceView<'_>, when: Option<Moments>) -> Vec<u32> {
    let history = view.history();
    match when {
        Some(Moments::At(position)) => view.allocated_at(position),
        Some(Moments::Over(positions)) => (0..history.allocations.len())
            .filter(|&row| !history.allocations[row].allocated_within(positions.clone()).is_empty())
            .map(|row| row as u32)
            .collect(),
        None => (0..history.allocations.len() as u32).collect(),
    }
}

/// Keeps the allocations that have the lower-case text in their stack, category, tensor name or address.
fn matching(view: &DeviceView<'_>, rows: Vec<u32>, search: &str) -> Vec<u32> {
    let Some(wanted) = wanted_sites(view, search) else { return rows };
    let (history, sites) = (view.history(), view.groups(GroupBy::Site));
    let stacks = stacks_with(view, search);
    let matches = |&row: &u32| {
        let (row, allocation) = (row as usize, &history.allocations[row as usize]);
        wanted[sites.of_allocation[row] as usize]
            || stacks[allocation.stack.0 as usize]
            || view.model.categories.of(row).name().contains(search)
            || hex(allocation.addr) == search
            || view.device().tensor_of(row).is_some_and(|tensor| tensor.name.to_lowercase().contains(search))
    };
    rows.into_iter().filter(matches).collect()
}

const SITE_COLUMNS: [TableColumn; 6] = [
    column("site", "site", TableCellKind::Text),
    column("function", "function", TableCellKind::Text),
    column("now", "bytes now", TableCellKind::Bytes),
    column("count", "blocks now", TableCellKind::Count),
    column("highest", "most bytes", TableCellKind::Bytes),
    column("made", "blocks in total", TableCellKind::Count),
];

fn sites(view: &DeviceView<'_>, position: usize, query: &TableQuery) -> TablePage {
    let groups = view.groups(GroupBy::Site);
    let mut now = vec![(0u64, 0u64); groups.all.len()];
    for row in view.allocated_at(position) {
        let held = &mut now[groups.of_allocation[row as usize] as usize];
        held.0 = held.0.saturating_add(view.history().allocations[row as usize].size.0);
        held.1 += 1;
    }
    let names: Vec<(String, String)> =
        groups.all.iter().map(|group| view.device().words_for(group.origin)).collect();
    let wanted = wanted_sites(view, &query.search());
    let mut rows: Vec<usize> =
        (0..names.len()).filter(|&id| wanted.as_ref().is_none_or(|wanted| wanted[id])).collect();
    let total = rows.len();
    let order = |&a: &usize, &b: &usize| match query.sort() {
        "site" => names[a].0.cmp(&names[b].0),
        "function" => names[a].1.cmp(&names[b].1),
        "count" => now[a].1.cmp(&now[b].1),
        "highest" => groups.all[a].highest.cmp(&groups.all[b].highest),
        "made" => groups.all[a].blocks.cmp(&groups.all[b].blocks),
        _ => now[a].0.cmp(&now[b].0),
    };
    let shown = paged(&mut rows, query, order, |a, b| a.cmp(b));
    let rows = shown.iter().map(|&id| {
        let ((site, function), (bytes, count)) = (&names[id], now[id]);
        vec![
            id.into(),
            site.as_str().into(),
            function.as_str().into(),
            bytes.into(),
            count.into(),
            groups.all[id].highest.into(),
            groups.all[id].blocks.into(),
        ]
    });
    TablePage { rows: rows.collect(), columns: SITE_COLUMNS.to_vec(), total, of: names.len() }
}

const SEGMENT_COLUMNS: [TableColumn; 8] = [
    column("size", "bytes", TableCellKind::Bytes),
    column("used", "in use", TableCellKind::Bytes),
    column("free", "free", TableCellKind::Bytes),
    column("largest", "largest free", TableCellKind::Bytes),
    column("blocks", "blocks", TableCellKind::Count),
    column("kind", "kind", TableCellKind::Text),
    column("pool", "pool · stream", TableCellKind::Text),
    column("addr", "address", TableCellKind::Text),
];

/// A segment with the texts of its row.
struct SegmentRow {
    segment: OccupiedSegment,
    free: u64,
    kind: &'static str,
    pool: String,
    addr: String,
}

impl SegmentRow {
    fn new(segment: OccupiedSegment) -> SegmentRow {
        let owner = &segment.owner;
        let kind = match (owner.expandable, owner.small) {
            (true, _) => "expandable",
            (false, true) => "small blocks",
            (false, false) => "large blocks",
        };
        SegmentRow {
            free: segment.size().saturating_sub(segment.used),
            kind,
            pool: format!("{} · {}", pool_name(owner.pool), hex(owner.stream)),
            addr: hex(segment.range.start),
            segment,
        }
    }
}

fn segment_table(view: &DeviceView<'_>, position: usize, query: &TableQuery) -> TablePage {
    let all: Vec<SegmentRow> = segments(view, position).into_iter().map(SegmentRow::new).collect();
    let search = query.search();
    let matches =
        |row: &SegmentRow| [row.kind, &row.pool, &row.addr].iter().any(|text| text.contains(&search));
    let mut rows: Vec<usize> = (0..all.len()).filter(|&row| matches(&all[row])).collect();
    let total = rows.len();
    let order = |&a: &usize, &b: &usize| {
        let (a, b) = (&all[a], &all[b]);
        match query.sort() {
            "used" => a.segment.used.cmp(&b.segment.used),
            "free" => a.free.cmp(&b.free),
            "largest" => a.segment.largest_free.cmp(&b.segment.largest_free),
            "blocks" => a.segment.rows.len().cmp(&b.segment.rows.len()),
            "kind" => a.kind.cmp(b.kind),
            "pool" => a.pool.cmp(&b.pool),
            "addr" => a.segment.range.start.cmp(&b.segment.range.start),
            _ => a.segment.size().cmp(&b.segment.size()),
        }
    };
    let shown = paged(&mut rows, query, order, |a, b| a.cmp(b));
    let rows = shown.iter().map(|&row| {
        let SegmentRow { segment, free, kind, pool, addr } = &all[row];
        vec![
            view.space().offset(segment.range.start).into(),
            segment.size().into(),
            segment.used.into(),
            (*free).into(),
            segment.largest_free.into(),
            segment.rows.len().into(),
            (*kind).into(),
            pool.as_str().into(),
            addr.as_str().into(),
        ]
    });
    TablePage { rows: rows.collect(), columns: SEGMENT_COLUMNS.to_vec(), total, of: all.len() }
}

/// Returns which groups by site have the lower-case text in their label or function; `None` if there is no
/// text.
fn wanted_sites(view: &DeviceView<'_>, search: &str) -> Option<Vec<bool>> {
    if search.is_empty() {
        return None;
    }
    let all = view.groups(GroupBy::Site).all.iter();
    let matching = all.map(|group| {
        let (label, detail) = view.device().words_for(group.origin);
        label.to_lowercase().contains(search) || detail.to_lowercase().contains(search)
    });
    Some(matching.collect())
}

/// Returns whether each stack has the text in a file or function.
fn stacks_with(view: &DeviceView<'_>, search: &str) -> Vec<bool> {
    let (stacks, strings) = (&view.snapshot().stacks, &view.snapshot().strings);
    let has = |text| strings.get(text).to_lowercase().contains(search);
    let frames: Vec<bool> =
        stacks.all_frames().iter().map(|frame| has(frame.function) || has(frame.file)).collect();
    let any = |stack| stacks.frames(StackId(stack)).iter().any(|frame| frames[frame.0 as usize]);
    (0..stacks.len() as u32).map(any).collect()
}

/// Returns the rows of a page. Only these are sorted; equal ones are in the order of `otherwise`.
fn paged<'a, T>(
    rows: &'a mut [T],
    query: &TableQuery,
    order: impl Fn(&T, &T) -> Ordering,
    otherwise: impl Fn(&T, &T) -> Ordering,
) -> &'a [T] {
    let order = |a: &T, b: &T| {
        let first = if query.desc.unwrap_or(true) { order(b, a) } else { order(a, b) };
        first.then_with(|| otherwise(a, b))
    };
    let limit = query.limit.unwrap_or(DEFAULT_PAGE_ROWS).min(MAX_PAGE_ROWS);
    let start = query.offset.unwrap_or(0).min(rows.len());
    let end = start.saturating_add(limit).min(rows.len());
    let mut shown = &mut rows[..];
    if end < shown.len() {
        shown.select_nth_unstable_by(end, &order);
        shown = &mut shown[..end];
    }
    if start > 0 && start < shown.len() {
        shown.select_nth_unstable_by(start, &order);
    }
    let shown = &mut shown[start..];
    shown.sort_unstable_by(&order);
    shown
}
