//! Candidate settings to compare on a run.

use crate::rules::Release;

/// Settings strings and the minor version that first accepts each.
const CANDIDATES: [(&str, u8); 16] = [
    ("", 0),
    ("expandable_segments:True", 1),
    ("max_split_size_mb:32", 0),
    ("max_split_size_mb:64", 0),
    ("max_split_size_mb:128", 0),
    ("max_split_size_mb:256", 0),
    ("max_split_size_mb:512", 0),
    ("roundup_power2_divisions:2", 0),
    ("roundup_power2_divisions:4", 0),
    ("roundup_power2_divisions:8", 0),
    ("roundup_power2_divisions:16", 0),
    ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 0),
    ("max_split_size_mb:128,roundup_power2_divisions:8", 0),
    ("expandable_segments:True,roundup_power2_divisions:8", 1),
    ("large_segment_size_mb:64", 11),
    ("expandable_segments:True,large_segment_size_mb:40", 11),
];

/// Settings that take effect only with a limit; for cards of a known size.
const CANDIDATES_WITH_LIMIT: [(&str, u8); 2] = [
    ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.99", 10),
    ("max_split_size_mb:128,garbage_collection_threshold:0.8,per_process_memory_fraction:0.99", 10),
];

/// Returns the settings strings to compare for a run under `release`, PyTorch's defaults first.
pub fn candidate_settings(release: Release, knows_the_card: bool) -> Vec<&'static str> {
    let with_limit = CANDIDATES_WITH_LIMIT.iter().filter(|_| knows_the_card);
    CANDIDATES
        .iter()
        .chain(with_limit)
        .filter(|(_, since)| *since <= release.0)
        .map(|(conf, _)| *conf)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::Conf;

    #[test]
    fn every_release_accepts_its_candidates() {
        for minor in 0..=Release::NEWEST.0 {
            for conf in candidate_settings(Release(minor), true) {
                assert!(Conf::parse(conf, Release(minor)).is_ok(), "2.{minor}: {conf}");
            }
        }
    }
}
