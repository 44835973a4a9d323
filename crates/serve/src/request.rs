//! HTTP requests.

use std::net::SocketAddr;

/// An HTTP request, as far as it is answered.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Request {
    /// Method, such as `GET`.
    pub method: String,
    /// Path, with the query.
    pub path: String,
    /// The `Host` header.
    pub host: String,
    /// The `Accept` header.
    pub accept: String,
    /// The `Authorization` header.
    pub authorization: String,
    /// Address of the client.
    pub client: Option<SocketAddr>,
}

/// A request, and its meaning for the connection.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Received {
    pub(crate) request: Request,
    /// Number of its bytes.
    pub(crate) length: usize,
    /// Whether the connection is closed after it.
    pub(crate) is_last: bool,
}

impl Received {
    /// Parses the first request in `bytes`; `None` while it is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Received>, httparse::Error> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(length) = parsed.parse(bytes)? else { return Ok(None) };
        let header = |name: &str| {
            let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| String::from_utf8_lossy(header.value).into_owned())
        };
        // Bodies are never read, so the connection cannot go on after one.
        let has_body = header("content-length").is_some() || header("transfer-encoding").is_some();
        let wants_end = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let request = Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: parsed.path.unwrap_or_default().to_owned(),
            host: header("host").unwrap_or_default(),
            accept: header("accept").unwrap_or_default(),
            authorization: header("authorization").unwrap_or_default(),
            client: None,
        };
        let is_last = has_body || wants_end || parsed.version == Some(0);
        Ok(Some(Received { request, length, is_last }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_once_it_is_complete() {
        let text = b"GET /a HTTP/1.1\r\nhOST: localhost\r\nAuthorization: Bearer x\r\n\r\nGET /b";
        let received = Received::read(text).expect("readable").expect("complete");
        let request = &received.request;
        assert_eq!((request.path.as_str(), request.host.as_str()), ("/a", "localhost"));
        assert_eq!((request.authorization.as_str(), received.is_last), ("Bearer x", false));
        assert_eq!(&text[received.length..], b"GET /b");
        assert_eq!(Received::read(&text[..20]), Ok(None));
        assert!(Received::read(b"\0\xff\r\n\r\n").is_err());
    }

    #[test]
    fn a_request_with_a_body_closes_the_connection() {
        for line in ["Content-Length: 3", "Transfer-Encoding: chunked", "Connection: Close"] {
            let text = format!("POST / HTTP/1.1\r\n{line}\r\n\r\n");
            assert!(Received::read(text.as_bytes()).expect("readable").expect("complete").is_last, "{line}");
        }
    }
}
