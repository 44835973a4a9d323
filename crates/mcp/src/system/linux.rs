//! Linux: Landlock, resource limits, and the signal at the end of a parent.

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::system::sysinfo;
use std::path::PathBuf;

/// Largest memory of a worker, in bytes.
const MAX_MEMORY_BYTES: u64 = 16 << 30;
/// Largest share of the machine's memory that a worker may use: one in this many.
const MEMORY_DIVISOR: u64 = 2;

/// Allows this process to read files below the folders, and no other access to files, no network and no
/// signals to others. Kernels before 5.13 cannot forbid this, and later ones not everything.
pub(crate) fn only_read(folders: &[PathBuf]) -> anyhow::Result<()> {
    let known = ABI::V6;
    Ruleset::default()
        .handle_access(AccessFs::from_all(known))?
        .handle_access(AccessNet::from_all(known))?
        .scope(Scope::from_all(known))?
        .create()?
        .add_rules(path_beneath_rules(folders, AccessFs::ReadFile | AccessFs::ReadDir))?
        .restrict_self()?;
    Ok(())
}

/// Limits the memory of this process, so that a call ends before others of this machine do.
pub(crate) fn limit_memory() {
    let info = sysinfo();
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let most = MAX_MEMORY_BYTES.min(machine / MEMORY_DIVISOR);
    let maximum = getrlimit(Resource::Data).maximum;
    let most = maximum.map_or(most, |maximum| maximum.min(most));
    // A limit that cannot be set leaves the system's own.
    let _ = setrlimit(Resource::Data, Rlimit { current: Some(most), maximum });
}

/// Has this process killed when the server ends.
pub(crate) fn end_with_parent() {
    // Without it, the process ends with its work.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}
