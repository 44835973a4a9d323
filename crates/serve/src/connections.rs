//! Connections, each in its own thread.

use crate::request::Received;
use crate::{Request, Response};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, scope};
use std::time::{Duration, Instant};

/// Open connections; a browser needs six.
const MAX_CONNECTIONS: usize = 256;
/// How long a request may take to arrive, so that slow senders cannot hold connections.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be silent between requests, or not take a response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a request.
const MAX_REQUEST_BYTES: usize = 16 << 10;

/// First wait where the machine has no descriptor or thread to spare; each further wait is twice as long.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// Longest of these waits.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Answers requests until the process ends, each connection in its own thread.
pub fn serve(listener: &TcpListener, respond: impl Fn(&Request) -> Response + Sync) {
    answer_all(listener.incoming(), thread::sleep, respond);
}

/// Answers as long as there are connections. `wait` is called where one cannot be accepted: another may have
/// ended by then.
fn answer_all(
    connections: impl Iterator<Item = io::Result<TcpStream>>,
    wait: impl Fn(Duration),
    respond: impl Fn(&Request) -> Response + Sync,
) {
    let open = AtomicUsize::new(0);
    let mut delay = RETRY_DELAY;
    scope(|scope| {
        for connection in connections {
            let (open, respond) = (&open, &respond);
            let begun = connection.and_then(|connection| {
                let Some(slot) = ConnectionSlot::take(open) else { return Ok(()) };
                let answer = move || {
                    let _slot = slot;
                    // A client that has gone away is not an error.
                    let _ = serve_connection(connection, REQUEST_TIMEOUT, respond);
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

/// One of the [`MAX_CONNECTIONS`]; freed when dropped, however the thread ends.
struct ConnectionSlot<'a>(&'a AtomicUsize);

impl ConnectionSlot<'_> {
    fn take(open: &AtomicUsize) -> Option<ConnectionSlot<'_>> {
        let slot = ConnectionSlot(open);
        (open.fetch_add(1, Ordering::SeqCst) < MAX_CONNECTIONS).then_some(slot)
    }
}

impl Drop for ConnectionSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers the requests of one connection in order.
fn serve_connection(
    mut connection: TcpStream,
    request_timeout: Duration,
    respond: impl Fn(&Request) -> Response,
) -> io::Result<()> {
    connection.set_nodelay(true)?;
    connection.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let mut received = Vec::new();
    // A new connection has to send a request at once.
    let mut until = Instant::now() + request_timeout;
    loop {
        let (response, used, is_last) = match Received::read(&received) {
            Ok(None) if received.len() < MAX_REQUEST_BYTES => {
                let is_between = received.is_empty();
                read(&mut connection, &mut received, until)?;
                if received.is_empty() {
                    return Ok(());
                }
                if is_between {
                    until = until.min(Instant::now() + request_timeout);
                }
                continue;
            }
            Ok(Some(Received { request, length, is_last })) => {
                let response = respond(&Request { client: connection.peer_addr().ok(), ..request });
                // A refused client loses its connection, so that it cannot hold one.
                let is_last = is_last || response.status >= 400;
                (response, length, is_last)
            }
            Ok(None) | Err(_) => (Response::problem(400, "not an HTTP request", None), 0, true),
        };
        connection.write_all(response.head(is_last).as_bytes())?;
        connection.write_all(&response.body)?;
        if is_last {
            return Ok(());
        }
        received.drain(..used);
        until = Instant::now() + if received.is_empty() { IDLE_TIMEOUT } else { request_timeout };
    }
}

/// Reads more bytes. Fails at the end of the stream within a request, and after `until`.
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

    /// Returns what a client receives; requests may take a fifth of a second.
    fn client(talk: impl FnOnce(&mut TcpStream) -> io::Result<()>) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (connection, _) = listener.accept().expect("accepted");
        let mut got = String::new();
        scope(|scope| {
            scope.spawn(|| {
                let respond = |request: &Request| match request.path.as_str() {
                    "/refused" => Response::problem(404, "refused", None),
                    path => Response::new("text/plain", path),
                };
                let _ = serve_connection(connection, Duration::from_millis(200), respond);
            });
            // Writing fails on a closed connection, which some of these clients are meant to see.
            let _ = talk(&mut client);
            let _ = client.read_to_string(&mut got);
        });
        got
    }

    #[test]
    fn waits_grow_while_connections_cannot_be_accepted() {
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
        answer_all(
            connections,
            |delay| waited.borrow_mut().push(delay.as_millis()),
            |_| Response::new("", ""),
        );
        assert_eq!(waited.into_inner(), [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 10]);
    }

    #[test]
    fn a_refused_client_loses_its_connection() {
        let got = client(|client| client.write_all(b"GET /refused HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\n\r\n"));
        assert!(got.starts_with("HTTP/1.1 404") && !got.contains("HTTP/1.1 200"), "{got}");
    }

    #[test]
    fn requests_of_a_connection_are_answered_in_order() {
        let got = client(|client| {
            client.write_all(b"GET /a HTTP/1.1\r\n\r\nGET /b HT")?;
            client.write_all(b"TP/1.1\r\nConnection: close\r\n\r\n")
        });
        let (first, second) = (got.find("\r\n\r\n/a"), got.find("\r\n\r\n/b"));
        assert!(first.is_some() && first < second, "{got}");
    }

    #[test]
    fn a_slow_sender_is_disconnected() {
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
    fn bytes_that_are_not_a_request_are_refused() {
        for text in [&b"\0\xff\r\n\r\n"[..], &[b'x'; 4 * MAX_REQUEST_BYTES]] {
            let got = client(|client| client.write_all(text));
            assert!(got.is_empty() || got.starts_with("HTTP/1.1 400"), "{got}");
        }
    }
}
