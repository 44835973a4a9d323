//! Exports the state of all recorders of this machine, for Prometheus and for `oomph watch` on another
//! machine.
//!
//! [`metrics`] lists the metrics, [`exposition`] writes them in both text formats, [`access`] decides who
//! may read what, and [`routes`] answers requests.
//!
//! ```
//! use exporter::exposition::{ExpositionFormat, Family, MetricKind, text};
//!
//! let mut steps = Family::new("oomph_steps_total", MetricKind::Counter, "Steps of the program.");
//! steps.set(vec![("rank", "0".to_owned())], 12.0);
//! let lines = text(&[steps], ExpositionFormat::Prometheus);
//! assert!(lines.ends_with("oomph_steps_total{rank=\"0\"} 12\n"));
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod access;
pub mod exposition;
pub mod metrics;
pub mod routes;
