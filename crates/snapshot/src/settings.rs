//! Allocator settings stored in a snapshot, and the torch releases that may have written it.

use crate::text::StrId;
use std::fmt;

/// `allocator_settings` of a snapshot: the values at the time of the dump.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Whether the snapshot has settings (torch 2.3 and later).
    pub recorded: bool,
    /// Last settings string, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// Size in bytes from which blocks are not split; `None` means no limit.
    pub max_split: Option<u64>,
    /// `garbage_collection_threshold`; 0 means off.
    pub gc_threshold: f64,
    /// Whether new memory comes from expandable segments.
    pub expandable_segments: bool,
    /// `roundup_power2_divisions`, for sizes from 1 MiB (first) to 32 GiB (last).
    pub divisions: [u64; 16],
    /// Every pair as recorded: key, and value as JSON.
    pub pairs: Vec<(StrId, StrId)>,
}

/// Settings that the program replaced by others while it ran.
#[derive(Clone, PartialEq, Debug)]
pub struct EarlierSettings {
    /// Device whose events are meant.
    pub device: u32,
    /// Number of the device's events that happened before they were replaced.
    pub until: usize,
    /// Settings until then.
    pub settings: Settings,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            recorded: false,
            conf: String::new(),
            max_split: None,
            gc_threshold: 0.0,
            expandable_segments: false,
            divisions: [0; 16],
            pairs: Vec::new(),
        }
    }
}

impl Settings {
    /// Returns the bytes that PyTorch takes for a request of `n` bytes, before it decides whether to
    /// split.
    pub fn round(&self, n: u64) -> u64 {
        rounded(n, &self.divisions)
    }
}

impl Settings {
    /// Bytes that the large pool maps at a time: 20 MiB, or the value of `large_segment_size_mb`.
    pub(crate) fn large_page(&self) -> u64 {
        let value = self.conf.split_once("large_segment_size_mb:").map(|(_, rest)| rest);
        let digits =
            value.map(|text| text.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default());
        let mebibytes: u64 = digits.and_then(|digits| digits.parse().ok()).unwrap_or(20);
        mebibytes.clamp(1, 1 << 20) << 20
    }
}

/// Returns the bytes that PyTorch takes for a request of `n` bytes under these
/// `roundup_power2_divisions`.
pub fn rounded(n: u64, divisions: &[u64; 16]) -> u64 {
    const UNIT: u64 = 512;
    if n < UNIT {
        return UNIT;
    }
    let divisions = divisions[(n.ilog2().saturating_sub(20) as usize).min(15)];
    if divisions > 1 && n > UNIT.saturating_mul(divisions) {
        if n.is_power_of_two() {
            return n;
        }
        let step = (1u64 << n.ilog2()) >> divisions.ilog2();
        return n.checked_next_multiple_of(step.max(UNIT)).unwrap_or(n);
    }
    n.checked_next_multiple_of(UNIT).unwrap_or(n)
}

/// Range of torch releases that write snapshots of this shape, as minor versions of 2.x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchRange {
    /// Oldest release that writes such a file.
    pub oldest: u8,
    /// Newest known release that writes such a file.
    pub newest: u8,
}

impl fmt::Display for TorchRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "torch 2.{}", self.oldest)
        } else if self.newest == NEWEST_KNOWN {
            write!(f, "torch 2.{} or later", self.oldest)
        } else {
            write!(f, "torch 2.{}–2.{}", self.oldest, self.newest)
        }
    }
}

/// Newest minor version of torch 2.x whose snapshots were examined.
const NEWEST_KNOWN: u8 = 15;

/// Keys whose presence dates a snapshot, collected while reading.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Shape {
    pub(crate) has_events: bool,
    pub(crate) has_top_level: bool,
    pub(crate) block_history: bool,
    pub(crate) block_address: bool,
    pub(crate) segment_pool: bool,
    pub(crate) time_us: bool,
    pub(crate) settings: bool,
    pub(crate) annotations: bool,
    pub(crate) compile_context: bool,
    pub(crate) record_stream_reuse: bool,
    pub(crate) user_metadata: bool,
    pub(crate) event_pool: bool,
    pub(crate) host_cache_settings: bool,
    pub(crate) host_segments: bool,
}

impl Shape {
    /// Narrows the range by each key that can be judged: present means "since", absent means "before".
    pub(crate) fn torch(&self) -> TorchRange {
        let mut range = TorchRange { oldest: 0, newest: NEWEST_KNOWN };
        let has_blocks = self.block_history || self.block_address || self.segment_pool;
        let marks = [
            (1, self.block_address || self.segment_pool, has_blocks),
            (2, self.time_us, self.has_events),
            (3, self.settings, self.has_top_level),
            (5, self.annotations, self.has_top_level),
            (8, self.compile_context, self.has_events),
            (9, self.record_stream_reuse, self.settings),
            (10, self.user_metadata, self.has_events),
            (12, self.event_pool, self.has_events),
            (13, self.host_cache_settings, self.settings),
            (14, self.host_segments, self.has_top_level),
        ];
        for (since, present, can_tell) in marks {
            if present {
                range.oldest = range.oldest.max(since);
            } else if can_tell {
                range.newest = range.newest.min(since - 1);
            }
        }
        // Contradictions mean that the file was edited; then the keys that are present decide.
        range.newest = range.newest.max(range.oldest);
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_as_pytorch_rounds_them() {
        let plain = Settings::default();
        for (n, rounded) in
            [(1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20), ((10 << 20) - 1, 10 << 20)]
        {
            assert_eq!(plain.round(n), rounded, "{n}");
        }
        // Worked example 11 of the allocator's behaviour: divisions [1:4,8:8,>:2].
        let mut divisions = [2; 16];
        divisions[..4].copy_from_slice(&[4, 0, 0, 8]);
        let list = Settings { divisions, ..Settings::default() };
        for (n, rounded) in [
            (500, 512),
            (1200, 1536),
            (3000, 3072),
            (5000, 5120),
            (100_000, 114_688),
            ((1 << 20) + 1, 1_310_720),
            ((3 << 20) - 5, 3_145_728),
            (9 << 20, 9_437_184),
            (17 << 20, 25_165_824),
            (33 << 20, 50_331_648),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(list.round(n), rounded, "{n}");
        }
    }

    #[test]
    fn keys_present_and_absent_date_the_file() {
        let modern = Shape {
            has_events: true,
            has_top_level: true,
            block_address: true,
            segment_pool: true,
            time_us: true,
            settings: true,
            annotations: true,
            compile_context: true,
            record_stream_reuse: true,
            user_metadata: true,
            ..Shape::default()
        };
        assert_eq!(modern.torch(), TorchRange { oldest: 10, newest: 11 });
        let bare = Shape { block_address: true, segment_pool: true, ..Shape::default() };
        assert_eq!(bare.torch().to_string(), "torch 2.1 or later");
    }
}
