//! Allocations, sites and segments as tables: sorted, searched, a page at a time.

use crate::details::{hex, pool};
use crate::flame::When;
use crate::groups::By;
use crate::layout::segments;
use crate::view::View;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use snapshot::StackId;
use std::cmp::Ordering;

/// What part of a table is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) sort: String,
    pub(crate) descending: bool,
    /// Words that a row has to have.
    pub(crate) search: String,
    pub(crate) offset: usize,
    pub(crate) limit: usize,
}

type Column = (&'static str, &'static str, &'static str);

/// Allocations: all of them, or those of a moment or a stretch.
pub(crate) fn allocations(view: &View<'_>, when: Option<&When>, page: &Page) -> Value {
    const COLUMNS: [Column; 8] = [
        ("size", "bytes", "bytes"),
        ("site", "line", "text"),
        ("category", "use", "text"),
        ("born", "allocated at", "event"),
        ("freed", "freed at", "event"),
        ("lifetime", "events it lived", "count"),
        ("requested", "asked for", "bytes"),
        ("addr", "address", "text"),
    ];
    let (history, sites) = (view.history(), view.groups(By::Site));
    let wanted = wanted_sites(view, &page.search);
    let category = |row: u32| view.outline.categories.of(row as usize).name();
    let search = page.search.to_lowercase();
    let stacks = stacks_with(view, &search);
    let matches = |row: u32| {
        let Some(wanted) = &wanted else { return true };
        let tensor = || view.device().tensor_of(row as usize);
        wanted[sites.of_life[row as usize] as usize]
            || stacks[history.lives[row as usize].stack.0 as usize]
            || category(row).contains(&search)
            || hex(history.lives[row as usize].addr) == search
            || tensor().is_some_and(|tensor| tensor.name.to_lowercase().contains(&search))
    };
    let rows: Vec<u32> = match when {
        Some(When::At(position)) => view.allocated_at(*position),
        Some(When::Over(positions)) => (0..history.lives.len())
            .filter(|&row| !history.lives[row].allocated_within(positions.clone()).is_empty())
            .map(|row| row as u32)
            .collect(),
        None => (0..history.lives.len() as u32).collect(),
    };
    let of = rows.len();
    let mut rows: Vec<u32> = rows.into_iter().filter(|&row| matches(row)).collect();
    let end = |row: u32| history.lives[row as usize].freed();
    let lifetime = |row: u32| {
        end(row).unwrap_or(history.len()).saturating_sub(history.lives[row as usize].born().unwrap_or(0))
    };
    let key = |row: u32| -> u64 {
        let life = &history.lives[row as usize];
        match page.sort.as_str() {
            "born" => life.born().map_or(0, |born| born as u64 + 1),
            "freed" => life.freed().map_or(u64::MAX, |freed| freed as u64),
            "lifetime" => lifetime(row) as u64,
            "requested" => life.requested.0,
            "addr" => life.addr,
            "site" => u64::from(sites.of_life[row as usize]),
            "category" => view.outline.categories.of(row as usize) as u64,
            _ => life.size.0,
        }
    };
    let total = rows.len();
    let shown = paged(&mut rows, page, |&a, &b| key(a).cmp(&key(b)), |&a, &b| a.cmp(&b));
    let mut labels: FxHashMap<u32, Value> = FxHashMap::default();
    let rows: Vec<Value> = shown
        .iter()
        .map(|&row| {
            let life = &history.lives[row as usize];
            let site = sites.of_life[row as usize];
            let label =
                labels.entry(site).or_insert_with(|| view.group_json(By::Site, site)["label"].clone());
            json!([
                row,
                life.size.0,
                label,
                category(row),
                life.born(),
                life.freed(),
                lifetime(row),
                life.requested.0,
                hex(life.addr)
            ])
        })
        .collect();
    table(&COLUMNS, rows, total, of)
}

/// Lines of code with what they hold at a moment.
pub(crate) fn sites(view: &View<'_>, position: usize, page: &Page) -> Value {
    const COLUMNS: [Column; 6] = [
        ("site", "line", "text"),
        ("function", "function", "text"),
        ("now", "bytes now", "bytes"),
        ("count", "blocks now", "count"),
        ("highest", "most bytes", "bytes"),
        ("made", "blocks in all", "count"),
    ];
    let groups = view.groups(By::Site);
    let mut now = vec![(0u64, 0u64); groups.all.len()];
    for row in view.allocated_at(position) {
        let held = &mut now[groups.of_life[row as usize] as usize];
        held.0 = held.0.saturating_add(view.history().lives[row as usize].size.0);
        held.1 += 1;
    }
    let names: Vec<(String, String)> =
        groups.all.iter().map(|group| view.device().words_for(group.origin)).collect();
    let wanted = wanted_sites(view, &page.search);
    let mut rows: Vec<usize> =
        (0..names.len()).filter(|&id| wanted.as_ref().is_none_or(|wanted| wanted[id])).collect();
    let total = rows.len();
    let order = |&a: &usize, &b: &usize| match page.sort.as_str() {
        "site" => names[a].0.cmp(&names[b].0),
        "function" => names[a].1.cmp(&names[b].1),
        "count" => now[a].1.cmp(&now[b].1),
        "highest" => groups.all[a].highest.cmp(&groups.all[b].highest),
        "made" => groups.all[a].blocks.cmp(&groups.all[b].blocks),
        _ => now[a].0.cmp(&now[b].0),
    };
    let shown = paged(&mut rows, page, order, |a, b| a.cmp(b));
    let rows = shown
        .iter()
        .map(|&id| {
            let group = &groups.all[id];
            json!([id, names[id].0, names[id].1, now[id].0, now[id].1, group.highest, group.blocks])
        })
        .collect();
    table(&COLUMNS, rows, total, names.len())
}

/// The segments of a moment.
pub(crate) fn segments_at(view: &View<'_>, position: usize, page: &Page) -> Value {
    const COLUMNS: [Column; 8] = [
        ("size", "bytes", "bytes"),
        ("used", "in use", "bytes"),
        ("free", "free", "bytes"),
        ("largest", "largest free", "bytes"),
        ("blocks", "blocks", "count"),
        ("kind", "kind", "text"),
        ("pool", "pool · stream", "text"),
        ("addr", "address", "text"),
    ];
    let all = segments(view, position);
    let of = all.len();
    let described: Vec<(String, String, String)> = all
        .iter()
        .map(|segment| {
            let owner = &segment.owner;
            let kind = match (owner.expandable, owner.small) {
                (true, _) => "expandable",
                (false, true) => "small blocks",
                (false, false) => "large blocks",
            };
            let whose = format!("{} · {}", pool(owner.pool), hex(owner.stream));
            (kind.to_owned(), whose, hex(segment.range.start))
        })
        .collect();
    let search = page.search.to_lowercase();
    let mut rows: Vec<usize> = (0..of)
        .filter(|&row| {
            let (kind, whose, addr) = &described[row];
            page.search.is_empty() || [kind, whose, addr].iter().any(|text| text.contains(&search))
        })
        .collect();
    let total = rows.len();
    let free = |row: usize| all[row].size().saturating_sub(all[row].used);
    let order = |&a: &usize, &b: &usize| match page.sort.as_str() {
        "used" => all[a].used.cmp(&all[b].used),
        "free" => free(a).cmp(&free(b)),
        "largest" => all[a].largest_free.cmp(&all[b].largest_free),
        "blocks" => all[a].rows.len().cmp(&all[b].rows.len()),
        "kind" => described[a].0.cmp(&described[b].0),
        "pool" => described[a].1.cmp(&described[b].1),
        "addr" => all[a].range.start.cmp(&all[b].range.start),
        _ => all[a].size().cmp(&all[b].size()),
    };
    let shown = paged(&mut rows, page, order, |a, b| a.cmp(b));
    let rows = shown
        .iter()
        .map(|&row| {
            let (segment, (kind, whose, addr)) = (&all[row], &described[row]);
            let offset = view.space().offset(segment.range.start);
            json!([
                offset,
                segment.size(),
                segment.used,
                free(row),
                segment.largest_free,
                segment.rows.len(),
                kind,
                whose,
                addr
            ])
        })
        .collect();
    table(&COLUMNS, rows, total, of)
}

/// Which groups by site have the words in their name or function; `None` if nothing is searched for.
fn wanted_sites(view: &View<'_>, search: &str) -> Option<Vec<bool>> {
    if search.is_empty() {
        return None;
    }
    let search = search.to_lowercase();
    let all = view.groups(By::Site).all.iter();
    let matching = all.map(|group| {
        let (label, detail) = view.device().words_for(group.origin);
        label.to_lowercase().contains(&search) || detail.to_lowercase().contains(&search)
    });
    Some(matching.collect())
}

/// Whether each stack has the words in a file or function.
fn stacks_with(view: &View<'_>, search: &str) -> Vec<bool> {
    let (stacks, strings) = (&view.snapshot().stacks, &view.snapshot().strings);
    let has = |text| strings.get(text).to_lowercase().contains(search);
    let frames: Vec<bool> =
        stacks.all_frames().iter().map(|frame| has(frame.function) || has(frame.file)).collect();
    let any = |stack| stacks.frames(StackId(stack)).iter().any(|frame| frames[frame.0 as usize]);
    (0..stacks.len() as u32).map(any).collect()
}

/// The rows of a page. Only they are put into order; equal ones stay in the order of `otherwise`.
fn paged<'a, T>(
    rows: &'a mut [T],
    page: &Page,
    order: impl Fn(&T, &T) -> Ordering,
    otherwise: impl Fn(&T, &T) -> Ordering,
) -> &'a [T] {
    let order = |a: &T, b: &T| {
        let first = if page.descending { order(b, a) } else { order(a, b) };
        first.then_with(|| otherwise(a, b))
    };
    let (start, end) = (page.offset.min(rows.len()), page.offset.saturating_add(page.limit).min(rows.len()));
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

fn table(columns: &[Column], rows: Vec<Value>, total: usize, of: usize) -> Value {
    let columns: Vec<Value> =
        columns.iter().map(|(key, label, kind)| json!({"key": key, "label": label, "kind": kind})).collect();
    json!({"columns": columns, "rows": rows, "total": total, "of": of})
}
