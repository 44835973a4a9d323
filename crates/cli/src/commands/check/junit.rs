//! `--format junit`: a test case for each limit and device.

use super::text;
use crate::terminal::Terminal;
use gate::{BudgetVerdict, DeviceVerdict};
use gate::{LimitResult, LimitState};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::io::Write;

pub(super) fn print(verdict: &BudgetVerdict, terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut report = Report::new("oomph check");
    report.add_test_suites(verdict.devices.iter().map(suite));
    // Without a clock: the same verdict gives the same file.
    writeln!(terminal.out(), "{}", report.to_string()?.trim_end())?;
    Ok(())
}

fn suite(device: &DeviceVerdict) -> TestSuite {
    let name = device.measured.name();
    let mut suite = TestSuite::new(name.clone());
    for judgement in &device.results {
        let mut case = TestCase::new(judgement.limit, status(judgement));
        case.set_classname(format!("oomph.check.{}", device.measured.input));
        suite.add_test_case(case);
    }
    suite
}

fn status(judgement: &LimitResult) -> TestCaseStatus {
    let kind = match judgement.state() {
        LimitState::Kept => return TestCaseStatus::success(),
        LimitState::Broken => NonSuccessKind::Failure,
        LimitState::Unmeasured => NonSuccessKind::Error,
    };
    let mut status = TestCaseStatus::non_success(kind);
    let lines = text::plain(judgement);
    status.set_message(lines.first().cloned().unwrap_or_default());
    status.set_type(judgement.state().name());
    status.set_description(lines.join("\n"));
    status
}
