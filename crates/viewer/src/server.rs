//! The server: this machine only, a secret in the path, nothing but reading.

use crate::answers::Answer;
use crate::{Problem, Viewer};
use serde_json::json;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::scope;
use tiny_http::{Header, Method, Request, Response};

/// The page without data.
pub(crate) const PAGE: &str = include_str!("../assets/page.html");

/// Questions that are answered at the same time.
const WORKERS: usize = 3;

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
    listener: tiny_http::Server,
    port: u16,
    token: Token,
}

impl Server {
    /// Listens on a port of the loopback interface; 0 takes any that is free.
    pub fn bind(port: u16, token: Token) -> io::Result<Server> {
        let listener =
            tiny_http::Server::http(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).map_err(|error| {
                error
                    .downcast::<io::Error>()
                    .map_or_else(|other| io::Error::other(other.to_string()), |error| *error)
            })?;
        let port = listener.server_addr().to_ip().map_or(port, |address| address.port());
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
        scope(|scope| {
            // While the browser starts, the first picture is prepared.
            scope.spawn(|| self.prepare());
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Ok(request) = server.listener.recv() {
                        self.respond(server, request);
                    }
                });
            }
        });
    }

    fn respond(&self, server: &Server, request: Request) {
        let reply = self.reply(server, &request);
        let mut response = Response::from_data(reply.body).with_status_code(reply.status);
        for (name, value) in [
            ("Content-Type", reply.kind),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            // The page brings all that it needs, and talks to nobody else.
            (
                "Content-Security-Policy",
                "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            ),
        ] {
            if let Ok(header) = Header::from_bytes(name, value) {
                response.add_header(header);
            }
        }
        // A reader that has gone away is no trouble.
        let _ = request.respond(response);
    }

    fn reply(&self, server: &Server, request: &Request) -> Reply {
        // A page of somebody else's whose name was made to point here would send its own name.
        let host = request.headers().iter().find(|header| header.field.equiv("Host"));
        let is_local = host.is_some_and(|host| is_loopback(host.value.as_str()));
        if !is_local {
            return Reply::problem(403, &Problem::new("only this machine is answered"));
        }
        let mut parts = request.url().splitn(3, '/').skip(1);
        if !parts.next().is_some_and(|token| server.token.is(token)) {
            return Reply::problem(
                404,
                &Problem::new("the address needs the secret that `oomph view` has printed"),
            );
        }
        if !matches!(request.method(), Method::Get | Method::Head) {
            return Reply::problem(405, &Problem::new("there is nothing here to change"));
        }
        match parts.next().map(|rest| rest.strip_prefix("api/").ok_or(rest)) {
            Some(Ok(question)) => match self.answer(question) {
                Ok(Answer::Json(value)) => {
                    Reply { status: 200, kind: "application/json", body: value.to_string().into_bytes() }
                }
                Ok(Answer::Tile(bytes)) => {
                    Reply { status: 200, kind: "application/octet-stream", body: bytes.to_vec() }
                }
                Err(problem) => Reply::problem(400, &problem),
            },
            Some(Err("")) => Reply { status: 200, kind: "text/html; charset=utf-8", body: PAGE.into() },
            _ => Reply::problem(404, &Problem::new("there is no such page")),
        }
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
}

/// Whether a `Host` header names this machine, at any port: a tunnel may listen on another one.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|letter| letter.is_ascii_digit()) { name } else { host }
    });
    matches!(name, "127.0.0.1" | "localhost" | "[::1]")
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
