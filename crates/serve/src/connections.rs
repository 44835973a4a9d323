//! Connections, each in a thread of its own.

use crate::asked::Received;
use crate::{Asked, Reply};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, scope};
use std::time::{Duration, Instant};

/// A browser opens six.
const MOST_CONNECTIONS: usize = 256;
/// How long a request may take to arrive: who sends a letter now and then is not waited for.
const HURRY: Duration = Duration::from_secs(10);
/// How long a connection may say or take nothing between requests.
const IDLE: Duration = Duration::from_secs(120);
/// Bytes of the longest request.
const LONGEST: usize = 16 << 10;

/// How long to wait before trying again where the machine has no descriptor or thread to spare; twice as long each time, up to the
/// other.
const RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Answers until the process ends.
pub fn serve(listener: &TcpListener, reply: impl Fn(&Asked) -> Reply + Sync) {
    answer_all(listener.incoming(), thread::sleep, reply);
}

/// Answers as long as there are connections. `wait` is called where one cannot be taken: another one may have ended by then.
fn answer_all(
    connections: impl Iterator<Item = io::Result<TcpStream>>,
    wait: impl Fn(Duration),
    reply: impl Fn(&Asked) -> Reply + Sync,
) {
    let open = AtomicUsize::new(0);
    let mut delay = RETRY_DELAY;
    scope(|scope| {
        for connection in connections {
            let (open, reply) = (&open, &reply);
            let begun = connection.and_then(|connection| {
                let Some(place) = Place::take(open) else { return Ok(()) };
                let answer = move || {
                    let _place = place;
                    // A reader that has gone away is no trouble.
                    let _ = converse(connection, HURRY, reply);
                };
                thread::Builder::new().spawn_scoped(scope, answer).map(drop)
            });
            delay = match begun {
                Ok(()) => RETRY_DELAY,
                Err(_) => {
                    wait(delay);
                    (2 * delay).min(MAX_RETRY_DELAY)
                }
            };
        }
    });
}

/// One of the connections that may be open; free again when it is dropped, however its thread ends.
struct Place<'a>(&'a AtomicUsize);

impl Place<'_> {
    fn take(open: &AtomicUsize) -> Option<Place<'_>> {
        let place = Place(open);
        (open.fetch_add(1, Ordering::SeqCst) < MOST_CONNECTIONS).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers the requests of one connection, one after the other.
fn converse(mut connection: TcpStream, hurry: Duration, reply: impl Fn(&Asked) -> Reply) -> io::Result<()> {
    connection.set_nodelay(true)?;
    connection.set_write_timeout(Some(IDLE))?;
    let mut received = Vec::new();
    // A new connection has something to say.
    let mut until = Instant::now() + hurry;
    loop {
        let (reply, used, is_last) = match Received::read(&received) {
            Ok(None) if received.len() < LONGEST => {
                let is_between = received.is_empty();
                read(&mut connection, &mut received, until)?;
                if received.is_empty() {
                    return Ok(());
                }
                if is_between {
                    until = until.min(Instant::now() + hurry);
                }
                continue;
            }
            Ok(Some(Received { asked, length, is_last })) => {
                let reply = reply(&Asked { client: connection.peer_addr().ok(), ..asked });
                // Whoever is refused does not keep one of the connections.
                let is_last = is_last || reply.status >= 400;
                (reply, length, is_last)
            }
            Ok(None) | Err(_) => (Reply::problem(400, "this is no request", None), 0, true),
        };
        connection.write_all(reply.head(is_last).as_bytes())?;
        connection.write_all(&reply.body)?;
        if is_last {
            return Ok(());
        }
        received.drain(..used);
        until = Instant::now() + if received.is_empty() { IDLE } else { hurry };
    }
}

/// What comes next; an error when it is the end in the middle of a request, or too late.
fn read(connection: &mut TcpStream, received: &mut Vec<u8>, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    connection.set_read_timeout(Some(left))?;
    let mut part = [0; 4096];
    match connection.read(&mut part)? {
        0 if !received.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            received.extend_from_slice(&part[..count]);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// A client, and what it gets; requests may take a fifth of a second.
    fn client(talk: impl FnOnce(&mut TcpStream) -> io::Result<()>) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (connection, _) = listener.accept().expect("accepted");
        let mut got = String::new();
        scope(|scope| {
            scope.spawn(|| {
                let reply = |asked: &Asked| match asked.path.as_str() {
                    "/refused" => Reply::problem(404, "refused", None),
                    path => Reply::new("text/plain", path),
                };
                let _ = converse(connection, Duration::from_millis(200), reply);
            });
            // What is sent to a connection that was ended fails, which is what some clients are here for.
            let _ = talk(&mut client);
            let _ = client.read_to_string(&mut got);
        });
        got
    }

    #[test]
    fn what_cannot_be_accepted_is_waited_for_and_longer_each_time() {
        let (waited, exhausted) =
            (std::cell::RefCell::new(Vec::new()), || Err(io::Error::from_raw_os_error(24)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let failures = std::iter::repeat_with(exhausted).take(10);
        let accepted = std::iter::once_with(|| {
            let client = TcpStream::connect(address)?;
            let connection = listener.accept().map(|(connection, _)| connection);
            drop(client);
            connection
        });
        let connections = failures.chain(accepted).chain(std::iter::once_with(exhausted));
        answer_all(connections, |delay| waited.borrow_mut().push(delay.as_millis()), |_| Reply::new("", ""));
        assert_eq!(waited.into_inner(), [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 10]);
    }

    #[test]
    fn whoever_is_refused_loses_the_connection() {
        let got = client(|client| client.write_all(b"GET /refused HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\n\r\n"));
        assert!(got.starts_with("HTTP/1.1 404") && !got.contains("HTTP/1.1 200"), "{got}");
    }

    #[test]
    fn requests_of_a_connection_are_answered_in_turn() {
        let got = client(|client| {
            client.write_all(b"GET /a HTTP/1.1\r\n\r\nGET /b HT")?;
            client.write_all(b"TP/1.1\r\nConnection: close\r\n\r\n")
        });
        let (first, second) = (got.find("\r\n\r\n/a"), got.find("\r\n\r\n/b"));
        assert!(first.is_some() && first < second, "{got}");
    }

    #[test]
    fn who_sends_a_letter_now_and_then_is_not_waited_for() {
        let begun = Instant::now();
        let got = client(|client| {
            client.write_all(b"GET /a HTTP/1.1\r\nX: ")?;
            (0..200).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(50));
                client.write_all(b"x")
            })
        });
        assert!(got.is_empty() && begun.elapsed() < Duration::from_secs(5), "{got} {:?}", begun.elapsed());
    }

    #[test]
    fn what_is_no_request_or_never_ends_is_refused() {
        for text in [&b"\0\xff\r\n\r\n"[..], &[b'x'; 4 * LONGEST]] {
            let got = client(|client| client.write_all(text));
            assert!(got.is_empty() || got.starts_with("HTTP/1.1 400"), "{got}");
        }
    }
}
