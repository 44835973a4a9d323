//! A running process, as the kernel describes it, and the reasons not to attach to it.

use failure::Failure;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Bytes of a file of `/proc` that are read. The maps of a process with thousands of libraries have one or
/// two million.
const MAX_PROC_BYTES: u64 = 64 << 20;
/// Oldest and newest releases of Python (the minor version) that can be attached to.
const PYTHON_RELEASES: std::ops::RangeInclusive<u32> = 10..=14;

/// A process that can be attached to.
pub(super) struct RunningProcess {
    pub(super) pid: u32,
    /// When it was started, in ticks since the machine was: with the process ID, that names a process for
    /// good.
    started: String,
    pub(super) user: u32,
    pub(super) group: u32,
    /// Its minor version of Python 3.
    pub(super) python: u32,
    pub(super) maps: Vec<Mapping>,
}

/// A part of a file, or of the kernel's `[vdso]`, that is mapped into a process.
pub(super) struct Mapping {
    pub(super) start: u64,
    end: u64,
    pub(super) is_code: bool,
    pub(super) offset: u64,
    pub(super) path: String,
}

impl RunningProcess {
    /// Looks at a process. Fails with the reason if it cannot or must not be attached to.
    pub(super) fn open(pid: u32) -> Result<RunningProcess, Failure> {
        let refuse = |cause: &str, hint: Option<&str>| Failure::new(what(pid), Some(cause.to_owned()), hint);
        let Ok(status) = read(pid, "status") else {
            return Err(refuse("there is no process with this ID", Some("`ps -ef` lists all processes")));
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let number = |name: &str, at: usize| field(name).get(at).and_then(|id| id.parse::<u32>().ok());
        if number("Tgid", 0).is_some_and(|process| process != pid) {
            let process = number("Tgid", 0).unwrap_or_default();
            let hint = format!("oomph attach {process}");
            return Err(refuse(&format!("it is a thread of process {process}"), Some(&hint)));
        }
        match field("State").first().map(String::as_str) {
            Some("Z" | "X") => return Err(refuse("it has ended, and its parent has not noticed", None)),
            Some("T") => {
                let hint = format!("continue it with `kill -CONT {pid}`");
                return Err(refuse("it is stopped, so its main thread runs no code", Some(&hint)));
            }
            _ => {}
        }
        if let Some(tracer) = number("TracerPid", 0).filter(|&tracer| tracer != 0) {
            let hint = "end that one first: a process has one tracer at a time";
            return Err(refuse(&format!("process {tracer} traces it (a debugger, or strace)"), Some(hint)));
        }
        // The second is the effective user, with whose rights files are opened.
        let users: Vec<u32> = (0..3).filter_map(|at| number("Uid", at)).collect();
        let (Some(&user), Some(group)) = (users.get(1), number("Gid", 1)) else {
            return Err(refuse("the system does not say whose it is", None));
        };
        let own = rustix::process::geteuid().as_raw();
        if own != 0 && users.iter().any(|&user| user != own) {
            return Err(refuse(
                &format!("it belongs to user {user}, and you are user {own}"),
                Some("only its own user and root can: use `sudo`"),
            ));
        }
        let maps = read(pid, "maps")
            .map_err(|error| refuse(&format!("its memory cannot be read: {error}"), Some("use `sudo`")))?;
        let maps: Vec<Mapping> = maps.lines().filter_map(Mapping::parse).collect();
        let python = python(&maps).map_err(|(cause, hint)| refuse(&cause, Some(hint)))?;
        let started = started(pid).map_err(|error| refuse(&error.to_string(), None))?;
        Ok(RunningProcess { pid, started, user, group, python, maps })
    }

    /// Returns a process that need not be one of Python with torch.
    #[cfg(test)]
    pub(super) fn for_tests(pid: u32) -> RunningProcess {
        let maps = read(pid, "maps").expect("readable");
        let maps = maps.lines().filter_map(Mapping::parse).collect();
        RunningProcess { pid, started: started(pid).expect("readable"), user: 0, group: 0, python: 0, maps }
    }

    /// Fails if the system forbids this user to trace it.
    pub(super) fn check_traceable(&self) -> Result<(), Failure> {
        const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
        let scope = std::fs::read_to_string(SCOPE).ok().and_then(|scope| scope.trim().parse().ok());
        let is_root = rustix::process::geteuid().is_root();
        match scope.unwrap_or(0) {
            3.. => Err(self.refuse(format!("{SCOPE} is 3: no process may be traced"), None)),
            1.. if !is_root => {
                let cause = format!("{SCOPE} is {}: only root may trace it", scope.unwrap_or(0));
                Err(self.refuse(cause, Some("use `sudo`")))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether it is still there.
    pub(super) fn is_running(&self) -> bool {
        let is_zombie = || read(self.pid, "stat").is_ok_and(|stat| state(&stat).starts_with('Z'));
        started(self.pid).is_ok_and(|started| started == self.started) && !is_zombie()
    }

    /// Returns the error for a reason not to attach.
    pub(super) fn refuse(&self, cause: impl Into<String>, hint: Option<&str>) -> Failure {
        Failure::new(what(self.pid), Some(cause.into()), hint)
    }

    /// Returns the error for a process whose Python has been shut down.
    pub(super) fn refuse_shut_down(&self) -> Failure {
        self.refuse("its Python has been shut down: it is about to end", None)
    }

    /// Returns whether paths mean the same here and there.
    pub(super) fn shares_files(&self) -> bool {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let root = std::fs::metadata(self.root()).map(|root| (root.dev(), root.ino())).ok();
        let here = std::fs::metadata("/").map(|root| (root.dev(), root.ino())).ok();
        namespace("self").is_some()
            && namespace("self") == namespace(&self.pid.to_string())
            && root.is_some()
            && root == here
    }

    /// Returns the path of its root folder.
    pub(super) fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid))
    }

    /// Reads its memory.
    pub(super) fn memory(&self, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        File::open(format!("/proc/{}/mem", self.pid))?.read_exact_at(&mut bytes, address)?;
        Ok(bytes)
    }

    /// Reads its memory from an address on: at most `length` bytes, and less where it ends.
    pub(super) fn memory_up_to(&self, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = File::open(format!("/proc/{}/mem", self.pid))?.read_at(&mut bytes, address)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Writes into its memory.
    pub(super) fn write_memory(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        File::options().write(true).open(format!("/proc/{}/mem", self.pid))?.write_all_at(bytes, address)
    }

    /// Opens the file behind a mapping. Nothing else can be there, whoever the folders belong to: its first
    /// bytes are those in memory.
    pub(super) fn open_mapped(&self, mapping: &Mapping) -> Result<File, Failure> {
        const HEADER_BYTES: usize = 1024;
        // In a container the path is that of the container, after a mere `chroot` that of the system.
        let paths = [format!("/proc/{}/root{}", self.pid, mapping.path), mapping.path.clone()];
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |path| rustix::fs::open(path, flags, Mode::empty()).map(File::from).ok();
        let is_loaded = |file: &File| {
            let mut header = [0; HEADER_BYTES];
            file.metadata().is_ok_and(|metadata| metadata.is_file())
                && file.read_exact_at(&mut header, 0).is_ok()
                && self.memory(mapping.start, HEADER_BYTES).is_ok_and(|memory| memory == header)
        };
        paths.into_iter().filter_map(open).find(is_loaded).ok_or_else(|| {
            let cause =
                format!("`{}` is not the file that it has loaded: it was updated since", mapping.path);
            self.refuse(cause, Some("restart it, and attach then"))
        })
    }
}

impl Mapping {
    fn parse(line: &str) -> Option<Mapping> {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()?.contains('x');
        let offset = number(fields.next()?)?;
        let path = fields.nth(2)?.trim_start();
        let mapping =
            Mapping { start: number(start)?, end: number(end)?, is_code, offset, path: path.to_owned() };
        (path.starts_with('/') || path == "[vdso]").then_some(mapping)
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns the name of the file.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Returns the minor version of Python, by the extension module of torch; or why it cannot be attached to.
fn python(maps: &[Mapping]) -> Result<u32, (String, &'static str)> {
    const MODULE: &str = "/torch/_C.cpython-3";
    let Some(tag) = maps.iter().find_map(|mapping| mapping.path.split_once(MODULE)) else {
        let is_python = maps.iter().any(|mapping| mapping.name().contains("python"));
        return Err(match is_python {
            true => (
                "it is a Python process that has not imported torch".to_owned(),
                "attach to the process that uses the GPU: `nvidia-smi` lists it",
            ),
            false => (
                "it is not a Python process with torch".to_owned(),
                "attach to the process that uses the GPU, not to its launcher: `nvidia-smi` lists it",
            ),
        });
    };
    let tag = tag.1.split('-').next().unwrap_or_default();
    let release = tag.trim_end_matches('t').parse().unwrap_or_default();
    if tag.ends_with('t') {
        let cause = format!("its Python 3.{release} has no global interpreter lock");
        return Err((
            cause,
            "other threads would free tensors while they are looked at; use `oomph run` instead",
        ));
    }
    if !PYTHON_RELEASES.contains(&release) {
        let hint = "this works with CPython 3.10 to 3.14; use `oomph run` instead";
        return Err((format!("it runs Python 3.{release}"), hint));
    }
    Ok(release)
}

fn what(pid: u32) -> String {
    format!("cannot attach to process {pid}")
}

fn read(pid: u32, name: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/{name}"))?.take(MAX_PROC_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the fields of `/proc/PID/stat` from the state on. The name before them may contain anything.
fn state(stat: &str) -> &str {
    stat.rsplit_once(") ").map_or("", |(_, rest)| rest)
}

fn started(pid: u32) -> io::Result<String> {
    const FIELDS_FROM_STATE: usize = 19;
    let stat = read(pid, "stat")?;
    let started = state(&stat).split(' ').nth(FIELDS_FROM_STATE);
    started.map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(paths: &[&str]) -> Vec<Mapping> {
        let line = |path: &&str| format!("7f00-8f00 r-xp 00001000 08:01 42                {path}");
        paths.iter().filter_map(|path| Mapping::parse(&line(path))).collect()
    }

    fn refusal(paths: &[&str]) -> String {
        python(&maps(paths)).expect_err("refused").0
    }

    #[test]
    fn the_python_is_the_one_that_torch_was_built_for() {
        let module = "/home/me/my env/torch/_C.cpython-312-x86_64-linux-gnu.so";
        assert_eq!(python(&maps(&["/usr/bin/python3.12", module])), Ok(12));
        assert!(refusal(&["/torch/_C.cpython-313t-x86_64-linux-gnu.so"]).contains("global interpreter lock"));
        assert!(refusal(&["/torch/_C.cpython-39-x86_64-linux-gnu.so"]).contains("Python 3.9"));
        assert!(refusal(&["/usr/bin/python3.12"]).contains("not imported torch"));
        assert!(refusal(&["/usr/bin/bash"]).contains("not a Python process"));
    }

    #[test]
    fn a_process_that_is_not_there_or_has_no_torch_is_refused() {
        let message = |pid: u32| RunningProcess::open(pid).err().expect("refused").message();
        assert!(message(u32::MAX).contains("no process"));
        assert!(message(std::process::id()).contains("not a Python process"));
        let mut child = std::process::Command::new("true").spawn().expect("started");
        while !read(child.id(), "stat").expect("a zombie").contains(") Z") {
            std::thread::yield_now();
        }
        assert!(message(child.id()).contains("has ended"));
        child.wait().expect("ended");
    }
}
