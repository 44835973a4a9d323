//! What is outside the allocator: the driver below it, and whoever watches what it does.

use snapshot::Action;

/// One thing that the allocator did, as PyTorch's trace shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deed {
    pub(crate) action: Action,
    /// Block or segment; nothing for an allocation that failed.
    pub(crate) addr: u64,
    /// Requested bytes for blocks, rounded ones for a failed allocation, all bytes of segments.
    pub(crate) size: u64,
    pub(crate) stream: u64,
}

/// Which frees complete while the allocator waits for all streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Completion {
    /// All that are pending.
    All,
    /// The block at this address, then ask again.
    Next(u64),
    /// No more.
    Done,
}

/// Answers that the allocator cannot know by itself. Given the same answers, it does the same.
pub(crate) trait World {
    /// Whether the memory limit of the process lets `want` bytes in beside those reserved.
    fn allows(&mut self, reserved: u64, want: u64) -> bool;

    /// `cudaMalloc`: the address, and whether it is only a guess. `None` is out of memory.
    fn malloc(&mut self, size: u64) -> Option<(u64, bool)>;

    /// `cudaFree`
    fn free(&mut self, addr: u64, size: u64);

    /// Reserves addresses for an expandable segment of this page size: where they begin, and how many bytes. `None` if
    /// nothing could be mapped there anyway.
    fn reserve(&mut self, page: u64) -> Option<(u64, u64)>;

    /// Whether an expandable segment of this page size is as long as `length` bytes; to use them, pages at `addr` would be
    /// mapped first.
    fn reaches(&mut self, page: u64, length: u64, addr: u64) -> bool;

    /// Whether the length of expandable segments is known, and with it how far each can grow.
    fn knows_ranges(&self) -> bool;

    /// Whether the block at this address is handed out or released next: where the model cannot tell which of two comes
    /// first because the recording does not say how old they are or how far they can grow.
    fn takes(&self, addr: u64) -> bool;

    /// Puts memory behind addresses; all of it or nothing.
    fn map(&mut self, addr: u64, size: u64) -> bool;

    /// Takes the memory away again.
    fn unmap(&mut self, size: u64);

    /// Whether garbage collection is on: it needs a threshold and a limit.
    fn collects(&self) -> bool;

    /// Whether so many reserved bytes are above the threshold of garbage collection. `victim` is the segment that would
    /// go first.
    fn is_above_threshold(&mut self, reserved: u64, victim: u64) -> bool;

    /// Asked again and again while the allocator waits for all streams.
    fn next_completion(&mut self) -> Completion;

    /// A private pool that nobody uses any more and that a release of everything may take; asked until there is none.
    fn next_retired_pool(&mut self) -> Option<u32>;

    /// The allocator has done something.
    fn deed(&mut self, deed: Deed);
}
