//! `oomph explain` as its users see it.

use crate::common::{json, oomph, root, text};
use std::io::Write;
use std::process::{Command, Stdio};

#[track_caller]
fn check(name: &str, expected: &str) {
    let shown = text(&["explain", &format!("fixtures/messages/{name}.txt")]);
    let (_, shown) = shown.split_once("\n\n").expect("a header and an answer");
    assert_eq!(shown.trim_end(), expected.trim_matches('\n').trim_end(), "{name}:\n{shown}");
}

#[test]
fn a_full_gpu_is_shown_as_a_bar() {
    check(
        "torch-2.2-full",
        r"
 ✗ GPU 0 is full: 22.90 GiB of tensors on a 23.65 GiB GPU; 22.00 MiB more did not fit
   line 1

   ████████████████████████████████████████████████████████████████████████▒▚▚·
   █ tensors 22.90 GiB   ▒ cached by PyTorch 194.87 MiB
   ▚ non-PyTorch memory (this process) 521.93 MiB   · free 11.06 MiB

   PyTorch held 194.87 MiB that no tensor used (1%), more than the request, but not in one block
   that it could use (it belongs to another stream or pool, or is fragmented; the message does not
   say which).
   fix: reduce memory use: a smaller batch, activation checkpointing, a smaller dtype.
        `empty_cache()` does not give PyTorch more memory; `expandable_segments` helps only with
        fragmentation
   not in the message: which tensors fill it · whether it was a leak or a peak: memory that climbs
     step by step ends in the same message · the largest free block
 next: oomph run train.py   records until it fails, then names the lines that fill the memory
       oomph predict --gpu NAME --try amp,checkpoint,batch/2 train.py
          what each technique saves, without a GPU
",
    );
}

#[test]
fn unused_memory_of_pytorch_may_be_fragmentation() {
    check(
        "torch-1.0-fragmented",
        r"
 ✗ GPU 0 had no room for 1.72 GiB, though PyTorch held 5.54 GiB that no tensor used (58% of what it
   had): may be fragmentation
   line 1

   ████████████████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░··
   █ tensors 4.01 GiB   ▒ cached by PyTorch 5.54 GiB
   ░ outside PyTorch, owner unknown 883.04 MiB   · free 356.00 MiB

   This includes memory cached for other streams and private pools.
   fix: torch 2.1 or later with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets
        free memory be merged; max_split_size_mb, which the message may name, can make it much worse
   not in the message: which tensors fill it · whether it was a leak or a peak: memory that climbs
     step by step ends in the same message · the largest free block
 next: oomph run train.py   records until it fails, then names the lines that fill the memory
       oomph simulate --search oomph-recording   which allocator settings would have avoided it
",
    );
}

#[test]
fn memory_that_nobody_in_the_message_has_is_another_process() {
    check(
        "torch-1.4-other-process",
        r"
 ✗ 9.77 GiB of GPU 0 is in use, but not by PyTorch in this process: most likely another process
   line 1

   ███████▒░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░·
   █ tensors 996.23 MiB   ▒ cached by PyTorch 13.77 MiB
   ░ outside PyTorch, owner unknown 9.77 GiB   · free 8.81 MiB

   The context and libraries of this process are in that number too; they take 0.3 to 1.5 GiB, the
   message does not say how much.
   fix: end the other process, or choose another GPU with CUDA_VISIBLE_DEVICES
   not in the message: which process uses it · how much of it is this process's own context
 next: nvidia-smi   which processes use the GPU
       oomph run train.py   records until it fails, then names the lines that fill the memory
",
    );
}

#[test]
fn a_limit_is_not_the_end_of_the_card() {
    check(
        "hip-limit",
        r"
 ✗ a limit was reached, not the end of GPU 0: PyTorch was allowed 1.05 GiB while 244.65 GiB was free
   line 1

   █▒▓░░░······································································
   █ tensors 1000.01 MiB   ▒ cached by PyTorch 54.99 MiB
   ▓ unused in private pools 17.00 MiB
   ░ outside PyTorch, owner unknown 10.28 GiB   · free 244.65 GiB

   PyTorch held 54.99 MiB that no tensor used (5%), more than the request, but not in one block that
   it could use (it belongs to another stream or pool, or is fragmented; the message does not say
   which).
   17.00 MiB more is unused in private pools, which only their own HIP graphs can use; the message
   counts it as allocated.
   fix: raise it: set_per_process_memory_fraction, or per_process_memory_fraction in
        PYTORCH_HIP_ALLOC_CONF
   not in the message: which tensors fill it · whether it was a leak or a peak: memory that climbs
     step by step ends in the same message · the largest free block
 next: oomph run train.py   records until it fails, then names the lines that fill the memory
",
    );
}

#[test]
fn the_machines_memory_is_not_the_gpus() {
    check(
        "slurm",
        r"
 ✗ the job ran out of the machine's memory, not the GPU's: Slurm killed it at its limit
   line 2
   fix: sbatch --mem=…, fewer DataLoader workers, or load the model on one rank at a time
   not in the message: which objects filled the memory, and whether it was a leak or a peak
 next: sacct -j JOB --format=JobID,MaxRSS,ReqMem,State   what the job had and what it was allowed
",
    );
}

/// Eight ranks that fail at the same line, one of them twice, in one log.
fn ranks() -> String {
    let message =
        std::fs::read_to_string(root().join("fixtures/messages/torch-2.2-full.txt")).expect("it is there");
    let rank = |rank: u32| {
        let message = message
            .replace("22.00 MiB", &format!("{}.00 MiB", 22 + rank))
            .replace("GPU 0", &format!("GPU {rank}"));
        let lines = [
            "Traceback (most recent call last):",
            "  File \"/home/user/project/train.py\", line 61, in step",
            "    loss = model(batch)",
            "  File \"/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py\", line 1751, in _call_impl",
            message.trim_end(),
        ];
        lines.map(|line| format!("[rank{rank}]: {line}\n")).concat()
    };
    (0..8).chain([3]).map(rank).collect()
}

#[test]
fn ranks_are_explained_together_and_listed_separately() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(log.path(), ranks()).expect("it is written");
    let path = log.path().to_str().expect("a path");
    let shown = text(&["explain", path]);
    assert!(shown.contains("8 ranks ran out: 0–7; requests from 22.00 MiB to 29.00 MiB"), "{shown}");
    assert!(shown.contains("train.py:61  step   loss = model(batch)"), "{shown}");
    let messages = json(&["explain", "--json", path])["messages"].clone();
    assert_eq!(messages.as_array().expect("a list").len(), 8);
    assert_eq!(
        (&messages[3]["rank"], &messages[3]["device"], &messages[3]["count"]),
        (&3.into(), &3.into(), &2.into())
    );
    assert_eq!(messages[3]["site"]["line"], 61);
}

#[test]
fn a_number_that_is_not_in_the_message_is_not_in_the_json() {
    let messages = json(&["explain", "--json", "fixtures/messages/xpu-ipex.txt"])["messages"].clone();
    let message = &messages[0];
    assert_eq!(
        (&message["generation"], &message["backend"], &message["cause"]),
        (&"torch-1.4".into(), &"xpu".into(), &"unknown".into())
    );
    let numbers: Vec<&String> = message["numbers"].as_object().expect("numbers").keys().collect();
    assert_eq!(numbers, ["allocated", "requested", "reserved", "total"]);
    assert_eq!(message["next"], "oomph run --cpu train.py");
}

fn piped(arguments: &[&str], input: &[u8]) -> (String, String, i32) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oomph"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("oomph runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr), output.status.code().expect("a code"))
}

#[test]
fn a_log_without_a_message_is_no_failure() {
    for arguments in [vec!["explain"], vec!["explain", "-"]] {
        let (out, err, code) = piped(&arguments, b"step 1\nstep 2\n");
        assert!(
            out.contains("no out-of-memory message in standard input (2 lines)")
                && err.is_empty()
                && code == 0,
            "{out}"
        );
    }
    let (out, err, code) = piped(&["explain", "--json"], b"");
    assert_eq!(
        (serde_json::from_str::<serde_json::Value>(&out).expect("JSON")["messages"].clone(), code),
        (serde_json::json!([]), 0)
    );
    assert!(err.contains("no out-of-memory message"), "{err}");
}

#[test]
fn a_file_that_cannot_be_read_is_one() {
    for path in ["no-such.log", "fixtures"] {
        let output = oomph(&["explain", path]);
        assert_eq!(output.status.code(), Some(2), "{path}");
    }
}

#[test]
fn what_a_log_holds_cannot_steer_the_terminal() {
    let log = b"Traceback (most recent call last):\n  File \"/home/me/\x07t.py\", line 3, in f\x08g\n    x = \x1b[2Jy\x9b1\nCUDA out of memory. Tried to allocate 1.00 GiB.\n";
    let (out, _, _) = piped(&["explain"], log);
    assert!(
        out.contains("t.py:3") && !out.chars().any(|letter| letter.is_control() && letter != '\n'),
        "{out:?}"
    );
}

#[test]
fn a_compressed_log_is_unpacked() {
    let log = std::fs::read(root().join("fixtures/messages/torch-2.2-full.txt")).expect("a fixture");
    let folder = tempfile::tempdir().expect("a folder");
    let gzip = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&log).and_then(|()| encoder.finish()).expect("memory")
    };
    let xz = {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(&log).and_then(|()| encoder.finish()).expect("memory")
    };
    let zstd = zstd::encode_all(&*log, 1).expect("memory");
    let plain = json(&["explain", "--json", "fixtures/messages/torch-2.2-full.txt"]);
    for (ending, bytes) in [("gz", &gzip), ("xz", &xz), ("zst", &zstd)] {
        let path = folder.path().join(format!("train.log.{ending}"));
        std::fs::write(&path, bytes).expect("writable");
        let path = path.to_str().expect("a name");
        assert_eq!(json(&["explain", "--json", path])["messages"], plain["messages"], "{ending}");
    }
    let path = folder.path().join("train.log.bz2");
    std::fs::write(&path, b"BZh91AY&SY").expect("writable");
    let done = oomph(&["explain", path.to_str().expect("a name")]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("bunzip2"));
}

#[test]
fn an_engine_is_answered_with_its_own_figures() {
    let log = "fixtures/serving/vllm-graphs.log";
    let shown = text(&["explain", log]);
    assert!(shown.contains("▼ lower gpu_memory_utilization from 0.97 to 0.90"), "{shown}");
    // The message of PyTorch is shown below, without advice for programs that train.
    assert!(shown.contains("GPU 0 is full: 22.05 GiB of tensors"), "{shown}");
    assert!(!shown.contains("fix:") && !shown.contains("next:"), "{shown}");
    let answer = json(&["explain", "--json", log]);
    let serving = &answer["serving"];
    let found = ["engine", "version", "failure", "turn", "to", "line"].map(|name| serving[name].to_string());
    assert_eq!(found, ["\"vllm\"", "\"0.10.2\"", "\"graphs_oom\"", "\"lower\"", "0.9", "10"]);
    let parts = serving["parts"].as_array().expect("a list").iter();
    let sum: u64 = parts.map(|part| part["bytes"].as_u64().expect("a size")).sum();
    assert_eq!(serving["whole"], sum);
    assert_eq!(answer["messages"].as_array().map(Vec::len), Some(1));
    assert!(json(&["explain", "--json", "fixtures/messages/slurm.txt"]).get("serving").is_none());
}

#[test]
fn the_gpu_of_a_log_can_be_named() {
    let log = "fixtures/serving/vllm-no-kv-cache.log";
    let value = |arguments: &[&str]| json(arguments)["serving"]["to"].clone();
    assert_eq!(value(&["explain", "--json", log]), serde_json::Value::Null);
    assert_eq!(value(&["explain", "--json", "--gpu", "h100", log]), 0.94);
    assert_eq!(value(&["explain", "--json", "--gpu", "140GiB", log]), 0.95);
}

#[test]
fn the_table_of_an_engine_fits_80_columns() {
    for name in ["vllm-no-kv-cache", "vllm-graphs", "vllm-healthy", "sglang-no-kv-cache", "sglang-healthy"] {
        let output = Command::new(env!("CARGO_BIN_EXE_oomph"))
            .args(["explain", &format!("fixtures/serving/{name}.log")])
            .env("COLUMNS", "80")
            .current_dir(root())
            .output()
            .expect("oomph runs");
        let shown = String::from_utf8(output.stdout).expect("text");
        for line in shown.lines() {
            assert!(line.chars().count() <= 80 && line == line.trim_end(), "{name}: `{line}`");
        }
    }
}
