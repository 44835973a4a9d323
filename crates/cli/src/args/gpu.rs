//! `--gpu` and `--emulate`: a GPU by its name, or any GPU by its memory.

use super::size;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use launch::{GPU_MODELS, GpuModel};
use std::ffi::OsStr;

/// Parses a GPU, and knows the names that a shell can complete.
#[derive(Clone)]
pub(crate) struct GpuParser;

impl TypedValueParser for GpuParser {
    type Value = GpuModel;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<GpuModel, clap::Error> {
        gpu(&value.to_string_lossy()).map_err(|why| {
            let option = argument.map(|argument| format!(" for '{argument}'")).unwrap_or_default();
            let text = format!("invalid value '{}'{option}: {why}", value.to_string_lossy());
            command.clone().error(ErrorKind::ValueValidation, text)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(GPU_MODELS.iter().map(|model| PossibleValue::new(model.key).help(model.name))))
    }
}

/// The GPU of this name. A size means the nearest one that is at least as large, with that memory.
fn gpu(text: &str) -> Result<GpuModel, String> {
    if let Some(model) = GpuModel::find(text) {
        return Ok(model.clone());
    }
    let expected = || format!("expected a size such as 24GiB, or one of {}", names().join(", "));
    let memory = size(text).map_err(|_| expected())?;
    let larger = GPU_MODELS.iter().filter(|model| model.memory >= memory).min_by_key(|model| model.memory);
    let model = larger.or_else(|| GPU_MODELS.iter().max_by_key(|model| model.memory)).ok_or_else(expected)?;
    Ok(model.with_memory(memory))
}

/// Parses the memory of a GPU, by its size or by its name.
pub fn gpu_memory(text: &str) -> Result<u64, String> {
    gpu(text).map(|model| model.memory)
}

/// The names that `--gpu` takes.
pub(crate) fn names() -> Vec<&'static str> {
    GPU_MODELS.iter().map(|model| model.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_a_name_or_a_size() {
        let found = |text| gpu(text).map(|model| (model.key, model.memory));
        let memory = |key| GpuModel::find(key).map(|model| model.memory).expect("a GPU");
        assert_eq!(found("l4"), Ok(("l4", memory("l4"))));
        assert_eq!(found("RTX 4090"), Ok(("rtx4090", memory("rtx4090"))));
        assert_eq!(found("4090").map(|(key, _)| key), Ok("rtx4090"), "a name, not a size in bytes");
        assert_eq!(found("15GiB").map(|(_, memory)| memory), Ok(15 << 30));
        assert_eq!(found("1TiB"), Ok(("b300", 1 << 40)), "the largest");
        assert_eq!(gpu_memory("24GiB"), Ok(24 << 30));
        assert!(found("gtx").is_err_and(|why| why.contains("24GiB") && why.contains("h100")));
    }
}
