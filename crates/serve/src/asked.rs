//! What matters of a request.

use std::net::SocketAddr;

/// A request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Asked {
    /// `GET`, mostly.
    pub method: String,
    /// What is asked for, with the question behind it.
    pub path: String,
    /// The name under which the client knows this machine.
    pub host: String,
    /// Which formats the client reads.
    pub accept: String,
    /// What it has to show, if it has.
    pub authorization: String,
    /// Its end of the connection.
    pub client: Option<SocketAddr>,
}

/// A request, and what it means for its connection.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Received {
    pub(crate) asked: Asked,
    /// Bytes that it took.
    pub(crate) length: usize,
    /// Whether the connection ends with it.
    pub(crate) is_last: bool,
}

impl Received {
    /// The first request in these bytes; `None` while it is not all there.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Received>, httparse::Error> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        let httparse::Status::Complete(length) = request.parse(bytes)? else { return Ok(None) };
        let header = |name: &str| {
            let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| String::from_utf8_lossy(header.value).into_owned())
        };
        // What has a body is not answered, and its body not read.
        let has_body = header("content-length").is_some() || header("transfer-encoding").is_some();
        let wants_end = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let asked = Asked {
            method: request.method.unwrap_or_default().to_owned(),
            path: request.path.unwrap_or_default().to_owned(),
            host: header("host").unwrap_or_default(),
            accept: header("accept").unwrap_or_default(),
            authorization: header("authorization").unwrap_or_default(),
            client: None,
        };
        let is_last = has_body || wants_end || request.version == Some(0);
        Ok(Some(Received { asked, length, is_last }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_when_it_is_all_there() {
        let text = b"GET /a HTTP/1.1\r\nhOST: localhost\r\nAuthorization: Bearer x\r\n\r\nGET /b";
        let received = Received::read(text).expect("readable").expect("complete");
        let asked = &received.asked;
        assert_eq!((asked.path.as_str(), asked.host.as_str()), ("/a", "localhost"));
        assert_eq!((asked.authorization.as_str(), received.is_last), ("Bearer x", false));
        assert_eq!(&text[received.length..], b"GET /b");
        assert_eq!(Received::read(&text[..20]), Ok(None));
        assert!(Received::read(b"\0\xff\r\n\r\n").is_err());
    }

    #[test]
    fn a_connection_ends_with_a_body_that_nobody_reads() {
        for line in ["Content-Length: 3", "Transfer-Encoding: chunked", "Connection: Close"] {
            let text = format!("POST / HTTP/1.1\r\n{line}\r\n\r\n");
            assert!(Received::read(text.as_bytes()).expect("readable").expect("complete").is_last, "{line}");
        }
    }
}
