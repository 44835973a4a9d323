//! A small HTTP server for this machine, shared by `oomph view` and `oomph exporter`.
//!
//! Requests only read: bodies are never read, and nothing can be changed. A client can hold one of a bounded
//! number of connections for a bounded time, and nothing else.
//!
//! ```
//! use serve::{Request, Response, serve};
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//!
//! let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
//! let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
//! let echo = |request: &Request| Response::new("text/plain", request.path.clone());
//! std::thread::spawn(move || serve(&listener, echo));
//!
//! client.write_all(b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
//! let mut response = String::new();
//! client.read_to_string(&mut response).unwrap();
//! assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("/hello"));
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client;
mod connections;
mod host;
mod request;
mod response;
mod signals;
mod token;

pub use client::{own_user, user_of};
pub use connections::serve;
pub use host::is_loopback;
pub use request::Request;
pub use response::Response;
pub use signals::exit_on_signals;
pub use token::{Token, others_can_read};
