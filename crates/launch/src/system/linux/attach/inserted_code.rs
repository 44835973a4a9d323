//! Machine code that a stopped thread goes through before it goes on, as it would go through a signal
//! handler.
//!
//! It saves every register, calls one function, and puts every register back. So a thread that has been sent
//! there goes on unharmed even if nobody looks after it any more.

#![allow(unsafe_code, reason = "the assembler's code is read as bytes")]

use std::arch::global_asm;
use std::ops::Range;

/// Value of `CodeParameters::outcome` until the function has returned.
pub(super) const NOT_RETURNED: u64 = u64::MAX;
/// Its value if the thread was taken out of the function. No function returns this or the next: results have
/// 32 bits.
pub(super) const LEFT: u64 = u64::MAX - 1;
/// Its value if nothing was called.
pub(super) const NOT_READY: u64 = u64::MAX - 2;
/// Bytes of the stack below its pointer that belong to the interrupted function.
const RED_ZONE_BYTES: u64 = 128;
/// Bytes for the state of the vector units: more than `XSAVE` needs without AMX.
const SAVED_BYTES: u64 = 4096;
/// Bytes of the registers that are pushed: the flags and 15 others.
const PUSHED_BYTES: u64 = 16 * 8;

// In read-only data: this process never runs it. `XSAVE` writes the state of x87, SSE, AVX and AVX-512;
// nothing that is called here touches others. Its area needs 64 zeros at byte 512.
global_asm!(
    // The compiler may put what reads the labels into another object file of the same library.
    ".globl oomph_code_start",
    ".hidden oomph_code_start",
    ".globl oomph_code_end_of_call",
    ".hidden oomph_code_end_of_call",
    ".globl oomph_code_returned",
    ".hidden oomph_code_returned",
    ".globl oomph_code_parameters",
    ".hidden oomph_code_parameters",
    ".globl oomph_code_end",
    ".hidden oomph_code_end",
    ".pushsection .rodata",
    ".balign 8",
    "oomph_code_start:",
    "lea rsp, [rsp - {red_zone}]",
    "pushfq",
    "push rax",
    "push rcx",
    "push rdx",
    "push rbx",
    "push rbp",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "cld",
    "mov rbp, rsp",
    "sub rsp, {saved}",
    "and rsp, -64",
    "xor eax, eax",
    "lea rdi, [rsp + 512]",
    "mov ecx, 8",
    "rep stosq",
    "mov eax, 0xe7",
    "xor edx, edx",
    "xsave64 [rsp]",
    "fninit",
    "ldmxcsr dword ptr [rip + 90f]",
    "mov rax, qword ptr [rip + 98f]",
    "test rax, rax",
    "jz 10f",
    "call rax",
    "mov r12, {not_ready}",
    "test eax, eax",
    "jz 30f",
    "10:",
    // With Python's lock, if `acquire` is not 0.
    "mov rax, qword ptr [rip + 91f]",
    "test rax, rax",
    "jz 20f",
    "call rax",
    "mov ebx, eax",
    "20:",
    "mov rdi, qword ptr [rip + 94f]",
    "mov rsi, qword ptr [rip + 95f]",
    "call qword ptr [rip + 93f]",
    "mov r12d, eax",
    "mov rax, qword ptr [rip + 92f]",
    "test rax, rax",
    "jz 30f",
    "mov edi, ebx",
    "call rax",
    "30:",
    "oomph_code_end_of_call:",
    "mov eax, 0xe7",
    "xor edx, edx",
    "xrstor64 [rsp]",
    "mov rax, qword ptr [rip + 96f]",
    "mov [rax], r12",
    // From here on, only registers that a debugger can set are still to be put back.
    "oomph_code_returned:",
    "mov rsp, rbp",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rbp",
    "pop rbx",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "popfq",
    "lea rsp, [rsp + {red_zone}]",
    "jmp qword ptr [rip + 97f]",
    ".balign 8",
    "90: .quad 0x1f80", // MXCSR as the ABI wants it
    "oomph_code_parameters:",
    "91: .quad 0",
    "92: .quad 0",
    "93: .quad 0",
    "94: .quad 0",
    "95: .quad 0",
    "96: .quad 0",
    "97: .quad 0",
    "98: .quad 0",
    "oomph_code_end:",
    ".popsection",
    red_zone = const RED_ZONE_BYTES,
    saved = const SAVED_BYTES,
    not_ready = const NOT_READY as i64,
);

unsafe extern "C" {
    static oomph_code_start: u8;
    static oomph_code_end_of_call: u8;
    static oomph_code_returned: u8;
    static oomph_code_parameters: u8;
    static oomph_code_end: u8;
}

/// What the code works with; addresses in the other process.
pub(super) struct CodeParameters {
    /// Functions around the call, or zeros: whether it may be made, what comes before and after it.
    pub(super) around: [u64; 3],
    /// The function, and its arguments.
    pub(super) function: u64,
    pub(super) arguments: [u64; 2],
    /// Where its result is written.
    pub(super) outcome: u64,
    /// Where the thread goes on.
    pub(super) resume: u64,
}

/// Returns the code, for any address.
pub(super) fn code(parameters: &CodeParameters) -> Vec<u8> {
    let CodeParameters { around, function, arguments, outcome, resume } = *parameters;
    let [is_ready, acquire, release] = around;
    let words = [acquire, release, function, arguments[0], arguments[1], outcome, resume, is_ready];
    let start = &raw const oomph_code_start;
    // SAFETY: both are labels of one block of the assembler, in this order.
    let code = unsafe { std::slice::from_raw_parts(start, offset(&raw const oomph_code_parameters)) };
    let code = [code, words.map(u64::to_le_bytes).as_flattened()].concat();
    debug_assert_eq!(code.len(), offset(&raw const oomph_code_end));
    code
}

/// Where a thread goes on that is to leave the function before it returns.
pub(super) struct CallEnd {
    /// Offset in the code.
    pub(super) offset: u64,
    pub(super) rbp: u64,
    pub(super) rsp: u64,
}

impl CallEnd {
    /// `stack`: `rsp` with which the code was entered.
    pub(super) fn new(stack: u64) -> CallEnd {
        let rbp = stack - RED_ZONE_BYTES - PUSHED_BYTES;
        let rsp = (rbp - SAVED_BYTES) & !63;
        CallEnd { offset: offset(&raw const oomph_code_end_of_call) as u64, rbp, rsp }
    }
}

/// Returns the offsets at which only registers that a debugger can set are still to be put back.
pub(super) fn after_return() -> Range<u64> {
    offset(&raw const oomph_code_returned) as u64..offset(&raw const oomph_code_end) as u64
}

fn offset(label: *const u8) -> usize {
    label as usize - (&raw const oomph_code_start) as usize
}
