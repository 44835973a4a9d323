//! Access rules of the exporter.

use serve::{Request, Response, Token, is_loopback};

/// Access rules: a token, and whether only this machine can connect.
pub struct Access {
    /// Token that clients must send, if there is one.
    pub token: Option<Token>,
    /// Whether the exporter listens on a loopback address only.
    pub is_local: bool,
}

impl Access {
    /// Returns the error response to a request that is refused; `None` if it is allowed.
    pub fn refusal(&self, request: &Request, path: &str) -> Option<Response> {
        // On other interfaces the names of the machine are unknown.
        if self.is_local && !is_loopback(&request.host) {
            return Some(Response::problem(403, "only requests from this machine are allowed", None));
        }
        if request.method != "GET" {
            return Some(Response::problem(405, "the exporter is read-only", None));
        }
        // Health checks run often and cannot always send a token.
        if path == "/-/healthy" {
            return None;
        }
        match &self.token {
            Some(token) if !bearer(&request.authorization).is_some_and(|shown| token.matches(shown)) => {
                let hint =
                    Some("send `Authorization: Bearer TOKEN` with what is in the exporter's --token-file");
                let refused = Response::problem(401, "the token is missing or wrong", hint);
                Some(Response { headers: &["WWW-Authenticate: Bearer"], ..refused })
            }
            None if !self.is_local && path == "/live" => Some(Response::problem(
                403,
                "command lines are not public: this exporter can be reached from other machines and has no \
                 token",
                Some("start it with `--token-file FILE`, or on 127.0.0.1 and connect through a tunnel"),
            )),
            _ => None,
        }
    }
}

/// Returns the token of an `Authorization` header.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(access: &Access, path: &str, host: &str, authorization: &str) -> u16 {
        let (host, authorization) = (host.to_owned(), authorization.to_owned());
        let request = Request { method: "GET".to_owned(), host, authorization, ..Request::default() };
        access.refusal(&request, path).map_or(200, |reply| reply.status)
    }

    #[test]
    fn on_this_machine_only_its_own_names_are_answered() {
        let access = Access { token: None, is_local: true };
        for path in ["/metrics", "/live", "/-/healthy"] {
            assert_eq!(status(&access, path, "localhost:9", ""), 200);
            assert_eq!(status(&access, path, "rebound.example", ""), 403);
        }
    }

    #[test]
    fn without_a_token_other_machines_see_no_command_lines() {
        let access = Access { token: None, is_local: false };
        assert_eq!(status(&access, "/metrics", "gpu7:16674", ""), 200);
        assert_eq!(status(&access, "/live", "gpu7:16674", ""), 403);
    }

    #[test]
    fn a_token_opens_everything_and_nothing_else_does() {
        for is_local in [true, false] {
            let access = Access { token: Some(Token::new("secret")), is_local };
            for path in ["/metrics", "/live", "/", "/nothing"] {
                assert_eq!(status(&access, path, "localhost", "Bearer secret"), 200);
                assert_eq!(status(&access, path, "localhost", "bearer  secret"), 200);
                for wrong in
                    ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "Basic secret", "secret"]
                {
                    assert_eq!(status(&access, path, "localhost", wrong), 401, "{wrong}");
                }
            }
            assert_eq!(status(&access, "/-/healthy", "localhost", ""), 200);
        }
    }
}
