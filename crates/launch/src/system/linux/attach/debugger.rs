//! gdb, which asks the interpreter of a process to run code soon.
//!
//! The process is stopped for some 40 milliseconds. gdb first shows that it can write the registers
//! of this processor. Then it makes two calls, neither of which can wait for anything that the stopped
//! program holds:
//!
//! - `mmap`, one system call, for memory that nobody else uses, not even `malloc`;
//! - `Py_AddPendingCall`, which Python allows at any moment, with or without its lock.
//!
//! The second notes that the main thread is to call `PyRun_SimpleString` on the text in that memory between
//! two instructions, which is when Python runs handlers of signals as well.
//!
//! Addresses are known before gdb stops the process. gdb reads no file of the program, so it takes no time
//! for the symbols of PyTorch, and it does not matter whose the files are or where they are.

use super::process::RunningProcess;
use super::symbols::{ProcessFile, ProcessFunction};
use crate::scratch::{Scratch, write};
use failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long gdb may take before it is interrupted, which makes it put everything back.
const GDB_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may then take.
const GDB_END_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of its output that are read.
const MAX_OUTPUT_BYTES: u64 = 1 << 16;
/// Unit of memory that the program gets.
const PAGE_BYTES: u64 = 1 << 16;
/// Digits of the address of that memory in the text.
const ADDRESS_DIGITS: u64 = 16;
/// Bytes for that address and what follows.
const MAX_END_BYTES: u64 = 64;
/// What gdb prints when everything was done.
const DONE: &str = "oomph: done";

/// Text for `PyRun_SimpleString`: an expression that ends with a dictionary. Its value `PAGE` is a tuple with
/// the address and the length of the memory that the text is in.
pub(super) struct PythonText {
    pub(super) before_address: String,
}

impl PythonText {
    /// The same text as a script, which is in no such memory.
    pub(super) fn script(&self) -> String {
        format!("{}0, 0), 'WAITS': 0}})\n", self.before_address)
    }
}

/// The functions of a process that are called.
struct CalledFunctions {
    mmap: ProcessFunction,
    add_pending_call: ProcessFunction,
    run_string: ProcessFunction,
}

impl CalledFunctions {
    fn find(process: &RunningProcess) -> Result<CalledFunctions, Failure> {
        let names = ["Py_AddPendingCall", "PyRun_SimpleString"];
        let python = python_file(process)?.map(|file| file.functions(names)).transpose()?.flatten();
        let Some([add_pending_call, run_string]) = python else {
            let cause = "its Python does not export the functions of the C API";
            return Err(process.refuse(cause, Some("use `oomph run` instead")));
        };
        let is_libc = |name: &str| name.starts_with("libc.so.") || name.starts_with("libc-2.");
        let libc = ProcessFile::find(process, |file| is_libc(file.name()))?;
        let Some([mmap]) = libc.map(|file| file.functions(["mmap"])).transpose()?.flatten() else {
            return Err(process.refuse("its C library is not glibc", Some("use `oomph run` instead")));
        };
        Ok(CalledFunctions { mmap, add_pending_call, run_string })
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

/// Has the interpreter of a process run `text` in its main thread, as soon as that comes to it.
pub(super) fn run_soon(process: &RunningProcess, text: &PythonText, scratch: &Scratch) -> anyhow::Result<()> {
    let calls = CalledFunctions::find(process)?;
    let length = (text.before_address.len() as u64 + MAX_END_BYTES).next_multiple_of(PAGE_BYTES);
    let after = format!(", {length}), 'WAITS': 0}})\n\0");
    write(&scratch.at("before"), text.before_address.as_bytes())?;
    write(&scratch.at("after"), after.as_bytes())?;
    let address_at = text.before_address.len() as u64;
    let waits_at = address_at + ADDRESS_DIGITS + after.rfind('0').unwrap_or_default() as u64;
    let script = script(process.pid, &calls, address_at, waits_at, length);
    write(&scratch.at("commands"), script.as_bytes())?;
    let mut command = Command::new("gdb");
    command.args(["-nx", "-nh", "-batch"]);
    for setting in SETTINGS {
        command.args(["-iex", &format!("set {setting}")]);
    }
    command.args(["-x", "commands"]).current_dir(scratch.at("")).env("LC_ALL", "C");
    // In a group of its own, so that Ctrl-C does not reach it in the middle of its work.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let gdb = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => process.refuse(
            format!("gdb is not installed, which Python 3.{} needs for this", process.python),
            Some("install it, for example with `apt install gdb`"),
        ),
        _ => process.refuse(format!("gdb cannot be started: {error}"), None),
    })?;
    let output = wait(gdb)?;
    if output.contains(DONE) {
        return Ok(());
    }
    if output.contains(CANNOT_WRITE_REGISTERS) {
        let cause =
            "this gdb cannot write the registers of this processor, which is newer; nothing was changed";
        return Err(process
            .refuse(cause, Some("install a newer gdb (14 or later), or use `oomph run`"))
            .into());
    }
    let is_telling = |line: &&str| !line.trim().is_empty() && !line.starts_with("[Inferior");
    let last = output.lines().rev().find(is_telling);
    let cause = format!("gdb says: {}", last.unwrap_or("nothing"));
    let hint = "in a container, the capability SYS_PTRACE is needed, or attach from the host";
    Err(process.refuse(cause, Some(hint)).into())
}

/// Settings with which gdb reads no file, but those in its own folder.
const SETTINGS: [&str; 11] = [
    "pagination off",
    "confirm off",
    "auto-load off",
    "auto-solib-add off",
    "debuginfod enabled off",
    "libthread-db-search-path /nonexistent",
    "sysroot /nonexistent",
    "osabi GNU/Linux",
    "language c",
    // Interrupted calls are taken back.
    "unwindonsignal on",
    "print thread-events off",
];

/// Commands for gdb. One that fails ends it, and with it the stop.
fn script(pid: u32, calls: &CalledFunctions, address_at: u64, waits_at: u64, length: u64) -> String {
    let CalledFunctions { mmap, add_pending_call, run_string } = calls;
    let mut script = format!("attach {pid}\n");
    // It is still the process that was looked at.
    for function in [mmap, add_pending_call, run_string] {
        script += &format!(
            "if *(unsigned long *) {:#x} != {:#x}\n{}end\n",
            function.address,
            function.code,
            leaving("it runs another program by now")
        );
    }
    if cfg!(target_arch = "x86_64") {
        script += TRY_REGISTERS;
    }
    // MAP_PRIVATE | MAP_ANONYMOUS, for reading and writing.
    script += &format!(
        "set $page = ((unsigned long (*)(unsigned long, unsigned long, int, int, int, long)) {:#x})\
         (0, {length}, 3, 0x22, -1, 0)\n\
         if $page >= 0xfffffffffffff000\n{}end\n\
         restore before binary $page\nrestore after binary $page+{}\n",
        mmap.address,
        leaving("the system gives it no memory"),
        address_at + ADDRESS_DIGITS
    );
    for digit in 0..ADDRESS_DIGITS {
        let (at, shift) = (address_at + digit, 4 * (ADDRESS_DIGITS - 1 - digit));
        script += &format!(
            "set $digit = ($page >> {shift}) & 15\n\
             set var {{unsigned char}} ($page + {at}) = $digit + 48 + ($digit > 9) * 39\n"
        );
    }
    script += &format!(
        "set $failed = ((int (*)(unsigned long, unsigned long)) {:#x})({:#x}, $page)\n\
         if $failed != 0\n{}end\n",
        add_pending_call.address,
        run_string.address,
        leaving("too many calls wait for the main thread")
    );
    if cfg!(target_arch = "x86_64") {
        script +=
            &format!("{IF_WAITING}set $rax = -4\nset var {{unsigned char}} ($page + {waits_at}) = 49\nend\n");
    }
    script + &format!("echo {DONE}\\n\ndetach\n")
}

/// Commands that end gdb with a message.
fn leaving(message: &str) -> String {
    format!("echo {message}\\n\ndetach\nquit\n")
}

/// Changes a flag of the floating-point unit and changes it back. A gdb older than the processor cannot write
/// such registers, and fails here, where nothing has been done. In a call it would fail halfway, and the
/// program's thread would go on with registers that are not its own.
const TRY_REGISTERS: &str = "set $flags = (int) $mxcsr\nset $mxcsr = $flags ^ 0x20\nset $mxcsr = $flags\n";
/// What gdb says then.
const CANNOT_WRITE_REGISTERS: &str = "Couldn't write extended state";

/// Condition that the main thread was stopped inside `futex(FUTEX_WAIT…)`: it waits for a lock. That call may
/// return EINTR at any time, as it does after a signal, and Python then makes pending calls; otherwise the
/// system would restart it.
const IF_WAITING: &str = "if $orig_rax == 202 && ($rax == -512 || $rax == -516) \
    && (($rsi & 0x7f) == 0 || ($rsi & 0x7f) == 9)\n";

/// Waits for gdb and returns what it has printed.
fn wait(mut gdb: Child) -> io::Result<String> {
    let (stdout, stderr) = (gdb.stdout.take(), gdb.stderr.take());
    let read = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut output = Vec::new();
            let _ = stream.map(|stream| stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut output));
            String::from_utf8_lossy(&output).into_owned()
        })
    };
    let stdout = read(stdout.map(|stream| Box::new(stream) as _));
    let stderr = read(stderr.map(|stream| Box::new(stream) as _));
    let began = Instant::now();
    let mut is_interrupted = false;
    while gdb.try_wait()?.is_none() {
        if began.elapsed() > GDB_TIMEOUT && !is_interrupted {
            is_interrupted = true;
            if let Some(pid) = i32::try_from(gdb.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::INT);
            }
        }
        // It is never killed: the program's thread would be left in the middle of a call.
        if began.elapsed() > GDB_TIMEOUT + GDB_END_TIMEOUT {
            return Ok("it does not end".to_owned());
        }
        thread::sleep(POLL_INTERVAL);
    }
    let text = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok(text(stdout) + &text(stderr))
}

/// Fails if the system forbids this user to trace the process.
pub(super) fn may_trace(process: &RunningProcess) -> Result<(), Failure> {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let scope = std::fs::read_to_string(SCOPE).ok().and_then(|scope| scope.trim().parse().ok()).unwrap_or(0);
    let is_root = rustix::process::geteuid().is_root();
    match scope {
        3.. => Err(process.refuse(format!("{SCOPE} is {scope}: no process may be traced"), None)),
        1.. if !is_root => {
            Err(process.refuse(format!("{SCOPE} is {scope}: only root may trace it"), Some("use `sudo`")))
        }
        _ => Ok(()),
    }
}
