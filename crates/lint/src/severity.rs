//! Severity of findings.

/// Cost of a mistake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RuleSeverity {
    /// A scalar, or host memory, or time.
    Low,
    /// A higher peak, or a fixed amount of device memory.
    Medium,
    /// Device memory in every step.
    High,
}

impl RuleSeverity {
    /// Returns the name used in output: `low`, `medium` or `high`.
    pub fn name(self) -> &'static str {
        match self {
            RuleSeverity::Low => "low",
            RuleSeverity::Medium => "medium",
            RuleSeverity::High => "high",
        }
    }
}
