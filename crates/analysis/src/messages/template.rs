//! Fills a message's numbers into the templates of [`KINDS`](super::kinds::KINDS).
//!
//! `{free}` is a number of the message, `{free|too little}` has words for where it is missing, and a part in
//! brackets is left out where one of its numbers is missing.

use super::Message;
use super::render::written;
use crate::words::grouped;
use snapshot::Bytes;

/// The first template whose numbers the message has, filled in.
pub(super) fn filled(templates: &[&str], message: &Message) -> String {
    templates.iter().find_map(|template| fill(template, message)).unwrap_or_default()
}

/// The template with its numbers; `None` if one is missing.
fn fill(template: &str, message: &Message) -> Option<String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find(['{', '[']) {
        text.push_str(&rest[..at]);
        let is_optional = rest[at..].starts_with('[');
        let (inside, after) = rest[at + 1..].split_once(if is_optional { ']' } else { '}' })?;
        if is_optional {
            text.push_str(&fill(inside, message).unwrap_or_default());
        } else {
            let (name, otherwise) =
                inside.split_once('|').map_or((inside, None), |(name, words)| (name, Some(words)));
            text.push_str(&number(name, message).or_else(|| otherwise.map(str::to_owned))?);
        }
        rest = after;
    }
    text.push_str(rest);
    Some(text)
}

/// A number of the message by name, in words.
fn number(name: &str, message: &Message) -> Option<String> {
    let numbers = &message.numbers;
    let size = |bytes: Option<Bytes>| bytes.map(written);
    match name {
        "device" => Some(message.device_name()),
        "requested" => size(numbers.requested),
        "free" => size(numbers.free),
        "total" => size(numbers.total),
        "limit" => size(numbers.limit),
        "used" => size(numbers.used),
        "resident" => size(numbers.resident),
        "shared" => size(numbers.shared),
        "pid" => numbers.others.first().map(|other| other.pid.to_string()),
        name => numbers.more(name).map(grouped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::kinds::KINDS;
    use crate::messages::numbers::MORE_NAMES;
    use crate::messages::{Numbers, find_messages};

    #[test]
    fn parts_without_a_number_are_left_out() {
        let mut message = find_messages(b"CUDA out of memory").remove(0);
        let templates = ["{total} of it", "{free|nothing} free[ of {limit}][ for process {pid}]"];
        assert_eq!(filled(&templates, &message), "nothing free");
        message.numbers =
            Numbers { free: Some(Bytes(2 << 30)), limit: Some(Bytes(3 << 30)), ..Numbers::default() };
        assert_eq!(filled(&templates, &message), "2.00 GiB free of 3.00 GiB");
        message.numbers.total = Some(Bytes(4 << 30));
        assert_eq!(filled(&templates, &message), "4.00 GiB of it");
    }

    #[test]
    fn every_kind_has_words_for_a_message_without_numbers() {
        let mut message = find_messages(b"CUDA out of memory").remove(0);
        message.numbers = Numbers::default();
        for row in KINDS {
            assert_ne!(filled(row.words, &message), "", "{}", row.name);
        }
    }

    #[test]
    fn every_name_in_a_template_is_the_name_of_a_number() {
        let mut message = find_messages(b"CUDA out of memory").remove(0);
        for name in ["requested", "free", "total", "limit", "used", "resident"] {
            assert!(message.numbers.set(name, "1KiB"), "{name}");
        }
        for name in MORE_NAMES.iter().chain(&["killed_pid", "shared_kib"]) {
            assert!(message.numbers.set(name, "1"), "{name}");
        }
        for row in KINDS {
            for template in row.words {
                let names = template.split('{').skip(1).filter_map(|part| part.split(['}', '|']).next());
                for name in names {
                    assert!(number(name, &message).is_some(), "{}: `{name}`", row.name);
                }
            }
        }
    }
}
