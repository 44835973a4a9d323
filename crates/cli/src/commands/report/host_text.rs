//! Host memory in the text of `oomph report`: one line.

use crate::terminal::Terminal;
use crate::words::paragraph;
use analysis::words::counted;
use recording::HostMemory;
use snapshot::Bytes;

/// Prints the highest amounts of the run: the process, its workers, pinned memory, `/dev/shm`.
pub(super) fn print(host: &HostMemory, terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut parts = vec![format!("{} resident at most", host.peak_rss())];
    let all = host.samples.iter().map(|sample| {
        let bytes: Bytes = sample.workers.iter().map(|worker| worker.private.unwrap_or(worker.rss)).sum();
        (bytes, sample.workers.len() as u64)
    });
    if let Some((bytes, count)) = all.max().filter(|(_, count)| *count > 0) {
        parts.push(format!("{bytes} private to {}", counted(count, "data loader worker")));
    }
    parts.extend(host.pinned.as_ref().map(|pinned| format!("{} pinned", pinned.reserved)));
    let shm = host.samples.iter().filter_map(|sample| sample.shm).max_by_key(|shm| shm.size - shm.free);
    if let Some(shm) = shm.filter(|shm| shm.free < shm.size) {
        parts.push(format!("{} of {} of /dev/shm in use", shm.size - shm.free, shm.size));
    }
    paragraph(" ", "   ", &format!("host memory  {}", parts.join(" · ")), None, terminal)
}
