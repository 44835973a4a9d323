//! The server of the page: this machine only, a secret in the path, nothing but reading.

use crate::{Problem, Viewer};
use serve::{Asked, Reply, Token, is_loopback};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::thread::scope;

/// The page without data.
pub(crate) const PAGE: &str = include_str!("../assets/page.html");

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
        format!("http://127.0.0.1:{}/{}/", self.port, self.token.reveal())
    }
}

impl Viewer<'_> {
    /// Answers until the process ends.
    pub fn serve(&self, server: &Server) {
        scope(|scope| {
            // While the browser starts, the first picture is prepared.
            scope.spawn(|| self.prepare());
            serve::serve(&server.listener, |asked| Reply { headers: &[POLICY], ..self.reply(server, asked) });
        });
    }

    fn reply(&self, server: &Server, asked: &Asked) -> Reply {
        if !is_loopback(&asked.host) {
            return Reply::problem(403, "only this machine is answered", None);
        }
        let mut parts = asked.path.splitn(3, '/').skip(1);
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
