//! Live blocks in groups, in the JSON of `oomph report --json`.

use super::json::{ReportedSite, by_category, site_report, stack_report};
use crate::args::{By, ReportArgs};
use analysis::{Device, LiveGroup, Moment, Origin, Phase, RunModel, Site};
use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Serialize)]
pub(crate) struct LiveReport {
    at: String,
    event: usize,
    by: &'static str,
    bytes: u64,
    count: u64,
    /// Whether modules inside a numbered layer are counted with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_layer: Option<bool>,
    groups: Vec<GroupReport>,
    /// Everything that is not listed in `groups`.
    rest: RestReport,
}

#[derive(Serialize)]
struct GroupReport {
    bytes: u64,
    requested: u64,
    count: u64,
    /// How many of the blocks were allocated before the history begins.
    before_history: u64,
    /// `user`, `library` (no user code on the stack), `backward` (inside the `backward()` called there or,
    /// with `forward_line`, the backward of that line), `native` (C++ only), `unknown` (no stack) or
    /// `before` (no stack, from before the history begins).
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    /// Whether `site` is where the forward pass runs whose backward pass this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_line: Option<bool>,
    /// The innermost module of nearly all blocks; for groups by module, `null` is outside all modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<Option<String>>,
    /// Bytes by what they are for, for groups by module.
    #[serde(skip_serializing_if = "Option::is_none")]
    categories: Option<Map<String, Value>>,
    /// Bytes by what the program was doing when it allocated, for groups by module.
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<Vec<ReportedSite>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

#[derive(Serialize)]
struct RestReport {
    groups: u64,
    bytes: u64,
    count: u64,
}

/// The groups of one device's live blocks.
pub(crate) fn live(model: &RunModel<'_>, args: &ReportArgs) -> LiveReport {
    let device = model.device;
    let at = args.moment(device);
    let position = device.position_of(at).unwrap_or(device.history.len());
    let live = model.live_at(position, args.key());
    let (shown, rest) = live.top(args.top);
    LiveReport {
        at: match at {
            Moment::Peak => "peak".to_owned(),
            Moment::Oom => "oom".to_owned(),
            Moment::End => "end".to_owned(),
            Moment::Event(event) => event.to_string(),
        },
        event: position.saturating_sub(1),
        by: match args.by {
            By::Site => "site",
            By::Category => "category",
            By::Stack => "stack",
            By::Module => "module",
            By::Size => "size",
        },
        bytes: live.bytes.0,
        count: live.count,
        by_layer: (args.by == By::Module).then_some(live.by_layer),
        groups: shown.iter().map(|group| group_report(device, group)).collect(),
        rest: RestReport { groups: rest.groups, bytes: rest.bytes.0, count: rest.count },
    }
}

fn group_report(device: &Device<'_>, group: &LiveGroup) -> GroupReport {
    let snapshot = device.snapshot;
    let path = |module| device.modules.path(module).to_owned();
    let mut report = GroupReport {
        bytes: group.bytes.0,
        requested: group.requested.0,
        count: group.count,
        before_history: group.from_before,
        origin: None,
        site: None,
        forward_line: None,
        module: group.module.map(|module| Some(path(module))),
        categories: None,
        phases: None,
        stack: None,
        category: None,
        size: None,
    };
    match group.origin {
        Origin::Site(site) => {
            let (origin, frame) = match site {
                Site::User(frame) => ("user", Some(frame)),
                Site::Library(frame) => ("library", Some(frame)),
                Site::Backward(frame) | Site::BackwardOf(frame) => ("backward", Some(frame)),
                Site::Native => ("native", None),
                Site::Unknown => ("unknown", None),
                Site::Before => ("before", None),
            };
            report.origin = Some(origin);
            report.forward_line = matches!(site, Site::BackwardOf(_)).then_some(true);
            report.site = frame.map(|frame| site_report(snapshot, frame));
        }
        Origin::Category(category) => report.category = Some(category.name()),
        Origin::Stack(stack) => report.stack = Some(stack_report(snapshot, stack)),
        Origin::Size(size) => report.size = Some(size.0),
        Origin::Module(module) => {
            let names = Phase::ALL.iter().map(|phase| phase.name()).chain(["other"]);
            report.module = Some(module.map(path));
            report.categories = Some(by_category(&group.categories));
            report.phases = Some(
                names.zip(group.phases).map(|(name, bytes)| (name.to_owned(), bytes.0.into())).collect(),
            );
        }
    }
    report
}
