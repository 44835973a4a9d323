//! Messages on a stream: a header with the length, and JSON.

use serde::Deserialize;
use serde_json::Value;
use std::io::{self, BufRead, Read, Write};

/// Largest message, in bytes: a file of the largest size that is checked, however its text is escaped.
const MAX_MESSAGE_BYTES: u64 = 64 << 20;
/// Longest line of a header, in bytes.
const MAX_HEADER_BYTES: u64 = 4 << 10;

/// Request, notification, or response of the client.
#[derive(Deserialize, Debug)]
pub(crate) struct ClientMessage {
    /// What a response must repeat; `None` in notifications.
    pub(crate) id: Option<Value>,
    /// Empty in responses.
    #[serde(default)]
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) params: Value,
}

/// Errors of requests, with their codes in JSON-RPC and in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestError {
    InvalidJson = -32700,
    InvalidRequest = -32600,
    MethodNotFound = -32601,
    InvalidParams = -32602,
    Internal = -32603,
    NotInitialized = -32002,
    Cancelled = -32800,
}

/// Reads a message; `None` at the end of the input. An invalid message is the inner error, and reading can go
/// on. The outer error is the end: it is not known where the next message begins.
pub(crate) fn read(input: &mut impl BufRead) -> io::Result<Option<Result<ClientMessage, RequestError>>> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if input.by_ref().take(MAX_HEADER_BYTES).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() && length.is_some() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if name.eq_ignore_ascii_case("Content-Length") {
            length = value.trim().parse::<u64>().ok();
        }
        if line.is_empty() || length.is_none() && name.eq_ignore_ascii_case("Content-Length") {
            let error = format!("a message of the client has no valid `Content-Length`: `{line}`");
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    let length = length.unwrap_or(0);
    let mut body = input.by_ref().take(length);
    if length > MAX_MESSAGE_BYTES {
        io::copy(&mut body, &mut io::sink())?;
        return Ok(Some(Err(RequestError::InvalidRequest)));
    }
    // Grows with what arrives, not with the length that the header claims.
    let mut text = Vec::new();
    if body.read_to_end(&mut text)? as u64 != length {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&text).map_err(|error| match error.is_data() {
        true => RequestError::InvalidRequest,
        false => RequestError::InvalidJson,
    })))
}

/// Writes a message.
pub(crate) fn write(output: &mut dyn Write, message: &Value) -> io::Result<()> {
    let text = message.to_string();
    write!(output, "Content-Length: {}\r\n\r\n{text}", text.len())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expected: &[Result<&str, RequestError>]) {
        let mut input = input.as_bytes();
        let mut found = Vec::new();
        while let Ok(Some(message)) = read(&mut input) {
            found.push(message.map(|message| message.method));
        }
        let found: Vec<_> = found.iter().map(|found| found.as_deref().map_err(|error| *error)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_malformed_message_does_not_hide_the_next() {
        let next = "Content-Length: 14\r\n\r\n{\"method\":\"a\"}";
        check(
            &format!("Content-Length: 5\r\n\r\n{{\"a\":{next}"),
            &[Err(RequestError::InvalidJson), Ok("a")],
        );
        check(&format!("Content-Length: 2\r\n\r\n[]{next}"), &[Err(RequestError::InvalidRequest), Ok("a")]);
        check(
            &format!("Content-Length: 4\r\n\r\n\"\u{e9}\"{next}"),
            &[Err(RequestError::InvalidRequest), Ok("a")],
        );
    }

    #[test]
    fn other_headers_and_spellings_are_accepted() {
        check("content-length:14\r\nContent-Type: x\r\n\r\n{\"method\":\"a\"}", &[Ok("a")]);
        check("Content-Type: x\nContent-Length: 14\n\n{\"method\":\"a\"}", &[Ok("a")]);
    }

    #[test]
    fn a_message_without_a_length_ends_the_connection() {
        for input in ["\r\n\r\n{}", "Content-Length: x\r\n\r\n", "Content-Length: -1\r\n\r\n"] {
            let error = read(&mut input.as_bytes()).expect_err("no length");
            assert!(error.to_string().contains("Content-Length"), "{error}");
        }
        check("Content-Length: 14\r\n\r\n{\"meth", &[]);
    }

    #[test]
    fn lengths_that_a_header_claims_allocate_nothing() {
        check("Content-Length: 60000000\r\n\r\n{}", &[]);
        check("Content-Length: 18446744073709551615\r\n\r\n{}", &[Err(RequestError::InvalidRequest)]);
    }
}
