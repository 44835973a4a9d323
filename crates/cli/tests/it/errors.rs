//! What users see when a file cannot be read, and that no file can make the program take the machine's memory.

#[path = "../../../snapshot/tests/it/pickles.rs"]
mod pickles;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const OOMPH: &str = env!("CARGO_BIN_EXE_oomph");

fn report(input: &Path) -> Output {
    Command::new(OOMPH).arg("report").arg(input).output().expect("oomph starts")
}

/// Expects exit code 2, an empty stdout, and three lines on stderr that hold these texts.
#[track_caller]
fn check(input: &Path, what: &str, cause: &str, hint: &str) {
    let Output { status, stdout, stderr } = report(input);
    let stderr = String::from_utf8(stderr).expect("messages are text");
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&stdout), "", "data on stdout");
    let lines: Vec<&str> = stderr.lines().collect();
    let [first, second, third] = lines[..] else { panic!("expected three lines:\n{stderr}") };
    for (line, label, text) in
        [(first, "error: ", what), (second, "  cause: ", cause), (third, "hint: ", hint)]
    {
        assert!(line.starts_with(label) && line.contains(text), "expected {label}…{text}… in:\n{stderr}");
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn write(folder: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("writable");
    path
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

#[test]
fn an_empty_file() {
    let folder = folder();
    check(&write(&folder, "a.pickle", b""), "a.pickle` is empty", "0 bytes", "_dump_snapshot");
}

#[test]
fn a_truncated_file() {
    let folder = folder();
    let whole = std::fs::read(fixture("formats/protocol-4.pickle.xz")).expect("a fixture");
    let cut = write(&folder, "a.pickle.xz", &whole[..whole.len() / 2]);
    check(&cut, "is cut short", "the compressed data ends early", "copy the file again");
    let whole = std::fs::read(fixture("formats/torch-cpp.pickle")).expect("a fixture");
    let cut = write(&folder, "a.pickle", &whole[..1000]);
    check(&cut, "is cut short", "the data ends at byte 1000", "copy the file again");
}

#[test]
fn a_web_page_saved_by_mistake() {
    let folder = folder();
    let page = write(&folder, "a.pickle", b"\n<!DOCTYPE html><html><body>Sign in</body></html>");
    check(&page, "is not a CUDA memory snapshot", "it is an HTML page", "the raw link");
}

#[test]
fn a_model_checkpoint() {
    let folder = folder();
    let weights = pickles::pickle(b"ccollections\nOrderedDict\n)R");
    for path in [write(&folder, "model.bin", &weights), fixture("formats/torch-checkpoint.pt")] {
        check(&path, "is not a CUDA memory snapshot", "as a model checkpoint does", "_dump_snapshot");
    }
}

#[test]
fn a_pickle_that_would_run_code() {
    let folder = folder();
    let marker = folder.path().join("marker");
    let call = format!("cos\nsystem\n(X{}touch {}\ntR", "", marker.to_string_lossy());
    for (name, body) in [
        ("global", call.replacen("(X", "(S'", 1).replacen("\ntR", "'\ntR", 1).into_bytes()),
        (
            "stack_global",
            [
                pickles::text("os"),
                pickles::text("system"),
                vec![0x93],
                pickles::text(&format!("touch {}", marker.to_string_lossy())),
                vec![0x85, b'R'],
            ]
            .concat(),
        ),
    ] {
        let path = write(&folder, name, &pickles::pickle(body));
        check(&path, "was refused: it would run code", "`os.system` at byte", "nothing was executed");
        assert!(!marker.exists(), "{name} was executed");
    }
}

#[test]
fn an_unknown_compression() {
    let folder = folder();
    let packed = write(&folder, "a.pickle.bz2", b"BZh91AY&SY");
    check(&packed, "compressed in a way that oomph does not read", "it is bzip2", "bunzip2");
}

#[test]
fn a_folder_without_snapshots() {
    let folder = folder();
    write(&folder, "notes.txt", b"hello");
    check(folder.path(), "has no snapshots", "found 1 other", "name the file itself");
}

#[test]
fn a_file_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = write(&folder, "a.pickle", b"x");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("the owner may");
    if std::fs::File::open(&path).is_err() {
        check(&path, "cannot be read", "ermission denied", "read permission");
    } else {
        // Root reads everything; a file in place of a folder stops even root.
        check(&path.join("b.pickle"), "cannot be read", "ot a directory", "check");
    }
    check(&folder.path().join("none.pickle"), "does not exist", "o such file", "check the path");
}

/// Peak memory of `oomph report` on `input` in KiB, and its exit code: -1 where it took more than `LIMIT_S`.
fn measure(input: &Path) -> (u64, i64) {
    // Without `unsafe`, only a wait by another language tells what a child took.
    const MEASURE: &str = "
import resource, subprocess, sys
limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
try:
    code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, preexec_fn=limit).returncode
except subprocess.TimeoutExpired:
    code = -1
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)
";
    let output = Command::new("python3").args(["-c", MEASURE, OOMPH, "report"]).arg(input).output();
    let text = String::from_utf8(output.expect("python3 starts").stdout).expect("two numbers");
    let (peak, code) = text.trim().split_once(' ').expect("two numbers");
    (peak.parse().expect("a number"), code.parse().expect("a number"))
}

/// At most 80 MiB plus three times the size on disk, compressed or not, for a file that is not a snapshot.
/// Most take 45 MiB; huge pages, where the kernel has them at hand, add up to 20.
#[test]
fn no_file_takes_more_memory_than_it_is_worth() {
    let folder = folder();
    let mut failures = Vec::new();
    let mut figures = String::new();
    for (name, bytes) in pickles::bombs() {
        let path = write(&folder, "bomb", &bytes);
        let begun = std::time::Instant::now();
        let (peak, code) = measure(&path);
        let allowed = (80 << 10) + 3 * bytes.len() as u64 / 1024;
        let line = format!(
            "{name}: {} KiB of input, {} MiB of memory, {} MiB allowed, exit {code}, {:.1} s",
            bytes.len() / 1024,
            peak / 1024,
            allowed / 1024,
            begun.elapsed().as_secs_f32(),
        );
        figures.push_str(&format!("{line}\n"));
        if let Some(path) = std::env::var_os("OOMPH_FIGURES") {
            std::fs::write(path, &figures).expect("writable");
        }
        if peak > allowed || !matches!(code, 0 | 2) {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The same law for what people really have, where the unpacked size counts.
#[test]
fn a_real_snapshot_takes_less_than_three_times_its_size() {
    let folder = folder();
    let path = fixture("large/gpt2_150_steps.pickle.xz");
    let mut unpacked = Vec::new();
    let file = std::fs::File::open(&path).expect("a fixture");
    std::io::Read::read_to_end(&mut liblzma::read::XzDecoder::new(file), &mut unpacked).expect("xz unpacks");
    let plain = write(&folder, "plain.pickle", &unpacked);
    for path in [path, plain] {
        let (peak, code) = measure(&path);
        assert_eq!(code, 0);
        let allowed = (64 << 10) + 3 * unpacked.len() as u64 / 1024;
        assert!(peak < allowed, "{}: {peak} KiB of {allowed}", path.to_string_lossy());
    }
}
