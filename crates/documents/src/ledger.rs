//! The ledger of a device in the JSON of `oomph report`.

use analysis::{DeviceLedger, LedgerRow};
use schemars::JsonSchema;
use serde::Serialize;

/// Memory of the process on a device by owner, at one moment, in bytes.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LedgerReport {
    /// The moment: `start`, `step`, or why the snapshot was written.
    at: String,
    /// Steps that had ended.
    step: u64,
    /// Whether calls of the CUDA driver were counted (`oomph run --trace-driver`).
    traced: bool,
    /// Memory of the process by the driver's count, as `nvidia-smi` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u64>,
    /// Parts of it.
    rows: Vec<LedgerRowReport>,
    /// What the parts lack of the process's memory; negative if they are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed: Option<i64>,
    /// Other processes on the device.
    others: Vec<LedgerProcessReport>,
    /// Memory in use on the device that is of no listed process.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted: Option<u64>,
    /// Driver calls that overlapped with a call of another thread, so that their memory is unknown.
    missed_calls: u64,
}

/// One owner of memory.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LedgerRowReport {
    /// `allocated` and `cached` (PyTorch), `context`, `kernels`, `graphs`, `streams`, `library`,
    /// `communicators`, or `non_pytorch` where calls of the driver were not counted.
    kind: &'static str,
    /// Name, as the report shows it.
    owner: String,
    /// Bytes.
    bytes: u64,
    /// Libraries or process groups that make up the row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<LedgerPart>,
}

/// A part of a row.
#[derive(Serialize, JsonSchema)]
struct LedgerPart {
    /// Name of the library or process group.
    name: String,
    /// Bytes.
    bytes: u64,
}

/// A process that uses the same device.
#[derive(Serialize, JsonSchema)]
struct LedgerProcessReport {
    /// Process ID.
    pid: u64,
    /// Name, or empty.
    name: String,
    /// Bytes.
    bytes: u64,
}

impl From<DeviceLedger> for LedgerReport {
    fn from(ledger: DeviceLedger) -> LedgerReport {
        let others = ledger.others.into_iter();
        LedgerReport {
            at: ledger.at,
            step: ledger.step,
            traced: ledger.is_traced,
            process: ledger.process.map(|bytes| bytes.0),
            rows: ledger.rows.into_iter().map(LedgerRowReport::from).collect(),
            unattributed: ledger.unattributed,
            others: others
                .map(|process| LedgerProcessReport {
                    pid: process.pid,
                    name: process.name,
                    bytes: process.bytes.0,
                })
                .collect(),
            unlisted: ledger.unlisted.map(|bytes| bytes.0),
            missed_calls: ledger.missed_calls,
        }
    }
}

impl From<LedgerRow> for LedgerRowReport {
    fn from(row: LedgerRow) -> LedgerRowReport {
        let parts = row.libraries.into_iter();
        LedgerRowReport {
            kind: row.owner.key(),
            owner: row.owner.name().to_owned(),
            bytes: row.bytes.0,
            parts: parts.map(|(name, bytes)| LedgerPart { name, bytes: bytes.0 }).collect(),
        }
    }
}
