//! HTTP responses.

use serde::Serialize;

/// An HTTP response.
///
/// ```
/// use serve::Response;
///
/// let refused = Response::problem(404, "no such page", None);
/// assert_eq!(refused.body, br#"{"error":"no such page","hint":null}"#);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Content type.
    pub kind: &'static str,
    /// Body.
    pub body: Vec<u8>,
    /// Header lines, besides those of every response.
    pub headers: &'static [&'static str],
    /// Path to redirect to.
    pub location: Option<String>,
}

/// Body of an error response; `web/src/protocol/source.ts` reads it.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    hint: Option<&'a str>,
}

impl Response {
    /// Makes a successful response.
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status: 200, kind, body: body.into(), headers: &[], location: None }
    }

    /// Makes a redirect to another path of this server.
    pub fn redirect(path: String) -> Response {
        Response { status: 303, location: Some(path), ..Response::new("text/plain", "") }
    }

    /// Makes an error response; its body is JSON with `error` and `hint`.
    pub fn problem(status: u16, what: &str, hint: Option<&str>) -> Response {
        // Two strings can always be serialized.
        let body = serde_json::to_vec(&ErrorBody { error: what, hint }).unwrap_or_default();
        Response { status, ..Response::new("application/json", body) }
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

/// Answers change and are private: nothing is cached, and other pages learn nothing.
const HEADERS: [&str; 3] =
    ["Cache-Control: no-store", "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer"];
