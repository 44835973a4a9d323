//! Cards that a run can be emulated on.
//!
//! Compute capability and limits are NVIDIA's published figures. Memory is what `torch.cuda.mem_get_info()` calls total: the
//! H200's was measured, the others are near what such cards report and were not; it differs by a few tenths of a GiB
//! between drivers and with error correction. `--gpu-memory` says it exactly.

use std::fmt::Write;

/// What PyTorch's memory depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Card {
    /// What the user types.
    pub key: &'static str,
    /// What the driver calls it.
    pub name: &'static str,
    pub memory: u64,
    capability: (u32, u32),
    multiprocessors: u32,
    l2_mib: u32,
}

/// What the context takes on an H200 (torch 2.11), and what cuBLAS and cuDNN add to it with their first call.
const CONTEXT: u64 = 527 << 20;
const CUBLAS: u64 = 68 << 20;
const CUDNN: u64 = 98 << 20;
/// The context grows with the multiprocessors: kernels' local memory is set aside for each.
const MEASURED_MULTIPROCESSORS: u32 = 132;
const CONTEXT_PER_MULTIPROCESSOR: u64 = 2 << 20;

const fn mib(mib: u64) -> u64 {
    mib << 20
}

macro_rules! cards {
    ($($key:literal $name:literal $memory:expr, $major:literal.$minor:literal, $sms:literal, $l2:literal;)*) => {
        pub const CARDS: &[Card] = &[$(Card {
            key: $key,
            name: $name,
            memory: $memory,
            capability: ($major, $minor),
            multiprocessors: $sms,
            l2_mib: $l2,
        }),*];
    };
}

cards! {
    "b200"        "NVIDIA B200"                     mib(182_642), 10 . 0, 148, 126;
    "h200"        "NVIDIA H200"                     150_109_880_320, 9 . 0, 132, 60;
    "gh200"       "NVIDIA GH200 480GB"              mib(97_280), 9 . 0, 132, 60;
    "h100"        "NVIDIA H100 80GB HBM3"           mib(81_086), 9 . 0, 132, 50;
    "h100-pcie"   "NVIDIA H100 PCIe"                mib(81_005), 9 . 0, 114, 50;
    "h100-nvl"    "NVIDIA H100 NVL"                 mib(95_320), 9 . 0, 132, 60;
    "a100"        "NVIDIA A100-SXM4-80GB"           mib(81_153), 8 . 0, 108, 40;
    "a100-40"     "NVIDIA A100-SXM4-40GB"           mib(40_338), 8 . 0, 108, 40;
    "a40"         "NVIDIA A40"                      mib(45_410), 8 . 6, 84, 6;
    "a30"         "NVIDIA A30"                      mib(24_060), 8 . 0, 56, 24;
    "a10"         "NVIDIA A10"                      mib(22_515), 8 . 6, 72, 6;
    "a10g"        "NVIDIA A10G"                     mib(22_515), 8 . 6, 80, 6;
    "l40s"        "NVIDIA L40S"                     mib(45_457), 8 . 9, 142, 96;
    "l40"         "NVIDIA L40"                      mib(45_457), 8 . 9, 142, 96;
    "l4"          "NVIDIA L4"                       mib(22_488), 8 . 9, 58, 48;
    "rtx6000-ada" "NVIDIA RTX 6000 Ada Generation"  mib(48_508), 8 . 9, 142, 96;
    "rtxa6000"    "NVIDIA RTX A6000"                mib(48_542), 8 . 6, 84, 6;
    "rtxa5000"    "NVIDIA RTX A5000"                mib(24_135), 8 . 6, 64, 6;
    "rtx5090"     "NVIDIA GeForce RTX 5090"         mib(32_109), 12 . 0, 170, 96;
    "rtx5080"     "NVIDIA GeForce RTX 5080"         mib(15_836), 12 . 0, 84, 64;
    "rtx4090"     "NVIDIA GeForce RTX 4090"         mib(24_210), 8 . 9, 128, 72;
    "rtx4080"     "NVIDIA GeForce RTX 4080"         mib(15_985), 8 . 9, 76, 64;
    "rtx3090"     "NVIDIA GeForce RTX 3090"         mib(24_260), 8 . 6, 82, 6;
    "rtx3080"     "NVIDIA GeForce RTX 3080"         mib(10_009), 8 . 6, 68, 5;
    "rtx3060"     "NVIDIA GeForce RTX 3060"         mib(12_044), 8 . 6, 28, 3;
    "rtx2080ti"   "NVIDIA GeForce RTX 2080 Ti"      mib(11_004), 7 . 5, 68, 6;
    "v100"        "Tesla V100-SXM2-16GB"            mib(16_151), 7 . 0, 80, 6;
    "v100-32"     "Tesla V100-SXM2-32GB"            mib(32_501), 7 . 0, 80, 6;
    "t4"          "Tesla T4"                        mib(15_095), 7 . 5, 40, 4;
}

impl Card {
    /// Finds a card by what the user typed: `h100`, `H100-80GB`, `RTX 4090`, `NVIDIA L4`.
    pub fn find(text: &str) -> Option<&'static Card> {
        let wanted = plain(text);
        CARDS.iter().find(|card| plain(card.key) == wanted || plain(card.name) == wanted).or_else(|| {
            let alias = match wanted.as_str() {
                "h10080" | "h10080gb" | "h100sxm" => "h100",
                "h200sxm" | "h200141gb" => "h200",
                "a10080" | "a10080gb" | "a100sxm480gb" => "a100",
                "a10040gb" => "a100-40",
                "v10016" | "v10016gb" => "v100",
                "v10032gb" => "v100-32",
                "a6000" => "rtxa6000",
                "a5000" => "rtxa5000",
                "4090" | "3090" | "4080" | "3080" | "5090" | "5080" | "3060" => {
                    return Card::find(&format!("rtx{wanted}"));
                }
                _ => return None,
            };
            CARDS.iter().find(|card| card.key == alias)
        })
    }

    /// Whether everything about it was measured, not taken from tables.
    pub fn is_measured(&self) -> bool {
        self.key == "h200"
    }

    /// Bytes of the context before any library.
    fn context(&self) -> u64 {
        let missing = u64::from(MEASURED_MULTIPROCESSORS).abs_diff(u64::from(self.multiprocessors));
        match self.multiprocessors >= MEASURED_MULTIPROCESSORS {
            true => CONTEXT + missing * CONTEXT_PER_MULTIPROCESSOR,
            false => CONTEXT - missing * CONTEXT_PER_MULTIPROCESSOR,
        }
    }

    /// The description that the emulator reads.
    pub fn describe(&self, memory: u64, devices: u32) -> String {
        let (major, minor) = self.capability;
        let (threads, blocks, shared_kib) = match (major, minor) {
            (7, 5) => (1024, 16, 64),
            (7, _) => (2048, 32, 96),
            (8, 0) => (2048, 32, 164),
            (8, 9) => (1536, 24, 100),
            (8, _) => (1536, 16, 100),
            (12, _) => (1536, 24, 100),
            _ => (2048, 32, 228),
        };
        // From Ampere on the driver keeps 1 KiB of each block's share for itself.
        let optin_kib = if major >= 8 { shared_kib - 1 } else { shared_kib };
        let mut text = format!("name={};devices={devices};memory={memory};others=0", self.name);
        let fields: [(&str, u64); 14] = [
            ("context", self.context()),
            ("cublas", CUBLAS),
            ("cudnn", CUDNN),
            ("major", major.into()),
            ("minor", minor.into()),
            ("multiprocessors", self.multiprocessors.into()),
            ("threads_per_multiprocessor", threads),
            ("blocks_per_multiprocessor", blocks),
            ("shared_per_multiprocessor", shared_kib << 10),
            ("shared_per_block_optin", optin_kib << 10),
            ("l2", u64::from(self.l2_mib) << 20),
            // Clocks and bus decide nothing about memory; cuDNN's planner wants to know them.
            ("clock_khz", 1_980_000),
            ("memory_clock_khz", 3_201_000),
            ("bus_bits", 6144),
        ];
        for (key, value) in fields {
            let _ = write!(text, ";{key}={value}");
        }
        text
    }
}

/// A name without what people spell in different ways.
fn plain(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !matches!(*word, "nvidia" | "geforce" | "tesla")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_what_people_write() {
        for (text, key) in [
            ("h100", "h100"),
            ("H100-80GB", "h100"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("RTX 4090", "rtx4090"),
            ("4090", "rtx4090"),
            ("GeForce RTX 3090", "rtx3090"),
            ("a100", "a100"),
            ("A100-40GB", "a100-40"),
            ("A6000", "rtxa6000"),
            ("Tesla T4", "t4"),
            ("v100_32", "v100-32"),
        ] {
            assert_eq!(Card::find(text).map(|card| card.key), Some(key), "{text}");
        }
        assert_eq!(Card::find("h300"), None);
        assert_eq!(Card::find(""), None);
    }

    #[test]
    fn keys_are_distinct() {
        let mut keys: Vec<String> = CARDS.iter().map(|card| plain(card.key)).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), CARDS.len());
    }
}
