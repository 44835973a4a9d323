//! One HTML file with the answers inside: the same page, which finds the answers to its questions in itself.
//!
//! Every question is asked as the page would ask it, the most important first, until the file is full. What
//! does not fit is finer detail: the page then shows what it has, and says so.

use crate::Viewer;
use crate::answers::block::BlockQuery;
use crate::answers::findings::{self, FindingsQuery};
use crate::answers::flame::FlameQuery;
use crate::answers::group::GroupQuery;
use crate::answers::holders::HoldersQuery;
use crate::answers::layout::LayoutQuery;
use crate::answers::overview::{self, ExportedMoments};
use crate::answers::ranks::RanksQuery;
use crate::answers::table::{TableOf, TableQuery};
use crate::picture::columns::{BLOCK_COLUMNS, Window, XAxis};
use crate::picture::map::MapQuery;
use crate::picture::timeline::TimelineQuery;
use crate::questions::{AnswerBody, PageQuestion};
use crate::run::groups::GroupBy;
use crate::run::view::DeviceView;
use crate::server::PAGE;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;

/// Positions of each run that have details.
const MAX_MOMENTS: usize = 48;
/// Groups that have details.
const MAX_GROUPS: u32 = 48;
/// Blocks that have details.
const MAX_BLOCKS: usize = 400;
/// Largest allocations in the table.
const MAX_ROWS: usize = 1_000;
/// Rows that the page asks for at a time (`PAGE_ROWS` of `web/src/state/pages.ts`).
const PAGE_ROWS: usize = 200;
/// Approximate height of a picture in pixels.
const PICTURE_HEIGHT_PIXELS: u64 = 600;

/// A page with its answers.
pub struct Exported {
    /// The HTML.
    pub page: String,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Answers as script elements of the page.
struct EmbeddedAnswers<'v, 'c> {
    viewer: &'v Viewer<'c>,
    text: String,
    max_bytes: usize,
    /// Whether an answer did not fit.
    is_full: bool,
}

impl EmbeddedAnswers<'_, '_> {
    /// Adds the answer to a question, if there is one and it fits.
    fn add(&mut self, question: &PageQuestion) {
        let address = question.address();
        if let Ok(answer) = self.viewer.answer(&address) {
            self.put(&address, answer.bytes());
        }
    }

    fn put(&mut self, address: &str, answer: &[u8]) {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::default());
        let Ok(packed) = packer.write_all(answer).and_then(|()| packer.finish()) else { return };
        let path = format!("api/{address}").replace('&', "&amp;");
        let tag = format!(
            "<script type=\"text/plain\" data-path=\"{path}\">{}</script>\n",
            STANDARD.encode(packed)
        );
        if self.text.len() + tag.len() > self.max_bytes {
            self.is_full = true;
        } else {
            self.text.push_str(&tag);
        }
    }
}

impl Viewer<'_> {
    /// Returns the page with the answers to its questions, of at most `max_bytes`. The page itself and the
    /// overview are always in it.
    pub fn export(&self, max_bytes: u64) -> Exported {
        let inputs = self.inputs();
        let views: Vec<DeviceView<'_>> = inputs.iter().flat_map(|loaded| loaded.views()).collect();
        let moments: Vec<Vec<usize>> = views.iter().map(moments).collect();
        let mut overview = self.overview();
        overview.exported = Some(ExportedMoments { moments: moments.clone() });

        let mut answers =
            EmbeddedAnswers { viewer: self, text: String::new(), max_bytes: usize::MAX, is_full: false };
        answers.put("overview", AnswerBody::json(&overview).bytes());
        answers.max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX).saturating_sub(PAGE.len());
        for view in &views {
            answers.add(&PageQuestion::Findings(FindingsQuery { run: view.id }));
        }
        if views.len() > 1 {
            answers.add(&PageQuestion::Ranks(RanksQuery {}));
        }
        for input in 0..inputs.len() {
            answers.add(&PageQuestion::Holders(HoldersQuery { input }));
        }
        for (view, moments) in views.iter().zip(&moments) {
            add_pictures(&mut answers, view, 0);
            add_details(&mut answers, view, moments);
        }
        let mut finer = 1;
        let mut is_any = true;
        while is_any && !answers.is_full {
            is_any = false;
            for view in &views {
                is_any |= add_pictures(&mut answers, view, finer);
            }
            finer += 1;
        }
        let note =
            "not all detail fits: `--max-size` makes room, and `oomph view` without `--html` has all of it";
        let notes = answers.is_full.then(|| note.to_owned()).into_iter().collect();
        Exported { page: PAGE.replacen("<!-- data -->", &answers.text, 1), notes }
    }
}

/// Adds the tiles of a level that is `finer` than that of the whole run in one tile; returns whether there
/// are any.
fn add_pictures(answers: &mut EmbeddedAnswers<'_, '_>, view: &DeviceView<'_>, finer: u32) -> bool {
    let (run, space) = (view.id, view.space().length);
    let smallest = invisible(view.history().allocated_peak.bytes.0);
    let mut is_any = false;
    for x in [XAxis::Event, XAxis::Time] {
        if x == XAxis::Time && view.duration_us() == 0 {
            continue;
        }
        for by in overview::groupings(view) {
            for (level, tile) in tiles(view, x, by.columns(), finer) {
                is_any = true;
                answers.add(&PageQuestion::Timeline(TimelineQuery { run, by, x, level, tile, smallest }));
            }
        }
        for (level, tile) in tiles(view, x, BLOCK_COLUMNS, finer) {
            is_any = true;
            let smallest = invisible(space);
            answers.add(&PageQuestion::Map(MapQuery { run, x, level, tile, low: 0, high: space, smallest }));
        }
        if answers.is_full {
            return true;
        }
    }
    is_any
}

/// Returns the level that is `finer` than that of the whole run in one tile, and every second of its tiles:
/// these overlap enough for a screen.
fn tiles(view: &DeviceView<'_>, axis: XAxis, width: usize, finer: u32) -> impl Iterator<Item = (u32, usize)> {
    let columns = move |level| Window { axis, level, tile: 0, width }.columns_of(view);
    let coarsest = (0..64).find(|&level| columns(level) <= width).unwrap_or(0);
    // The levels of a time axis go down to microseconds, where nothing more can be seen.
    let is_worth_it =
        |level: &u32| finer == 0 || axis == XAxis::Event || columns(*level) <= 2 * view.history().len();
    let level = coarsest.checked_sub(finer).filter(is_worth_it);
    level.into_iter().flat_map(move |level| {
        let last = columns(level).saturating_sub(width / 2).div_ceil(width / 4);
        (0..=last).step_by(2).map(move |tile| (level, tile))
    })
}

/// Returns the power of two of bytes that are too small to see where a picture is this many bytes high.
fn invisible(bytes: u64) -> u32 {
    (bytes / PICTURE_HEIGHT_PIXELS).max(1).ilog2()
}

/// Returns positions that a user is likely to look at: the peak, the end, failures, those of findings, steps.
fn moments(view: &DeviceView<'_>) -> Vec<usize> {
    let (history, step_peaks) = (view.history(), &view.model.step_peaks);
    let mut moments = vec![overview::first_moment(view), history.allocated_peak.position, history.len()];
    moments.extend(view.findings.iter().map(|finding| findings::focus(view, finding).1));
    moments.extend(step_peaks.ooms.iter().rev().map(|&event| event + 1));
    moments.truncate(MAX_MOMENTS / 2);
    let stride = step_peaks.steps.len().div_ceil(MAX_MOMENTS / 4).max(1);
    moments.extend(step_peaks.steps.iter().step_by(stride).map(|step| step.position));
    let even = MAX_MOMENTS - moments.len();
    moments.extend((0..even).map(|number| number * history.len() / even));
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// Adds flame graphs, segments and tables of some positions, and the details of the largest blocks and
/// groups.
fn add_details(answers: &mut EmbeddedAnswers<'_, '_>, view: &DeviceView<'_>, moments: &[usize]) {
    let run = view.id;
    let best = overview::first_moment(view);
    let mut order: Vec<usize> = moments.to_vec();
    order.sort_by_key(|&moment| moment != best);
    let table = |of, sort: &str, at: Option<usize>, offset: usize| {
        PageQuestion::Table(TableQuery {
            run,
            of,
            at,
            sort: Some(sort.to_owned()),
            desc: Some(true),
            offset: Some(offset),
            limit: Some(PAGE_ROWS),
            ..TableQuery::default()
        })
    };
    for at in order {
        answers.add(&PageQuestion::Flame(FlameQuery { run, at: Some(at), ..FlameQuery::default() }));
        answers.add(&PageQuestion::Layout(LayoutQuery { run, at, smallest: None }));
        answers.add(&table(TableOf::Sites, "now", Some(at), 0));
        answers.add(&table(TableOf::Segments, "size", Some(at), 0));
        answers.add(&table(TableOf::Allocations, "size", Some(at), 0));
    }
    for offset in (0..MAX_ROWS.min(view.history().allocations.len().max(1))).step_by(PAGE_ROWS) {
        answers.add(&table(TableOf::Allocations, "size", None, offset));
    }
    for id in 0..MAX_GROUPS {
        answers.add(&PageQuestion::Group(GroupQuery { run, by: GroupBy::Site, id, at: best }));
    }
    let mut rows: Vec<u32> = view.allocated_at(best);
    rows.sort_by_key(|&row| std::cmp::Reverse(view.history().allocations[row as usize].size));
    for row in rows.into_iter().take(MAX_BLOCKS) {
        answers.add(&PageQuestion::Block(BlockQuery { run, row: row as usize }));
    }
}
