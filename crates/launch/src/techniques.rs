//! Techniques that save memory, and what they cost.

/// Techniques that can be applied from outside, with their cost: the step time of ResNet-50 and GPT-2 small
/// on an H200.
pub const TECHNIQUES: [(&str, &str); 10] = [
    ("amp", "step time -9% and -64%"),
    ("checkpoint", "step time +71% and +18%"),
    ("batch/2", "half the samples per step"),
    ("accumulate", "step time +26% and +5%"),
    ("set-to-none", "none"),
    ("fused", "step time -2% and -1%"),
    ("foreach-off", "step time +40% and +1%"),
    ("offload", "step time +1058% and +297%"),
    ("bf16", "step time -11% and -70%, less precise updates"),
    ("expandable", "none"),
];

/// Combinations whose cost was measured.
const COMBINED: [(&str, &str); 1] = [("amp+checkpoint", "step time +115% and -53%")];

/// Returns the measured cost of a technique or a combination.
pub fn technique_cost(label: &str) -> Option<&'static str> {
    TECHNIQUES.iter().chain(&COMBINED).find(|(name, _)| *name == label).map(|(_, cost)| *cost)
}
