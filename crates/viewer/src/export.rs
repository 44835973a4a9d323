//! One HTML file with the answers inside: the same page, which finds the answers to its questions in itself.
//!
//! Every question is asked as the page would ask it, the most important first, until the file is full. What
//! does not fit is finer detail: the page then shows what it has, and says so.

use crate::Viewer;
use crate::answers::findings;
use crate::answers::overview::{self, ExportedMoments, RunOverview};
use crate::picture::columns::XAxis;
use crate::question::{AnswerBody, ExportPart};
use crate::questions::PageQuestion;
use crate::run::inputs::MAX_LOADED;
use crate::run::runs::LoadedInput;
use crate::run::view::DeviceView;
use crate::server::PAGE;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;
use std::sync::Arc;

/// Positions of each run that have details.
const MAX_MOMENTS: usize = 48;

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

    /// Adds the answers of a part; returns whether it has any.
    fn add_part(&mut self, part: &ExportPart<'_>) -> bool {
        let questions = PageQuestion::exported(part);
        questions.iter().for_each(|question| self.add(question));
        !questions.is_empty()
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
        self.inputs.summarize_all();
        let inputs = self.exported_inputs();
        let views: Vec<DeviceView<'_>> = inputs.iter().flat_map(|loaded| loaded.views()).collect();
        let moments: Vec<Vec<usize>> = views.iter().map(moments).collect();
        let mut overview =
            self.overview_of(inputs.iter().flat_map(|input| RunOverview::all_of(input)).collect());
        let by_run = views.iter().map(|view| view.id).zip(moments.iter().cloned()).collect();
        overview.exported = Some(ExportedMoments { moments: by_run });

        let mut answers =
            EmbeddedAnswers { viewer: self, text: String::new(), max_bytes: usize::MAX, is_full: false };
        answers.put("overview", AnswerBody::json(&overview).bytes());
        answers.max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX).saturating_sub(PAGE.len());
        let runs: Vec<usize> = views.iter().map(|view| view.id).collect();
        let mut numbers: Vec<usize> = views.iter().map(|view| view.input).collect();
        numbers.dedup();
        answers.add_part(&ExportPart::Page {
            runs: &runs,
            inputs: &numbers,
            has_ranks: overview.has_ranks(),
        });
        for (view, moments) in views.iter().zip(&moments) {
            add_pictures(&mut answers, view, 0);
            // The position that people look at first, then the others.
            let best = overview::first_moment(view);
            let mut order: Vec<usize> = moments.to_vec();
            order.sort_by_key(|&moment| moment != best);
            for at in order {
                answers.add_part(&ExportPart::Moment { view, at });
            }
            answers.add_part(&ExportPart::Details { view });
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
        let mut notes: Vec<String> = answers.is_full.then(|| note.to_owned()).into_iter().collect();
        let all = self.inputs.names().len();
        if inputs.len() < all {
            notes.push(format!("only {} of {all} ranks are in the page in full", inputs.len()));
        }
        Exported { page: PAGE.replacen("<!-- data -->", &answers.text, 1), notes }
    }

    /// The inputs that an exported page shows in full: all, or some of many ranks.
    fn exported_inputs(&self) -> Vec<Arc<LoadedInput>> {
        let all = 0..self.inputs.names().len();
        let most = if self.inputs.is_on_demand() { MAX_LOADED } else { all.len() };
        let others = all.filter(|&number| number != self.first);
        let chosen = std::iter::once(self.first).chain(others);
        chosen.filter_map(|number| self.inputs.get(number).ok()).take(most).collect()
    }
}

/// Adds the tiles of a level that is `finer` than that of the whole run in one tile; returns whether there
/// are any.
fn add_pictures(answers: &mut EmbeddedAnswers<'_, '_>, view: &DeviceView<'_>, finer: u32) -> bool {
    let mut is_any = false;
    for axis in [XAxis::Event, XAxis::Time] {
        if axis == XAxis::Time && view.duration_us() == 0 {
            continue;
        }
        is_any |= answers.add_part(&ExportPart::Pictures { view, axis, finer });
        if answers.is_full {
            return true;
        }
    }
    is_any
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
