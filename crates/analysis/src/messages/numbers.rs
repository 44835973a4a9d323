//! The numbers of a message. Only what the message contains is stored; derived numbers are computed where
//! they are needed.

use snapshot::Bytes;

/// The numbers of one message, `None` where it does not have them. Sizes are in bytes.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Numbers {
    /// Size of the request that failed.
    pub requested: Option<Bytes>,
    /// Total memory of the device or machine.
    pub total: Option<Bytes>,
    /// Free memory of the device.
    pub free: Option<Bytes>,
    /// Memory of PyTorch's tensors, and `private_pools` where the message has it.
    pub allocated: Option<Bytes>,
    /// Memory that PyTorch's allocator holds, with and without tensors in it.
    pub reserved: Option<Bytes>,
    /// Memory that PyTorch's allocator holds without tensors in it.
    pub reserved_unallocated: Option<Bytes>,
    /// Unused memory in private pools of CUDA graphs. PyTorch adds it to what it calls allocated.
    pub private_pools: Option<Bytes>,
    /// What the process was allowed to have: a fraction, a watermark, the limit of a container.
    pub limit: Option<Bytes>,
    /// What this process has of the device, as the driver counts.
    pub this_process: Option<Bytes>,
    /// What MPS counts in addition to its own allocations.
    pub other_allocations: Option<Bytes>,
    /// Resident memory of a process that was killed.
    pub resident: Option<Bytes>,
    /// Shared memory of a process that was killed, as data loaders use it; not in `resident`.
    pub shared: Option<Bytes>,
    /// What was in use of `total` or of `limit`, counted by another program than PyTorch.
    pub used: Option<Bytes>,
    /// Other processes that the message lists.
    pub others: Vec<OtherProcess>,
    /// Numbers that are not sizes of memory, by name.
    pub more: Vec<(&'static str, u64)>,
}

/// A process that the message names.
#[derive(Clone, PartialEq, Debug)]
pub struct OtherProcess {
    /// Process id.
    pub pid: u64,
    /// Memory that it holds; `None` where the driver did not know; PyTorch then prints the largest number
    /// that there is.
    pub bytes: Option<Bytes>,
}

/// Names of the numbers in [`Numbers::more`].
pub(super) const MORE_NAMES: [&str; 7] = [
    "prefill_tokens",
    "max_model_len",
    "kv_cache_tokens",
    "shared_memory_required",
    "shared_memory_limit",
    "tensor_memory_required",
    "tensor_memory_limit",
];

impl Numbers {
    /// Stores a number as a message writes it under its name in the patterns; returns whether the name is
    /// known.
    pub(super) fn set(&mut self, name: &str, text: &str) -> bool {
        let bytes = || known_size(text);
        let in_unit = |unit: &str| known_size(&format!("{}{unit}", text.replace(',', "")));
        let of_xla = || match text.strip_suffix('B') {
            Some(bytes) => known_size(&format!("{bytes}bytes")),
            None => known_size(&format!("{text}iB")),
        };
        let plain = || text.replace(',', "").parse::<u64>().ok();
        match name {
            // However large: that it is impossible is what the message says.
            "requested" => self.requested = size(text),
            "requested_bytes" => self.requested = plain().map(Bytes),
            "allocated" => self.allocated = bytes(),
            "other_allocations" => self.other_allocations = bytes(),
            "limit" => self.limit = bytes(),
            "requested_xla" => self.requested = of_xla(),
            "free_xla" => self.free = of_xla(),
            "total_xla" => self.total = of_xla(),
            "used_xla" => self.used = of_xla(),
            "free_bytes" => self.free = plain().map(Bytes),
            "limit_kib" => self.limit = in_unit("KiB"),
            "free" => self.free = bytes(),
            "free_gib" => self.free = in_unit("GiB"),
            "total" => self.total = bytes(),
            "total_gib" => self.total = in_unit("GiB"),
            "used" => self.used = bytes(),
            "used_gib" => self.used = in_unit("GiB"),
            "used_kib" => self.used = in_unit("KiB"),
            "resident" => self.resident = bytes(),
            "resident_kib" => self.resident = plain().map(|kib| Bytes(kib.saturating_mul(1024))),
            "shared_kib" => {
                self.shared = plain().filter(|&kib| kib > 0).map(|kib| Bytes(kib.saturating_mul(1024)));
            }
            "virtual_kib" => {}
            "killed_pid" => {
                self.others = plain().map(|pid| OtherProcess { pid, bytes: None }).into_iter().collect();
            }
            _ => {
                let Some(known) = MORE_NAMES.iter().find(|known| **known == name) else { return false };
                self.more.extend(plain().map(|number| (*known, number)));
            }
        }
        true
    }

    /// Memory of PyTorch's tensors alone.
    pub(crate) fn tensors(&self) -> Option<Bytes> {
        Some(self.allocated? - self.private_pools.unwrap_or_default())
    }

    /// Whether the request is more than any machine has: a shape or an index is wrong.
    pub(super) fn is_impossible(&self) -> bool {
        self.requested.is_some_and(|bytes| bytes >= LARGEST_REQUEST)
    }

    /// Bytes that PyTorch holds without a tensor in them.
    pub(crate) fn unallocated(&self) -> Option<Bytes> {
        self.reserved_unallocated.or_else(|| Some(self.reserved? - self.allocated?))
    }

    /// Bytes that PyTorch has from the driver.
    pub(super) fn held(&self) -> Option<Bytes> {
        self.reserved.or_else(|| Some(self.allocated? + self.reserved_unallocated?))
    }

    /// The process in the list that has to be this one. In a container PyTorch does not know the pid
    /// that the driver reports: then no process is called "this process", and the listed memory does not fit
    /// together with what PyTorch holds.
    pub(super) fn itself(&self) -> Option<&OtherProcess> {
        if self.this_process.is_some() {
            return None;
        }
        let used = self.total? - self.free?;
        let (held, listed) = (self.held()?, self.listed());
        let too_much = listed + held > used + ROUNDING_BYTES;
        let candidates = self
            .others
            .iter()
            .filter(|other| other.bytes.is_some_and(|bytes| bytes + ROUNDING_BYTES >= held));
        candidates.min_by_key(|other| other.bytes).filter(|_| too_much)
    }

    /// Bytes that this process has, as the driver counts.
    pub(super) fn own(&self) -> Option<Bytes> {
        self.this_process.or_else(|| self.itself()?.bytes)
    }

    /// Non-PyTorch memory of this process: what it has and PyTorch does not count.
    pub(super) fn non_pytorch(&self) -> Option<Bytes> {
        Some(self.own()? - self.held()?)
    }

    /// Whether the processes in the list look like ranks of one job: at least three, of nearly the same size.
    pub(super) fn are_ranks(&self) -> bool {
        let itself = self.itself().map(|other| other.pid);
        let others = || self.others.iter().filter(|other| Some(other.pid) != itself);
        let sizes: Vec<u64> = others().filter_map(|other| Some(other.bytes?.0)).collect();
        let (least, most) = (sizes.iter().min().copied(), sizes.iter().max().copied());
        sizes.len() >= 3 && least.zip(most).is_some_and(|(least, most)| most - least <= most / 10)
    }

    /// Bytes that the other processes in the list have.
    pub(crate) fn of_others(&self) -> Bytes {
        let itself = self.itself().map(|other| other.pid);
        self.others.iter().filter(|other| Some(other.pid) != itself).filter_map(|other| other.bytes).sum()
    }

    fn listed(&self) -> Bytes {
        self.others.iter().filter_map(|other| other.bytes).sum()
    }

    /// Bytes in use outside PyTorch whose owner the message does not name.
    pub(super) fn unexplained(&self) -> Option<Bytes> {
        let known = self.own().or_else(|| self.held())?;
        Some(self.total? - self.free? - known - self.of_others())
    }

    /// One of the numbers in [`Numbers::more`].
    pub(super) fn more(&self, name: &str) -> Option<u64> {
        self.more.iter().find(|(known, _)| *known == name).map(|&(_, number)| number)
    }

    /// Whether it is the same message, cut off.
    pub(super) fn is_part_of(&self, whole: &Numbers) -> bool {
        let fields = |numbers: &Numbers| {
            [
                numbers.requested,
                numbers.total,
                numbers.free,
                numbers.allocated,
                numbers.reserved,
                numbers.reserved_unallocated,
                numbers.private_pools,
                numbers.limit,
                numbers.this_process,
            ]
        };
        let is_known = |(part, whole): (Option<Bytes>, Option<Bytes>)| part.is_none() || part == whole;
        self != whole
            && fields(self).into_iter().zip(fields(whole)).all(is_known)
            && self.others.iter().all(|other| whole.others.contains(other))
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Numbers::default()
    }
}

/// Two digits behind the point of a GiB are off by up to 5 MiB, and several such numbers are added up.
pub(super) const ROUNDING_BYTES: Bytes = Bytes(32 << 20);

/// A size as a message writes it, without white space: `20.00MiB`, `512bytes`.
pub(super) const SIZE: &str = r"\d+(?:\.\d*|,\d\d?)?(?:bytes|[KMGTP]i?B)";

/// A size as XLA writes it: `21.90G`, `0B`.
pub(super) const XLA_SIZE: &str = r"\d+(?:\.\d+)?[BKMGT]";

/// Reads what [`SIZE`] has matched. MB means MiB: programs that print MB here, such as MPS, divide by 1024.
pub(super) fn size(text: &str) -> Option<Bytes> {
    let unit_at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "bytes" => 1.0,
        _ => 1024f64.powi("KMGTP".find(unit.get(..1)?)? as i32 + 1),
    };
    let bytes = number.replace(',', ".").parse::<f64>().ok()? * scale;
    // Whole numbers of bytes are exact; a float would round the large ones.
    let exact = if unit == "bytes" { number.parse().ok() } else { None };
    Some(Bytes(exact.unwrap_or(bytes.round() as u64)))
}

/// Reads a size; `None` where it is what PyTorch prints for "not known".
pub(super) fn known_size(text: &str) -> Option<Bytes> {
    size(text).filter(|bytes| bytes.0 < IMPOSSIBLE_BYTES)
}

/// Requests of this much are mistakes.
const LARGEST_REQUEST: Bytes = Bytes(1 << 50);

/// No process has this much; PyTorch prints 17179869184.00 GiB where the driver says "not available".
const IMPOSSIBLE_BYTES: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in [
            ("20.00MiB", Some(20 << 20)),
            ("0bytes", Some(0)),
            ("132426121216bytes", Some(132_426_121_216)),
            ("1024.00KiB", Some(1 << 20)),
            ("768.00MB", Some(768 << 20)),
            ("201.GiB", Some(201 << 30)),
            ("2,50GiB", Some(5 << 29)),
            ("GiB", None),
        ] {
            assert_eq!(size(text).map(|bytes| bytes.0), bytes, "{text}");
        }
        assert_eq!(known_size("17179869184.00GiB"), None);
    }
}
