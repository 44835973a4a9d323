//! Recorders of another machine, through the `oomph exporter` that runs there.

use crate::driver::Gpu;
use crate::limits::MAX_DEVICES;
use crate::watcher::MAX_RECORDERS;
use crate::wire::RecorderState;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long connecting, reading and writing may each take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Address of an exporter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExporterAddress {
    /// Host and port: `gpu7:9400`.
    pub host: String,
    /// Token to send, if the exporter requires one.
    pub token: Option<String>,
}

/// Answer of an exporter on `/live`.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub struct ExporterAnswer {
    /// Version of the format: 1.
    pub version: u32,
    /// Every recorder, each with its last steps.
    pub recorders: Vec<RecorderState>,
    /// The GPUs of the machine.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
}

impl ExporterAddress {
    /// Sends one request. The error is a message for the user.
    pub(crate) fn fetch(&self) -> Result<ExporterAnswer, String> {
        let body = self.get("/live").map_err(|error| format!("{}: {error}", self.host))?;
        let answer: ExporterAnswer =
            serde_json::from_slice(&body).map_err(|_| format!("{}: not an oomph exporter", self.host))?;
        if answer.version != 1 {
            return Err(format!("{}: a different version of oomph", self.host));
        }
        let recorders =
            answer.recorders.into_iter().take(MAX_RECORDERS).map(RecorderState::bounded).collect();
        let gpus = answer.gpus.into_iter().take(MAX_DEVICES).map(Gpu::bounded).collect();
        Ok(ExporterAnswer { recorders, gpus, ..answer })
    }

    fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        let addresses: Vec<_> = self.host.to_socket_addrs()?.collect();
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let connected = addresses.iter().find_map(|address| {
            TcpStream::connect_timeout(address, REQUEST_TIMEOUT).map_err(|error| last = error).ok()
        });
        let Some(mut stream) = connected else { return Err(last) };
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let token =
            self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{token}Connection: close\r\n\r\n", self.host);
        stream.write_all(head.as_bytes())?;
        let mut reply = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut reply)?;
        body(&reply)
    }
}

/// Returns the body of a reply that ends with its connection.
fn body(reply: &[u8]) -> io::Result<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut headers);
    match parsed.parse(reply).map_err(io::Error::other)? {
        httparse::Status::Partial => Err(io::ErrorKind::UnexpectedEof.into()),
        httparse::Status::Complete(length) => match parsed.code {
            Some(200) => Ok(reply[length..].to_vec()),
            Some(401) => Err(io::Error::other("the exporter requires a token")),
            code => Err(io::Error::other(reason(&reply[length..], code.unwrap_or(0)))),
        },
    }
}

/// Returns why an exporter refuses: its own message, if it sent one.
fn reason(body: &[u8], code: u16) -> String {
    let reply = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    reply["error"].as_str().map_or_else(|| format!("HTTP status {code}"), str::to_owned)
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
        let refused = b"HTTP/1.1 403 Forbidden\r\n\r\n{\"error\": \"command lines are not public\"}";
        assert!(body(refused).is_err_and(|error| error.to_string() == "command lines are not public"));
        assert!(body(b"HTTP/1.1 500 \r\n\r\n<p>").is_err_and(|error| error.to_string() == "HTTP status 500"));
        assert!(body(b"HTTP/1.1 200 OK\r\nX: ").is_err());
        assert!(body(b"SSH-2.0-OpenSSH\r\n").is_err());
    }
}
