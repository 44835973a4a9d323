//! Techniques that save memory, and what they cost.

/// Techniques that can be applied from outside, with their cost: the step time of ResNet-50 and GPT-2 small
/// on an H200.
pub const TECHNIQUES: [(&str, &str); 11] = [
    ("amp", "step time -9% and -64%"),
    ("checkpoint", "step time +71% and +18%"),
    ("batch/2", "half the samples per step"),
    ("accumulate", "step time +26% and +5%"),
    ("set-to-none", "none"),
    ("fused", "step time -2% and -1%"),
    ("foreach-off", "step time +40% and +1%"),
    ("adafactor", "another optimizer"),
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

/// Returns whether a text names a technique, with a setting where it takes one: `accumulate:4` divides each
/// batch by four, `checkpoint:0-3.7` takes five of the model's blocks.
pub fn is_technique(text: &str) -> bool {
    let (name, setting) = text.split_once(':').map_or((text, None), |(name, setting)| (name, Some(setting)));
    let is_number =
        |text: &str| !text.is_empty() && text.len() < 6 && text.bytes().all(|b| b.is_ascii_digit());
    TECHNIQUES.iter().any(|(known, _)| *known == name)
        && match (name, setting) {
            (_, None) => true,
            ("accumulate", Some(parts)) => {
                is_number(parts) && parts.parse().is_ok_and(|parts: u32| parts >= 2)
            }
            ("checkpoint", Some(blocks)) => blocks.split('.').all(|part| part.splitn(2, '-').all(is_number)),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_belong_to_two_techniques() {
        for right in ["amp", "accumulate", "accumulate:4", "checkpoint:0-3.7", "checkpoint:5"] {
            assert!(is_technique(right), "{right}");
        }
        for wrong in [
            "",
            "am",
            "amp:2",
            "accumulate:",
            "accumulate:1",
            "accumulate:x",
            "checkpoint:1-",
            "checkpoint:-",
        ] {
            assert!(!is_technique(wrong), "{wrong}");
        }
    }
}
