//! The server of the page: loopback only, a token in the path, read-only.

use crate::{Problem, Viewer};
use serve::{Request, Response, Token, is_loopback, user_of};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};
use std::time::{Duration, Instant};

/// How long a browser may take to start and open the page.
const INVITATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Threads that read ranks in the background at most: each holds a snapshot in memory.
const MAX_READERS: usize = 4;

/// First part of the path of an invitation; no token is equal to it.
const INVITATION_PATH: &str = "open";
/// The page without answers.
pub(crate) const PAGE: &str = include_str!("../assets/page.html");

/// A server that listens on the loopback interface.
pub struct Server {
    listener: TcpListener,
    port: u16,
    token: Token,
    invitation: Mutex<Option<Invitation>>,
}

/// A code that opens the page once, for one user. Every user of the machine can read command lines, so the
/// browser's has this code in place of the token.
struct Invitation {
    code: Token,
    /// The user who may use it; anyone if `None`.
    user: Option<u32>,
    until: Instant,
}

impl Server {
    /// Listens on a port of the loopback interface; 0 takes any free port.
    pub fn bind(port: u16, token: Token) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        Ok(Server { listener, port, token, invitation: Mutex::default() })
    }

    /// Port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Address of the page, with the token.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token.reveal())
    }

    /// Returns an address that leads a browser to the page once; only a browser of `user`, if given.
    pub fn invite(&self, user: Option<u32>) -> io::Result<String> {
        let code = Token::random()?;
        let address = format!("http://127.0.0.1:{}/{INVITATION_PATH}/{}", self.port, code.reveal());
        let until = Instant::now() + INVITATION_TIMEOUT;
        *self.invitation.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Invitation { code, user, until });
        Ok(address)
    }

    /// Uses up the invitation if a client has its code. Root may use it, too: root can read the token anyway.
    fn is_invited(&self, code: &str, client: Option<u32>) -> bool {
        let mut invitation = self.invitation.lock().unwrap_or_else(PoisonError::into_inner);
        let is_valid = |found: &mut Invitation| {
            found.code.matches(code)
                && Instant::now() < found.until
                && found.user.is_none_or(|user| client.is_some_and(|client| client == user || client == 0))
        };
        invitation.take_if(is_valid).is_some()
    }
}

impl Viewer<'_> {
    /// Answers questions until the process ends.
    pub fn serve(&self, server: &Server) {
        scope(|scope| {
            // The first picture is prepared while the browser starts. Without a thread to spare, it is
            // prepared on demand. Then half of the cores read the ranks one by one: the others are for what
            // someone looks at.
            let _ = Builder::new().spawn_scoped(scope, || {
                self.prepare();
                let cores = available_parallelism().map_or(1, NonZero::get);
                for _ in 0..(cores / 2).clamp(1, MAX_READERS) {
                    let _ = Builder::new().spawn_scoped(scope, || self.inputs.help_summarize());
                }
            });
            serve::serve(&server.listener, |request| Response {
                headers: &[CONTENT_SECURITY_POLICY],
                ..self.respond(server, request)
            });
        });
    }

    fn respond(&self, server: &Server, request: &Request) -> Response {
        if !is_loopback(&request.host) {
            return Response::problem(403, "only requests from this machine are answered", None);
        }
        let mut parts = request.path.splitn(3, '/').skip(1);
        if let Some(code) = request
            .path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(INVITATION_PATH)?.strip_prefix('/'))
        {
            let client =
                request.client.and_then(|client| user_of(client, (Ipv4Addr::LOCALHOST, server.port).into()));
            return if server.is_invited(code, client) {
                Response::redirect(format!("/{}/", server.token.reveal()))
            } else {
                Response::problem(
                    404,
                    "this address opens the page once, for the user who started `oomph view`",
                    None,
                )
            };
        }
        if !parts.next().is_some_and(|token| server.token.matches(token)) {
            return Response::problem(404, "the address needs the token that `oomph view` printed", None);
        }
        if request.method != "GET" {
            return Response::problem(405, "only GET is answered", None);
        }
        match parts.next().map(|rest| rest.strip_prefix("api/").ok_or(rest)) {
            Some(Ok(question)) => match self.answer(question) {
                Ok(answer) => Response::new(answer.content_type(), answer.bytes()),
                Err(Problem { what, hint }) => Response::problem(400, &what, hint.as_deref()),
            },
            Some(Err("")) => Response::new("text/html; charset=utf-8", PAGE),
            _ => Response::problem(404, "there is no such page", None),
        }
    }
}

/// The page has everything inline, and connects only to this server.
const CONTENT_SECURITY_POLICY: &str = "Content-Security-Policy: default-src 'none'; \
     script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_works_once_for_one_user() {
        let server = Server::bind(0, Token::new("secret")).expect("a port");
        let address = server.invite(Some(1000)).expect("an address");
        assert!(!address.contains("secret"));
        let code = address.rsplit('/').next().expect("a code");
        for (code, client) in [(code, Some(1001)), (code, None), ("", Some(1000)), ("secret", Some(1000))] {
            assert!(!server.is_invited(code, client), "{code} {client:?}");
        }
        assert!(server.is_invited(code, Some(1000)), "refusals do not use it up");
        assert!(!server.is_invited(code, Some(1000)), "it is used up");
        let again = server.invite(Some(1000)).expect("an address");
        assert!(server.is_invited(again.rsplit('/').next().expect("a code"), Some(0)), "root");
        let open = server.invite(None).expect("an address");
        assert!(server.is_invited(open.rsplit('/').next().expect("a code"), None));
    }

    #[test]
    fn an_invitation_expires() {
        let server = Server::bind(0, Token::new("secret")).expect("a port");
        let address = server.invite(Some(1000)).expect("an address");
        if let Some(invitation) = server.invitation.lock().expect("unpoisoned").as_mut() {
            invitation.until = Instant::now();
        }
        assert!(!server.is_invited(address.rsplit('/').next().expect("a code"), Some(1000)));
    }
}
