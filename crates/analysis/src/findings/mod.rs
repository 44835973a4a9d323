//! The findings of a run, one file per kind: `measure` takes numbers and thresholds from the run model,
//! `describe` puts them into words.

mod churn;
mod evaluation;
mod failure;
pub(crate) mod finding;
pub(crate) mod fragmentation;
mod host_memory;
mod knobs;
mod layout;
pub(crate) mod leak;
mod leak_kind;
mod line;
mod non_pytorch;
pub(crate) mod not_found;
mod oom;
mod pending;
mod pinned_waste;
mod private_pool;
pub(crate) mod retries;
mod rising_peak;
pub(crate) mod room;
mod shared_memory;
mod spike;
mod worker_growth;
mod workspace;

use crate::run::device::Device;
use crate::run::model::RunModel;
use finding::{EvidenceValue, Finding, FindingKind};
use recording::HostMemory;
use std::cmp::Reverse;

/// One device with its run model and its findings.
pub struct Diagnosis<'a> {
    /// The run model that the findings are made from.
    pub model: RunModel<'a>,
    /// The findings, most important first.
    pub findings: Vec<Finding>,
}

impl<'a> Diagnosis<'a> {
    /// Builds the run model of a device and derives its findings.
    pub fn new(device: &'a Device<'a>) -> Diagnosis<'a> {
        let model = RunModel::new(device);
        let findings = findings(&model);
        Diagnosis { model, findings }
    }
}

/// The findings of a run, most important first.
pub fn findings(model: &RunModel<'_>) -> Vec<Finding> {
    // Steps of the program cannot be seen in its pinned memory, which threads of data loaders request.
    if model.device.is_pinned() {
        return Vec::new();
    }
    let mut leaks = leak::measure(model);
    let mut rising = rising_peak::measure(model, &leaks.retained);
    if rising.as_ref().is_some_and(|rising| leaks.drop_growing_work(rising)) {
        rising = rising_peak::measure(model, &leaks.retained);
    }
    let leaked_at_oom = leaks.retained_at_oom(model);
    let mut findings: Vec<Finding> = leaks.leaks.iter().map(leak::describe).collect();
    findings.extend(oom::measure(model, leaked_at_oom).as_ref().map(oom::describe));
    findings.extend(non_pytorch::measure(model).as_ref().map(non_pytorch::describe));
    findings.extend(rising.as_ref().map(rising_peak::describe));
    findings.extend(spike::measure(model, &leaks.retained).as_ref().map(spike::describe));
    if !model.device.is_cpu() {
        // What follows is about the caching allocator and CUDA's libraries.
        findings.extend(fragmentation::measure(model).as_ref().map(fragmentation::describe));
        findings.extend(churn::measure(model).as_ref().map(churn::describe));
        findings.extend(pending::measure(model).as_ref().map(pending::describe));
        findings.extend(private_pool::measure(model).as_ref().map(private_pool::describe));
        findings.extend(workspace::measure(model).as_ref().map(workspace::describe));
    }
    if let Some(host) = host_of(model) {
        findings.extend(pinned_waste::measure(model, host).as_ref().map(pinned_waste::describe));
        findings.extend(worker_growth::measure(model, host).as_ref().map(worker_growth::describe));
        findings.extend(shared_memory::measure(model, host).as_ref().map(shared_memory::describe));
        findings.extend(host_memory::measure(host).as_ref().map(host_memory::describe));
    }
    knobs::add(model, &mut findings);
    for finding in &mut findings {
        let module = finding.module.map(|module| model.device.modules.path(module).to_owned());
        finding.evidence.extend(module.map(|path| ("module", EvidenceValue::Text(path))));
    }
    findings.sort_by_key(rank);
    findings
}

/// Host memory of the process, which is reported once, with its first device.
fn host_of<'a>(model: &RunModel<'a>) -> Option<&'a HostMemory> {
    let is_first = model.device.snapshot.devices().first() == Some(&model.device.history.device);
    model.device.recording.host.as_ref().filter(|_| is_first)
}

/// The place of a finding in the list: what ends the run first comes first.
fn rank(finding: &Finding) -> impl Ord + use<> {
    (
        Reverse(finding.kind == FindingKind::Oom),
        Reverse(finding.severity),
        finding.steps_until_full.unwrap_or(u64::MAX),
        Reverse(finding.bytes),
        finding.kind,
    )
}
