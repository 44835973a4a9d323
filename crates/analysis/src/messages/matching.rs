//! Finds the patterns of [`KINDS`](super::kinds::KINDS) in a text without white space.

use super::allocator_message::Form;
use super::kinds::{Backend, KINDS, MessageKind};
use super::log::pattern;
use super::numbers::{Numbers, OtherProcess, SIZE, known_size};
use regex::{Captures, Regex};
use snapshot::Bytes;
use std::sync::LazyLock;

/// One pattern that finds where any of the table's patterns begins.
pub(super) fn beginnings() -> String {
    let plain = |words: &str| UNNAMED.replace_all(&words.replace("SIZE", SIZE), "(?:").into_owned();
    let all = KINDS.iter().flat_map(|row| row.patterns);
    all.map(|(_, words)| format!("(?:{})", plain(words))).collect::<Vec<_>>().join("|")
}

static UNNAMED: LazyLock<Regex> = LazyLock::new(|| pattern(r"\(\?<\w+>"));

static FORMS: LazyLock<Vec<(MessageKind, Backend, Regex)>> = LazyLock::new(|| {
    let anchored = |words: &str| pattern(&format!("^(?:{})", words.replace("SIZE", SIZE)));
    let forms = KINDS.iter().flat_map(|row| row.patterns.iter().map(move |form| (row.kind, form)));
    forms.map(|(kind, &(backend, words))| (kind, backend, anchored(words))).collect()
});

/// Reads the message at the start of `text`; `None` if there is none.
pub(super) fn read(text: &str) -> Option<Form> {
    FORMS.iter().find_map(|(kind, backend, form)| {
        let found = form.captures(text)?;
        let device = found.name("device").and_then(|device| device.as_str().parse().ok());
        let numbers = numbers(form, &found);
        let is_harmless = found.name("harmless").is_some();
        Some(Form {
            kind: *kind,
            backend: *backend,
            device,
            numbers,
            is_harmless,
            end: found[0].len().max(1),
        })
    })
}

fn numbers(form: &Regex, found: &Captures<'_>) -> Numbers {
    let mut numbers = Numbers::default();
    for name in form.capture_names().flatten() {
        let Some(text) = found.name(name).map(|part| part.as_str()) else { continue };
        let bytes = || known_size(text);
        let plain = || text.replace(',', "").parse::<u64>().ok();
        match name {
            "requested" => numbers.requested = bytes(),
            "allocated" => numbers.allocated = bytes(),
            "other_allocations" => numbers.other_allocations = bytes(),
            "limit" => numbers.limit = bytes(),
            "free" => numbers.free = bytes(),
            "total" => numbers.total = bytes(),
            "resident" => numbers.resident = bytes(),
            "used" => numbers.used = bytes(),
            "used_gib" => numbers.used = known_size(&format!("{text}GiB")),
            "used_kib" => numbers.used = known_size(&format!("{text}KiB")),
            "limit_kib" => numbers.limit = known_size(&format!("{text}KiB")),
            "prefill_tokens" => numbers.more.extend(plain().map(|number| ("prefill_tokens", number))),
            "requested_bytes" => numbers.requested = plain().map(Bytes),
            "free_gib" => numbers.free = known_size(&format!("{text}GiB")),
            "total_gib" => numbers.total = known_size(&format!("{text}GiB")),
            "resident_kib" => numbers.resident = plain().map(|kib| Bytes(kib.saturating_mul(1024))),
            "killed_pid" => {
                numbers.others = plain().map(|pid| OtherProcess { pid, bytes: None }).into_iter().collect()
            }
            "max_model_len" => numbers.more.extend(plain().map(|number| ("max_model_len", number))),
            "kv_cache_tokens" => numbers.more.extend(plain().map(|number| ("kv_cache_tokens", number))),
            "shared_memory_required" => numbers.more.extend(plain().map(|n| ("shared_memory_required", n))),
            "shared_memory_limit" => numbers.more.extend(plain().map(|n| ("shared_memory_limit", n))),
            _ => {}
        }
    }
    numbers
}
