//! GPU models that a run can be emulated on.
//!
//! Compute capability and limits are NVIDIA's published figures, with their sources in
//! `docs/reference/gpus.md`. Memory is the total of `torch.cuda.mem_get_info()`: measured for the H200,
//! typical for the others. It differs by a few tenths of a GiB between drivers and with error correction;
//! `--gpu-memory` sets it exactly.

use std::fmt::Write;

/// A GPU model: the properties on which PyTorch's memory depends.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuModel {
    /// Name for `--emulate`.
    pub key: &'static str,
    /// Product name, as the driver reports it.
    pub name: &'static str,
    /// Usual memory, in bytes.
    pub memory: u64,
    capability: (u32, u32),
    multiprocessors: u32,
    l2_mib: u32,
}

/// Bytes of the CUDA context on an H200 (torch 2.11).
const CONTEXT_BYTES: u64 = 527 << 20;
/// Bytes that the first call of cuBLAS adds to it.
const CUBLAS_BYTES: u64 = 68 << 20;
/// Bytes that the first call of cuDNN adds to it.
const CUDNN_BYTES: u64 = 98 << 20;
/// Multiprocessors of the H200, on which the context was measured.
const MEASURED_MULTIPROCESSORS: u32 = 132;
/// Bytes by which the context grows per multiprocessor: local memory of kernels is reserved for each.
const CONTEXT_BYTES_PER_MULTIPROCESSOR: u64 = 2 << 20;

const fn mib(mib: u64) -> u64 {
    mib << 20
}

macro_rules! gpu_models {
    ($(
        $key:literal $name:literal $memory:expr, $major:literal.$minor:literal, $sms:literal, $l2:literal;
    )*) => {
        /// GPU models that a run can be emulated on, newest first.
        pub const GPU_MODELS: &[GpuModel] = &[$(GpuModel {
            key: $key,
            name: $name,
            memory: $memory,
            capability: ($major, $minor),
            multiprocessors: $sms,
            l2_mib: $l2,
        }),*];
    };
}

gpu_models! {
    "b300"        "NVIDIA B300 SXM6 AC"             mib(274_000), 10 . 3, 148, 126;
    "gb200"       "NVIDIA GB200"                    mib(188_400), 10 . 0, 152, 126;
    "b200"        "NVIDIA B200"                     mib(182_642), 10 . 0, 148, 126;
    "h200"        "NVIDIA H200"                     150_109_880_320, 9 . 0, 132, 60;
    "gh200"       "NVIDIA GH200 480GB"              mib(97_280), 9 . 0, 132, 60;
    "h100"        "NVIDIA H100 80GB HBM3"           mib(81_086), 9 . 0, 132, 50;
    "h100-pcie"   "NVIDIA H100 PCIe"                mib(81_005), 9 . 0, 114, 50;
    "h100-nvl"    "NVIDIA H100 NVL"                 mib(95_320), 9 . 0, 132, 60;
    "h20"         "NVIDIA H20"                      mib(97_285), 9 . 0, 78, 60;
    "a100"        "NVIDIA A100-SXM4-80GB"           mib(81_153), 8 . 0, 108, 40;
    "a100-40"     "NVIDIA A100-SXM4-40GB"           mib(40_338), 8 . 0, 108, 40;
    "a40"         "NVIDIA A40"                      mib(45_410), 8 . 6, 84, 6;
    "a30"         "NVIDIA A30"                      mib(24_060), 8 . 0, 56, 24;
    "a10"         "NVIDIA A10"                      mib(22_515), 8 . 6, 72, 6;
    "a10g"        "NVIDIA A10G"                     mib(22_515), 8 . 6, 80, 6;
    "l40s"        "NVIDIA L40S"                     mib(45_457), 8 . 9, 142, 96;
    "l40"         "NVIDIA L40"                      mib(45_457), 8 . 9, 142, 96;
    "l4"          "NVIDIA L4"                       mib(22_488), 8 . 9, 58, 48;
    "rtxpro6000"  "NVIDIA RTX PRO 6000 Blackwell Server Edition" mib(97_250), 12 . 0, 188, 128;
    "rtx6000-ada" "NVIDIA RTX 6000 Ada Generation"  mib(48_508), 8 . 9, 142, 96;
    "rtxa6000"    "NVIDIA RTX A6000"                mib(48_542), 8 . 6, 84, 6;
    "rtxa5000"    "NVIDIA RTX A5000"                mib(24_135), 8 . 6, 64, 6;
    "rtx5090"     "NVIDIA GeForce RTX 5090"         mib(32_109), 12 . 0, 170, 96;
    "rtx5080"     "NVIDIA GeForce RTX 5080"         mib(15_836), 12 . 0, 84, 64;
    "rtx5070ti"   "NVIDIA GeForce RTX 5070 Ti"      mib(15_836), 12 . 0, 70, 48;
    "rtx5070"     "NVIDIA GeForce RTX 5070"         mib(11_850), 12 . 0, 48, 48;
    "rtx4090"     "NVIDIA GeForce RTX 4090"         mib(24_210), 8 . 9, 128, 72;
    "rtx4080"     "NVIDIA GeForce RTX 4080"         mib(15_985), 8 . 9, 76, 64;
    "rtx4070ti-super" "NVIDIA GeForce RTX 4070 Ti SUPER" mib(15_974), 8 . 9, 66, 48;
    "rtx4070ti"   "NVIDIA GeForce RTX 4070 Ti"      mib(11_980), 8 . 9, 60, 48;
    "rtx4070"     "NVIDIA GeForce RTX 4070"         mib(11_980), 8 . 9, 46, 36;
    "rtx3090"     "NVIDIA GeForce RTX 3090"         mib(24_260), 8 . 6, 82, 6;
    "rtx3080"     "NVIDIA GeForce RTX 3080"         mib(10_009), 8 . 6, 68, 5;
    "rtx3060"     "NVIDIA GeForce RTX 3060"         mib(12_044), 8 . 6, 28, 3;
    "rtx2080ti"   "NVIDIA GeForce RTX 2080 Ti"      mib(11_004), 7 . 5, 68, 6;
    "v100"        "Tesla V100-SXM2-16GB"            mib(16_151), 7 . 0, 80, 6;
    "v100-32"     "Tesla V100-SXM2-32GB"            mib(32_501), 7 . 0, 80, 6;
    "t4"          "Tesla T4"                        mib(15_095), 7 . 5, 40, 4;
}

impl GpuModel {
    /// Finds a GPU model by any common spelling: `h100`, `H100-80GB`, `RTX 4090`, `NVIDIA L4`.
    pub fn find(text: &str) -> Option<&'static GpuModel> {
        let wanted = plain(text);
        let is_wanted = |model: &&GpuModel| plain(model.key) == wanted || plain(model.name) == wanted;
        GPU_MODELS.iter().find(is_wanted).or_else(|| {
            let alias = match wanted.as_str() {
                "h10080" | "h10080gb" | "h100sxm" => "h100",
                "h200sxm" | "h200141gb" => "h200",
                "a10080" | "a10080gb" | "a100sxm480gb" => "a100",
                "a10040gb" => "a100-40",
                "v10016" | "v10016gb" => "v100",
                "v10032gb" => "v100-32",
                "a6000" => "rtxa6000",
                "a5000" => "rtxa5000",
                "rtxpro6000blackwell" | "rtxpro6000blackwellworkstationedition" => "rtxpro6000",
                "b300sxm6" => "b300",
                "4090" | "3090" | "4080" | "3080" | "5090" | "5080" | "3060" | "5070" | "5070ti" | "4070"
                | "4070ti" | "4070tisuper" => {
                    return GpuModel::find(&format!("rtx{wanted}"));
                }
                _ => return None,
            };
            GPU_MODELS.iter().find(|model| model.key == alias)
        })
    }

    /// Returns a GPU like this one with other memory, in bytes.
    pub fn with_memory(&self, memory: u64) -> GpuModel {
        GpuModel { memory, ..self.clone() }
    }

    /// Returns whether all figures were measured on a real GPU.
    pub fn is_measured(&self) -> bool {
        self.key == "h200"
    }

    /// Returns the bytes of the CUDA context before any library is loaded.
    fn context(&self) -> u64 {
        let missing = u64::from(MEASURED_MULTIPROCESSORS).abs_diff(u64::from(self.multiprocessors));
        match self.multiprocessors >= MEASURED_MULTIPROCESSORS {
            true => CONTEXT_BYTES + missing * CONTEXT_BYTES_PER_MULTIPROCESSOR,
            false => CONTEXT_BYTES - missing * CONTEXT_BYTES_PER_MULTIPROCESSOR,
        }
    }

    /// Returns the description that the emulator reads from its environment, for `devices` GPUs of `memory`
    /// bytes.
    pub fn describe(&self, memory: u64, capacity: Option<u64>, devices: u32) -> String {
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
        // From Ampere on, the driver reserves 1 KiB of each block's shared memory.
        let optin_kib = if major >= 8 { shared_kib - 1 } else { shared_kib };
        let mut text = format!("name={};devices={devices};memory={memory};others=0", self.name);
        if let Some(capacity) = capacity {
            let _ = write!(text, ";capacity={capacity}");
        }
        let fields: [(&str, u64); 14] = [
            ("context", self.context()),
            ("cublas", CUBLAS_BYTES),
            ("cudnn", CUDNN_BYTES),
            ("major", major.into()),
            ("minor", minor.into()),
            ("multiprocessors", self.multiprocessors.into()),
            ("threads_per_multiprocessor", threads),
            ("blocks_per_multiprocessor", blocks),
            ("shared_per_multiprocessor", shared_kib << 10),
            ("shared_per_block_optin", optin_kib << 10),
            ("l2", u64::from(self.l2_mib) << 20),
            // Clocks and bus do not affect memory, but cuDNN's planner reads them.
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

/// Returns a name without case, punctuation and brand, which people spell in different ways.
fn plain(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !matches!(*word, "nvidia" | "geforce" | "tesla")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::CARD_SIZES_GIB;

    #[test]
    fn models_are_found_by_common_spellings() {
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
            ("RTX 5070 Ti", "rtx5070ti"),
            ("4070 Ti SUPER", "rtx4070ti-super"),
            ("RTX PRO 6000", "rtxpro6000"),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"),
            ("GB200", "gb200"),
        ] {
            assert_eq!(GpuModel::find(text).map(|model| model.key), Some(key), "{text}");
        }
        assert_eq!(GpuModel::find("h300"), None);
        assert_eq!(GpuModel::find(""), None);
    }

    #[test]
    fn every_model_is_sold_in_a_listed_size() {
        for model in GPU_MODELS {
            let size = CARD_SIZES_GIB.iter().map(|gib| gib << 30).find(|&size| size >= model.memory);
            // Drivers and error correction take a part; the next larger size is farther away than that.
            let share = model.memory as f64 / size.expect("a size") as f64;
            assert!(share > 0.75, "{}: {share}", model.key);
        }
    }

    #[test]
    fn every_model_is_in_the_documentation_with_its_figures() {
        let text = include_str!("../../../docs/reference/gpus.md");
        for model in GPU_MODELS {
            let (major, minor) = model.capability;
            let gib = model.memory as f64 / f64::from(1 << 30);
            let row = format!(
                "| `{}` | {} | {gib:.1} GiB | {} | {} MiB | {major}.{minor} |",
                model.key, model.name, model.multiprocessors, model.l2_mib
            );
            assert!(text.contains(&row), "missing in docs/reference/gpus.md: {row}");
        }
    }

    #[test]
    fn keys_are_distinct() {
        let mut keys: Vec<String> = GPU_MODELS.iter().map(|model| plain(model.key)).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), GPU_MODELS.len());
    }
}
