//! Has the main thread of a process run Python code soon, in a process that cannot be asked to.
//!
//! The thread is stopped for less than a millisecond, makes two system calls for memory that nobody else
//! uses, and goes through code that calls `Py_AddPendingCall`, which Python allows at any moment, with or
//! without its lock. That notes that the main thread is to call `PyRun_SimpleString` on the text in that
//! memory between two instructions, which is when Python runs handlers of signals as well.
//!
//! A main thread that waits for the network, the clock or another process might not come to that for hours.
//! It gave Python's lock back before it began to wait, so it can take it and run the text at once.

use super::inserted_code::{self, CodeParameters};
use super::process::{Mapping, RunningProcess};
use super::symbols::{ProcessFunction, python_file};
use super::traced_thread::{CallOutcome, LateCall, TracedThread};
use super::{MainThreadNeed, PythonText};
use failure::Failure;
use nix::errno::Errno;
use nix::libc;
use std::thread;
use std::time::Duration;

/// How long Python may take to note a call.
const NOTING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the text may take to run, and to get Python's lock.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(30);
const PAGE_BYTES: u64 = 4096;
/// Bytes of the stack that are searched for the function that waits.
const STACK_BYTES: usize = 4096;
/// System calls in which Python's own modules wait without Python's lock.
const WAITING_CALLS: [i64; 17] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_restart_syscall,
];

/// Functions of Python that are called.
struct PythonFunctions([ProcessFunction; 5]);

impl PythonFunctions {
    const NAMES: [&str; 5] = [
        "Py_AddPendingCall",
        "PyRun_SimpleString",
        "Py_IsInitialized",
        "PyGILState_Ensure",
        "PyGILState_Release",
    ];

    fn find(process: &RunningProcess) -> Result<(PythonFunctions, &str), Failure> {
        let file = python_file(process)?;
        let functions = file.as_ref().map(|file| file.functions(Self::NAMES)).transpose()?.flatten();
        match (functions, file) {
            (Some(functions), Some(file)) => Ok((PythonFunctions(functions), file.path)),
            _ => {
                let cause = "its Python does not export the functions of the C API";
                Err(process.refuse(cause, Some("use `oomph run` instead")))
            }
        }
    }

    /// Returns whether they are still there: the process may run another program by now.
    fn are_there(&self, process: &RunningProcess) -> bool {
        self.0.iter().all(|function| {
            process.memory(function.address, 8).is_ok_and(|code| code == function.code.to_le_bytes())
        })
    }
}

/// What the main thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MainThreadState {
    Busy,
    /// Waits for a lock. Such a wait may end early at any time, as it does after a signal, and Python then
    /// makes pending calls.
    WaitsForLock,
    /// Waits in a module of Python's, which has given Python's lock back.
    WaitsInPython,
}

/// Has the interpreter of a process run `text` in its main thread, as soon as that comes to it.
pub(super) fn run_soon(
    process: &RunningProcess,
    text: &PythonText,
    need: MainThreadNeed,
) -> Result<(), Failure> {
    let (functions, python_path) = PythonFunctions::find(process)?;
    // When the thread that traces ends, the kernel lets go whatever it has not.
    thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            let mut main = TracedThread::stop(process)?;
            if !functions.are_there(process) {
                return main.let_go().and(Err(process.refuse("it runs another program by now", None)));
            }
            let is_needed =
                need == MainThreadNeed::Any || state(process, &main, python_path) != MainThreadState::Busy;
            match is_needed.then(|| start(process, &mut main, (&functions, python_path), text)) {
                Some(Ok(CallOutcome::Running)) => Ok(()),
                started => main.let_go().and(started.map_or(Ok(()), |started| started.map(|_| ()))),
            }
        });
        tracer.join().unwrap_or_else(|_| Err(process.refuse("tracing it failed", None)))
    })
}

fn start(
    process: &RunningProcess,
    main: &mut TracedThread<'_>,
    (functions, python_path): (&PythonFunctions, &str),
    text: &PythonText,
) -> Result<CallOutcome, Failure> {
    // The text's pages go when it has run, the last page with that of the code.
    let text_bytes = (text.bytes(0, 0).len() as u64).next_multiple_of(PAGE_BYTES);
    let data_bytes = text_bytes + PAGE_BYTES;
    let page = map(process, main, data_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    let code = map(process, main, PAGE_BYTES, libc::PROT_READ | libc::PROT_EXEC)
        .inspect_err(|_| unmap(main, page, data_bytes))?;
    let outcome = page + text_bytes;
    // From here on, the thread stays where it is until it runs the code.
    let state = state(process, main, python_path);
    if state == MainThreadState::WaitsForLock {
        main.interrupt_call();
    }
    let PythonFunctions([add_pending_call, run_string, is_initialized, acquire, release]) = functions;
    // A program that ends has no interpreter any more.
    let [is_ready, lock, unlock] = [is_initialized, acquire, release].map(|function| function.address);
    let (around, function, arguments) = match state {
        MainThreadState::WaitsInPython => ([is_ready, lock, unlock], run_string, [page, 0]),
        _ => ([is_ready, 0, 0], add_pending_call, [run_string.address, page]),
    };
    let (timeout, late) = match state {
        MainThreadState::WaitsInPython => (RUNNING_TIMEOUT, LateCall::Keep),
        _ => (NOTING_TIMEOUT, LateCall::Leave),
    };
    let function = function.address;
    let parameters = CodeParameters { around, function, arguments, outcome, resume: main.program_counter() };
    let written = process
        .write_memory(page, &text.bytes(page, text_bytes))
        .and_then(|()| process.write_memory(outcome, &inserted_code::NOT_RETURNED.to_le_bytes()))
        .and_then(|()| process.write_memory(code, &inserted_code::code(&parameters)))
        .map_err(|error| process.refuse(format!("its memory cannot be written: {error}"), None));
    let called = written.and_then(|()| main.run(code, &parameters, timeout, late));
    let failure = match called {
        Ok(CallOutcome::Running) => return Ok(CallOutcome::Running),
        Ok(CallOutcome::Returned(_)) if state == MainThreadState::WaitsInPython => None,
        Ok(CallOutcome::Returned(0)) => None,
        Ok(CallOutcome::Returned(_)) => {
            Some(process.refuse("too many calls wait for its main thread", Some("try again")))
        }
        Ok(CallOutcome::NotReady) => Some(process.refuse_shut_down()),
        Ok(CallOutcome::Left) => {
            Some(process.refuse("its main thread was just looking for calls to make", Some("try again")))
        }
        Err(failure) => return Err(failure),
    };
    unmap(main, code, PAGE_BYTES);
    match failure {
        None => unmap(main, outcome, PAGE_BYTES),
        // Nobody will run the text.
        Some(_) => unmap(main, page, data_bytes),
    }
    failure.map_or(called, Err)
}

fn map(
    process: &RunningProcess,
    main: &mut TracedThread<'_>,
    bytes: u64,
    protection: i32,
) -> Result<u64, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let address =
        main.system_call(libc::SYS_mmap, [0, bytes, protection as u64, flags as u64, u64::MAX, 0])?;
    u64::try_from(address).map_err(|_| {
        let error = Errno::from_raw(-address as i32);
        let what = if protection & libc::PROT_EXEC == 0 { "memory" } else { "memory for code" };
        process.refuse(
            format!("the system gives it no {what}: {}", error.desc()),
            Some("use `oomph run` instead"),
        )
    })
}

/// Memory that cannot be given back stays: it is a few kilobytes.
fn unmap(main: &mut TracedThread<'_>, address: u64, bytes: u64) {
    let _ = main.system_call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]);
}

fn state(process: &RunningProcess, main: &TracedThread<'_>, python_path: &str) -> MainThreadState {
    const OPERATION: u64 = 0x7f;
    const WAIT: u64 = libc::FUTEX_WAIT as u64;
    const WAIT_BITSET: u64 = libc::FUTEX_WAIT_BITSET as u64;
    let registers = main.registers();
    match main.current_call() {
        Some(libc::SYS_futex) if [WAIT, WAIT_BITSET].contains(&(registers.rsi & OPERATION)) => {
            MainThreadState::WaitsForLock
        }
        Some(call)
            if WAITING_CALLS.contains(&call) && is_called_by_python(process, registers.rsp, python_path) =>
        {
            MainThreadState::WaitsInPython
        }
        _ => MainThreadState::Busy,
    }
}

/// Returns whether the innermost function outside the C library, by the addresses on the stack, belongs to
/// Python or one of its modules. A library such as CUDA's may wait with locks of its own.
fn is_called_by_python(process: &RunningProcess, stack: u64, python_path: &str) -> bool {
    let Ok(stack) = process.memory_up_to(stack, STACK_BYTES) else { return false };
    let words = stack.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let mut callers = words.filter_map(|address| {
        let is_meant = |mapping: &&Mapping| mapping.is_code && mapping.range().contains(&address);
        let mapping = process.maps.iter().find(is_meant).filter(|mapping| !is_of_system(mapping))?;
        follows_call(process, address).then_some(mapping)
    });
    callers.next().is_some_and(|mapping| {
        mapping.path == python_path
            || mapping.path.contains("/lib-dynload/")
            || mapping.path.contains("/uvloop/")
    })
}

/// Returns whether the instruction before an address is a call, so that a function can return there.
fn follows_call(process: &RunningProcess, address: u64) -> bool {
    const LONGEST_CALL: usize = 7;
    const RELATIVE: u8 = 0xe8;
    const INDIRECT: u8 = 0xff;
    let Ok(before) = process.memory(address.wrapping_sub(LONGEST_CALL as u64), LONGEST_CALL) else {
        return false;
    };
    // The operation is in the middle bits of the second byte.
    let is_indirect = |length: usize| {
        let at = LONGEST_CALL - length;
        before[at] == INDIRECT && (before[at + 1] >> 3) & 7 == 2
    };
    before[LONGEST_CALL - 5] == RELATIVE || [2, 3, 4, 6, 7].into_iter().any(is_indirect)
}

fn is_of_system(mapping: &Mapping) -> bool {
    let name = mapping.name();
    ["libc.so", "libc-2", "libpthread", "ld-linux", "[vdso]"].iter().any(|prefix| name.starts_with(prefix))
}
