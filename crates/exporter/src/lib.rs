//! What every recorder of this machine says, for Prometheus and for `oomph watch` on another machine.
//!
//! [`metrics`] is the table of what is exported, [`exposition`] writes it in both text formats, [`access`] knows who may read
//! what, [`routes`] what there is.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod access;
pub mod exposition;
pub mod metrics;
pub mod routes;
