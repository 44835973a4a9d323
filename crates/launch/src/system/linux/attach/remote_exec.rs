//! Python 3.14, whose threads run a script when they are asked to (PEP 768, `sys.remote_exec`).
//!
//! The process is not stopped: what Python documents for debuggers is written into its memory, namely the
//! path of the script, and two flags at which the main thread looks between two instructions.

use super::process::RunningProcess;
use super::symbols::python_file;
use failure::Failure;

/// First bytes of the runtime of a Python that can do this.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// First minor version of Python 3 that can.
const FIRST_RELEASE: u32 = 14;
/// Release whose table of offsets is known, in the upper half of its version.
const RELEASE: u64 = 0x030e;
/// Words of that table (`pycore_debug_offsets.h` of Python 3.14).
const TABLE_WORDS: usize = 95;
const VERSION: usize = 1;
const IS_FREE_THREADED: usize = 2;
const FINALIZING: usize = 4;
const FIRST_INTERPRETER: usize = 5;
const MAIN_THREAD: usize = 10;
const EVAL_BREAKER: usize = 89;
const SUPPORT: usize = 90;
const IS_ENABLED: usize = 91;
const PENDING_CALL: usize = 92;
const SCRIPT_PATH: usize = 93;
const SCRIPT_PATH_BYTES: usize = 94;
/// Bit of the evaluation breaker that has a thread look at its flags.
const PLEASE_STOP: u8 = 1 << 5;

/// A main thread that has been asked to run a script.
pub(super) struct AskedThread {
    pending_call: u64,
}

impl AskedThread {
    /// Asks the main thread of a process to run a script; `None` if its Python cannot do that.
    pub(super) fn ask(process: &RunningProcess, script: &str) -> Result<Option<AskedThread>, Failure> {
        if process.python < FIRST_RELEASE {
            return Ok(None);
        }
        let runtime = python_file(process)?.map(|file| file.functions(["_PyRuntime"])).transpose()?.flatten();
        let Some([runtime]) = runtime.filter(|[runtime]| runtime.code == COOKIE) else { return Ok(None) };
        let table = words(process, runtime.address, TABLE_WORDS)?;
        if table[VERSION] >> 16 != RELEASE || table[IS_FREE_THREADED] != 0 {
            return Ok(None);
        }
        let interpreter = word(process, runtime.address + table[FIRST_INTERPRETER])?;
        if word(process, runtime.address + table[FINALIZING])? != 0 || interpreter == 0 {
            return Err(process.refuse_shut_down());
        }
        let is_enabled = word(process, interpreter + table[IS_ENABLED])? as u32;
        let thread = word(process, interpreter + table[MAIN_THREAD])?;
        let path = [script.as_bytes(), b"\0"].concat();
        if is_enabled != 1 || path.len() as u64 > table[SCRIPT_PATH_BYTES] {
            return Ok(None);
        }
        let support = thread + table[SUPPORT];
        let asked = AskedThread { pending_call: support + table[PENDING_CALL] };
        if word(process, asked.pending_call)? as u32 != 0 {
            let cause = "another program has just asked it to run a script";
            return Err(process.refuse(cause, Some("try again")));
        }
        let breaker = thread + table[EVAL_BREAKER];
        write(process, support + table[SCRIPT_PATH], &path)?;
        write(process, asked.pending_call, &1u32.to_le_bytes())?;
        let flags = word(process, breaker)? as u8;
        write(process, breaker, &[flags | PLEASE_STOP])?;
        Ok(Some(asked))
    }

    /// Takes the request back, if the thread has not come to it: the script will not be there any more.
    pub(super) fn take_back(&self, process: &RunningProcess) {
        if process.is_running() {
            let _ = write(process, self.pending_call, &0u32.to_le_bytes());
        }
    }
}

fn word(process: &RunningProcess, address: u64) -> Result<u64, Failure> {
    Ok(words(process, address, 1)?[0])
}

fn words(process: &RunningProcess, address: u64, count: usize) -> Result<Vec<u64>, Failure> {
    let unreadable = |error| process.refuse(format!("its memory cannot be read: {error}"), None);
    let bytes = process.memory(address, count * 8).map_err(unreadable)?;
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect())
}

fn write(process: &RunningProcess, address: u64, bytes: &[u8]) -> Result<(), Failure> {
    let unwritable = |error| process.refuse(format!("its memory cannot be written: {error}"), None);
    process.write_memory(address, bytes).map_err(unwritable)
}
