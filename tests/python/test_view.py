"""The server of `oomph view`: who is answered, how it begins and ends, and the page that it serves."""

import contextlib
import filecmp
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from conftest import FIXTURES, OOMPH, ROOT
from hostile import STRANGER
from oomph._native import size
from viewing import served

LEAK = FIXTURES / "zoo/leak_infer_outputs.pickle.xz"


@pytest.fixture(scope="module")
def url():
    with served(LEAK) as url:
        yield url


def status(url: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_who_knows_the_address_is_answered(url):
    base = url[: url.rindex("/", 0, len(url) - 1) + 1]
    assert status(url) == 200
    assert status(url + "api/overview") == 200
    assert status(base) == 404
    assert status(base + "api/overview") == 404
    assert status(base + "0" * 32 + "/api/overview") == 404
    assert status(url + "../etc/passwd") == 404
    assert status(url + "api/nonsense") == 400


def test_a_page_from_elsewhere_whose_name_points_here_is_not_answered(url):
    assert status(url, Host="rebound.example") == 403
    assert status(url, Host="localhost:9999") == 200, "a tunnel may listen on another port"


def test_nothing_can_be_changed(url):
    for method in ["POST", "PUT", "DELETE"]:
        assert status(url + "api/overview", method) == 405


def test_only_this_machine_can_reach_it(url):
    port = urllib.parse.urlparse(url).port
    own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in own:
        with pytest.raises(OSError):
            socket.create_connection((address, port), timeout=2)
    with socket.create_connection(("127.0.0.1", port), timeout=2):
        pass


def test_a_broken_request_harms_nobody(url):
    port = urllib.parse.urlparse(url).port
    for garbage in [b"\0\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n", b"x" * 100_000]:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(garbage)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", urllib.parse.urlparse(url).path + "api/table?run=0&search=%ff%zz&of=allocations")
    assert connection.getresponse().status == 200
    assert status(url + "api/overview") == 200


def test_the_page_may_talk_to_nobody_else(url):
    with urllib.request.urlopen(url) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy


@pytest.mark.parametrize("command", [(OOMPH,), (sys.executable, "-m", "oomph")], ids=["binary", "wheel"])
def test_ctrl_c_ends_it_at_once(command):
    process = subprocess.Popen(
        [*command, "view", "--no-open", LEAK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    url = process.stdout.readline().strip()
    assert status(url) == 200
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=10)
    assert time.monotonic() - begun < 3
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=2)


def is_runnable(pid: int) -> bool:
    """Whether its first thread wants to compute now, be the machine as busy as it may."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


@contextlib.contextmanager
def viewing(folder: pathlib.Path, **options):
    """`oomph view` of a copy that any user can read, as a user who has no other process: its address and its process."""
    binary, snapshot = folder / "oomph", folder / LEAK.name
    shutil.copy(OOMPH, binary)
    shutil.copy(LEAK, snapshot)
    folder.chmod(0o755)
    user = STRANGER if os.getuid() == 0 else os.getuid()
    command = [binary, "view", snapshot]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, user=user, cwd="/", **options
    )
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def limit(process: subprocess.Popen[str], what: str) -> None:
    """Sets a soft limit of a process, as its own user: root needs a capability for it that containers do not have."""
    user = pathlib.Path(f"/proc/{process.pid}").stat().st_uid
    subprocess.run(["prlimit", "--pid", str(process.pid), what], user=user, check=True, timeout=30, cwd="/")


@pytest.fixture
def reachable():
    """A folder that every user can come to."""
    with tempfile.TemporaryDirectory(prefix="oomph-", dir="/tmp") as folder:
        yield pathlib.Path(folder)


def test_without_descriptors_it_waits_and_goes_on_afterwards(reachable):
    with viewing(reachable) as (url, process):
        assert status(url) == 200
        limit(process, "--nofile=8:")
        address = ("127.0.0.1", urllib.parse.urlparse(url).port)
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(socket.create_connection(address, timeout=5))
            time.sleep(1)
            looks = []
            for _ in range(50):
                looks.append(is_runnable(process.pid))
                time.sleep(0.02)
            assert sum(looks) < 25, "it spins"
        assert status(url) == 200


def test_without_threads_it_waits_and_goes_on_afterwards(reachable):
    with viewing(reachable) as (url, process):
        assert status(url) == 200
        hard = re.search(r"Max processes +\S+ +(\S+)", pathlib.Path(f"/proc/{process.pid}/limits").read_text())[1]
        limit(process, "--nproc=1:")
        with pytest.raises(OSError):
            status(url)
        assert process.poll() is None
        limit(process, f"--nproc={hard}:")
        assert status(url) == 200


def test_the_browsers_command_line_opens_the_page_once_and_for_its_user_only(reachable):
    opener = reachable / "bin/xdg-open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\necho "$@" > {reachable}/new\nmv {reachable}/new {reachable}/opened\n')
    opener.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "WSL_"))}
    reachable.chmod(0o755)
    user = STRANGER if os.getuid() == 0 else os.getuid()
    os.chown(reachable, user, -1)
    with viewing(reachable, env={**environ, "DISPLAY": ":0", "PATH": f"{opener.parent}:{os.environ['PATH']}"}) as (url, _):
        deadline = time.monotonic() + 20
        while not (reachable / "opened").exists():
            assert time.monotonic() < deadline, "no browser was opened"
            time.sleep(0.05)
        address = (reachable / "opened").read_text().strip()
        token = urllib.parse.urlparse(url).path.strip("/")
        assert len(token) == 32 and token not in address
        get = [
            "curl",
            "--silent",
            "--noproxy",
            "*",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code} %{redirect_url}",
            address,
        ]

        def answer(of: int) -> str:
            return subprocess.run(get, user=of, capture_output=True, text=True, check=True, timeout=30, cwd="/").stdout.strip()

        if os.getuid() == 0:
            assert answer(STRANGER + 1) == "404", "somebody else"
        assert answer(user) == f"303 {url}"
        assert answer(user) == "404", "once"


def test_over_ssh_the_tunnel_command_is_printed():
    env = {**os.environ, "SSH_CONNECTION": "10.0.0.7 50022 10.0.0.9 22", "USER": "ada"}
    command = [OOMPH, "view", LEAK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    port = urllib.parse.urlparse(process.stdout.readline().strip()).port
    said = [process.stderr.readline() for _ in range(4)]
    process.kill()
    assert f"ssh -N -L {port}:127.0.0.1:{port} ada@10.0.0.9" in "".join(said), said


def test_invalid_inputs_are_reported_before_anything_is_served(tmp_path):
    def refused(*arguments: str | pathlib.Path) -> str:
        done = subprocess.run([OOMPH, "view", "--no-open", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and not done.stdout, done
        return done.stderr

    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"nothing of the kind")
    assert "is not a CUDA memory snapshot" in refused(broken)
    assert "no such file" in refused(tmp_path / "missing.pickle").lower()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen on port" in refused("--port", str(taken.getsockname()[1]), LEAK)
    assert "cannot be written" in refused_html(tmp_path / "no/folder/page.html")


def refused_html(target: pathlib.Path) -> str:
    done = subprocess.run([OOMPH, "view", "--html", target, LEAK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and not target.exists()
    return done.stderr


def test_an_exported_page_is_as_large_as_was_allowed(tmp_path):
    sizes = {}
    for limit in ["1MiB", "4MiB"]:
        page = tmp_path / f"{limit}.html"
        source = FIXTURES / "zoo/frag_variable_length.pickle.xz"
        done = subprocess.run(
            [OOMPH, "view", "--html", page, "--max-size", limit, source], capture_output=True, text=True, timeout=300, check=True
        )
        assert "not all detail fits" in done.stderr
        sizes[limit] = page.stat().st_size
    assert sizes["1MiB"] <= 1 << 20 < sizes["4MiB"] <= 4 << 20, sizes


def test_a_what_if_is_that_of_simulate(url):
    query = urllib.parse.urlencode({"run": 0, "conf": "expandable_segments:True", "gpu": 24 << 30})
    with urllib.request.urlopen(f"{url}api/whatif?{query}") as answer:
        shown = json.load(answer)
    command = [OOMPH, "simulate", "--json", "--conf", "expandable_segments:True", "--gpu", "24GiB", LEAK]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {key: value for key, value in shown["answer"].items() if key != "file"} == {
        key: value for key, value in said.items() if key != "file"
    }
    assert shown["run"]["reservedPeak"]["bytes"] == said["peak_reserved"]


def test_the_built_page_is_what_its_sources_say(tmp_path):
    """Cargo and pip take the page as it is committed; node is only needed here."""
    subprocess.run(["node", "build.mjs", tmp_path / "page.html"], cwd=ROOT / "web", check=True)
    same = filecmp.cmp(tmp_path / "page.html", ROOT / "crates/viewer/assets/page.html", shallow=False)
    assert same, "the committed page is not what web/src builds: run `make page` and commit it"


def test_the_sources_of_the_page_have_no_type_errors():
    subprocess.run(["npx", "--no-install", "tsc", "--noEmit"], cwd=ROOT / "web", check=True)


def test_the_page_writes_sizes_as_the_terminal_does(tmp_path):
    """Also those that lie in the middle of two roundings: 84.25 MiB is 84.2 MiB in both."""
    sizes = [whole << shift for shift in (0, 10, 20, 30) for whole in range(1, 2200)]
    sizes += [(eighths << shift) // 8 for shift in (10, 20, 30) for eighths in range(1, 2200)]
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    script = """
        import { build } from "esbuild";
        import { readFileSync } from "node:fs";
        const { outputFiles } = await build({ entryPoints: ["src/state/format.ts"], format: "esm", write: false });
        const { bytes } = await import(`data:text/javascript,${encodeURIComponent(outputFiles[0].text)}`);
        console.log(JSON.stringify(JSON.parse(readFileSync(process.argv[1], "utf8")).map(bytes)));
    """
    command = ["node", "--input-type=module", "--eval", script, tmp_path / "sizes.json"]
    done = subprocess.run(command, cwd=ROOT / "web", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [size(each) for each in sizes]
