//! Parser for `PYTORCH_CUDA_ALLOC_CONF` that accepts what PyTorch accepts.
//!
//! What PyTorch rejects is rejected, with a better reason; what it accepts is accepted, with a remark if it
//! does not mean what it seems to.

use crate::rules::Release;
use snapshot::{Settings, Snapshot};

const MIB: u64 = 1 << 20;

/// Settings that affect the placement of memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Conf {
    /// `max_split_size_mb` in bytes: blocks of at least this size are never split; `None` means no limit.
    pub max_split: Option<u64>,
    /// `large_segment_size_mb` in bytes: the segment for requests between 1 and 10 MiB, and the large page of
    /// expandable segments.
    pub large_segment: u64,
    /// `max_non_split_rounding_mb` in bytes: how much larger than the request a block may be that is not
    /// split.
    pub non_split_rounding: u64,
    /// `garbage_collection_threshold`; 0 means off.
    pub gc_threshold: f64,
    /// `roundup_power2_divisions` for sizes from 1 MiB (first) to 32 GiB (last).
    pub divisions: [u64; 16],
    /// `expandable_segments`: whether new memory comes from expandable segments.
    pub expandable: bool,
    /// `per_process_memory_fraction`; 1 means no limit.
    pub memory_fraction: f64,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            max_split: None,
            large_segment: 20 * MIB,
            non_split_rounding: 20 * MIB,
            gc_threshold: 0.0,
            divisions: [0; 16],
            expandable: false,
            memory_fraction: 1.0,
        }
    }
}

/// Reason that PyTorch would reject a settings string.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{what}")]
pub struct ConfError {
    /// Part that is wrong, and the accepted values.
    pub what: String,
    /// What to write instead.
    pub hint: String,
}

/// Parsed settings string, with remarks.
#[derive(Clone, PartialEq, Debug)]
pub struct ParsedConf {
    /// Parsed settings.
    pub conf: Conf,
    /// Parts that PyTorch accepts but that do not mean what they seem to, or do not affect placement.
    pub remarks: Vec<String>,
    /// Kinds of the options that the string contains.
    named: Vec<OptionKind>,
}

impl ParsedConf {
    /// Replaces the options that the string contains, and leaves the others as they are.
    pub(crate) fn override_in(&self, conf: &mut Conf) {
        for kind in &self.named {
            match kind {
                OptionKind::SplitSize => conf.max_split = self.conf.max_split,
                OptionKind::NonSplitRounding => conf.non_split_rounding = self.conf.non_split_rounding,
                OptionKind::LargeSegment => conf.large_segment = self.conf.large_segment,
                OptionKind::Threshold => conf.gc_threshold = self.conf.gc_threshold,
                OptionKind::Divisions => conf.divisions = self.conf.divisions,
                OptionKind::Expandable => conf.expandable = self.conf.expandable,
                OptionKind::Fraction
                | OptionKind::Backend
                | OptionKind::Switch
                | OptionKind::Threads
                | OptionKind::Mebibytes
                | OptionKind::Cap => {}
            }
        }
    }
}

impl Conf {
    /// Parses `text` as `release` does.
    pub fn parse(text: &str, release: Release) -> Result<ParsedConf, ConfError> {
        let mut parser = Parser::new(text, release, Conf::default());
        parser.parse()?;
        let Parser { conf, remarks, named, .. } = parser;
        Ok(ParsedConf { conf, remarks, named })
    }

    /// Returns the settings after a call that changes them while the program runs. Options that `text` does
    /// not contain are reset or keep their value, as in PyTorch; those before an error are applied.
    pub fn changed_by(&self, text: &str, release: Release) -> Conf {
        let kept = Conf { max_split: None, gc_threshold: 0.0, divisions: [0; 16], ..self.clone() };
        let mut parser = Parser::new(text, release, kept);
        let _ = parser.parse();
        // PyTorch reads the fraction when it creates the allocator, and never again.
        Conf { memory_fraction: self.memory_fraction, ..parser.conf }
    }

    /// Returns the settings of a recorded run: the values in the snapshot, and its settings string for the
    /// rest.
    pub fn recorded(snapshot: &Snapshot, release: Release) -> Conf {
        let settings = &snapshot.settings;
        let mut conf = Conf::parse(&settings.conf, release).map(|parsed| parsed.conf).unwrap_or_default();
        if settings.recorded {
            conf.take_values(settings);
        } else {
            // Before torch 2.3 the file has no settings, but the segments show whether they are expandable.
            conf.expandable = snapshot.segments.iter().any(|segment| segment.expandable);
        }
        conf
    }

    /// Takes the values that a snapshot contains.
    pub(crate) fn take_values(&mut self, settings: &Settings) {
        self.max_split = settings.max_split;
        self.gc_threshold = settings.gc_threshold;
        self.expandable = settings.expandable_segments;
        self.divisions = settings.divisions;
    }

    /// Writes these settings into a snapshot whose own settings are missing or wrong: the state before its
    /// first event depends on them.
    pub fn replace_in(&self, settings: &mut Settings) {
        settings.max_split = self.max_split;
        settings.gc_threshold = self.gc_threshold;
        settings.expandable_segments = self.expandable;
        settings.divisions = self.divisions;
    }

    /// Returns whether a block of `size` bytes is never split.
    #[inline]
    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        self.max_split.is_some_and(|limit| size >= limit)
    }
}

/// Every option, the minor version that introduced it, and the kind of its value.
const OPTIONS: [(&str, u8, OptionKind); 19] = [
    ("max_split_size_mb", 0, OptionKind::SplitSize),
    ("garbage_collection_threshold", 0, OptionKind::Threshold),
    ("roundup_power2_divisions", 0, OptionKind::Divisions),
    ("backend", 0, OptionKind::Backend),
    ("expandable_segments", 1, OptionKind::Expandable),
    ("release_lock_on_cudamalloc", 2, OptionKind::Switch),
    ("release_lock_on_hipmalloc", 2, OptionKind::Switch),
    ("pinned_use_cuda_host_register", 2, OptionKind::Switch),
    ("pinned_use_hip_host_register", 2, OptionKind::Switch),
    ("pinned_num_register_threads", 2, OptionKind::Threads),
    ("max_non_split_rounding_mb", 6, OptionKind::NonSplitRounding),
    ("pinned_use_background_threads", 6, OptionKind::Switch),
    ("graph_capture_record_stream_reuse", 9, OptionKind::Switch),
    ("per_process_memory_fraction", 10, OptionKind::Fraction),
    ("pinned_reserve_segment_size_mb", 10, OptionKind::Mebibytes),
    ("large_segment_size_mb", 11, OptionKind::LargeSegment),
    ("throw_on_cudamalloc_oom", 12, OptionKind::Switch),
    ("pinned_max_round_threshold_mb", 13, OptionKind::Cap),
    ("pinned_max_cached_size_mb", 13, OptionKind::Cap),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OptionKind {
    SplitSize,
    NonSplitRounding,
    LargeSegment,
    Threshold,
    Fraction,
    Divisions,
    Expandable,
    Backend,
    Switch,
    Threads,
    /// Positive number of MiB.
    Mebibytes,
    /// Number of MiB, or none.
    Cap,
}

struct Parser {
    tokens: Vec<String>,
    at: usize,
    release: u8,
    conf: Conf,
    remarks: Vec<String>,
    named: Vec<OptionKind>,
}

type ParseResult<T> = Result<T, ConfError>;

impl Parser {
    fn new(text: &str, Release(release): Release, conf: Conf) -> Parser {
        let mut tokens: Vec<String> = Vec::new();
        let mut word = String::new();
        for letter in text.chars() {
            match letter {
                ',' | ':' | '[' | ']' => {
                    if !word.is_empty() {
                        tokens.push(std::mem::take(&mut word));
                    }
                    tokens.push(letter.to_string());
                }
                // Up to torch 2.9 only spaces are dropped; a tab stays part of its word.
                ' ' => {}
                '\t' | '\n' | '\r' | '\x0b' | '\x0c' if release >= 10 => {}
                other => word.push(other),
            }
        }
        if !word.is_empty() {
            tokens.push(word);
        }
        Parser { tokens, at: 0, release, conf, remarks: Vec::new(), named: Vec::new() }
    }

    fn parse(&mut self) -> ParseResult<()> {
        if self.release >= 11 {
            // Read before all others, wherever it appears: other options are validated against it.
            for place in 0..self.tokens.len() {
                if self.tokens[place] == "large_segment_size_mb"
                    && let Some(value) = self.tokens.get(place + 2).cloned()
                {
                    self.large_segment(&value)?;
                }
            }
            self.conf.non_split_rounding = self.conf.large_segment;
        }
        while self.at < self.tokens.len() {
            let key = self.take("an option")?;
            let Some(&(name, since, kind)) = OPTIONS.iter().find(|(name, ..)| *name == key) else {
                return Err(unknown(&key));
            };
            if since > self.release {
                return Err(ConfError {
                    what: format!("torch 2.{} does not know `{name}`", self.release),
                    hint: format!("it came with torch 2.{since}; `--torch 2.{since}` assumes that release"),
                });
            }
            self.named.push(kind);
            self.separator(":", name)?;
            if kind == OptionKind::Divisions {
                self.divisions()?;
            } else {
                let value = self.take(&format!("the value of `{name}`"))?;
                self.option(name, kind, &value)?;
            }
            if self.at < self.tokens.len() {
                self.separator(",", name)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, what: &str) -> ParseResult<String> {
        let token = self.tokens.get(self.at).cloned().ok_or_else(|| ConfError {
            what: format!("the settings end where {what} is expected"),
            hint: "write `option:value`, separated by commas".to_owned(),
        })?;
        self.at += 1;
        Ok(token)
    }

    /// Consumes the separator between two parts. From torch 2.10 on, PyTorch skips one token without checking
    /// it.
    fn separator(&mut self, expected: &str, after: &str) -> ParseResult<()> {
        let found = self.take(&format!("`{expected}` after `{after}`"))?;
        if found == expected {
            return Ok(());
        }
        if self.release <= 9 {
            return Err(ConfError {
                what: format!("`{expected}` expected after `{after}`, found `{found}`"),
                hint: "write `option:value`, separated by commas".to_owned(),
            });
        }
        self.remarks.push(format!(
            "`{found}` instead of `{expected}` after `{after}`: torch 2.10 and later ignore it, earlier \
             releases reject it"
        ));
        Ok(())
    }

    fn option(&mut self, name: &str, kind: OptionKind, value: &str) -> ParseResult<()> {
        match kind {
            OptionKind::SplitSize => self.conf.max_split = Some(self.split_size(name, value)?),
            OptionKind::NonSplitRounding => self.conf.non_split_rounding = self.split_size(name, value)?,
            OptionKind::LargeSegment => self.large_segment(value)?,
            OptionKind::Threshold => {
                let threshold = self.decimal(name, value)?;
                // Written so that NaN fails the test.
                if !(threshold > 0.0 && threshold < 1.0) {
                    return Err(out_of_range(name, value, "between 0 and 1, both excluded", "0.8"));
                }
                self.conf.gc_threshold = threshold;
            }
            OptionKind::Fraction => {
                let fraction = self.decimal(name, value)?;
                if !(0.0..=1.0).contains(&fraction) {
                    return Err(out_of_range(name, value, "from 0 to 1", "0.9"));
                }
                self.conf.memory_fraction = fraction;
            }
            OptionKind::Expandable => self.conf.expandable = boolean(name, value)?,
            OptionKind::Backend => {
                if value != "native" {
                    return Err(ConfError {
                        what: format!(
                            "`backend:{value}` selects another allocator: only PyTorch's native one is \
                             modeled"
                        ),
                        hint: "leave `backend` out".to_owned(),
                    });
                }
            }
            OptionKind::Switch => {
                boolean(name, value)?;
                self.has_no_effect(name);
            }
            OptionKind::Threads => {
                let threads = self.unsigned(name, value)?;
                if !threads.is_power_of_two() || threads > 128 {
                    return Err(out_of_range(name, value, "a power of two up to 128", "8"));
                }
                self.has_no_effect(name);
            }
            OptionKind::Mebibytes => {
                if self.unsigned(name, value)? == 0 {
                    return Err(out_of_range(name, value, "above 0", "32"));
                }
                self.has_no_effect(name);
            }
            OptionKind::Cap => {
                self.unsigned(name, value)?;
                self.has_no_effect(name);
            }
            OptionKind::Divisions => {}
        }
        Ok(())
    }

    fn has_no_effect(&mut self, name: &str) {
        self.remarks.push(format!("`{name}` does not affect the placement of device memory"));
    }

    fn split_size(&mut self, name: &str, value: &str) -> ParseResult<u64> {
        let least = if self.release <= 9 { 21 } else { self.conf.large_segment / MIB };
        let mebibytes = self.unsigned(name, value)?;
        if mebibytes < least {
            return Err(out_of_range(name, value, &format!("at least {least}"), &least.max(128).to_string()));
        }
        Ok(mebibytes.min(u64::MAX / MIB) * MIB)
    }

    fn large_segment(&mut self, value: &str) -> ParseResult<()> {
        let mebibytes = self.unsigned("large_segment_size_mb", value)?;
        if mebibytes <= 10 {
            return Err(out_of_range("large_segment_size_mb", value, "above 10", "20"));
        }
        self.conf.large_segment = mebibytes.min(MAX_LARGE_SEGMENT_MIB) * MIB;
        Ok(())
    }

    /// Parses `8`, or `[256:1,512:2,>:4]`.
    fn divisions(&mut self) -> ParseResult<()> {
        const NAME: &str = "roundup_power2_divisions";
        let first = self.take("the divisions")?;
        if first != "[" {
            let divisions = self.unsigned(NAME, &first)?;
            if !divisions.is_power_of_two() {
                return Err(out_of_range(NAME, &first, "a power of two", "8"));
            }
            self.conf.divisions = [divisions; 16];
            return Ok(());
        }
        let mut last = 0;
        let mut is_first = true;
        // Up to torch 2.9 an opening bracket at the very end means an empty list.
        if self.release <= 9 && self.at == self.tokens.len() {
            return Ok(());
        }
        let mut token = self.take("a size in MiB")?;
        while token != "]" {
            self.separator(":", &token)?;
            let value = self.take("a number of divisions")?;
            let divisions = self.unsigned(NAME, &value)?;
            let may_be_none = self.release >= 4;
            if !(divisions.is_power_of_two() || may_be_none && divisions == 0) {
                return Err(out_of_range(NAME, &value, "a power of two, from 2.4 on also 0", "8"));
            }
            if token == ">" {
                let start = if self.release <= 9 { last } else { last + 1 };
                self.conf.divisions[start.min(16)..].fill(divisions);
            } else {
                let mebibytes = self.unsigned(NAME, &token)?;
                if !mebibytes.is_power_of_two() {
                    return Err(out_of_range(NAME, &token, "sizes that are powers of two", "256"));
                }
                last = (mebibytes.ilog2() as usize).min(15);
                if is_first {
                    self.conf.divisions[..last].fill(divisions);
                }
                self.conf.divisions[last] = divisions;
                is_first = false;
            }
            token = self.take("`]`")?;
            if token == "," {
                token = self.take("a size in MiB")?;
            }
        }
        Ok(())
    }

    /// Parses like C's `strtoull`: leading digits count, a minus sign wraps around.
    fn unsigned(&mut self, name: &str, text: &str) -> ParseResult<u64> {
        let trimmed = text.trim_start();
        let (negative, digits) = match trimmed.as_bytes().first() {
            Some(b'-') => (true, &trimmed[1..]),
            Some(b'+') => (false, &trimmed[1..]),
            _ => (false, trimmed),
        };
        let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
        let number: u64 = digits[..end].parse().map_err(|_| not_a_number(name, text))?;
        // Up to torch 2.9 most numbers are read as 32-bit integers.
        let bits = if self.release <= 9 { 31 } else { 64 };
        if number.checked_shr(bits).is_some_and(|rest| rest > 0) {
            return Err(not_a_number(name, text));
        }
        if end < digits.len() {
            self.remarks.push(format!("`{text}` in `{name}` is read as {number}: PyTorch ignores the rest"));
        }
        if negative {
            let wrapped = number.wrapping_neg();
            self.remarks.push(format!("`{text}` in `{name}` wraps around to {wrapped}"));
            return Ok(wrapped);
        }
        Ok(number)
    }

    /// Parses like C's `strtod`: the longest prefix that is a number.
    fn decimal(&mut self, name: &str, text: &str) -> ParseResult<f64> {
        let trimmed = text.trim_start();
        let is_part = |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | 'e' | 'E' | '+' | '-');
        let mut end = trimmed.find(|letter| !is_part(letter)).unwrap_or(trimmed.len());
        while end > 0 {
            if let Ok(number) = trimmed[..end].parse::<f64>() {
                // C rejects a number that underflows to 0.
                let digits = trimmed[..end].split(['e', 'E']).next().unwrap_or_default();
                if number == 0.0 && digits.contains(|digit| ('1'..='9').contains(&digit)) {
                    return Err(not_a_number(name, text));
                }
                if end < trimmed.len() {
                    self.remarks
                        .push(format!("`{text}` in `{name}` is read as {number}: PyTorch ignores the rest"));
                }
                return Ok(number);
            }
            end -= 1;
        }
        Err(not_a_number(name, text))
    }
}

/// Maximum of `large_segment_size_mb`, in MiB: larger than any device, and small enough not to overflow.
const MAX_LARGE_SEGMENT_MIB: u64 = 1 << 36;

fn boolean(name: &str, value: &str) -> ParseResult<bool> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(out_of_range(name, value, "`True` or `False`, spelled exactly", "True")),
    }
}

fn out_of_range(name: &str, value: &str, accepted: &str, example: &str) -> ConfError {
    ConfError {
        what: format!("`{value}` for `{name}`: PyTorch accepts {accepted}"),
        hint: format!("for example `{name}:{example}`"),
    }
}

fn not_a_number(name: &str, value: &str) -> ConfError {
    ConfError {
        what: format!("`{value}` for `{name}` is not a number that PyTorch can read"),
        hint: "write plain digits".to_owned(),
    }
}

fn unknown(key: &str) -> ConfError {
    let nearest = OPTIONS
        .iter()
        .map(|(name, ..)| (distance(name, key), *name))
        .min()
        .filter(|&(distance, name)| distance <= name.len() / 3);
    ConfError {
        what: format!("PyTorch has no option `{key}`"),
        hint: match nearest {
            Some((_, name)) => format!("did you mean `{name}`?"),
            None => "options are written `max_split_size_mb:128,expandable_segments:True`".to_owned(),
        },
    }
}

/// Returns the edit distance between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &right) in b.iter().enumerate() {
            let change = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divisions(text: &str, release: u8) -> [u64; 16] {
        let text = format!("roundup_power2_divisions:{text}");
        Conf::parse(&text, Release(release)).expect("accepted").conf.divisions
    }

    fn runs(parts: &[(u64, usize)]) -> [u64; 16] {
        let all: Vec<u64> = parts.iter().flat_map(|&(value, count)| vec![value; count]).collect();
        all.try_into().expect("sixteen")
    }

    #[test]
    fn lists_of_divisions_fill_as_in_pytorch() {
        for (text, expected) in [
            ("[256:1,512:2,1024:4,>:8]", runs(&[(1, 9), (2, 1), (4, 1), (8, 5)])),
            ("[64:4,>:2]", runs(&[(4, 7), (2, 9)])),
            ("[256:2,64:4,>:8]", runs(&[(2, 6), (4, 1), (8, 9)])),
            ("[256:0,512:2]", runs(&[(0, 9), (2, 1), (0, 6)])),
            ("[65536:4]", runs(&[(4, 16)])),
            ("[>:2]", runs(&[(0, 1), (2, 15)])),
            ("8", runs(&[(8, 16)])),
        ] {
            assert_eq!(divisions(text, 11), expected, "{text}");
        }
        assert_eq!(divisions("[64:4,>:2]", 9), runs(&[(4, 6), (2, 10)]), "2.9 overwrites the last entry");
    }

    #[test]
    fn a_wrong_string_says_what_is_wrong_and_what_to_write() {
        let wrong = |text: &str, release| Conf::parse(text, Release(release)).expect_err(text);
        assert_eq!(wrong("max_split_size:128", 11).hint, "did you mean `max_split_size_mb`?");
        assert_eq!(
            wrong("max_split_size_mb:10", 11).what,
            "`10` for `max_split_size_mb`: PyTorch accepts at least 20"
        );
        assert_eq!(
            wrong("large_segment_size_mb:32", 9).what,
            "torch 2.9 does not know `large_segment_size_mb`"
        );
        assert!(wrong("expandable_segments:true", 11).what.contains("`True` or `False`"));
        assert!(wrong("max_split_size_mb", 11).what.contains("end where"));
    }

    #[test]
    fn values_that_pytorch_accepts_silently_get_a_remark() {
        let parsed = Conf::parse("max_split_size_mb:40garbage,pinned_num_register_threads:8", Release(11));
        let parsed = parsed.expect("PyTorch accepts it");
        assert_eq!(parsed.conf.max_split, Some(40 << 20));
        assert_eq!(parsed.remarks.len(), 2, "{:?}", parsed.remarks);
    }
}
