//! How long is a division instruction, and where does it put its result?
//!
//! ```text
//!  [66|67|F2|F3|segment]*  [REX 40–4F]  F6|F7  ModRM (reg 6: DIV, 7: IDIV)  [SIB]  [displacement of 1 or 4 bytes]
//! ```
//!
//! Source: Intel, Software Developer's Manual, volume 2, chapter 2 (instruction format) and the pages of DIV and IDIV. The
//! only other instruction that raises the same exception, AAM, does not exist in 64-bit code.

/// The registers of quotient and remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// AL and AH.
    Bits8,
    /// AX and DX.
    Bits16,
    /// EAX and EDX, which clears the upper halves of RAX and RDX.
    Bits32,
    /// RAX and RDX.
    Bits64,
}

/// A division instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Its length in bytes.
    pub len: usize,
    pub width: Width,
}

/// The longest instruction that the processor accepts.
const LENGTH_MAX: usize = 15;

/// Decodes the division whose bytes `byte` returns by offset. `None` for another instruction. For a division, no byte after its end is read.
pub(crate) fn decode(byte: impl Fn(usize) -> u8) -> Option<Division> {
    let (mut at, mut short) = (0, false);
    let mut opcode = byte(at);
    while let 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3 = opcode {
        short |= opcode == 0x66;
        at += 1;
        if at == LENGTH_MAX {
            return None;
        }
        opcode = byte(at);
    }
    // A REX prefix is valid only directly before the opcode.
    let rex = if opcode & 0xf0 == 0x40 { opcode } else { 0 };
    if rex != 0 {
        at += 1;
        opcode = byte(at);
    }
    let width = match opcode {
        0xf6 => Width::Bits8,
        0xf7 if rex & 8 != 0 => Width::Bits64,
        0xf7 if short => Width::Bits16,
        0xf7 => Width::Bits32,
        _ => return None,
    };
    let modrm = byte(at + 1);
    if modrm >> 3 & 7 < 6 {
        return None;
    }
    let (mode, place) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && place == 4;
    let base = if has_sib { byte(at + 2) & 7 } else { place };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    let len = at + 2 + usize::from(has_sib) + displacement;
    (len <= LENGTH_MAX).then_some(Division { len, width })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expect: Option<(usize, Width)>) {
        // There is nothing to read after the instruction.
        let found = decode(|at| bytes[at]);
        assert_eq!(found, expect.map(|(len, width)| Division { len, width }), "{bytes:02x?}");
    }

    #[test]
    fn every_form_of_operand_has_its_length() {
        for (bytes, width) in [
            // idiv cl; div r8b
            (&[0xf6, 0xf9][..], Width::Bits8),
            (&[0x41, 0xf6, 0xf0], Width::Bits8),
            // idiv cx; idiv word [rax]
            (&[0x66, 0xf7, 0xf9], Width::Bits16),
            (&[0x66, 0xf7, 0x38], Width::Bits16),
            // idiv ecx; div r9d; idiv dword [r8+rcx*4]
            (&[0xf7, 0xf9], Width::Bits32),
            (&[0x41, 0xf7, 0xf1], Width::Bits32),
            (&[0x41, 0xf7, 0x3c, 0x88], Width::Bits32),
            // idiv dword [rbp-8]; [rbp+1000]; [rsp]; [rsp+8]; [rsp+1000]
            (&[0xf7, 0x7d, 0xf8], Width::Bits32),
            (&[0xf7, 0xbd, 0xe8, 3, 0, 0], Width::Bits32),
            (&[0xf7, 0x3c, 0x24], Width::Bits32),
            (&[0xf7, 0x7c, 0x24, 8], Width::Bits32),
            (&[0xf7, 0xbc, 0x24, 0xe8, 3, 0, 0], Width::Bits32),
            // idiv dword [rip+16]; [rcx*4+16]; [r13+0]
            (&[0xf7, 0x3d, 16, 0, 0, 0], Width::Bits32),
            (&[0xf7, 0x3c, 0x8d, 16, 0, 0, 0], Width::Bits32),
            (&[0x41, 0xf7, 0x7d, 0], Width::Bits32),
            // idiv rcx; idiv qword [rsi+rcx*8]; [r12]; the longer size wins
            (&[0x48, 0xf7, 0xf9], Width::Bits64),
            (&[0x48, 0xf7, 0x3c, 0xce], Width::Bits64),
            (&[0x49, 0xf7, 0x3c, 0x24], Width::Bits64),
            (&[0x66, 0x48, 0xf7, 0xf9], Width::Bits64),
            // fs: idiv dword [0]; addr32 idiv dword [eax]; div bnd-prefixed
            (&[0x64, 0xf7, 0x3c, 0x25, 0, 0, 0, 0], Width::Bits32),
            (&[0x67, 0xf7, 0x38], Width::Bits32),
            (&[0xf2, 0xf3, 0xf7, 0xf1], Width::Bits32),
        ] {
            check(bytes, Some((bytes.len(), width)));
        }
    }

    #[test]
    fn other_instructions_are_none() {
        for bytes in [
            // mul ecx; neg ecx; test ecx, imm; call; ud2; divps; lock idiv; a REX that is not the last prefix
            &[0xf7, 0xe1][..],
            &[0xf7, 0xd9],
            &[0xf7, 0xc1],
            &[0xe8],
            &[0x0f],
            &[0xf0],
            &[0x48, 0x66],
            &[0x66; 15],
        ] {
            check(bytes, None);
        }
    }
}
