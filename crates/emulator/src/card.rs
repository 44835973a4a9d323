//! The emulated card, as described by oomph in the environment: `OOMPH_EMULATOR="name=NVIDIA L4;memory=…"`.

use std::sync::OnceLock;

/// Properties of the card that affect PyTorch's memory.
#[derive(Clone, Debug)]
pub(crate) struct CardProperties {
    pub(crate) name: String,
    pub(crate) devices: i32,
    /// Total memory of each device in bytes, as in `cudaMemGetInfo`.
    pub(crate) memory: u64,
    /// Bytes that can be taken, if more than what the device says it has.
    pub(crate) capacity: Option<u64>,
    /// Bytes used by other processes.
    pub(crate) others: u64,
    /// Bytes taken by the CUDA context, by the first cuBLAS handle, and by the first cuDNN handle.
    pub(crate) context: u64,
    pub(crate) cublas: u64,
    pub(crate) cudnn: u64,
    pub(crate) major: i32,
    pub(crate) minor: i32,
    pub(crate) multiprocessors: i32,
    pub(crate) threads_per_multiprocessor: i32,
    pub(crate) blocks_per_multiprocessor: i32,
    pub(crate) shared_per_multiprocessor: i32,
    pub(crate) shared_per_block_optin: i32,
    pub(crate) l2: i32,
    pub(crate) clock_khz: i32,
    pub(crate) memory_clock_khz: i32,
    pub(crate) bus_bits: i32,
}

const CARD_VARIABLE: &str = "OOMPH_EMULATOR";

/// Card of this process.
pub(crate) fn card() -> &'static CardProperties {
    static CARD: OnceLock<CardProperties> = OnceLock::new();
    CARD.get_or_init(|| {
        let text = std::env::var(CARD_VARIABLE).unwrap_or_default();
        CardProperties::parse(&text).unwrap_or_else(|missing| {
            crate::notes::print(&format!(
                "{CARD_VARIABLE} does not describe a card: {missing}; start the program with `oomph predict`"
            ));
            std::process::abort()
        })
    })
}

impl CardProperties {
    fn parse(text: &str) -> Result<CardProperties, String> {
        let field = |key: &str| {
            text.split(';')
                .find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key))
                .map(|(_, value)| value)
                .ok_or_else(|| format!("`{key}` is missing"))
        };
        let bytes = |key: &str| field(key)?.parse::<u64>().map_err(|_| format!("`{key}` is not a number"));
        let int = |key: &str| field(key)?.parse::<i32>().map_err(|_| format!("`{key}` is not a number"));
        Ok(CardProperties {
            name: field("name")?.to_string(),
            devices: int("devices")?,
            memory: bytes("memory")?,
            capacity: bytes("capacity").ok(),
            others: bytes("others")?,
            context: bytes("context")?,
            cublas: bytes("cublas")?,
            cudnn: bytes("cudnn")?,
            major: int("major")?,
            minor: int("minor")?,
            multiprocessors: int("multiprocessors")?,
            threads_per_multiprocessor: int("threads_per_multiprocessor")?,
            blocks_per_multiprocessor: int("blocks_per_multiprocessor")?,
            shared_per_multiprocessor: int("shared_per_multiprocessor")?,
            shared_per_block_optin: int("shared_per_block_optin")?,
            l2: int("l2")?,
            clock_khz: int("clock_khz")?,
            memory_clock_khz: int("memory_clock_khz")?,
            bus_bits: int("bus_bits")?,
        })
    }
}
