//! The server of the page: this machine only, a secret in the path, nothing but reading.

use crate::{Problem, Viewer};
use serve::{Asked, Reply, Token, is_loopback, user_of};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

/// How long a browser may take to start.
const INVITATION_TIMEOUT: Duration = Duration::from_secs(120);

/// The path of an invitation; no token begins like it.
const OPEN: &str = "open";
/// The page without data.
pub(crate) const PAGE: &str = include_str!("../assets/page.html");

/// A server that listens on this machine.
pub struct Server {
    listener: TcpListener,
    port: u16,
    token: Token,
    invitation: Mutex<Option<Invitation>>,
}

/// Opens the page once, for one user. Command lines can be read by every user of the machine, so the browser's has this in place of
/// the token.
struct Invitation {
    code: Token,
    /// Nothing where the user of a connection cannot be known.
    user: Option<u32>,
    until: Instant,
}

impl Server {
    /// Listens on a port of the loopback interface; 0 takes any that is free.
    pub fn bind(port: u16, token: Token) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = listener.local_addr()?.port();
        Ok(Server { listener, port, token, invitation: Mutex::default() })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address for a browser.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token.reveal())
    }

    /// An address that leads a browser to the page, once; only a browser of this user, if one is named.
    pub fn invite(&self, user: Option<u32>) -> io::Result<String> {
        let code = Token::random()?;
        let address = format!("http://127.0.0.1:{}/{OPEN}/{}", self.port, code.reveal());
        let until = Instant::now() + INVITATION_TIMEOUT;
        *self.invitation.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Invitation { code, user, until });
        Ok(address)
    }

    /// Whether a client has brought the invitation, which is used up by it. Root may do anything anyway.
    fn is_invited(&self, code: &str, client: Option<u32>) -> bool {
        let mut invitation = self.invitation.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |found: &mut Invitation| {
            found.code.is(code)
                && Instant::now() < found.until
                && found.user.is_none_or(|user| client.is_some_and(|client| client == user || client == 0))
        };
        invitation.take_if(is_it).is_some()
    }
}

impl Viewer<'_> {
    /// Answers until the process ends.
    pub fn serve(&self, server: &Server) {
        scope(|scope| {
            // While the browser starts, the first picture is prepared.
            // Where no thread can be had, it is prepared when it is asked for.
            let _ = Builder::new().spawn_scoped(scope, || self.prepare());
            serve::serve(&server.listener, |asked| Reply { headers: &[POLICY], ..self.reply(server, asked) });
        });
    }

    fn reply(&self, server: &Server, asked: &Asked) -> Reply {
        if !is_loopback(&asked.host) {
            return Reply::problem(403, "only this machine is answered", None);
        }
        let mut parts = asked.path.splitn(3, '/').skip(1);
        if let Some(code) =
            asked.path.strip_prefix('/').and_then(|path| path.strip_prefix(OPEN)?.strip_prefix('/'))
        {
            let client =
                asked.client.and_then(|client| user_of(client, (Ipv4Addr::LOCALHOST, server.port).into()));
            return if server.is_invited(code, client) {
                Reply::elsewhere(format!("/{}/", server.token.reveal()))
            } else {
                Reply::problem(
                    404,
                    "this address opens the page once, for the user who started `oomph view`",
                    None,
                )
            };
        }
        if !parts.next().is_some_and(|token| server.token.is(token)) {
            return Reply::problem(404, "the address needs the secret that `oomph view` has printed", None);
        }
        if asked.method != "GET" {
            return Reply::problem(405, "there is nothing here to change", None);
        }
        match parts.next().map(|rest| rest.strip_prefix("api/").ok_or(rest)) {
            Some(Ok(question)) => match self.answer(question) {
                Ok(answer) => Reply::new(answer.kind(), answer.bytes()),
                Err(Problem { what, hint }) => Reply::problem(400, &what, hint.as_deref()),
            },
            Some(Err("")) => Reply::new("text/html; charset=utf-8", PAGE),
            _ => Reply::problem(404, "there is no such page", None),
        }
    }
}

/// The page brings all that it needs, and talks to nobody else.
const POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
     style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
     form-action 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_for_one_user_and_for_once() {
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
    fn an_invitation_runs_out() {
        let server = Server::bind(0, Token::new("secret")).expect("a port");
        let address = server.invite(Some(1000)).expect("an address");
        if let Some(invitation) = server.invitation.lock().expect("unpoisoned").as_mut() {
            invitation.until = Instant::now();
        }
        assert!(!server.is_invited(address.rsplit('/').next().expect("a code"), Some(1000)));
    }
}
