//! A question of the page, answered.

use crate::columns::{Axis, BANDS, BLOCKS, Window};
use crate::flame::{When, flame};
use crate::groups::By;
use crate::query::Query;
use crate::runs::{Input, Shown};
use crate::table::Page;
use crate::view::View;
use crate::{Problem, Relation, Viewer, WhatIf, details, layout, map, overview, table, timeline};
use analysis::words::{is_hidden, printable};
use recording::Recording;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Tiles that were made lately.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Tiles>);

/// Questions with their tiles, oldest first, and the bytes of all.
#[derive(Default)]
struct Tiles {
    kept: VecDeque<(String, Arc<Vec<u8>>)>,
    bytes: usize,
}

/// Bytes of the tiles that are kept.
const CACHE: usize = 32 << 20;
/// Rows of a table that are sent at once.
const MOST_ROWS: usize = 1_000;

impl Cache {
    fn get(&self, question: &str) -> Option<Arc<Vec<u8>>> {
        let tiles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tiles.kept.iter().find(|(known, _)| known == question).map(|(_, tile)| tile.clone())
    }

    fn put(&self, question: &str, tile: Arc<Vec<u8>>) {
        let mut tiles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tiles.bytes += tile.len();
        tiles.kept.push_back((question.to_owned(), tile));
        while tiles.bytes > CACHE {
            let Some((_, oldest)) = tiles.kept.pop_front() else { break };
            tiles.bytes -= oldest.len();
        }
    }
}

/// Bytes for the page.
pub(crate) enum Answer {
    Json(Value),
    Tile(Arc<Vec<u8>>),
}

impl Answer {
    /// What it is, for a browser.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Answer::Json(_) => "application/json",
            Answer::Tile(_) => "application/octet-stream",
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Answer::Json(value) => with_visible_text(value.to_string()).into_bytes(),
            Answer::Tile(bytes) => bytes.to_vec(),
        }
    }
}

/// JSON in which characters that would reorder or hide text on the page are shown as `\u202e`. Outside of strings JSON has
/// none of them, and those below U+0020 do nothing on a page.
fn with_visible_text(json: String) -> String {
    if !json.contains(is_hidden) {
        return json;
    }
    let mut visible = String::with_capacity(json.len() + 64);
    for letter in json.chars() {
        match is_hidden(letter) {
            true => visible.push_str(&printable(letter.encode_utf8(&mut [0; 4])).replace('\\', "\\\\")),
            false => visible.push(letter),
        }
    }
    visible
}

impl Viewer<'_> {
    /// Answers `NAME?query`.
    pub(crate) fn answer(&self, question: &str) -> Result<Answer, Problem> {
        let (name, query) = question.split_once('?').unwrap_or((question, ""));
        let query = Query::new(query);
        match name {
            "overview" => Ok(Answer::Json(self.overview())),
            "ranks" => Ok(Answer::Json(self.ranks())),
            "holders" => self.holders(&query).map(Answer::Json),
            "whatif" => self.what_if(&query).map(Answer::Json),
            "timeline" | "map" => {
                if let Some(known) = self.cache.get(question) {
                    return Ok(Answer::Tile(known));
                }
                let shown = self.shown(query.get("run")?)?;
                let tile = Arc::new(tile(&view(&shown, &query)?, name == "map", &query)?);
                self.cache.put(question, tile.clone());
                Ok(Answer::Tile(tile))
            }
            _ => {
                let shown = self.shown(query.get("run")?)?;
                self.about(&view(&shown, &query)?, name, &query).map(Answer::Json)
            }
        }
    }

    /// Makes what every picture of the first run needs.
    pub(crate) fn prepare(&self) {
        if let Some(view) = self.inputs().first().and_then(|shown| shown.views().next()) {
            view.curve();
            view.groups(By::Site);
            view.index();
            view.space();
        }
    }

    /// Questions about one device.
    fn about(&self, view: &View<'_>, name: &str, query: &Query) -> Result<Value, Problem> {
        let position = || Ok(view.clamped(query.get("at")?));
        match name {
            "block" => {
                details::block(view, query.get("row")?).ok_or_else(|| Problem::new("there is no such block"))
            }
            "group" => details::group(view, by(query)?, query.get("id")?, position()?)
                .ok_or_else(|| Problem::new("there is no such group")),
            "layout" => Ok(layout::layout(view, position()?, query.maybe("smallest")?.unwrap_or(0))),
            "flame" => {
                let Some(base) = query.maybe("base_run")? else {
                    return Ok(flame(view, &when(view, query, "")?, None));
                };
                let other = self.shown(base)?;
                let other = other.view(base).ok_or_else(no_such_run)?;
                let against = when(&other, query, "base_")?;
                Ok(flame(view, &when(view, query, "")?, Some((&other, &against))))
            }
            "table" => self.table(view, query),
            "findings" => {
                let (told, clear) = self.commands.findings(view.outline, view.findings);
                Ok(overview::findings(view, told, &clear))
            }
            _ => Err(Problem::new(format!("nothing is known of `{name}`"))),
        }
    }

    fn table(&self, view: &View<'_>, query: &Query) -> Result<Value, Problem> {
        let page = Page {
            sort: query.text("sort").unwrap_or_default().to_owned(),
            descending: query.maybe("desc")?.unwrap_or(true),
            search: query.text("search").unwrap_or_default().to_owned(),
            offset: query.maybe("offset")?.unwrap_or(0),
            limit: query.maybe("limit")?.unwrap_or(100).min(MOST_ROWS),
        };
        let at = || Ok(view.clamped(query.maybe("at")?.unwrap_or(view.history().len())));
        match query.text("of") {
            Some("sites") => Ok(table::sites(view, at()?, &page)),
            Some("segments") => Ok(table::segments_at(view, at()?, &page)),
            _ => {
                let is_timed = query.text("at").is_some() || query.text("from").is_some();
                let when = is_timed.then(|| when(view, query, "")).transpose()?;
                Ok(table::allocations(view, when.as_ref(), &page))
            }
        }
    }

    pub(crate) fn overview(&self) -> Value {
        let inputs = self.inputs();
        let runs: Vec<Value> = inputs.iter().flat_map(|shown| runs(shown)).collect();
        // Several devices of one input worked at one job.
        let relation = match self.relation {
            _ if runs.len() < 2 => "one",
            Relation::Compared if inputs.len() > 1 => "compared",
            _ => "ranks",
        };
        json!({"version": env!("CARGO_PKG_VERSION"), "runs": runs, "relation": relation})
    }

    fn ranks(&self) -> Value {
        let inputs = self.inputs();
        overview::ranks(&inputs.iter().flat_map(|shown| shown.views()).collect::<Vec<_>>())
    }

    fn holders(&self, query: &Query) -> Result<Value, Problem> {
        let number: usize = query.get("input")?;
        let inputs = self.inputs();
        let shown = inputs.get(number).ok_or_else(no_such_run)?;
        self.commands.holders(shown.input(), shown.devices()).ok_or_else(|| Problem {
            what: "This input has no references of objects.".to_owned(),
            hint: Some("Record them: `oomph run -o run train.py`.".to_owned()),
        })
    }

    fn what_if(&self, query: &Query) -> Result<Value, Problem> {
        let shown = self.shown(query.get("run")?)?;
        let view = view(&shown, query)?;
        let question = WhatIf {
            conf: query.text("conf").map(str::to_owned),
            gpu: query.maybe("gpu")?,
            fraction: query.maybe("fraction")?,
        };
        let replayed = self.commands.what_if(view.device(), &question)?;
        let conf = replayed.answer["settings"].as_str().unwrap_or_default();
        let settings = if conf.is_empty() { "PyTorch's defaults" } else { conf };
        let card = question.gpu.map(|gpu| format!(" on {}", snapshot::Bytes(gpu))).unwrap_or_default();
        let name = format!("what if: {settings}{card}");
        let input = Input { name, snapshot: replayed.snapshot, recording: Recording::default() };
        // Explaining it takes a while, in which other questions are answered.
        let place = self.runs.write().unwrap_or_else(PoisonError::into_inner).place_for(&input);
        let added = Arc::new(Shown::new(input, true, place));
        self.runs.write().unwrap_or_else(PoisonError::into_inner).add(added.clone());
        Ok(json!({"answer": replayed.answer, "notes": replayed.notes, "run": runs(&added).next()}))
    }

    pub(crate) fn inputs(&self) -> Vec<Arc<Shown>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).inputs()
    }

    pub(crate) fn shown(&self, id: usize) -> Result<Arc<Shown>, Problem> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).with(id).ok_or_else(no_such_run)
    }
}

fn runs(shown: &Shown) -> impl Iterator<Item = Value> {
    let has_holders = !shown.input().recording.heaps.is_empty();
    shown.views().map(move |view| overview::run(&view, has_holders))
}

fn no_such_run() -> Problem {
    Problem {
        what: "There is no such run.".to_owned(),
        hint: Some("Only the last few what-ifs are kept; replay it again.".to_owned()),
    }
}

fn view<'a>(shown: &'a Shown, query: &Query) -> Result<View<'a>, Problem> {
    shown.view(query.get("run")?).ok_or_else(no_such_run)
}

fn tile(view: &View<'_>, is_map: bool, query: &Query) -> Result<Vec<u8>, Problem> {
    let axis = if query.text("x") == Some("time") { Axis::Time } else { Axis::Event };
    let is_blocks = is_map || query.text("by") == Some("block");
    let width = if is_blocks { BLOCKS } else { BANDS };
    let window = Window { axis, level: query.get("level")?, tile: query.get("tile")?, width };
    let smallest = query.get("smallest")?;
    if is_map {
        return Ok(map::map(view, window, query.get("low")?..query.get("high")?, smallest));
    }
    match query.text("by") {
        Some("block") => Ok(timeline::blocks(view, window, smallest)),
        _ => Ok(timeline::bands(view, by(query)?, window, smallest)),
    }
}

fn by(query: &Query) -> Result<By, Problem> {
    let name = query.text("by").unwrap_or("site");
    let found = By::ALL.into_iter().find(|by| by.name() == name);
    found.ok_or_else(|| Problem::new(format!("memory cannot be grouped by `{name}`")))
}

/// A moment, or a stretch of positions.
fn when(view: &View<'_>, query: &Query, prefix: &str) -> Result<When, Problem> {
    let name = |name: &str| format!("{prefix}{name}");
    if let Some(from) = query.maybe(&name("from"))? {
        let to: usize = query.get(&name("to"))?;
        let from = view.clamped(from);
        return Ok(When::Over(from..view.clamped(to).max(from) + 1));
    }
    Ok(When::At(view.clamped(query.get(&name("at"))?)))
}

#[cfg(test)]
mod tests {
    use super::Answer;
    use serde_json::{Value, json};

    #[test]
    fn names_cannot_reorder_or_hide_text_on_the_page() {
        let answer = Answer::Json(json!({"name": "a\u{202e}b\u{200b}\u{e0041}", "other": "größe \\ \u{1b}"}));
        let shown: Value = serde_json::from_slice(&answer.bytes()).expect("JSON");
        assert_eq!(shown, json!({"name": r"a\u202eb\u200b\udb40\udc41", "other": "größe \\ \u{1b}"}));
    }
}
