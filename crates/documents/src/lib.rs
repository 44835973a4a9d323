//! JSON documents of the commands, made from the answers of the libraries, and their schemas.
//!
//! Each command has a file with the types that mirror its document: public and versioned, so fields may be
//! added, none renamed. The comment of a field is its description in the schema. Nothing here prints, or
//! knows the command line.
//!
//! ```
//! use analysis::messages::MessageReader;
//! use documents::ExplainDocument;
//!
//! let mut reader = MessageReader::default();
//! reader.read(
//!     b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; \
//!     5.00 GiB already allocated; 1.00 GiB free; 6.00 GiB reserved in total by PyTorch)\n",
//! );
//! let (messages, more) = reader.finish();
//! let document = serde_json::to_value(ExplainDocument::new(&messages, more, None))?;
//! assert_eq!(document["messages"][0]["numbers"]["requested"], 2_u64 << 30);
//!
//! let schema = documents::schema("explain").expect("a command with --json");
//! assert_eq!(schema.get("title").and_then(|title| title.as_str()), Some("oomph explain --json"));
//! # Ok::<(), serde_json::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod amounts;
mod check;
mod diff;
mod doctor;
mod explain;
mod findings;
mod fit;
mod fleet;
mod holders;
mod host;
mod ledger;
mod lint;
mod live;
mod phases;
mod predict;
mod query;
mod report;
mod rule;
mod sarif;
mod schemas;
mod simulate;
mod sites;
mod timeline;
mod watch;

pub use crate::check::CheckDocument;
pub use crate::diff::DiffDocument;
pub use crate::doctor::DoctorDocument;
pub use crate::explain::ExplainDocument;
pub use crate::findings::ReportedFinding;
pub use crate::fit::{FitDocument, FittedProgram};
pub use crate::fleet::{FleetDocument, FleetListDocument};
pub use crate::holders::{HeldTensorReport, HoldersDocument, HoldersOfPage, HoldersPart, HoldersReport};
pub use crate::lint::LintDocument;
pub use crate::predict::{PredictDocument, PredictedProgram};
pub use crate::query::QueryDocument;
pub use crate::report::{ReportDocument, ReportOptions};
pub use crate::rule::RuleDocument;
pub use crate::sarif::sarif;
pub use crate::schemas::{commands, schema};
pub use crate::simulate::{SimulateDocument, VerificationReport};
pub use crate::timeline::DeviceTimeline;
pub use crate::watch::WatchDocument;
