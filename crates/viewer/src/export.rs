//! One HTML file with the answers inside: the same page, which finds what it asks for in itself.
//!
//! Every answer is asked for just as the page would, most important first, until the file is full. What does not fit is
//! finer detail: the page then shows what it has, and says so.

use crate::Viewer;
use crate::answers::Answer;
use crate::columns::{Axis, BANDS, BLOCKS, Window};
use crate::overview;
use crate::server::PAGE;
use crate::view::View;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::json;
use std::io::Write;

/// Moments of each run that can be looked into.
const MOMENTS: usize = 48;
/// Groups that have their details inside.
const GROUPS: u32 = 48;
/// Blocks that have their details inside.
const DETAILED: usize = 400;
/// Rows of the largest allocations, in pages as the page asks for them.
const ROWS: usize = 1_000;
const PAGE_ROWS: usize = 200;
/// Pixels from the top of a picture to its bottom, more or less.
const SCREEN: u64 = 600;

/// A page with its data.
pub struct Exported {
    /// The HTML.
    pub page: String,
    /// What is not in it.
    pub notes: Vec<String>,
}

/// The answers so far.
struct Answers<'v, 'c> {
    viewer: &'v Viewer<'c>,
    text: String,
    most: usize,
    /// Whether something did not fit.
    is_full: bool,
}

impl Answers<'_, '_> {
    /// Adds an answer, if there is room for it.
    fn add(&mut self, question: &str) {
        if let Ok(answer) = self.viewer.answer(question) {
            self.put(question, &answer.bytes());
        }
    }

    fn put(&mut self, question: &str, answer: &[u8]) {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::default());
        let Ok(packed) = packer.write_all(answer).and_then(|()| packer.finish()) else { return };
        let path = format!("api/{question}").replace('&', "&amp;");
        let tag = format!(
            "<script type=\"text/plain\" data-path=\"{path}\">{}</script>\n",
            STANDARD.encode(packed)
        );
        if self.text.len() + tag.len() > self.most {
            self.is_full = true;
        } else {
            self.text.push_str(&tag);
        }
    }
}

impl Viewer<'_> {
    /// The page with the answers to what it will ask, at most `most` bytes of it. The page itself and the overview are always
    /// there.
    pub fn export(&self, most: u64) -> Exported {
        let inputs = self.inputs();
        let views: Vec<View<'_>> = inputs.iter().flat_map(|shown| shown.views()).collect();
        let moments: Vec<Vec<usize>> = views.iter().map(moments).collect();
        let mut overview = self.overview();
        overview["exported"] = json!({ "moments": moments });

        let mut answers = Answers { viewer: self, text: String::new(), most: usize::MAX, is_full: false };
        answers.put("overview", &Answer::Json(overview).bytes());
        answers.most = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(PAGE.len());
        for view in &views {
            answers.add(&format!("findings?run={}", view.id));
        }
        if views.len() > 1 {
            answers.add("ranks");
        }
        for input in 0..inputs.len() {
            answers.add(&format!("holders?input={input}"));
        }
        for (view, moments) in views.iter().zip(&moments) {
            pictures(&mut answers, view, 0);
            looks(&mut answers, view, moments);
        }
        let mut finer = 1;
        let mut is_any = true;
        while is_any && !answers.is_full {
            is_any = false;
            for view in &views {
                is_any |= pictures(&mut answers, view, finer);
            }
            finer += 1;
        }
        let note =
            "not all detail fits: `--max-size` makes room, and `oomph view` without `--html` has all of it";
        let notes = answers.is_full.then(|| note.to_owned()).into_iter().collect();
        Exported { page: PAGE.replacen("<!-- data -->", &answers.text, 1), notes }
    }
}

/// Tiles that are so many levels finer than the whole run in one; says whether there are any.
fn pictures(answers: &mut Answers<'_, '_>, view: &View<'_>, finer: u32) -> bool {
    let (run, space) = (view.id, view.space().length);
    let (smallest, cell) = (unseen(view.history().allocated_peak.bytes.0), unseen(space));
    let mut is_any = false;
    for (axis, x) in [(Axis::Event, "event"), (Axis::Time, "time")] {
        if axis == Axis::Time && view.duration_us() == 0 {
            continue;
        }
        for by in overview::groupings(view) {
            let width = if by == "block" { BLOCKS } else { BANDS };
            for (level, tile) in tiles(view, axis, width, finer) {
                is_any = true;
                answers.add(&format!(
                    "timeline?by={by}&level={level}&run={run}&smallest={smallest}&tile={tile}&x={x}"
                ));
            }
        }
        for (level, tile) in tiles(view, axis, BLOCKS, finer) {
            is_any = true;
            answers.add(&format!(
                "map?high={space}&level={level}&low=0&run={run}&smallest={cell}&tile={tile}&x={x}"
            ));
        }
        if answers.is_full {
            return true;
        }
    }
    is_any
}

/// The level that is so much finer than that of the whole run in one tile, and every second tile of it: they overlap enough for
/// a screen.
fn tiles(view: &View<'_>, axis: Axis, width: usize, finer: u32) -> impl Iterator<Item = (u32, usize)> {
    let columns = move |level| Window { axis, level, tile: 0, width }.columns_of(view);
    let coarsest = (0..64).find(|&level| columns(level) <= width).unwrap_or(0);
    // A time axis goes on to microseconds, in which nothing more happens.
    let is_worth_it =
        |level: &u32| finer == 0 || axis == Axis::Event || columns(*level) <= 2 * view.history().len();
    let level = coarsest.checked_sub(finer).filter(is_worth_it);
    level.into_iter().flat_map(move |level| {
        let last = columns(level).saturating_sub(width / 2).div_ceil(width / 4);
        (0..=last).step_by(2).map(move |tile| (level, tile))
    })
}

/// What cannot be seen on a screen that shows this many bytes from top to bottom: its power of two.
fn unseen(bytes: u64) -> u32 {
    (bytes / SCREEN).max(1).ilog2()
}

/// The moments that a user is likely to look into: the highest, the last, failures, what findings point at, steps.
fn moments(view: &View<'_>) -> Vec<usize> {
    let (history, course) = (view.history(), &view.outline.course);
    let mut moments = vec![overview::first_moment(view), history.allocated_peak.position, history.len()];
    moments.extend(view.findings.iter().map(|finding| overview::focus(view, finding).1));
    moments.extend(course.ooms.iter().rev().map(|&event| event + 1));
    moments.truncate(MOMENTS / 2);
    let stride = course.steps.len().div_ceil(MOMENTS / 4).max(1);
    moments.extend(course.steps.iter().step_by(stride).map(|step| step.position));
    let even = MOMENTS - moments.len();
    moments.extend((0..even).map(|place| place * history.len() / even));
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// What can be looked into at some moments, and of which blocks and groups there are details.
fn looks(answers: &mut Answers<'_, '_>, view: &View<'_>, moments: &[usize]) {
    let run = view.id;
    let best = overview::first_moment(view);
    let mut order: Vec<usize> = moments.to_vec();
    order.sort_by_key(|&moment| moment != best);
    for at in order {
        answers.add(&format!("flame?at={at}&run={run}"));
        answers.add(&format!("layout?at={at}&run={run}"));
        answers
            .add(&format!("table?at={at}&desc=true&limit={PAGE_ROWS}&of=sites&offset=0&run={run}&sort=now"));
        answers.add(&format!(
            "table?at={at}&desc=true&limit={PAGE_ROWS}&of=segments&offset=0&run={run}&sort=size"
        ));
        answers.add(&format!(
            "table?at={at}&desc=true&limit={PAGE_ROWS}&of=allocations&offset=0&run={run}&sort=size"
        ));
    }
    for offset in (0..ROWS.min(view.history().lives.len().max(1))).step_by(PAGE_ROWS) {
        answers.add(&format!(
            "table?desc=true&limit={PAGE_ROWS}&of=allocations&offset={offset}&run={run}&sort=size"
        ));
    }
    for id in 0..GROUPS {
        answers.add(&format!("group?at={best}&by=site&id={id}&run={run}"));
    }
    let mut rows: Vec<u32> = view.allocated_at(best);
    rows.sort_by_key(|&row| std::cmp::Reverse(view.history().lives[row as usize].size));
    for row in rows.into_iter().take(DETAILED) {
        answers.add(&format!("block?row={row}&run={run}"));
    }
}
