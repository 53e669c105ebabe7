//! Find a function in the libraries behind this one: what dlsym does with `RTLD_NEXT`.
//!
//! glibc has dlsym in libc since 2.34 only, and a library that names it runs nowhere else; this needs
//! `dl_iterate_phdr`, which both libcs always had. Libraries are visited in the loader's order.
//! Source: System V ABI, "Dynamic Linking"; the hash of `DT_GNU_HASH` as glibc and musl read it.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const HIDDEN: u16 = 0x8000; // not the version that a program gets without asking
const FUNCTION: u8 = 2;

struct Search<'a> {
    name: &'a CStr,
    hash: u32,
    is_behind: bool,
    found: *mut c_void,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    bytes: u64,
}

/// Return the function of this name behind this library, or null.
///
/// A library that was opened late, behind libc, has none behind it: all others are searched then.
pub fn next(name: &CStr) -> *mut c_void {
    let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    });
    let mut search = Search {
        name,
        hash,
        is_behind: false,
        found: ptr::null_mut(),
    };
    for is_behind in [false, true] {
        search.is_behind = is_behind;
        // SAFETY: the visitor takes what it is given here, during the call alone.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        if !search.found.is_null() {
            break;
        }
    }
    search.found
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid record, and `next` its search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: the loader says how many there are.
    let segments = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let own = (next as *const ()).addr() as u64;
    let is_own = segments.iter().any(|one| {
        let first = info.dlpi_addr + one.p_vaddr;
        one.p_type == PT_LOAD && (first..first + one.p_memsz).contains(&own)
    });
    if is_own {
        search.is_behind = true;
        return 0;
    }
    if !search.is_behind {
        return 0;
    }
    let dynamic = segments.iter().find(|one| one.p_type == PT_DYNAMIC);
    if let Some(dynamic) = dynamic {
        let first = place(info.dlpi_addr + dynamic.p_vaddr);
        // SAFETY: the loader has it mapped.
        search.found = unsafe { symbol_in(info.dlpi_addr, first, search) };
    }
    c_int::from(!search.found.is_null())
}

/// Look through the table of one library.
unsafe fn symbol_in(base: u64, mut dynamic: *const [u64; 2], search: &Search<'_>) -> *mut c_void {
    // glibc has added where the library lies, musl has not.
    let at = |value: u64| if value < base { base + value } else { value };
    let (mut texts, mut symbols, mut hashes, mut versions) = (0, 0, 0, 0);
    // SAFETY: the table ends with a tag of zero.
    unsafe {
        while (*dynamic)[0] != 0 {
            let [tag, value] = *dynamic;
            match tag {
                DT_STRTAB => texts = at(value),
                DT_SYMTAB => symbols = at(value),
                DT_GNU_HASH => hashes = at(value),
                DT_VERSYM => versions = at(value),
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
    }
    if texts == 0 || symbols == 0 || hashes == 0 {
        return ptr::null_mut();
    }
    let symbols: *const Symbol = place(symbols);
    let matches = |index: u32| {
        // SAFETY: an index of the hash table is one of the symbols.
        unsafe {
            let symbol = &*symbols.add(index as usize);
            let name = CStr::from_ptr(place(texts + u64::from(symbol.name)));
            let version = if versions == 0 {
                0
            } else {
                *place::<u16>(versions).add(index as usize)
            };
            let is_it = symbol.info & 15 == FUNCTION && symbol.section != 0 && symbol.value != 0;
            is_it && version & HIDDEN == 0 && name == search.name
        }
    };
    // SAFETY: a table of this kind begins with four counts and ends its chains with odd hashes.
    unsafe {
        let table: *const u32 = place(hashes);
        let (buckets, offset, filters) = (*table, *table.add(1), *table.add(2));
        let bucket_at = table.add(4 + 2 * filters as usize);
        let mut index = *bucket_at.add((search.hash % buckets.max(1)) as usize);
        if buckets == 0 || index < offset {
            return ptr::null_mut();
        }
        loop {
            let hash = *bucket_at.add((buckets + index - offset) as usize);
            if hash | 1 == search.hash | 1 && matches(index) {
                let symbol = &*symbols.add(index as usize);
                return place::<c_void>(base + symbol.value).cast_mut();
            }
            if hash & 1 != 0 {
                return ptr::null_mut();
            }
            index += 1;
        }
    }
}

fn place<T>(at: u64) -> *const T {
    ptr::with_exposed_provenance(usize::try_from(at).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_dlsym_finds() {
        for name in [
            c"close",
            c"recvmmsg",
            c"fclose",
            c"__recv_chk",
            c"ioctl",
            c"no_such_call",
        ] {
            // SAFETY: a string of C.
            let known = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert_eq!(next(name), known, "{name:?}");
        }
    }
}
