//! Addresses of functions in a process, from the symbol tables of the files that it has loaded.

use super::process::{Mapping, RunningProcess};
use failure::Failure;
use object::elf::{ET_EXEC, PT_LOAD};
use object::read::ReadCache;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Architecture, Object, ObjectSymbol};
use std::fs::File;

/// Bytes of a function that are compared before it is called.
const CODE_BYTES: usize = 8;

/// A function in a process.
pub(super) struct ProcessFunction {
    pub(super) address: u64,
    /// Its first bytes, by which it can be recognized.
    pub(super) code: u64,
}

/// A file that a process has loaded.
pub(super) struct ProcessFile<'a> {
    process: &'a RunningProcess,
    pub(super) path: &'a str,
    file: ReadCache<File>,
    start: u64,
}

impl<'a> ProcessFile<'a> {
    /// Opens the first file that is meant.
    pub(super) fn find(
        process: &'a RunningProcess,
        is_meant: impl Fn(&Mapping) -> bool,
    ) -> Result<Option<ProcessFile<'a>>, Failure> {
        let mapping = process.maps.iter().find(|mapping| mapping.offset == 0 && is_meant(mapping));
        let Some(mapping) = mapping else { return Ok(None) };
        let file = ReadCache::new(process.open_mapped(mapping)?);
        Ok(Some(ProcessFile { process, path: &mapping.path, file, start: mapping.start }))
    }

    /// Returns its functions of these names, or nothing if it does not have all of them.
    pub(super) fn functions<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<Option<[ProcessFunction; N]>, Failure> {
        let unreadable =
            || self.process.refuse(format!("the symbols of `{}` cannot be read", self.path), None);
        let elf = ElfFile64::<object::Endianness, _>::parse(&self.file).map_err(|_| unreadable())?;
        let ours = if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };
        if elf.architecture() != ours {
            return Err(self.process.refuse("it is a program for another processor", None));
        }
        let endian = elf.endian();
        let loaded = elf.elf_program_headers().iter().find(|header| header.p_type(endian) == PT_LOAD);
        let base = loaded.map_or(0, |header| header.p_vaddr(endian) & !0xfff);
        let shift = if elf.elf_header().e_type.get(endian) == ET_EXEC { 0 } else { self.start - base };
        let mut found = names.map(|_| None);
        for symbol in elf.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
            let Ok(name) = symbol.name() else { continue };
            if let Some(at) = names.iter().position(|wanted| *wanted == name) {
                found[at] = Some(symbol.address() + shift);
            }
        }
        let mut functions = Vec::new();
        for address in found {
            let Some(address) = address else { return Ok(None) };
            let code = self.process.memory(address, CODE_BYTES).map_err(|_| unreadable())?;
            let code = u64::from_le_bytes(code.try_into().map_err(|_| unreadable())?);
            functions.push(ProcessFunction { address, code });
        }
        Ok(functions.try_into().ok())
    }
}

/// Opens the file that the interpreter of a process is in.
pub(super) fn python_file(process: &RunningProcess) -> Result<Option<ProcessFile<'_>>, Failure> {
    let executable = std::fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
    let executable = executable.to_string_lossy();
    match ProcessFile::find(process, |file| file.name().starts_with("libpython3"))? {
        None => ProcessFile::find(process, |file| file.path == executable),
        library => Ok(library),
    }
}
