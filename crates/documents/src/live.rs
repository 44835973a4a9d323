//! Live blocks in groups, in the JSON of `oomph report --json`.

use crate::amounts::{BytesByCategory, by_category};
use crate::report::ReportOptions;
use crate::sites::{ReportedSite, stack_report};
use analysis::{Device, Key, LiveGroup, Moment, Origin, Phase, RunModel, Site};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Live blocks at one moment, in groups.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LiveReport {
    /// The moment: `peak`, `oom`, `end`, or the index of an event.
    at: String,
    /// Index of the last event before it.
    event: usize,
    /// What the groups have in common: `site`, `category`, `stack`, `module` or `size`.
    by: &'static str,
    /// Bytes of all live blocks.
    bytes: u64,
    /// Number of all live blocks.
    count: u64,
    /// Whether modules inside a numbered layer are counted with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_layer: Option<bool>,
    /// Groups, the largest first.
    groups: Vec<GroupReport>,
    /// Groups that are not listed.
    rest: RestReport,
}

/// Live blocks that have something in common.
#[derive(Serialize, JsonSchema)]
struct GroupReport {
    /// Bytes of the blocks.
    bytes: u64,
    /// Bytes that the program requested for them, before rounding.
    requested: u64,
    /// Number of blocks.
    count: u64,
    /// Number of the blocks that were allocated before the history begins.
    before_history: u64,
    /// `user`, `library` (no user code on the stack), `backward` (inside the `backward()` called there or,
    /// with `forward_line`, the backward of that line), `native` (C++ only), `unknown` (no stack) or
    /// `before` (no stack, from before the history begins).
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'static str>,
    /// Line, for groups by site.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    /// Whether `site` is where the forward pass runs whose backward pass this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_line: Option<bool>,
    /// Innermost module of nearly all blocks; for groups by module, `null` is outside all modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<Option<String>>,
    /// Bytes by what they are for, for groups by module.
    #[serde(skip_serializing_if = "Option::is_none")]
    categories: Option<BytesByCategory>,
    /// Bytes by what the program was doing when it allocated, for groups by module.
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<BTreeMap<&'static str, u64>>,
    /// Call stack, the innermost frame first, for groups by stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<Vec<ReportedSite>>,
    /// Category, for groups by category.
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    /// Bytes of each block, for groups by size.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

/// Groups beyond `--top`.
#[derive(Serialize, JsonSchema)]
struct RestReport {
    /// Number of groups.
    groups: u64,
    /// Bytes of their blocks.
    bytes: u64,
    /// Number of their blocks.
    count: u64,
}

impl LiveReport {
    /// The groups of one device's live blocks.
    pub(crate) fn new(model: &RunModel<'_>, options: &ReportOptions) -> LiveReport {
        let device = model.device;
        let at = options.at.unwrap_or_else(|| device.default_moment());
        let position = device.position_of(at).unwrap_or(device.history.len());
        let live = model.live_at(position, options.by);
        let (shown, rest) = live.top(options.top);
        LiveReport {
            at: match at {
                Moment::Peak => "peak".to_owned(),
                Moment::Oom => "oom".to_owned(),
                Moment::End => "end".to_owned(),
                Moment::Event(event) => event.to_string(),
            },
            event: position.saturating_sub(1),
            by: match options.by {
                Key::Site => "site",
                Key::Category => "category",
                Key::Stack => "stack",
                Key::Module { .. } => "module",
                Key::Size => "size",
            },
            bytes: live.bytes.0,
            count: live.count,
            by_layer: matches!(options.by, Key::Module { .. }).then_some(live.by_layer),
            groups: shown.iter().map(|group| group_report(device, group)).collect(),
            rest: RestReport { groups: rest.groups, bytes: rest.bytes.0, count: rest.count },
        }
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
            report.site = frame.map(|frame| ReportedSite::of(snapshot, frame));
        }
        Origin::Category(category) => report.category = Some(category.name()),
        Origin::Stack(stack) => report.stack = Some(stack_report(snapshot, stack)),
        Origin::Size(size) => report.size = Some(size.0),
        Origin::Module(module) => {
            let names = Phase::ALL.iter().map(|phase| phase.name()).chain(["other"]);
            report.module = Some(module.map(path));
            report.categories = Some(by_category(&group.categories));
            report.phases = Some(names.zip(group.phases).map(|(name, bytes)| (name, bytes.0)).collect());
        }
    }
    report
}
