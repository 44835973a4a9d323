//! The symbol table of a loaded library: where `dlsym` and the dynamic linker find its functions.
//!
//! A symbol's value is added to the address of its library, so a value can lead anywhere. Whoever looks the
//! symbol up afterwards finds the new function; who has found it before keeps the old one.

use std::ffi::{CStr, c_void};
use std::ptr;

/// Symbols of one loaded library.
pub(crate) struct SymbolTable {
    base: usize,
    symbols: *mut libc::Elf64_Sym,
    count: usize,
    strings: *const libc::c_char,
}

impl SymbolTable {
    /// Finds the table of the library in which `address` is.
    pub(crate) fn of(address: *const c_void) -> Option<SymbolTable> {
        let mut search = LibrarySearch { address: address as usize, found: None };
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
    }

    /// Redirects a symbol. Returns whether that was possible.
    pub(crate) fn redirect(&self, name: &CStr, to: *const c_void) -> bool {
        let mut is_done = false;
        for index in 0..self.count {
            let symbol = unsafe { self.symbols.add(index) };
            let (of_name, section) = unsafe { ((*symbol).st_name, (*symbol).st_shndx) };
            let is_defined = section != 0;
            if !is_defined || unsafe { CStr::from_ptr(self.strings.add(of_name as usize)) } != name {
                continue;
            }
            let value = (to as usize).wrapping_sub(self.base) as u64;
            let place = unsafe { &raw mut (*symbol).st_value };
            is_done |= unsafe { write_protected(place, value) };
        }
        is_done
    }
}

struct LibrarySearch {
    address: usize,
    found: Option<SymbolTable>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
    let (info, search) = unsafe { (&*info, &mut *search.cast::<LibrarySearch>()) };
    let base = info.dlpi_addr as usize;
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let holds_address = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = base + header.p_vaddr as usize;
        (start..start + header.p_memsz as usize).contains(&search.address)
    });
    if !holds_address {
        return 0;
    }
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    search.found = dynamic
        .and_then(|header| unsafe { read((base + header.p_vaddr as usize) as *const [usize; 2], base) });
    1
}

/// Reads the dynamic section: pairs of a tag and a value, up to a zero tag.
unsafe fn read(mut entry: *const [usize; 2], base: usize) -> Option<SymbolTable> {
    const END: usize = 0;
    const HASH: usize = 4;
    const STRINGS: usize = 5;
    const SYMBOLS: usize = 6;
    const GNU_HASH: usize = 0x6fff_fef5;
    let (mut symbols, mut strings, mut count) = (0, 0, None);
    // glibc has added the library's address to these values, musl has not.
    let absolute = |value: usize| if value < base { base + value } else { value };
    loop {
        let [tag, value] = unsafe { *entry };
        match tag {
            END => break,
            HASH => count = Some(unsafe { *(absolute(value) as *const u32).add(1) } as usize),
            STRINGS => strings = absolute(value),
            SYMBOLS => symbols = absolute(value),
            GNU_HASH if count.is_none() => count = unsafe { count_by_gnu_hash(absolute(value)) },
            _ => {}
        }
        entry = unsafe { entry.add(1) };
    }
    let is_whole = symbols != 0 && strings != 0;
    is_whole.then_some(SymbolTable {
        base,
        symbols: symbols as *mut _,
        count: count?,
        strings: strings as *const _,
    })
}

/// Returns the number of symbols: one more than the last of the longest chain.
unsafe fn count_by_gnu_hash(table: usize) -> Option<usize> {
    let header = table as *const u32;
    let [buckets, first, bloom] = [0, 1, 2].map(|at| unsafe { *header.add(at) } as usize);
    let bucket = (table + 16 + bloom * 8) as *const u32;
    let chain = unsafe { bucket.add(buckets) };
    let mut last = (0..buckets).map(|at| unsafe { *bucket.add(at) } as usize).max()?;
    if last < first {
        return Some(first);
    }
    while unsafe { *chain.add(last - first) } & 1 == 0 {
        last += 1;
    }
    Some(last + 1)
}

/// Writes to memory that is mapped read-only.
unsafe fn write_protected(to: *mut u64, value: u64) -> bool {
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = to as usize & !(page - 1);
    // A symbol may be on two pages.
    let length = (to as usize + size_of::<u64>()).next_multiple_of(page) - start;
    let protect =
        |flags| unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(start), length, flags) } == 0;
    if !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    unsafe { to.write(value) };
    // What follows the table on its last page may be writable data; that stays writable.
    true
}
