//! The messages of PyTorch's caching allocators, of every release and backend.
//!
//! Each number is recognised by the words around it, whatever the order: releases differ in it, and processes
//! are listed in any. A field counts only if it follows the field before it at once, or after what a logger
//! may have put in between.

use super::kinds::{Backend, MessageKind};
use super::log::pattern;
use super::numbers::{Numbers, OtherProcess, SIZE, known_size, size};
use regex::{Captures, Regex};
use snapshot::Bytes;
use std::sync::LazyLock;

/// A message that was recognized, and where it ends.
pub(super) struct ParsedMessage {
    pub(super) kind: MessageKind,
    pub(super) backend: Backend,
    pub(super) device: Option<u32>,
    pub(super) numbers: Numbers,
    /// Whether it says itself that nothing failed.
    pub(super) is_harmless: bool,
    pub(super) end: usize,
}

/// Bytes between two fields: the hint in front of a list, a prefix that is not known.
const MAX_FIELD_GAP: usize = 160;

/// Maximum length of a field, in bytes.
const MAX_FIELD_BYTES: usize = 256;

/// What a message of an allocator begins with; also where the beginning is cut off.
pub(super) const BEGINNINGS: &str = concat!(
    r"(?:CUDA|HIP|XPU|NPU|MLU|MUSA)outofmemory|CurrentplatformcanNOTallocatememoryblock|",
    r"Triedtoallocate\d|Triedtoallocatemorethan|\((?:GPU|NPU)\d*;\d|GPU\d*hasatotalcapac|",
    r"Oftheallocatedmemory\d"
);

/// Reads the message at the start of `text`; `None` if there is none.
pub(super) fn read(text: &str) -> Option<ParsedMessage> {
    let mut reading = Reading::default();
    if let Some(found) = NAME.captures(text) {
        reading.backend = backend(&found["backend"]);
        reading.end = found[0].len();
    }
    let named_end = reading.end;
    loop {
        // Without an end, a text of beginnings alone would be searched to its end for each of them.
        let window = &text[..text.ceil_char_boundary(reading.end + MAX_FIELD_GAP + MAX_FIELD_BYTES)];
        let Some(found) = FIELD.captures_at(window, reading.end) else { break };
        let whole = found.get(0).expect("a match is there");
        if whole.start() > reading.end + MAX_FIELD_GAP || found.name("next").is_some() {
            break;
        }
        // A point in the middle of a number whose beginning is elsewhere is not the end of a sentence.
        let is_torn = found.name("limit").is_some()
            && text[..whole.start()].ends_with(|letter: char| letter.is_ascii_digit());
        if !is_torn && !reading.take(&found) {
            break;
        }
        reading.end = whole.end();
    }
    if reading.numbers.is_empty() && !reading.is_overflow && named_end == 0 {
        return None;
    }
    Some(reading.finish())
}

static NAME: LazyLock<Regex> = LazyLock::new(|| pattern("^(?<backend>CUDA|HIP|XPU|NPU|MLU|MUSA)outofmemory"));

static FIELD: LazyLock<Regex> = LazyLock::new(|| {
    let fields = [
        r"(?<next>(?:CUDA|HIP|XPU|NPU|MLU|MUSA|backend)outofmemory)",
        r"(?<overflow>Triedtoallocatemorethan1EB)",
        r"[Tt]riedtoallocate(?<requested>SIZE)",
        r"(?<block>memoryblockwithsizelargerthan)(?<limit_block>SIZE)",
        r"(?<word>GPU|NPU)(?<device>\d*);(?<total>SIZE)totalcapacity",
        r"GPU(?<device_of>\d*)hasatotalcapaci?tyof(?<total_of>SIZE)",
        r"(?:GPU|NPU)(?<device_alone>\d+)(?:;|hasa)",
        r"ofwhich(?<free_of>SIZE)isfree",
        r";(?<free>SIZE)free",
        r";(?<allocated>SIZE)alreadyallocated",
        r"memory(?<allocated_of>SIZE)isallocatedbyPyTorch",
        r";(?<active>SIZE)currentactive",
        r";(?<cached>SIZE)cached",
        r";(?<reserved>SIZE)reservedintotal",
        r"[;.](?<limit>SIZE)allowed",
        r"Process(?<pid>\d+)has(?<of_pid>SIZE)memoryinuse",
        r"thisprocesshas(?<this_process>SIZE)memoryinuse",
        r"with(?<pools>SIZE)allocatedinprivatepools",
        r"and(?<unallocated>SIZE)isreservedbyPyTorchbutunallocated",
        r"(?<hint>Ifreservedmemoryis)",
        r"(?<metal>on(?:private|shared)pool)",
        r"(?<hip>PYTORCH_HIP_ALLOC_CONF)",
    ];
    pattern(&fields.join("|").replace("SIZE", SIZE))
});

/// The groups that are sizes.
const SIZES: [&str; 14] = [
    "requested",
    "total",
    "total_of",
    "free",
    "free_of",
    "allocated",
    "allocated_of",
    "cached",
    "reserved",
    "limit",
    "limit_block",
    "this_process",
    "pools",
    "unallocated",
];

impl Numbers {
    /// The number that a group of [`SIZES`] is.
    fn slot(&mut self, name: &str) -> &mut Option<Bytes> {
        match name {
            "requested" => &mut self.requested,
            "total" | "total_of" => &mut self.total,
            "free" | "free_of" => &mut self.free,
            "allocated" | "allocated_of" => &mut self.allocated,
            "reserved" => &mut self.reserved,
            "limit" | "limit_block" => &mut self.limit,
            "this_process" => &mut self.this_process,
            "pools" => &mut self.private_pools,
            // Until 1.3 "cached" is what the allocator holds and does not use.
            _ => &mut self.reserved_unallocated,
        }
    }
}

fn backend(name: &str) -> Backend {
    match name {
        "CUDA" => Backend::Cuda,
        "HIP" => Backend::Hip,
        "XPU" => Backend::Xpu,
        "NPU" => Backend::Npu,
        _ => Backend::Other,
    }
}

/// A message while it is read.
struct Reading {
    backend: Backend,
    device: Option<u32>,
    numbers: Numbers,
    is_torch_21: bool,
    has_cached: bool,
    has_hint: bool,
    is_overflow: bool,
    end: usize,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading {
            // The others always name themselves where the message is whole.
            backend: Backend::Cuda,
            device: None,
            numbers: Numbers::default(),
            is_torch_21: false,
            has_cached: false,
            has_hint: false,
            is_overflow: false,
            end: 0,
        }
    }
}

impl Reading {
    /// Takes one field; `false` if it belongs to the next message: it was there already.
    fn take(&mut self, found: &Captures<'_>) -> bool {
        let text = |name: &str| found.name(name).map(|part| part.as_str());
        if let Some(pid) = text("pid").and_then(|pid| pid.parse().ok()) {
            let bytes = text("of_pid").and_then(known_size);
            self.is_torch_21 = true;
            self.numbers.others.push(OtherProcess { pid, bytes });
            return true;
        }
        if text("word") == Some("NPU") {
            self.backend = Backend::Npu;
        }
        if text("block").is_some() {
            self.backend = Backend::Xpu;
        }
        if text("metal").is_some() {
            self.backend = Backend::Mps;
        }
        if text("hip").is_some() {
            self.backend = Backend::Hip;
        }
        self.has_hint |= text("hint").is_some();
        self.is_overflow |= text("overflow").is_some();
        self.has_cached |= text("cached").is_some();
        self.is_torch_21 |=
            ["total_of", "this_process", "unallocated"].iter().any(|name| text(name).is_some());
        let device = ["device", "device_of", "device_alone"].iter().find_map(|name| text(name));
        if let Some(device) = device.and_then(|device| device.parse().ok()) {
            if self.device.is_some_and(|known| known != device) {
                return false;
            }
            self.device = Some(device);
        }
        for name in SIZES {
            let read = if name == "requested" { size } else { known_size };
            let Some(bytes) = text(name).and_then(read) else { continue };
            let slot = self.numbers.slot(name);
            if slot.is_some() {
                return false;
            }
            *slot = Some(bytes);
        }
        true
    }

    fn finish(self) -> ParsedMessage {
        let has_reserved = self.numbers.reserved.is_some();
        let kind = if self.is_overflow {
            MessageKind::TorchOverflow
        } else if self.is_torch_21 {
            MessageKind::Torch21
        } else if self.has_cached {
            MessageKind::Torch10
        } else if has_reserved && self.has_hint {
            MessageKind::Torch110
        } else if has_reserved {
            MessageKind::Torch14
        } else {
            MessageKind::TorchShort
        };
        let Reading { backend, device, numbers, end, .. } = self;
        ParsedMessage { kind, backend, device, numbers, is_harmless: false, end }
    }
}
