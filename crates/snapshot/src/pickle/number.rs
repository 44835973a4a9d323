//! Numbers that do not fit into a packed value, and the text forms of protocol 0.

use super::value::{PickleValue, ValueKind};

/// Float, or integer wider than 59 bits.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Number {
    Wide(i128),
    Float(f64),
    /// Integer beyond 128 bits, in hexadecimal: no field of a snapshot can hold it.
    Huge(String),
}

/// Decodes a little-endian two's complement integer, as LONG1 and LONG4 store it.
pub(super) fn long(bytes: &[u8]) -> Number {
    let negative = bytes.last().is_some_and(|&top| top >= 0x80);
    let fill = if negative { 0xff } else { 0 };
    if bytes.len() > 16 && bytes[16..].iter().any(|&byte| byte != fill) {
        let digits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        return Number::Huge(format!("0x{digits}"));
    }
    let mut wide = [fill; 16];
    let used = bytes.len().min(16);
    wide[..used].copy_from_slice(&bytes[..used]);
    Number::Wide(i128::from_le_bytes(wide))
}

/// Parses the number on a text line of protocol 0: `12`, `12L`, `00`/`01` for booleans.
pub(super) fn parse_int(line: &str) -> Option<ParsedNumber> {
    match line {
        "00" => Some(ParsedNumber::PickleValue(PickleValue::new(ValueKind::Bool(false)))),
        "01" => Some(ParsedNumber::PickleValue(PickleValue::new(ValueKind::Bool(true)))),
        _ => {
            let digits = line.strip_suffix('L').unwrap_or(line).trim();
            match digits.parse::<i128>() {
                Ok(wide) => Some(ParsedNumber::Number(Number::Wide(wide))),
                Err(_) => {
                    let body = digits.strip_prefix('-').unwrap_or(digits);
                    let is_number = !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_digit());
                    is_number.then(|| ParsedNumber::Number(Number::Huge(digits.to_owned())))
                }
            }
        }
    }
}

/// Number parsed from a text line of protocol 0.
pub(super) enum ParsedNumber {
    PickleValue(PickleValue),
    Number(Number),
}

/// Decodes the text of the UNICODE opcode: Latin-1 with `\uXXXX` and `\UXXXXXXXX` escapes.
pub(super) fn raw_unicode(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let digits = match (byte, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(char::from(byte));
                continue;
            }
        };
        let code = after
            .get(1..=digits)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match code {
            Some(code) => {
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                rest = &after[digits + 1..];
            }
            None => text.push('\\'),
        }
    }
    text
}

/// Decodes the text of the STRING opcode: a quoted literal of Python 2.
pub(super) fn quoted(line: &[u8]) -> Option<String> {
    let line = line.trim_ascii();
    let quote = *line.first()?;
    if line.len() < 2 || !matches!(quote, b'\'' | b'"') || line.last() != Some(&quote) {
        return None;
    }
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line[1..line.len() - 1].iter();
    while let Some(&byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next()? {
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            b'x' => {
                let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
                let high = digit(rest.next())?;
                bytes.push((high * 16 + digit(rest.next())?) as u8);
            }
            &other => bytes.push(other),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_integers_of_any_width() {
        assert_eq!(long(&[]), Number::Wide(0));
        assert_eq!(long(&[0xff]), Number::Wide(-1));
        assert_eq!(long(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]), Number::Wide(1 << 63));
        assert_eq!(long(&[0xff; 20]), Number::Wide(-1));
        assert!(matches!(long(&[1; 17]), Number::Huge(text) if text.starts_with("0x0101")));
    }

    #[test]
    fn escapes_of_protocol_zero() {
        assert_eq!(raw_unicode(b"a\\u00e9\\U0001f600\xe9\\u12"), "aé😀é\\u12");
        assert_eq!(quoted(b"'it\\'s \\x41\\n'").as_deref(), Some("it's A\n"));
        assert_eq!(quoted(b"'open"), None);
    }
}
