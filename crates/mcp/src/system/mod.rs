//! What the system can forbid a process.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::{end_with_parent, limit_memory, only_read};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{end_with_parent, limit_memory, only_read};
