//! How is a shared object with a given name and our functions made?
//!
//! ```text
//!   page 0, readable and executable          page k, readable and writable
//!   ┌────────┬─────────┬──────┬───────┬────────────┐ ┌─────────┐
//!   │ header │ symbols │ hash │ names │ jumps      │ │ dynamic │
//!   └────────┴─────────┴──────┴───────┴────────────┘ └─────────┘
//! ```
//! The object is made for this process: each symbol is a jump to an address that is known already. So it needs no linker, no relocation and no file
//! beside the binary. It can have any name, such as the hashed names that wheels give to their libraries.

/// The alignment of segments: the page size, or a multiple. 64 KiB is the largest page of an aarch64 kernel.
const PAGE: usize = 64 << 10;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PROGRAM_HEADERS: usize = 4;
const SYMBOL: usize = 24;
const JUMP: usize = 16;
const DYNAMIC_ENTRIES: usize = 7;
const DYNAMIC_ENTRY: usize = 16;

/// The ELF number of the machine, and a jump to the address in the eight bytes after it.
#[cfg(target_arch = "x86_64")]
mod machine {
    pub const NUMBER: u16 = 62;
    /// `jmp [rip + 2]`, with padding so that the address is aligned.
    pub const JUMP: [u8; 8] = [0xff, 0x25, 2, 0, 0, 0, 0x90, 0x90];
}
#[cfg(target_arch = "aarch64")]
mod machine {
    pub const NUMBER: u16 = 183;
    /// `ldr x16, 8; br x16`.
    pub const JUMP: [u8; 8] = [0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6];
}

/// The object of that name. For each of these symbols it has a jump to the symbol's address.
pub fn image(soname: &str, symbols: &[(&str, u64)]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut name = |text: &str| {
        let at = names.len();
        names.extend_from_slice(text.as_bytes());
        names.push(0);
        at as u64
    };
    let soname = name(soname);
    let name_of: Vec<u64> = symbols.iter().map(|(symbol, _)| name(symbol)).collect();

    let symbols_at = HEADER + PROGRAM_HEADERS * PROGRAM_HEADER;
    let hash_at = symbols_at + (symbols.len() + 1) * SYMBOL;
    // One bucket for each symbol makes the chains short.
    let buckets = symbols.len().max(1);
    let names_at = hash_at + 4 * (2 + buckets + symbols.len() + 1);
    let jumps_at = (names_at + names.len()).next_multiple_of(JUMP);
    let code_end = jumps_at + symbols.len() * JUMP;
    let dynamic_at = code_end.next_multiple_of(PAGE);
    let dynamic_bytes = DYNAMIC_ENTRIES * DYNAMIC_ENTRY;

    let mut bytes = Bytes(Vec::with_capacity(dynamic_at + dynamic_bytes));
    bytes.header();
    bytes.segment(1, 5, 0, code_end, PAGE);
    bytes.segment(1, 6, dynamic_at, dynamic_bytes, PAGE);
    bytes.segment(2, 6, dynamic_at, dynamic_bytes, 8);
    // GNU_STACK. Without it, a loader would make all stacks executable.
    bytes.segment(0x6474_e551, 6, 0, 0, 16);
    bytes.zeros(SYMBOL);
    for (at, name) in name_of.iter().enumerate() {
        bytes.u32(*name as u32);
        // A global function of section 1, which does not exist. The loader only checks that it is not 0.
        bytes.u16(0x12);
        bytes.u16(1);
        bytes.u64((jumps_at + at * JUMP) as u64);
        bytes.u64(JUMP as u64);
    }
    bytes.hash_table(symbols, buckets);
    bytes.0.extend_from_slice(&names);
    bytes.pad_to(jumps_at);
    for (_, address) in symbols {
        bytes.0.extend_from_slice(&machine::JUMP);
        bytes.u64(*address);
    }
    bytes.pad_to(dynamic_at);
    // SONAME, HASH, STRTAB, SYMTAB, STRSZ, SYMENT, the end.
    let entries = [
        (14, soname),
        (4, hash_at as u64),
        (5, names_at as u64),
        (6, symbols_at as u64),
        (10, names.len() as u64),
        (11, SYMBOL as u64),
        (0, 0),
    ];
    for (tag, value) in entries {
        bytes.u64(tag);
        bytes.u64(value);
    }
    bytes.0
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn zeros(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }

    fn pad_to(&mut self, len: usize) {
        self.0.resize(len, 0);
    }

    fn header(&mut self) {
        // 64 bits, little-endian, version 1; a shared object.
        self.0.extend_from_slice(b"\x7fELF\x02\x01\x01");
        self.pad_to(16);
        self.u16(3);
        self.u16(machine::NUMBER);
        self.u32(1);
        self.u64(0);
        self.u64(HEADER as u64);
        self.u64(0);
        self.u32(0);
        self.u16(HEADER as u16);
        self.u16(PROGRAM_HEADER as u16);
        self.u16(PROGRAM_HEADERS as u16);
        // No sections.
        self.u16(64);
        self.u16(0);
        self.u16(0);
    }

    /// A segment that is mapped at its offset in the file.
    fn segment(&mut self, kind: u32, flags: u32, at: usize, len: usize, align: usize) {
        self.u32(kind);
        self.u32(flags);
        for value in [at, at, at, len, len, align] {
            self.u64(value as u64);
        }
    }

    /// The hash table of symbols, in the format of the System V ABI.
    fn hash_table(&mut self, symbols: &[(&str, u64)], buckets: usize) {
        let mut heads = vec![0u32; buckets];
        let mut next = vec![0u32; symbols.len() + 1];
        for (at, (name, _)) in symbols.iter().enumerate() {
            let number = at as u32 + 1;
            let head = &mut heads[hash(name) as usize % buckets];
            next[at + 1] = std::mem::replace(head, number);
        }
        self.u32(buckets as u32);
        self.u32(next.len() as u32);
        heads.into_iter().chain(next).for_each(|number| self.u32(number));
    }
}

fn hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hash_as_the_system_v_abi_says() {
        // Known values of the ABI's function.
        assert_eq!((hash(""), hash("printf"), hash("exit")), (0, 0x077_905a6, 0x0006_cf04));
    }

    #[test]
    fn it_begins_as_a_shared_object_of_this_machine() {
        let bytes = image("libx.so", &[("a", 1), ("b", 2)]);
        assert_eq!(bytes.get(..4), Some(&b"\x7fELF"[..]));
        assert_eq!(bytes.get(16..20), Some(&[3, 0, machine::NUMBER as u8, 0][..]));
    }
}
