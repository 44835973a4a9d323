//! Environment of the allocator: the driver below it, and an observer of its events.

use snapshot::Action;

/// One event of the model, as PyTorch's trace shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ModelEvent {
    pub(crate) action: Action,
    /// Address of the block or segment; 0 for a failed allocation.
    pub(crate) addr: u64,
    /// Requested bytes for blocks, rounded bytes for a failed allocation, all bytes of segments.
    pub(crate) size: u64,
    pub(crate) stream: u64,
}

/// Frees that complete while the allocator waits for all streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Completion {
    /// All that are pending.
    All,
    /// The block at this address; then ask again.
    Next(u64),
    /// No further ones.
    Done,
}

/// Answers that the allocator cannot know by itself. Given the same answers, it behaves the same.
pub(crate) trait Environment {
    /// Returns whether the memory limit of the process allows `want` bytes in addition to those reserved.
    fn allows(&mut self, reserved: u64, want: u64) -> bool;

    /// Returns whether the memory limit is known. Otherwise the driver may have refused what
    /// [`Environment::allows`] does not allow.
    fn knows_limit(&self) -> bool;

    /// `cudaMalloc`: returns the address, and whether it is only a guess. `None` is out of memory.
    fn malloc(&mut self, size: u64) -> Option<(u64, bool)>;

    /// `cudaFree`.
    fn free(&mut self, addr: u64, size: u64);

    /// Reserves addresses for an expandable segment of this page size: returns the first one and the number
    /// of bytes. `None` if nothing could be mapped there.
    fn reserve(&mut self, page: u64) -> Option<(u64, u64)>;

    /// Returns whether an expandable segment of this page size is at least `length` bytes long; to use them,
    /// pages at `addr` would be mapped first.
    fn reaches(&mut self, page: u64, length: u64, addr: u64) -> bool;

    /// Returns whether the length of expandable segments is known, and with it how far each can grow.
    fn knows_ranges(&self) -> bool;

    /// Returns whether the block at this address is allocated or released next. Decides between two blocks if
    /// the recording does not show how old they are or how far they can grow.
    fn takes(&self, addr: u64) -> bool;

    /// Maps memory at these addresses; all of it or nothing.
    fn map(&mut self, addr: u64, size: u64) -> bool;

    /// Unmaps memory.
    fn unmap(&mut self, size: u64);

    /// Sets the `garbage_collection_threshold`; 0 means off.
    fn set_gc_threshold(&mut self, threshold: f64);

    /// Returns whether garbage collection is on: it needs a threshold and a limit.
    fn collects(&self) -> bool;

    /// Returns whether `reserved` bytes are above the threshold of garbage collection. `victim` is the
    /// segment that would be released first.
    fn is_above_threshold(&mut self, reserved: u64, victim: u64) -> bool;

    /// Returns the next completed free; called repeatedly while the allocator waits for all streams.
    fn next_completion(&mut self) -> Completion;

    /// Returns an unused private pool that a release of all cached memory may take; called until there is
    /// none.
    fn next_retired_pool(&mut self) -> Option<u32>;

    /// Reports an event of the allocator.
    fn on_event(&mut self, event: ModelEvent);
}
