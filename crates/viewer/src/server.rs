//! The server: this machine only, a secret in the path, nothing but reading.

use crate::{Problem, Viewer};
use serde_json::json;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

/// The page without data.
pub(crate) const PAGE: &str = include_str!("../assets/page.html");

/// A browser opens six.
const MOST_CONNECTIONS: usize = 256;
/// How long a new connection may take to say what it wants.
const HURRY: Duration = Duration::from_secs(10);
/// How long a connection may say or take nothing.
const IDLE: Duration = Duration::from_secs(120);
/// Bytes of the longest request.
const LONGEST: usize = 16 << 10;

/// What only the reader of the printed address knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new one, from the system's own randomness.
    pub fn random() -> io::Result<Token> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Whether this is it. Takes as long for a wrong one as for the right one.
    fn is(&self, other: &str) -> bool {
        let differences = self.0.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == other.len() && differences == 0
    }
}

/// A server that listens on this machine.
pub struct Server {
    listener: TcpListener,
    port: u16,
    token: Token,
}

impl Server {
    /// Listens on a port of the loopback interface; 0 takes any that is free.
    pub fn bind(port: u16, token: Token) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        Ok(Server { listener, port, token })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address for a browser.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token.0)
    }
}

impl Viewer<'_> {
    /// Answers until the process ends.
    pub fn serve(&self, server: &Server) {
        let open = AtomicUsize::new(0);
        scope(|scope| {
            // While the browser starts, the first picture is prepared.
            scope.spawn(|| self.prepare());
            for connection in server.listener.incoming().flatten() {
                if open.fetch_add(1, Ordering::SeqCst) < MOST_CONNECTIONS {
                    scope.spawn(|| {
                        // A reader that has gone away is no trouble.
                        let _ = self.converse(server, connection);
                        open.fetch_sub(1, Ordering::SeqCst);
                    });
                } else {
                    open.fetch_sub(1, Ordering::SeqCst);
                }
            }
        });
    }

    /// Answers the requests of one connection, one after the other.
    fn converse(&self, server: &Server, mut connection: TcpStream) -> io::Result<()> {
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(HURRY))?;
        connection.set_write_timeout(Some(IDLE))?;
        let mut received = Vec::new();
        loop {
            let (reply, used, is_last) = match Asked::read(&received) {
                Ok(None) if received.len() < LONGEST => {
                    let mut part = [0; 4096];
                    match connection.read(&mut part)? {
                        0 => return Ok(()),
                        count => received.extend_from_slice(&part[..count]),
                    }
                    continue;
                }
                Ok(Some(asked)) => (self.reply(server, &asked), asked.length, asked.is_last),
                Ok(None) | Err(_) => (Reply::problem(400, &Problem::new("this is no request")), 0, true),
            };
            connection.write_all(reply.head(is_last).as_bytes())?;
            connection.write_all(&reply.body)?;
            if is_last {
                return Ok(());
            }
            connection.set_read_timeout(Some(IDLE))?;
            received.drain(..used);
        }
    }

    fn reply(&self, server: &Server, asked: &Asked) -> Reply {
        // A page of somebody else's whose name was made to point here would send its own name.
        if !is_loopback(&asked.host) {
            return Reply::problem(403, &Problem::new("only this machine is answered"));
        }
        let mut parts = asked.path.splitn(3, '/').skip(1);
        if !parts.next().is_some_and(|token| server.token.is(token)) {
            return Reply::problem(
                404,
                &Problem::new("the address needs the secret that `oomph view` has printed"),
            );
        }
        if asked.method != "GET" {
            return Reply::problem(405, &Problem::new("there is nothing here to change"));
        }
        match parts.next().map(|rest| rest.strip_prefix("api/").ok_or(rest)) {
            Some(Ok(question)) => match self.answer(question) {
                Ok(answer) => Reply { status: 200, kind: answer.kind(), body: answer.bytes() },
                Err(problem) => Reply::problem(400, &problem),
            },
            Some(Err("")) => Reply { status: 200, kind: "text/html; charset=utf-8", body: PAGE.into() },
            _ => Reply::problem(404, &Problem::new("there is no such page")),
        }
    }
}

/// What matters of a request.
struct Asked {
    method: String,
    path: String,
    host: String,
    /// Bytes that it took.
    length: usize,
    /// Whether the connection ends with it.
    is_last: bool,
}

impl Asked {
    /// The first request in these bytes; `None` while it is not all there.
    fn read(bytes: &[u8]) -> Result<Option<Asked>, httparse::Error> {
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
        Ok(Some(Asked {
            method: request.method.unwrap_or_default().to_owned(),
            path: request.path.unwrap_or_default().to_owned(),
            host: header("host").unwrap_or_default(),
            length,
            is_last: has_body || wants_end || request.version == Some(0),
        }))
    }
}

struct Reply {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Reply {
    fn problem(status: u16, problem: &Problem) -> Reply {
        let body = json!({"error": problem.what, "hint": problem.hint}).to_string().into_bytes();
        Reply { status, kind: "application/json", body }
    }

    fn head(&self, is_last: bool) -> String {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
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
        for line in HEADERS {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str(if is_last { "Connection: close\r\n\r\n" } else { "\r\n" });
        head
    }
}

/// The page brings all that it needs, and talks to nobody else.
const HEADERS: [&str; 4] = [
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
     img-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
];

/// Whether a `Host` header names this machine, at any port: a tunnel may listen on another one.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|letter| letter.is_ascii_digit()) { name } else { host }
    });
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for (host, expected) in [
            ("127.0.0.1:8080", true),
            ("localhost", true),
            ("localhost:1", true),
            ("LOCALHOST:1", true),
            ("[::1]:80", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = Token("abc".to_owned());
        assert!(token.is("abc"));
        assert!(!token.is("abd") && !token.is("ab") && !token.is("abcd") && !token.is(""));
    }
}
