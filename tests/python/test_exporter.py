"""`oomph exporter`: what a real Prometheus gets from it, who is answered, and that nobody's end harms the others."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from conftest import MODEL, OOMPH, ROOT
from exporting import TIMEOUT_SECONDS, Exporter, Prometheus, exporter, prometheus, running, runtime, tool, until
from hostile import STRANGER, folder_of, hostile, stranger

PAGE = (ROOT / "docs/reference/metrics.md").read_text()
DASHBOARD = ROOT / "docs/grafana-dashboard.json"
NAME = 'train "a" \\ ü.py'
"""Nothing that a file may be called is a reason to lose a scrape."""

LEAK = (
    MODEL
    + """
    import os, time
    kept = []
    for step in range(12):
        train(1)
        kept.append(torch.zeros(4 << 20, dtype=torch.uint8, device="cuda"))
    while not os.path.exists("stop"):
        time.sleep(0.02)
"""
)
STEADY = """
    import os, time, torch
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while not os.path.exists("stop"):
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if os.path.exists("fork"):
            if os.fork() == 0:
                while not os.path.exists("stop"):
                    time.sleep(0.02)
                os._exit(0)
            os.rename("fork", "forked")
"""


def block(beginning: str) -> str:
    """The example of the page that begins so."""
    return next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if text.startswith(beginning))


def documented() -> set[str]:
    return set(re.findall(r"^\| `(oomph_\w+)`", PAGE, re.MULTILINE))


def queries() -> list[str]:
    """All that the dashboard asks, as Grafana would send it."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [
        re.sub(r"\$__\w+", "1m", query).replace("$instance", ".*").replace("$job", ".*").replace("$rank", ".*") for query in asked
    ]


def exported(text: str) -> set[str]:
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def test_a_real_prometheus_gets_what_the_recorder_says(tmp_path):
    with contextlib.ExitStack() as stack:
        sockets = stack.enter_context(runtime())
        program = stack.enter_context(running(tmp_path / "leak", sockets, LEAK, NAME, "--emulate", "h100"))
        exporting = stack.enter_context(exporter(sockets))
        scrape = block("scrape_configs:").replace("127.0.0.1:16674", f"127.0.0.1:{exporting.port}")
        server = stack.enter_context(prometheus(tmp_path / "prometheus", scrape, block("groups:")))
        program.reaches(12)
        until(lambda: server.value("oomph_steps_total") == 12, "Prometheus does not hear of all steps")
        until(lambda: server.value("oomph_growing") == 1, "the leak is not reported")

        # The driver's numbers are asked for less often than PyTorch's.
        until(lambda: not differences(server, program.says()), "Prometheus and the recorder differ")
        check_rest(server, program.says())
        check_names(exporting)
        check_dashboard(server)
        alerts = until(lambda: server.ask('ALERTS{alertname="GpuMemoryGrows"}'), "nobody is called for a leak")
        assert alerts[0]["metric"]["job"] == NAME
        assert program.finish() == 0
        until(lambda: server.value("oomph_recorders") == 0, "a program that has ended is still counted")
        until(lambda: not server.ask("oomph_memory_allocated_bytes"), "a program that has ended is still told")


def differences(server: Prometheus, state: dict) -> dict[str, tuple[float, float]]:
    """Numbers that are not in Prometheus to the byte, as the recorder and Prometheus have them."""
    assert state["pinned"] is not None and state["devices"][0]["used"], state
    labels = {"job": NAME, "rank": "0", "pid": str(state["pid"]), "device": "0"}
    [row] = state["devices"]
    own = sum(process["bytes"] for process in row["processes"] if process["pid"] == state["pid"])
    expected = {f"memory_{name}_bytes": row[name] for name in ("allocated", "reserved", "requested", "active", "inactive_split")}
    expected |= {"memory_peak_allocated_bytes": row["peak"], "device_total_bytes": row["total"]}
    expected |= {"alloc_retries_total": row["retries"], "ooms_total": row["ooms"], "device_allocs_total": row["device_allocs"]}
    expected |= {"device_free_bytes": row["total"] - row["used"], "process_non_pytorch_bytes": own - row["reserved"]}
    expected |= {"device_used_by_others_bytes": sum(process["bytes"] for process in row["processes"]) - own}
    expected |= {"growing": 1, "growth_bytes_per_step": 4 << 20}
    found = {}
    for name in expected:
        [sample] = server.ask(f"oomph_{name}")
        assert labels.items() <= sample["metric"].items(), sample
        found[name] = float(sample["value"][1])
    return {name: (value, found[name]) for name, value in expected.items() if value != found[name]}


def check_rest(server: Prometheus, state: dict) -> None:
    [row] = state["devices"]
    left = (row["total"] - row["used"] + row["reserved"] - row["peak"]) // (4 << 20)
    assert server.value("oomph_steps_until_full") == left
    assert server.value("oomph_pinned_host_bytes") == state["pinned"]
    assert server.value("oomph_last_answer_age_seconds") < TIMEOUT_SECONDS
    [info] = server.ask("oomph_recorder_info")
    told = {"torch": state["torch"], "folder": state["folder"], "host": state["host"], "kind": "cuda", "job": NAME}
    assert told.items() <= info["metric"].items()


def check_names(exporting: Exporter) -> None:
    """promtool finds nothing to say, and the page lists every metric."""
    for headers in ({}, {"Accept": "text/plain"}):
        _, text = exporting.get(**headers)
        done = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done
    # GPUs are the driver's, and owners are known with --trace-driver: an emulated GPU has neither.
    of_driver = {name for name in documented() if name.startswith(("oomph_gpu_", "oomph_owner_"))}
    assert exported(text) - of_driver == documented() - of_driver
    status, text = exporting.get(Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert status == 200 and text.endswith("# EOF\n") and "# TYPE oomph_steps counter\n" in text


def check_dashboard(server: Prometheus) -> None:
    for query in queries():
        names = set(re.findall(r"oomph_\w+", query))
        assert names and names <= documented(), query
        # A rate needs two scrapes; this machine may have no GPU.
        until(lambda query=query: server.ask(query) or "oomph_gpu_" in query, f"nothing to be seen: {query}")


def test_the_alert_rules_of_the_page_are_rules(tmp_path):
    rules = tmp_path / "rules.yml"
    rules.write_text(block("groups:"))
    done = subprocess.run([tool("promtool"), "check", "rules", rules], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert set(re.findall(r"oomph_\w+", rules.read_text())) <= documented()


def test_nobodys_end_harms_the_others(tmp_path):
    with contextlib.ExitStack() as stack:
        sockets = stack.enter_context(runtime())
        first, second = (stack.enter_context(exporter(sockets)) for _ in range(2))
        lasting = stack.enter_context(running(tmp_path / "lasting", sockets, STEADY, "lasting.py", "--cpu"))
        killed = stack.enter_context(running(tmp_path / "killed", sockets, STEADY, "killed.py", "--cpu"))
        for each in (first, second):
            until(lambda each=each: {"lasting.py", "killed.py"} <= jobs(each), "not every program is seen")
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert stat.S_IMODE(killed.socket.stat().st_mode) == 0o600 and stat.S_ISSOCK(killed.socket.stat().st_mode)
        assert 'device="cpu"' in first.metrics()

        # What is left of it, like the worker of a data loader, keeps nobody from seeing its end.
        (killed.folder / "fork").touch()
        until((killed.folder / "forked").exists, "the program does not fork")
        killed.kill()
        until(lambda: jobs(first) == jobs(second) == {"lasting.py"}, "a program that was killed is still told")
        until(lambda: not killed.socket.exists(), "its socket is not removed")
        (killed.folder / "stop").touch()

        first.process.kill()
        steps = lasting.says()["count"]
        lasting.reaches(steps + 5)
        age = re.search(r"oomph_last_answer_age_seconds\{.*?\} (\S+)", second.metrics())
        assert age and float(age[1]) < 10, "the other exporter still hears of it"
        assert lasting.finish() == 0
        until(lambda: jobs(second) == set(), "a program that has ended is still told")


def jobs(exporting: Exporter) -> set[str]:
    return set(re.findall(r'oomph_recorder_info\{job="(.*?)"', exporting.metrics()))


def uses(exporting: Exporter) -> tuple[int, int]:
    """Threads of the exporter, and the most memory that it has had, in bytes."""
    lines = pathlib.Path(f"/proc/{exporting.process.pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status["Threads"]), int(status["VmHWM"].split()[0]) << 10


def test_a_hostile_user_stops_nobody(tmp_path):
    """Root watches all users: what one of them puts into a folder costs neither the others nor the exporter."""
    with contextlib.ExitStack() as stack:
        sockets = stack.enter_context(folder_of(stranger()))
        for kind in ("endless", "devices", "links", "silent", "pipe"):
            stack.enter_context(hostile(sockets, kind))
        honest = stack.enter_context(hostile(sockets, "honest"))
        exporting = stack.enter_context(exporter(sockets))
        until(lambda: {"honest.py", "devices.py"} <= jobs(exporting), "the others are not seen")
        until(lambda: "pipe.py" not in jobs(exporting), "a pipe in place of a file is waited for")
        ages = f'oomph_last_answer_age_seconds{{job="honest.py",rank="0",pid="{honest.pid}"}} '
        until(lambda: ages in exporting.metrics(), "it is not heard of any more")
        # 64 devices of the one that claims 20,000; the others have one each, and links are not more of them.
        assert exporting.metrics().count("oomph_memory_allocated_bytes{") == 64 + len(("honest", "links"))
        threads, memory = uses(exporting)
        assert threads < 40 and memory < 200 << 20, (threads, memory)


def test_sockets_of_one_user_are_limited_and_the_rest_is_counted():
    with folder_of(stranger()) as sockets, hostile(sockets, "many", 100), exporter(sockets) as exporting:
        until(lambda: "oomph_recorders_left_out 36\n" in exporting.metrics(), "what is left out is not counted")
        threads, _ = uses(exporting)
        assert threads < 64 + 20, threads
        note = exporting.said + exporting.process.stderr.readline()
        assert f"note: 36 live sockets of user {stranger()} left out: at most 64 per user" in note


def test_root_removes_nothing_in_folders_of_others():
    with folder_of(stranger()) as sockets:
        with hostile(sockets, "killed") as killed:
            (left,) = sockets.glob("*.sock")
            killed.kill()
        with exporter(sockets) as exporting:
            assert "oomph_recorders 0" in exporting.metrics()
            if stranger() == os.getuid():
                until(lambda: not left.exists(), "its socket is not removed")
            else:
                time.sleep(1)
                assert left.exists()


def test_users_are_found_by_the_kernels_list(tmp_path):
    """Also where nobody would look: a program of another session, or of another user if this one is root."""
    with folder_of(stranger()) as sockets, hostile(sockets, "honest") as honest:
        env = {name: value for name, value in os.environ.items() if name not in ("OOMPH_RUNTIME_DIR", "XDG_RUNTIME_DIR")}
        env |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
        command = [OOMPH, "exporter", "--once"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT_SECONDS)
        assert f'job="honest.py",rank="0",pid="{honest.pid}"' in done.stdout, done
        # Others see nothing of it.
        if os.getuid() == 0:
            shutil.copy(OOMPH, sockets / "oomph")
            sockets.chmod(0o755)
            done = subprocess.run(
                [sockets / "oomph", "exporter", "--once"],
                capture_output=True,
                text=True,
                env=env,
                timeout=TIMEOUT_SECONDS,
                user=STRANGER + 1,
            )
            assert done.returncode == 0 and "honest.py" not in done.stdout, done


@pytest.fixture
def alone():
    """An exporter with nothing to export."""
    with runtime() as sockets, exporter(sockets) as exporting:
        yield exporting


def test_it_says_where_it_is_and_what_is_there(alone):
    assert re.search(r"http://127\.0\.0\.1:\d+/metrics · 0 recorders now", alone.said), alone.said
    assert "oomph_recorders 0" in alone.metrics() and "oomph_driver_up " in alone.metrics()
    status, text = alone.get("/")
    assert status == 200 and "/metrics" in text and "/live" in text
    assert alone.get("/-/healthy")[0] == 200
    assert alone.get("/nothing")[0] == 404
    assert json.loads(alone.get("/live")[1]) | {"gpus": []} == {"version": 1, "recorders": [], "gpus": []}


def test_a_page_from_elsewhere_whose_name_points_here_is_not_answered(alone):
    for path in ("/metrics", "/live", "/", "/-/healthy"):
        assert alone.get(path, Host="rebound.example")[0] == 403
        assert alone.get(path, Host="localhost:9")[0] == 200


def test_nothing_can_be_changed(alone):
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(alone.base + "/metrics", data=b"{}", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def test_hostile_clients_do_not_stop_it(alone):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", alone.port))) for _ in range(50)]
        for connection in slow:
            connection.sendall(b"GET /metrics HT")
        for garbage in (b"\0\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000, b"\x16\x03\x01\x02\x00"):
            with socket.create_connection(("127.0.0.1", alone.port)) as connection, contextlib.suppress(OSError):
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(4096)[:12] in (b"HTTP/1.1 400", b"")
        begun = time.monotonic()
        assert "oomph_recorders 0" in alone.metrics()
        assert time.monotonic() - begun < 5


def test_only_clients_with_the_token_are_answered(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    with runtime() as sockets, exporter(sockets, "--token-file", str(secret)) as exporting:
        assert "warning: other users can read the token" in exporting.said
        for path in ("/metrics", "/live", "/", "/nothing"):
            assert exporting.get(path)[0] == exporting.get(path, Authorization="Bearer wrong")[0] == 401
            assert exporting.get(path, Authorization="Bearer s3cret")[0] != 401
        assert exporting.get("/live", Authorization="Bearer s3cret")[0] == 200
        assert exporting.get("/-/healthy")[0] == 200


def test_beyond_this_machine_command_lines_need_a_token(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    with runtime() as sockets, exporter(sockets, address="0.0.0.0") as exporting:
        assert exporting.get("/metrics", Host="gpu7.example:16674")[0] == 200
        status, why = exporting.get("/live")
        assert status == 403 and "--token-file" in why
        assert "anyone who reaches this address can read" in exporting.process.stderr.readline()
    with runtime() as sockets, exporter(sockets, "--token-file", str(secret), address="0.0.0.0") as exporting:
        assert exporting.get("/live", Authorization="Bearer s3cret", Host="gpu7.example:16674")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once(alone, number):
    with socket.create_connection(("127.0.0.1", alone.port)):
        alone.process.send_signal(number)
        assert alone.process.wait(timeout=3) == 0


def test_invalid_options_are_reported(alone, tmp_path):
    def refused(*options: str | pathlib.Path) -> str:
        done = subprocess.run([OOMPH, "exporter", *options], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 2 and not done.stdout, done
        return done.stderr

    taken = refused("--listen", f"127.0.0.1:{alone.port}")
    assert "cannot listen on" in taken and "--listen" in taken
    assert "127.0.0.1:16674" in refused("--listen", "nonsense")
    assert "no token" in refused("--listen", "127.0.0.1:0", "--token-file", tmp_path / "missing")
    (tmp_path / "empty").touch()
    assert "no token" in refused("--listen", "127.0.0.1:0", "--token-file", tmp_path / "empty")


def test_once_prints_the_metrics():
    with runtime() as sockets:
        env = {**os.environ, "OOMPH_RUNTIME_DIR": str(sockets)}
        done = subprocess.run([OOMPH, "exporter", "--once"], capture_output=True, text=True, env=env, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0 and "oomph_recorders 0\n" in done.stdout, done
