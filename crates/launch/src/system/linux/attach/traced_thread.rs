//! A thread of another process that is stopped for a moment, makes system calls or runs code for us, and goes
//! on.
//!
//! Signals that reach it meanwhile are its own: they are passed on, with the registers that it had before.

use super::inserted_code::{self, CallEnd, CodeParameters};
use super::process::RunningProcess;
use failure::Failure;
use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread may take to stop: it may be in a system call of a driver.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How long to look without a pause: most stops take microseconds.
const BUSY_POLLING: Duration = Duration::from_millis(1);
/// `PTRACE_EVENT_STOP`.
const EVENT_STOP: i32 = 128;
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `orig_rax` of a thread that is in no system call.
const NO_CALL: u64 = u64::MAX;
/// Results of a system call that the kernel is about to make again: `ERESTARTSYS`, `ERESTARTNOINTR`,
/// `ERESTARTNOHAND`.
const MADE_AGAIN: [i64; 3] = [-512, -513, -514];
/// `ERESTART_RESTARTBLOCK`: it goes on as `restart_syscall`.
const CONTINUED: i64 = -516;
const INTERRUPTED: i64 = -(Errno::EINTR as i64);

/// A traced thread. If it has not been let go, the kernel does so when our thread that traces it ends.
pub(super) struct TracedThread<'a> {
    process: &'a RunningProcess,
    thread: Pid,
    /// Address of an instruction `syscall`.
    syscall: u64,
    /// The program's registers when it was stopped.
    stopped: user_regs_struct,
    /// Those with which it goes on if no signal has come.
    resumed: user_regs_struct,
}

/// What became of the function that a thread was made to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Returned(i32),
    /// It may not be called now.
    NotReady,
    /// It was taking too long, and the thread has left it.
    Left,
    /// It is taking too long, and the thread goes on with it.
    Running,
}

/// What happens when a function takes too long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LateCall {
    Leave,
    Keep,
}

impl<'a> TracedThread<'a> {
    /// Stops the main thread of a process.
    pub(super) fn stop(process: &'a RunningProcess) -> Result<TracedThread<'a>, Failure> {
        let refuse = |error: Errno| {
            let hint = "in a container, the capability SYS_PTRACE is needed, or attach from the host";
            process.refuse(format!("it cannot be traced: {}", error.desc()), Some(hint))
        };
        let id = i32::try_from(process.pid).map_err(|_| refuse(Errno::ESRCH))?;
        let thread = Pid::from_raw(id);
        let syscall = syscall_instruction(process)?;
        ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD).map_err(refuse)?;
        interrupt(process, thread, |_| Ok(()))?;
        let stopped = ptrace::getregs(thread).map_err(refuse)?;
        Ok(TracedThread { process, thread, syscall, stopped, resumed: resumed(stopped) })
    }

    /// Returns the registers that the program had when it was stopped.
    pub(super) fn registers(&self) -> &user_regs_struct {
        &self.stopped
    }

    /// Returns the number of the system call that the thread is in.
    pub(super) fn current_call(&self) -> Option<i64> {
        current_call(&self.stopped)
    }

    /// Returns the address at which the program goes on.
    pub(super) fn program_counter(&self) -> u64 {
        self.resumed.rip
    }

    /// Has the system call that the thread is in return as if a signal had interrupted it, if it would be
    /// made again.
    pub(super) fn interrupt_call(&mut self) {
        if self.resumed.rip != self.stopped.rip {
            self.resumed.rip = self.stopped.rip;
            self.resumed.rax = INTERRUPTED as u64;
        }
    }

    /// Has the thread make a system call. Returns its result, negative for an error.
    pub(super) fn system_call(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64, Failure> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        loop {
            let (rip, rax) = (self.syscall, number as u64);
            self.set_registers(&user_regs_struct { rip, rax, rdi, rsi, rdx, r10, r8, r9, ..self.resumed })?;
            let began = self.go_to_next_stop()?;
            let WaitStatus::PtraceSyscall(_) = began else {
                // Something came first. The kernel decides by these registers whether the program's system
                // call is made again after a handler of a signal.
                self.set_registers(&self.stopped)?;
                let signal = match began {
                    WaitStatus::Stopped(_, signal) => Some(signal),
                    WaitStatus::PtraceEvent(_, Signal::SIGTRAP, _) => None,
                    status => return Err(unexpected(self.process, status)),
                };
                self.go_on(signal)?;
                interrupt(self.process, self.thread, |_| Ok(()))?;
                self.stopped = self.read_registers()?;
                self.resumed = resumed(self.stopped);
                continue;
            };
            let ended = self.go_to_next_stop()?;
            let result = self.read_registers()?.rax as i64;
            self.set_registers(&self.resumed)?;
            return match ended {
                WaitStatus::PtraceSyscall(_) => Ok(result),
                status => Err(unexpected(self.process, status)),
            };
        }
    }

    /// Has the thread run the code that was written to `code`, and stops it again unless it is still in its
    /// function.
    pub(super) fn run(
        &mut self,
        code: u64,
        parameters: &CodeParameters,
        timeout: Duration,
        late: LateCall,
    ) -> Result<CallOutcome, Failure> {
        self.set_registers(&user_regs_struct { rip: code, ..self.resumed })?;
        self.go_on(None)?;
        let began = Instant::now();
        let mut leaves = false;
        while self.result(parameters)?.is_none() {
            self.let_handle_signals(code)?;
            if began.elapsed() > timeout && !leaves {
                match late {
                    LateCall::Keep => return Ok(CallOutcome::Running),
                    LateCall::Leave => leaves = self.leave_function(code, parameters)?,
                }
            }
            pause(began);
        }
        self.stop_in_program(code)?;
        Ok(match self.result(parameters)? {
            Some(inserted_code::NOT_READY) => CallOutcome::NotReady,
            Some(inserted_code::LEFT) | None => CallOutcome::Left,
            Some(result) => CallOutcome::Returned(result as i32),
        })
    }

    /// Lets the thread go on with the program.
    pub(super) fn let_go(self) -> Result<(), Failure> {
        self.set_registers(&self.resumed)?;
        ptrace::detach(self.thread, None).map_err(|error| failed(self.process, error))
    }

    /// Takes the thread out of its function if it waits for a lock there; in a handler of a signal, it does
    /// not. Returns whether it did.
    fn leave_function(&mut self, code: u64, parameters: &CodeParameters) -> Result<bool, Failure> {
        self.interrupt_in_code(code)?;
        let is_waiting = current_call(&self.read_registers()?) == Some(libc::SYS_futex);
        let leaves = is_waiting && self.result(parameters)?.is_none();
        if leaves {
            let CallEnd { offset, rbp, rsp } = CallEnd::new(self.resumed.rsp);
            let r12 = inserted_code::LEFT;
            self.set_registers(&user_regs_struct { rip: code + offset, rbp, rsp, r12, ..self.resumed })?;
        }
        self.go_on(None)?;
        Ok(leaves)
    }

    /// Returns what the function has returned, if it has.
    fn result(&self, parameters: &CodeParameters) -> Result<Option<u64>, Failure> {
        let unreadable = |error| self.process.refuse(format!("its memory cannot be read: {error}"), None);
        let bytes = self.process.memory(parameters.outcome, 8).map_err(unreadable)?;
        let outcome = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        Ok((outcome != inserted_code::NOT_RETURNED).then_some(outcome))
    }

    /// Stops a thread that has run our code, in the program.
    fn stop_in_program(&mut self, code: u64) -> Result<(), Failure> {
        self.interrupt_in_code(code)?;
        let registers = self.read_registers()?;
        match has_returned(&registers, code) {
            true => self.set_registers(&self.resumed),
            false => {
                self.stopped = registers;
                self.resumed = resumed(registers);
                Ok(())
            }
        }
    }

    fn interrupt_in_code(&self, code: u64) -> Result<(), Failure> {
        interrupt(self.process, self.thread, |thread| self.prepare_for_handler(thread, code))
    }

    /// Lets the thread handle the signals that have come while it runs our code.
    fn let_handle_signals(&self, code: u64) -> Result<(), Failure> {
        while let Some(status) = poll(self.process, self.thread)? {
            match status {
                WaitStatus::Stopped(thread, signal) => {
                    self.prepare_for_handler(thread, code)?;
                    self.go_on(Some(signal))?;
                }
                WaitStatus::PtraceEvent(..) | WaitStatus::PtraceSyscall(_) => self.go_on(None)?,
                status => return Err(unexpected(self.process, status)),
            }
        }
        Ok(())
    }

    /// A handler runs in the program if our code is done: it must not come back to code that is about to go.
    fn prepare_for_handler(&self, thread: Pid, code: u64) -> Result<(), Failure> {
        let registers = ptrace::getregs(thread).map_err(|error| failed(self.process, error))?;
        match has_returned(&registers, code) {
            true => self.set_registers(&self.stopped),
            false => Ok(()),
        }
    }

    /// Waits until the thread stops next, at the beginning or the end of a system call. That cannot be given
    /// up: the thread has not its own registers.
    fn go_to_next_stop(&self) -> Result<WaitStatus, Failure> {
        ptrace::syscall(self.thread, None).map_err(|error| failed(self.process, error))?;
        let began = Instant::now();
        loop {
            match poll(self.process, self.thread)? {
                Some(status) => return Ok(status),
                None => pause(began),
            }
        }
    }

    fn go_on(&self, signal: Option<Signal>) -> Result<(), Failure> {
        ptrace::cont(self.thread, signal).map_err(|error| failed(self.process, error))
    }

    fn read_registers(&self) -> Result<user_regs_struct, Failure> {
        ptrace::getregs(self.thread).map_err(|error| failed(self.process, error))
    }

    fn set_registers(&self, registers: &user_regs_struct) -> Result<(), Failure> {
        ptrace::setregs(self.thread, *registers).map_err(|error| failed(self.process, error))
    }
}

/// Stops a thread wherever it is. `at_signal` is called before it handles a signal that comes first.
fn interrupt(
    process: &RunningProcess,
    thread: Pid,
    at_signal: impl Fn(Pid) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let go_on = |signal| ptrace::cont(thread, signal).map_err(|error| failed(process, error));
    ptrace::interrupt(thread).map_err(|error| failed(process, error))?;
    let began = Instant::now();
    loop {
        match poll(process, thread)? {
            Some(WaitStatus::PtraceEvent(_, Signal::SIGTRAP, EVENT_STOP)) => return Ok(()),
            // The process is being stopped as a whole.
            Some(WaitStatus::PtraceEvent(_, _, EVENT_STOP)) => {
                let hint = format!("continue it with `kill -CONT {}`", process.pid);
                return Err(process.refuse("it was stopped by a signal", Some(&hint)));
            }
            Some(WaitStatus::Stopped(_, signal)) => {
                at_signal(thread)?;
                go_on(Some(signal))?;
            }
            Some(WaitStatus::PtraceSyscall(_) | WaitStatus::PtraceEvent(..)) => go_on(None)?,
            Some(status) => return Err(unexpected(process, status)),
            None if began.elapsed() > STOP_TIMEOUT => {
                let seconds = STOP_TIMEOUT.as_secs();
                let cause =
                    format!("its main thread cannot be stopped: it has been in the kernel for {seconds} s");
                return Err(process.refuse(cause, Some("try again")));
            }
            None => pause(began),
        }
    }
}

/// Lets others run before the next look; `began`: when this began to wait.
fn pause(began: Instant) {
    match began.elapsed() < BUSY_POLLING {
        true => thread::yield_now(),
        false => thread::sleep(POLL_INTERVAL),
    }
}

fn poll(process: &RunningProcess, thread: Pid) -> Result<Option<WaitStatus>, Failure> {
    match waitpid(thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Ok(None),
        Ok(status) => Ok(Some(status)),
        Err(error) => Err(failed(process, error)),
    }
}

fn failed(process: &RunningProcess, error: Errno) -> Failure {
    match error {
        Errno::ESRCH | Errno::ECHILD => process.refuse("it has ended", None),
        error => process.refuse(format!("it cannot be traced: {}", error.desc()), None),
    }
}

fn unexpected(process: &RunningProcess, status: WaitStatus) -> Failure {
    match status {
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => process.refuse("it has ended", None),
        status => {
            process.refuse(format!("its main thread stopped unexpectedly ({status:?})"), Some("try again"))
        }
    }
}

fn current_call(registers: &user_regs_struct) -> Option<i64> {
    let number = registers.orig_rax as i64;
    (number >= 0).then_some(number)
}

/// Returns the registers with which a stopped thread goes on. The kernel makes an interrupted system call
/// again only on its way out of that call, and the thread has been elsewhere since.
fn resumed(stopped: user_regs_struct) -> user_regs_struct {
    let registers = user_regs_struct { orig_rax: NO_CALL, ..stopped };
    let again = stopped.rip - SYSCALL.len() as u64;
    match stopped.rax as i64 {
        _ if current_call(&stopped).is_none() => registers,
        result if MADE_AGAIN.contains(&result) => {
            user_regs_struct { rip: again, rax: stopped.orig_rax, ..registers }
        }
        CONTINUED => user_regs_struct { rip: again, rax: libc::SYS_restart_syscall as u64, ..registers },
        _ => registers,
    }
}

/// Returns whether a thread has done all of our code but putting back registers that we know.
fn has_returned(registers: &user_regs_struct, code: u64) -> bool {
    inserted_code::after_return().contains(&registers.rip.wrapping_sub(code))
}

/// Returns the address of an instruction `syscall` in the code that the kernel maps into every process.
fn syscall_instruction(process: &RunningProcess) -> Result<u64, Failure> {
    const VDSO_BYTES: usize = 4096;
    let vdso = process.maps.iter().find(|mapping| mapping.path == "[vdso]");
    let found = vdso.and_then(|vdso| {
        let bytes = process.memory(vdso.start, VDSO_BYTES).ok()?;
        let at = bytes.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)?;
        Some(vdso.start + at as u64)
    });
    found.ok_or_else(|| process.refuse("the kernel has mapped no code into it", None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};

    const PAGE_BYTES: u64 = 4096;

    /// A program that computes, waits and handles signals, and checks itself.
    const PROGRAM: &str = r#"
import array, ctypes, math, os, select, signal, sys, threading
handled = [0]
def handler(number, frame): handled[0] += 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
library = ctypes.CDLL(None)
library.usleep(1)
address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
semaphore = ctypes.create_string_buffer(64)
print(address("labs"), address("sem_wait"), ctypes.addressof(semaphore), flush=True)
wanted = math.fsum(math.sqrt(at) * 1.1 for at in range(300))
rounds = 0
while not select.select([sys.stdin], [], [], 0.0003)[0]:
    assert math.fsum(math.sqrt(at) * 1.1 for at in range(300)) == wanted
    assert sum(array.array("d", range(1000))) == 499500.0
    assert os.getppid() > 1
    rounds += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(rounds, handled[0], flush=True)
"#;

    struct Program {
        child: Child,
        output: BufReader<std::process::ChildStdout>,
        process: RunningProcess,
        addresses: Vec<u64>,
    }

    impl Program {
        fn start() -> Program {
            let mut command = Command::new("python3");
            command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("started");
            let mut output = BufReader::new(child.stdout.take().expect("piped"));
            let addresses = numbers(&mut output);
            let process = RunningProcess::for_tests(child.id());
            Program { child, output, process, addresses }
        }

        fn end(mut self) -> Vec<u64> {
            self.child.stdin.take().expect("piped").write_all(b"\n").expect("written");
            let said = numbers(&mut self.output);
            let mut rest = String::new();
            self.output.read_to_string(&mut rest).expect("read");
            assert!(self.child.wait().expect("ended").success());
            said
        }
    }

    fn numbers(output: &mut impl BufRead) -> Vec<u64> {
        let mut line = String::new();
        output.read_line(&mut line).expect("read");
        line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }

    /// Has a thread map memory, call a function, and unmap it.
    fn call(
        process: &RunningProcess,
        function: u64,
        argument: u64,
        timeout: Duration,
    ) -> Result<CallOutcome, Failure> {
        let mut thread = TracedThread::stop(process)?;
        let mut map = |protection: i32| -> Result<u64, Failure> {
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            let address =
                thread.system_call(libc::SYS_mmap, [0, PAGE_BYTES, protection as u64, flags, u64::MAX, 0])?;
            assert!(address > 0, "mapped");
            Ok(address as u64)
        };
        let (outcome, code) =
            (map(libc::PROT_READ | libc::PROT_WRITE)?, map(libc::PROT_READ | libc::PROT_EXEC)?);
        let resume = thread.program_counter();
        let parameters =
            CodeParameters { around: [0; 3], function, arguments: [argument, 0], outcome, resume };
        process.write_memory(outcome, &inserted_code::NOT_RETURNED.to_le_bytes()).expect("written");
        process.write_memory(code, &inserted_code::code(&parameters)).expect("written");
        let called = thread.run(code, &parameters, timeout, LateCall::Leave)?;
        for address in [outcome, code] {
            assert_eq!(thread.system_call(libc::SYS_munmap, [address, PAGE_BYTES, 0, 0, 0, 0])?, 0);
        }
        thread.let_go()?;
        Ok(called)
    }

    #[test]
    fn a_program_goes_on_as_if_nothing_had_been_called() {
        const CALLS: i32 = 1000;
        let program = Program::start();
        let labs = program.addresses[0];
        for number in 1..=CALLS {
            let called = call(&program.process, labs, i64::from(-number) as u64, Duration::from_secs(5));
            assert_eq!(called.map_err(|failure| failure.message()), Ok(CallOutcome::Returned(number)));
        }
        let said = program.end();
        assert!(said[0] > 100 && said[1] > 100, "{said:?}");
    }

    #[test]
    fn a_function_that_does_not_return_is_left() {
        let program = Program::start();
        let (wait, semaphore) = (program.addresses[1], program.addresses[2]);
        for micros in 0..200 {
            let called = call(&program.process, wait, semaphore, Duration::from_micros(micros));
            let called = called.map_err(|failure| failure.message());
            // A signal may end it earlier.
            assert!(matches!(called, Ok(CallOutcome::Left | CallOutcome::Returned(-1))), "{called:?}");
        }
        assert!(program.end()[0] > 10);
    }
}
