//! Follows programs while they run: what their recorders say on their sockets, and what the driver says of the devices.
//!
//! A recorder answers one line of JSON with another ([`Question`], [`State`]). [`Followers`] asks all recorders that this user
//! may see, a few times a second, and keeps for each what its steps say about growth ([`Followed`]).

#![forbid(unsafe_code)]

mod bounded;
mod course;
mod driver;
mod followed;
mod followers;
mod recorder;
mod remote;
mod sockets;
mod split;
mod untrusted;
mod wire;

pub use course::{Course, Level, Piece};
pub use driver::{Driver, Gpu};
pub use followed::{Followed, Site};
pub use followers::{Followers, MAX_RECORDERS, MAX_RECORDERS_PER_USER, Source};
pub use remote::{Address, Answer};
pub use split::Split;
pub use wire::{Device, Process, Question, State};
