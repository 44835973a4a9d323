//! What differs between operating systems. Programs are run on Linux only; elsewhere this crate says so, and
//! its users need not know where they are.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
