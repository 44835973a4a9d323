//! What a client gets.

use serde_json::json;

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The content type.
    pub kind: &'static str,
    /// The content.
    pub body: Vec<u8>,
    /// Header lines besides those that every reply has.
    pub headers: &'static [&'static str],
    /// The address to go to instead, if there is one.
    pub location: Option<String>,
}

impl Reply {
    /// What was asked for.
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status: 200, kind, body: body.into(), headers: &[], location: None }
    }

    /// Another address on this machine.
    pub fn elsewhere(path: String) -> Reply {
        Reply { status: 303, location: Some(path), ..Reply::new("text/plain", "") }
    }

    /// Why there is nothing, and what to do about it.
    pub fn problem(status: u16, what: &str, hint: Option<&str>) -> Reply {
        let body = json!({"error": what, "hint": hint}).to_string().into_bytes();
        Reply { status, ..Reply::new("application/json", body) }
    }

    pub(crate) fn head(&self, is_last: bool) -> String {
        let reason = match self.status {
            200 => "OK",
            303 => "See Other",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            405 => "Method Not Allowed",
            _ => "Not Found",
        };
        let mut head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        for line in HEADERS.iter().chain(self.headers) {
            head.push_str(line);
            head.push_str("\r\n");
        }
        if let Some(location) = &self.location {
            head.push_str(&format!("Location: {location}\r\n"));
        }
        head.push_str(if is_last { "Connection: close\r\n\r\n" } else { "\r\n" });
        head
    }
}

/// What is true now is not true later, and is no business of other pages.
const HEADERS: [&str; 3] =
    ["Cache-Control: no-store", "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer"];
