//! New randomness for a guest that begins where another stood.
//!
//! All that begin with one state would draw the same random bytes from their kernels: what is written to a kernel's
//! `/dev/urandom` counts only a minute later, a shell can't make the calls that count at once, and few kernels know
//! QEMU's device that tells them of a copy. So the initial file system has a program for these two calls.

/// What the program reads, in bytes.
pub(super) const SEED: usize = 64;
/// Where in memory the program is.
const BASE: u64 = 0x40_0000;
/// Bytes before its code: the headers of an ELF file with one segment.
const HEADERS: usize = 64 + 56;

/// Reads [`SEED`] bytes, and with `/dev/random` as standard output adds them to the kernel's entropy and has its generator
/// start anew from that. Ends with 1 when something fails.
const CODE: [u8; 101] = [
    0x48, 0x83, 0xec, 0x48, // sub rsp, 72: two numbers, then the bytes
    0x31, 0xc0, // xor eax, eax: read
    0x31, 0xff, // xor edi, edi: from standard input
    0x48, 0x8d, 0x74, 0x24, 0x08, // lea rsi, [rsp+8]
    0xba, 0x40, 0x00, 0x00, 0x00, // mov edx, 64
    0x0f, 0x05, // syscall
    0x83, 0xf8, 0x40, // cmp eax, 64
    0x75, 0x40, // jne failed
    0xc7, 0x04, 0x24, 0x00, 0x02, 0x00, 0x00, // mov dword [rsp], 512: bits of entropy
    0xc7, 0x44, 0x24, 0x04, 0x40, 0x00, 0x00, 0x00, // mov dword [rsp+4], 64: bytes
    0xb8, 0x10, 0x00, 0x00, 0x00, // mov eax, 16: ioctl
    0xbf, 0x01, 0x00, 0x00, 0x00, // mov edi, 1: of standard output
    0xbe, 0x03, 0x52, 0x08, 0x40, // mov esi, RNDADDENTROPY
    0x48, 0x89, 0xe2, // mov rdx, rsp
    0x0f, 0x05, // syscall
    0x85, 0xc0, // test eax, eax
    0x75, 0x19, // jnz failed
    0xb8, 0x10, 0x00, 0x00, 0x00, // mov eax, 16: ioctl
    0xbf, 0x01, 0x00, 0x00, 0x00, // mov edi, 1
    0xbe, 0x07, 0x52, 0x00, 0x00, // mov esi, RNDRESEEDCRNG
    0x31, 0xd2, // xor edx, edx
    0x0f, 0x05, // syscall
    0x31, 0xff, // xor edi, edi: all went well
    0x85, 0xc0, // test eax, eax
    0x74, 0x05, // jz end
    0xbf, 0x01, 0x00, 0x00, 0x00, // failed: mov edi, 1
    0xb8, 0x3c, 0x00, 0x00, 0x00, // end: mov eax, 60: exit
    0x0f, 0x05, // syscall
];

/// The program, an executable file.
pub(super) fn program() -> Vec<u8> {
    let length = (HEADERS + CODE.len()) as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for x86-64, of the first version.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    // Where it starts, where the segment's header is, no sections, no flags.
    for number in [BASE + HEADERS as u64, 64, 0] {
        file.extend(number.to_le_bytes());
    }
    file.extend([0; 4]);
    // The sizes of this header and of the segment's, of which there is one; three of sections.
    for number in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    // A segment to be loaded, read and executed: the whole file.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for number in [0, BASE, BASE, length, length, 0x1000] {
        file.extend(number.to_le_bytes());
    }
    file.extend(CODE);
    file
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_program_runs_and_says_that_it_can_do_nothing_with_what_is_no_random_device() {
        let folder = std::env::temp_dir().join(format!("manyhands-seed-{}", std::process::id()));
        std::fs::write(&folder, program()).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        for input in [0, SEED] {
            let mut child =
                Command::new(&folder).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(&vec![7; input]).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(1));
        }
        std::fs::remove_file(folder).unwrap();
    }
}
