//! HTTP requests on this machine, and the replies to them: what `oomph view` and `oomph exporter` share.
//!
//! There is nothing here that could change anything: bodies are never read. Whatever a client does is its own trouble, and costs
//! one connection of a bounded number for a bounded time.

#![forbid(unsafe_code)]

mod asked;
mod client;
mod connections;
mod host;
mod reply;
mod token;

pub use asked::Asked;
pub use client::user_of;
pub use connections::serve;
pub use host::is_loopback;
pub use reply::Reply;
pub use token::Token;
