//! The findings of a run: each file is one kind, with `measure` (numbers and thresholds) and `describe` (words).

mod churn;
mod failure;
pub(crate) mod finding;
pub(crate) mod fragmentation;
mod layout;
mod leak;
mod leak_kind;
mod non_pytorch;
mod oom;
mod pending;
mod private_pool;
pub(crate) mod retries;
mod spike;
mod workspace;

use crate::run::device::Device;
use crate::run::model::RunModel;
use finding::{Finding, Kind, Value};
use snapshot::Bytes;

/// One device with everything that is said about it.
pub struct Diagnosis<'a> {
    /// What findings are made from.
    pub outline: RunModel<'a>,
    /// The findings, most important first.
    pub findings: Vec<Finding>,
}

impl<'a> Diagnosis<'a> {
    /// Explains a device.
    pub fn new(device: &'a Device<'a>) -> Diagnosis<'a> {
        let model = RunModel::new(device);
        let findings = findings(&model);
        Diagnosis { outline: model, findings }
    }
}

/// The findings, most important first.
pub fn findings(model: &RunModel<'_>) -> Vec<Finding> {
    let leaks = leak::leaks(model);
    let leaked: Vec<u64> = leaks.piled_up;
    let by_the_oom = model.course.ooms.last().map_or(0, |&event| {
        let bound = model.device.steps.bounds.partition_point(|&bound| bound <= event);
        bound.checked_sub(1).and_then(|bound| leaked.get(bound).or(leaked.last())).copied().unwrap_or(0)
    });
    let mut findings = leaks.findings;
    findings.extend(oom::oom(model, Bytes(by_the_oom)));
    findings.extend(non_pytorch::outside(model));
    findings.extend(spike::spike(model, &leaked));
    if !model.device.is_cpu() {
        // What follows is about the caching allocator and CUDA's libraries.
        findings.extend(fragmentation::fragmentation(model));
        findings.extend(churn::churn(model));
        findings.extend(pending::pending(model));
        findings.extend(private_pool::private_pools(model));
        findings.extend(workspace::workspace(model));
    }
    for finding in &mut findings {
        let module = finding.module.map(|module| model.device.modules.path(module).to_owned());
        finding.evidence.extend(module.map(|path| ("module", Value::Text(path))));
    }
    findings.sort_by_key(|finding| {
        let first = finding.kind == Kind::Oom;
        (
            std::cmp::Reverse(first),
            std::cmp::Reverse(finding.severity),
            std::cmp::Reverse(finding.bytes),
            finding.kind,
        )
    });
    findings
}
