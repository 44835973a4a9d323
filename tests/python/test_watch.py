"""`oomph watch` and the live sockets that it asks, with real programs on an emulated GPU."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from conftest import OOMPH, ROOT
from exporting import exporter, until
from oomph.recording import live_socket
from watching import running, screen


def test_a_look_says_what_pytorch_counts(tmp_path):
    with running(tmp_path, "    train(4)\n    say('READY')\n    train(1)\n    say('AGAIN')") as program:
        pid, stats = program.wait_for("READY")
        device = program.look(str(pid))
        for name, key in {
            "allocated": "allocated_bytes.all.current",
            "reserved": "reserved_bytes.all.current",
            "requested": "requested_bytes.all.current",
            "active": "active_bytes.all.current",
            "inactive_split": "inactive_split_bytes.all.current",
            "peak": "allocated_bytes.all.peak",
            "retries": "num_alloc_retries",
            "ooms": "num_ooms",
            "device_allocs": "num_device_alloc",
        }.items():
            assert device[name] == stats[key], name
        assert (device["pid"], device["step"], device["job"]) == (pid, 4, "train.py")
        assert device["pace"] == "warming up"
        # Every byte of the device is somebody's.
        split = device["split"]
        assert split["tensors"] == device["allocated"]
        assert split["tensors"] + split["cached"] == device["reserved"]
        assert split["non_pytorch"] > 0 and split["others"] == 0
        assert sum(split.values()) == device["total"]
        # Whoever has asked for them gets the lines that hold it, as of the end of the next step.
        program.let_go("READY")
        program.wait_for("AGAIN")
        device = program.look(str(pid))
        assert device["sites_step"] == 5
        assert any((site["file"] or "").endswith("train.py") for site in device["sites"])
        program.let_go("AGAIN")
        assert program.finish() == 0
        fifth = json.loads((tmp_path / "recording/rank0.steps.jsonl").read_text().splitlines()[4])
        assert sum(site["bytes"] for site in device["sites"]) == fifth["devices"][0]["allocated"]


def test_a_leak_is_called_within_ten_steps_and_a_clean_loop_is_not(tmp_path):
    program = """
    train(12)
    say("CLEAN")
    leak(8)
    say("LEAKS")
"""
    with running(tmp_path, program) as program:
        pid, _ = program.wait_for("CLEAN")
        assert program.look(str(pid))["pace"] == "flat"
        program.let_go("CLEAN")
        program.wait_for("LEAKS")
        device = program.look("recording")
        assert device["pace"] == "leaking"
        text = program.watch("--once").stdout
        assert re.search(r"LEAKING .* per step; full in about [\d,]+ steps", text), text


def test_the_slope_is_that_of_the_program(tmp_path):
    with running(tmp_path, "    leak(10)\n    say('READY')") as program:
        program.wait_for("READY")
        device = program.look()
        assert (device["pace"], device["bytes_per_step"]) == ("leaking", 8 << 20)
        room = device["split"]["free"] + device["reserved"] - device["peak"]
        assert device["steps_until_full"] == room // (8 << 20)


def test_the_screen(tmp_path):
    with running(tmp_path, "    leak(12)\n    say('READY')\n    leak(3)\n    say('AGAIN')") as program:
        program.wait_for("READY")
        with screen(f"{OOMPH} watch; stty -a", program.env, tmp_path) as shown:
            text = shown.shows("LEAKING")
            assert max(map(len, text.splitlines())) <= 80 and len(text.splitlines()) <= 24
            for words in ("oomph watch", "train.py · step 12", "GPU 0", "tensors", "cached", "non-PyTorch", "free", "q quit"):
                assert words in text, text
            # Without colour, as asked: no colours among what steers the terminal.
            assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|9[0-7])m", shown.text("-e"))
            program.let_go("READY")
            shown.shows(r"train\.py:\d+ in leak")  # the lines that hold most
            shown.press("?")
            shown.shows("Ctrl-C")
            shown.press("?")
            shown.press("d")
            shown.shows("recording written: oomph report")
            assert json.loads((tmp_path / "recording/rank0.json").read_text())["dumped"] == "asked"
            program.let_go("AGAIN")
            assert program.finish() == 0
            shown.shows("finished")
            shown.press("q")
            # The shell has its terminal back as it was.
            assert re.search(r"(?<!-)\becho\b", shown.shows("icanon"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_watcher_that_is_told_to_end_leaves_a_clean_terminal(tmp_path, number):
    with running(tmp_path, "    train(3)\n    say('READY')") as program:
        program.wait_for("READY")
        with screen(f"{OOMPH} watch; stty -a", program.env, tmp_path) as shown:
            shown.shows("GPU 0")
            (pid,) = _watchers(program)
            os.kill(pid, number)
            text = shown.shows("icanon")
            assert re.search(r"(?<!-)\becho\b", text) and "GPU 0" not in text


def _watchers(program) -> list[int]:
    """Those of this test: others may run beside it."""
    done = subprocess.run(["pgrep", "-f", f"^{OOMPH} watch$"], capture_output=True, text=True)
    return [pid for pid in map(int, done.stdout.split()) if _runtime_dir(pid) == str(program.sockets)]


def _runtime_dir(pid: int) -> str:
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = dict(part.split(b"=", 1) for part in file.read().split(b"\0") if b"=" in part)
    return os.fsdecode(variables.get(b"OOMPH_RUNTIME_DIR", b""))


def test_a_watcher_ends_with_its_terminal(tmp_path):
    with running(tmp_path, "    train(3)\n    say('READY')") as program:
        program.wait_for("READY")
        with screen(f"{OOMPH} watch", program.env, tmp_path) as shown:
            shown.shows("GPU 0")
            (pid,) = _watchers(program)
        until(lambda: not os.path.exists(f"/proc/{pid}"), "it goes on")


def test_ranks_are_side_by_side(tmp_path):
    program = """
    rank = os.environ["RANK"]
    (leak if rank == "1" else train)(12)
    say("READY" + rank)
"""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", sys.executable)
    with running(tmp_path, program, "--gpus", "2", launcher=launcher) as program:
        until(lambda: [each["step"] for each in _devices(program, "recording")] == [12, 12], "both ranks come to step 12")
        paces = {device["rank"]: device["pace"] for device in _devices(program, "recording")}
        assert paces == {0: "flat", 1: "leaking"}
        with screen(f"{OOMPH} watch recording", program.env, tmp_path) as shown:
            text = shown.shows("LEAKING")
            assert "train.py rank 0 GPU 0" in text and "train.py rank 1 GPU 0" in text
            assert "rank 0 of 2" in text
            shown.press("Down")
            shown.shows("rank 1 of 2")


def _devices(program, *target):
    return json.loads(program.watch("--once", "--json", *target).stdout or '{"devices": []}')["devices"]


@pytest.mark.nightly
def test_another_machine_is_watched_through_its_exporter(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    with (
        running(tmp_path, "    leak(10)\n    say('READY')") as program,
        exporter(program.sockets, "--token-file", str(secret)) as exporting,
    ):
        program.wait_for("READY")
        address = f"127.0.0.1:{exporting.port}"
        refused = program.watch("--once", address)
        assert refused.returncode == 2 and "requires a token" in refused.stderr
        target = (address, "--token-file", str(secret))
        until(lambda: [each["step"] for each in _devices(program, *target)] == [10], "the exporter hears of step 10")
        here, there = program.look(), program.look(*target)
        for name in ("pid", "folder", "allocated", "reserved", "split", "pace", "bytes_per_step", "steps_until_full"):
            assert there[name] == here[name], name


def test_a_watcher_that_is_there_early_does_not_come_between_imports(tmp_path):
    """PyTorch imports its compiler to name frames: while the program does so itself, nobody else may."""
    program = """
    import threading
    say("EARLY")
    import torch._dynamo, torch._inductor.codecache
    train(3)
    say("READY")
"""
    with running(tmp_path, program) as program:
        program.wait_for("EARLY")
        client = program.connect()
        client.sendall(b'{"stacks": true, "dump": true}\n')
        program.let_go("EARLY")
        assert client.recv(1 << 20)
        program.wait_for("READY")
        program.let_go("READY")
        assert program.finish() == 0
        client.close()


def test_nobody_harms_anybody(tmp_path):
    with running(tmp_path, "    train(3)\n    say('READY')\n    train(20)\n    say('AGAIN')") as program:
        pid, _ = program.wait_for("READY")
        command = [OOMPH, "watch", "--json", "--interval", "0.05", str(pid)]
        watchers = [subprocess.Popen(command, env=program.env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert all(json.loads(watcher.stdout.readline())["devices"] for watcher in watchers)
        # A watcher that is killed, clients that say nonsense, take no answer, or are too many.
        watchers[0].kill()
        clients = [program.connect() for _ in range(20)]
        clients[0].sendall(b"\x00\xff nonsense\n")
        clients[1].sendall(b"[" * 100_000)
        for _ in range(5):
            clients[2].sendall(b'{"since": 0, "stacks": true}\n')
        program.let_go("READY")
        program.wait_for("AGAIN")
        for client in clients:
            client.close()
        assert program.look(str(pid))["step"] == 23
        # A program that is killed: the watcher says so and ends, and the next look removes the socket.
        os.kill(pid, signal.SIGKILL)
        last = watchers[1].stdout.read().splitlines()[-1]
        assert json.loads(last)["devices"][0]["ended"] == "gone"
        assert watchers[1].wait(timeout=10) == 0
        program.watch("--once")
        assert program.socket_files() == []
        watchers[0].stdout.close()
        watchers[1].stdout.close()


def test_a_socket_is_its_owners(tmp_path):
    with running(tmp_path, "    train(3)\n    say('READY')") as program:
        program.wait_for("READY")
        (path,) = program.socket_files()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        program.let_go("READY")
        assert program.finish() == 0
        assert program.socket_files() == []


def test_a_process_that_the_program_forks_does_not_keep_the_socket(tmp_path):
    program = """
    import multiprocessing
    train(3)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,), daemon=False)
    child.start()
    say("READY")
    os.kill(os.getpid(), 9)
"""
    with running(tmp_path, program) as program:
        program.wait_for("READY")
        program.look()
        program.let_go("READY")
        program.process.wait(timeout=30)
        # Nobody answers any more, and nobody is waited for.
        assert program.watch("--once").stdout == ""
        assert program.socket_files() == []


def test_a_run_that_is_not_to_be_watched(tmp_path):
    with running(tmp_path, "    train(3)\n    say('READY')", "--no-live") as program:
        pid, _ = program.wait_for("READY")
        assert program.socket_files() == []
        done = program.watch(str(pid))
        assert done.returncode == 2 and "without a recorder of yours" in done.stderr


def test_a_folder_of_somebody_else_is_refused_and_the_program_goes_on(tmp_path):
    with running(tmp_path, "    train(3)\n    say('READY')") as program:
        program.sockets.chmod(0o777)
        program.wait_for("READY")
        program.let_go("READY")
        assert program.finish() == 0
        assert "cannot be watched" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize(
    "case", json.loads((ROOT / "crates/live/folders.json").read_text()), ids=lambda case: str(case["folders"])
)
def test_the_folders_of_the_recorder_are_those_of_the_watcher(case):
    assert live_socket.folders(case["env"], case["host"]) == case["folders"]


def test_a_watcher_in_another_session_finds_the_program(tmp_path):
    # The paths of sockets are short, and those of a test's own folder are not.
    home, elsewhere = pathlib.Path(tempfile.mkdtemp(dir="/tmp")), tmp_path / "elsewhere"
    env = {"HOME": str(home), "OOMPH_RUNTIME_DIR": "", "XDG_CACHE_HOME": "", "XDG_RUNTIME_DIR": ""}
    with running(tmp_path, "    train(3)\n    say('READY')", env=env) as program:
        pid, _ = program.wait_for("READY")
        (path,) = home.glob(".cache/oomph/live/*/*.sock")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        program.env |= {"HOME": str(elsewhere)}
        assert program.look(str(pid))["step"] == 3
        program.let_go("READY")
        assert program.finish() == 0
        assert not path.exists()


def test_without_a_private_folder_the_program_goes_on_and_says_so_once(tmp_path):
    env = {"HOME": "/proc", "OOMPH_RUNTIME_DIR": "", "XDG_CACHE_HOME": "", "XDG_RUNTIME_DIR": str(tmp_path / ("x" * 100))}
    with running(tmp_path, "    train(3)\n    say('READY')", env=env) as program:
        program.wait_for("READY")
        program.let_go("READY")
        assert program.finish() == 0
        said = (tmp_path / "stderr").read_text()
        assert said.count("cannot be watched") == 1 and "OOMPH_RUNTIME_DIR" in said
        assert "too long for a socket" in said and "/proc/.cache/oomph/live" in said


def test_nothing_of_root_is_made_in_the_home_of_a_user(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: home.stat().st_uid + 1)
    monkeypatch.setenv("HOME", str(home))
    for name in ("OOMPH_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="belongs to another user"):
        live_socket.LiveSocket(lambda question: {}).open()
    assert list(home.iterdir()) == []


def test_without_a_recorder_the_driver_is_asked(tmp_path):
    program = """
    import subprocess
    print(subprocess.run([os.environ["OOMPH_BIN"], "watch", "--once"], capture_output=True, text=True).stdout, flush=True)
    say("READY")
"""
    os.environ["OOMPH_BIN"] = str(OOMPH)
    with running(tmp_path, program, "--no-live") as program:
        lines = []
        for line in program.process.stdout:
            if line.startswith("READY"):
                break
            lines.append(line)
        text = "".join(lines)
        assert "GPU 0, NVIDIA H200" in text and "no recorder" in text and "process" in text, text
