//! The memory of a device as a message describes it, in parts that add up.

use super::Message;
use super::kind::MessageKind;
use snapshot::Bytes;

/// Who has a part of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Tensors of this process.
    Tensors,
    /// All that PyTorch holds, where its tensors are not told apart.
    Held,
    /// What PyTorch holds without using it.
    Cached,
    /// Context and libraries of this process.
    Own,
    /// Other processes that the message names.
    Others,
    /// In use, and the message does not tell by whom.
    Untold,
    Free,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Part::Tensors => "tensors",
            Part::Held => "held by PyTorch",
            Part::Cached => "cached by PyTorch",
            Part::Own => "other use of this process",
            Part::Others => "other processes",
            Part::Untold => "not PyTorch's, owner not told",
            Part::Free => "free",
        }
    }
}

/// A part and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    pub part: Part,
    pub bytes: Bytes,
}

impl Message {
    /// The parts of the device's memory, none of them empty; nothing where the message has too few numbers or where they
    /// contradict each other.
    pub fn parts(&self) -> Vec<Share> {
        let numbers = &self.numbers;
        let parts = if self.kind == MessageKind::Mps { self.metal_parts() } else { self.device_parts() };
        let mut parts = parts.unwrap_or_default();
        parts.retain(|share| share.bytes > Bytes::ZERO);
        let sum: Bytes = parts.iter().map(|share| share.bytes).sum();
        let whole = numbers.total.or(numbers.limit).unwrap_or(sum);
        // Rounded numbers add up to a little more than the whole; more than that is a contradiction.
        if sum.0 as f64 > whole.0 as f64 * 1.02 { Vec::new() } else { parts }
    }

    fn device_parts(&self) -> Option<Vec<Share>> {
        let numbers = &self.numbers;
        let (total, free) = (numbers.total?, numbers.free?);
        // What vLLM finds when it begins is nobody's tensors.
        let tensors = if self.kind == MessageKind::VllmStartup { Bytes::ZERO } else { numbers.allocated? };
        let cached = numbers.unallocated().unwrap_or_default();
        let (own, untold) = match numbers.own() {
            Some(own) => (own - tensors - cached, numbers.unexplained()?),
            None => (Bytes::ZERO, total - free - tensors - cached - numbers.of_others()),
        };
        let others = numbers.of_others();
        let is_rounding = numbers.own().is_some() && untold.0 < total.0 / 200;
        let untold = if is_rounding { Bytes::ZERO } else { untold };
        Some(vec![
            Share { part: Part::Tensors, bytes: tensors },
            Share { part: Part::Cached, bytes: cached },
            Share { part: Part::Own, bytes: own },
            Share { part: Part::Others, bytes: others },
            Share { part: Part::Untold, bytes: untold },
            Share { part: Part::Free, bytes: free },
        ])
    }

    /// Of what MPS is allowed to have.
    fn metal_parts(&self) -> Option<Vec<Share>> {
        let numbers = &self.numbers;
        let (allocated, others) = (numbers.allocated?, numbers.other_allocations?);
        let free = numbers.limit? - allocated - others;
        Some(vec![
            Share { part: Part::Held, bytes: allocated },
            Share { part: Part::Own, bytes: others },
            Share { part: Part::Free, bytes: free },
        ])
    }
}
