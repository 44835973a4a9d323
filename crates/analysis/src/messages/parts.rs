//! The memory of a device as a message describes it, in parts that add up.

use super::Message;
use super::kinds::MessageKind;
use snapshot::Bytes;

/// Who holds a part of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPart {
    /// Tensors of this process.
    Tensors,
    /// All memory that PyTorch holds, where its tensors are not counted by themselves.
    Held,
    /// Memory that PyTorch holds without tensors in it.
    Cached,
    /// Unused memory in private pools, which PyTorch counts as allocated.
    PrivatePools,
    /// Context and libraries of this process.
    Own,
    /// Other processes that the message names.
    Others,
    /// In use, owner unknown.
    Unexplained,
    /// Free.
    Free,
}

impl MemoryPart {
    /// Name in the bar of `oomph explain`.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPart::Tensors => "tensors",
            MemoryPart::Held => "held by PyTorch",
            MemoryPart::Cached => "cached by PyTorch",
            MemoryPart::PrivatePools => "unused in private pools",
            MemoryPart::Own => "non-PyTorch memory (this process)",
            MemoryPart::Others => "other processes",
            MemoryPart::Unexplained => "outside PyTorch, owner unknown",
            MemoryPart::Free => "free",
        }
    }
}

/// A part of a device's memory, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryShare {
    /// Who holds it.
    pub part: MemoryPart,
    /// Size in bytes.
    pub bytes: Bytes,
}

impl Message {
    /// The parts of the device's memory, none of them empty; nothing where the message has too few numbers or
    /// where they contradict each other.
    pub fn parts(&self) -> Vec<MemoryShare> {
        let numbers = &self.numbers;
        let parts = if self.kind == MessageKind::Mps { self.metal_parts() } else { self.device_parts() };
        let mut parts = parts.unwrap_or_default();
        parts.retain(|share| share.bytes > Bytes::ZERO);
        let sum: Bytes = parts.iter().map(|share| share.bytes).sum();
        let whole = numbers.total.or(numbers.limit).unwrap_or(sum);
        // Rounded numbers add up to a little more than the whole; more than that is a contradiction.
        if sum.0 as f64 > whole.0 as f64 * 1.02 { Vec::new() } else { parts }
    }

    fn device_parts(&self) -> Option<Vec<MemoryShare>> {
        let numbers = &self.numbers;
        let (total, free) = (numbers.total?, numbers.free?);
        // What vLLM finds when it begins is nobody's tensors.
        let tensors = if self.kind == MessageKind::VllmStartup { Bytes::ZERO } else { numbers.tensors()? };
        let pools = numbers.private_pools.unwrap_or_default();
        let cached = numbers.unallocated().unwrap_or_default();
        let (own, unexplained) = match numbers.own() {
            Some(own) => (own - tensors - cached - pools, numbers.unexplained()?),
            None => (Bytes::ZERO, total - free - tensors - cached - pools - numbers.of_others()),
        };
        let others = numbers.of_others();
        let is_rounding = numbers.own().is_some() && unexplained.0 < total.0 / 200;
        let unexplained = if is_rounding { Bytes::ZERO } else { unexplained };
        Some(vec![
            MemoryShare { part: MemoryPart::Tensors, bytes: tensors },
            MemoryShare { part: MemoryPart::Cached, bytes: cached },
            MemoryShare { part: MemoryPart::PrivatePools, bytes: pools },
            MemoryShare { part: MemoryPart::Own, bytes: own },
            MemoryShare { part: MemoryPart::Others, bytes: others },
            MemoryShare { part: MemoryPart::Unexplained, bytes: unexplained },
            MemoryShare { part: MemoryPart::Free, bytes: free },
        ])
    }

    /// Of what MPS is allowed to have.
    fn metal_parts(&self) -> Option<Vec<MemoryShare>> {
        let numbers = &self.numbers;
        let (allocated, others) = (numbers.allocated?, numbers.other_allocations?);
        let free = numbers.limit? - allocated - others;
        Some(vec![
            MemoryShare { part: MemoryPart::Held, bytes: allocated },
            MemoryShare { part: MemoryPart::Own, bytes: others },
            MemoryShare { part: MemoryPart::Free, bytes: free },
        ])
    }
}
