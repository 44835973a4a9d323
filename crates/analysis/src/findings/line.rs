//! Lines of code as findings name them.

use super::finding::EvidenceValue;
use crate::run::model::RunModel;
use crate::words::{counted, site_name};
use snapshot::{Bytes, FrameId};

/// A line of code with its short name; without both where no stack was recorded.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct NamedSite {
    pub(super) frame: Option<FrameId>,
    name: Option<String>,
}

impl NamedSite {
    pub(super) fn new(model: &RunModel<'_>, frame: Option<FrameId>) -> NamedSite {
        NamedSite { frame, name: frame.map(|frame| site_name(model.device.snapshot, frame)) }
    }

    /// The name (`train.py:20`), or these words where the line is not known.
    pub(super) fn or<'a>(&'a self, otherwise: &'a str) -> &'a str {
        self.name.as_deref().unwrap_or(otherwise)
    }

    /// The words ` at train.py:20`, or nothing where the line is not known.
    pub(super) fn at(&self) -> String {
        self.name.as_ref().map(|name| format!(" at {name}")).unwrap_or_default()
    }

    /// The line as the last entry of a record of evidence, where it is known.
    pub(super) fn evidence(&self) -> Option<(&'static str, EvidenceValue)> {
        self.frame.map(|frame| ("site", EvidenceValue::Site(frame)))
    }
}

/// What the blocks of one line hold.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SiteBytes {
    pub(super) line: NamedSite,
    pub(super) bytes: Bytes,
    pub(super) blocks: u64,
}

impl SiteBytes {
    /// The words `train.py:20 (1.5 GiB, 3 blocks)`.
    pub(super) fn words(&self) -> String {
        let line = self.line.or("lines that were not recorded");
        format!("{line} ({}, {})", self.bytes, counted(self.blocks, "block"))
    }

    /// The fields of a record of evidence.
    pub(super) fn evidence(&self) -> Vec<(&'static str, EvidenceValue)> {
        let mut record =
            vec![("bytes", EvidenceValue::Bytes(self.bytes)), ("count", EvidenceValue::Count(self.blocks))];
        record.extend(self.line.evidence());
        record
    }
}
