//! Another machine's recorders, through the `oomph exporter` that runs there.

use crate::bounded::MAX_DEVICES;
use crate::driver::Gpu;
use crate::followers::MAX_RECORDERS;
use crate::wire::State;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a connection or an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the longest answer.
const LONGEST: u64 = 64 << 20;

/// An exporter's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// `host:port`.
    pub host: String,
    /// What it wants to see, if it does.
    pub token: Option<String>,
}

/// What an exporter answers on `/live`.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub struct Answer {
    pub version: u32,
    /// Every recorder, each with its last steps.
    pub recorders: Vec<State>,
    /// The GPUs of the machine.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

impl Address {
    /// Asks once; the reason in words if nothing came of it.
    pub(crate) fn ask(&self) -> Result<Answer, String> {
        let body = self.get("/live").map_err(|error| format!("{}: {error}", self.host))?;
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|_| format!("{}: this is not what an oomph exporter says", self.host))?;
        if answer.version != 1 {
            return Err(format!("{}: another version of oomph", self.host));
        }
        let recorders = answer.recorders.into_iter().take(MAX_RECORDERS).map(State::bounded).collect();
        let gpus = answer.gpus.into_iter().take(MAX_DEVICES).map(Gpu::bounded).collect();
        Ok(Answer { recorders, gpus, ..answer })
    }

    fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        let addresses: Vec<_> = self.host.to_socket_addrs()?.collect();
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let connected = addresses.iter().find_map(|address| {
            TcpStream::connect_timeout(address, PATIENCE).map_err(|error| last = error).ok()
        });
        let Some(mut stream) = connected else { return Err(last) };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let token =
            self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{token}Connection: close\r\n\r\n", self.host);
        stream.write_all(head.as_bytes())?;
        let mut reply = Vec::new();
        stream.take(LONGEST).read_to_end(&mut reply)?;
        body(&reply)
    }
}

/// The body of a reply that ends with its connection.
fn body(reply: &[u8]) -> io::Result<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut headers);
    match parsed.parse(reply).map_err(io::Error::other)? {
        httparse::Status::Partial => Err(io::ErrorKind::UnexpectedEof.into()),
        httparse::Status::Complete(length) => match parsed.code {
            Some(200) => Ok(reply[length..].to_vec()),
            Some(401) => Err(io::Error::other("the exporter wants a token")),
            code => Err(io::Error::other(reason(&reply[length..], code.unwrap_or(0)))),
        },
    }
}

/// Why an exporter refuses, in its own words if it has some.
fn reason(body: &[u8], code: u16) -> String {
    let told = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    told["error"].as_str().map_or_else(|| format!("the answer is {code}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_or_refused() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n{}").expect("a body"), b"{}");
        assert!(
            body(b"HTTP/1.1 401 Unauthorized\r\n\r\n")
                .is_err_and(|error| error.to_string().contains("token"))
        );
        let refused = b"HTTP/1.1 403 Forbidden\r\n\r\n{\"error\": \"not told to whoever asks\"}";
        assert!(body(refused).is_err_and(|error| error.to_string() == "not told to whoever asks"));
        assert!(
            body(b"HTTP/1.1 500 \r\n\r\n<p>").is_err_and(|error| error.to_string() == "the answer is 500")
        );
        assert!(body(b"HTTP/1.1 200 OK\r\nX: ").is_err());
        assert!(body(b"SSH-2.0-OpenSSH\r\n").is_err());
    }
}
