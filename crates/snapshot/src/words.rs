//! Words of a snapshot: its keys and actions, in PyTorch's own spelling.
//!
//! They are interned in this order before anything is read, so that comparing a key or an action is
//! comparing two small numbers.

use crate::text::StrId;

macro_rules! words {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// Every known word; a word's position is its [`StrId`].
        pub(crate) const WORDS: &[&str] = &[$($text),*];

        // Some words only hold a position in the order and are never named.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, dead_code)]
        #[repr(u32)]
        enum Position { $($name),* }

        $(#[allow(dead_code)] pub(crate) const $name: StrId = StrId(Position::$name as u32);)*
    };
}

words! {
    // First, so that "" is `StrId::EMPTY`.
    NOTHING = "",
    // Actions, in the order of `Action`.
    ALLOC = "alloc",
    FREE_REQUESTED = "free_requested",
    FREE_COMPLETED = "free_completed",
    SEGMENT_ALLOC = "segment_alloc",
    SEGMENT_FREE = "segment_free",
    SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap",
    SNAPSHOT = "snapshot",
    OOM = "oom",
    ANNOTATE = "annotate",
    // Keys of the top level.
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations",
    HOST_SEGMENTS = "host_segments",
    HOST_TRACES = "host_traces",
    OOMPH = "oomph",
    // Keys of an event.
    ACTION = "action",
    ADDR = "addr",
    SIZE = "size",
    STREAM = "stream",
    DEVICE_FREE = "device_free",
    TIME_US = "time_us",
    FRAMES = "frames",
    FORWARD_FRAMES = "forward_frames",
    COMPILE_CONTEXT = "compile_context",
    USER_METADATA = "user_metadata",
    POOL_ID = "pool_id",
    INTERNAL_METADATA = "internal_metadata",
    // Keys of a frame.
    NAME = "name",
    FILENAME = "filename",
    LINE = "line",
    // Keys of a segment.
    DEVICE = "device",
    ADDRESS = "address",
    TOTAL_SIZE = "total_size",
    ALLOCATED_SIZE = "allocated_size",
    ACTIVE_SIZE = "active_size",
    REQUESTED_SIZE = "requested_size",
    SEGMENT_TYPE = "segment_type",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    BLOCKS = "blocks",
    // Keys of a block.
    STATE = "state",
    HISTORY = "history",
    REAL_SIZE = "real_size",
    // Keys of an annotation.
    STAGE = "stage",
    // Values.
    SMALL = "small",
    LARGE = "large",
    ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
    INACTIVE = "inactive",
    START = "START",
    END = "END",
    CPU = "cpu",
}
