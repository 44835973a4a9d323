"""`oomph fleet` on object stores: a real S3 server on loopback, behind a proxy that is slow and fails, and plain HTTP."""

import http.client
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

import fleet_stores
from conftest import OOMPH
from fleet_stores import Misbehaviour
from test_fleet import simulated

RANKS = 8
BUCKET = "jobs"
SECRET = "wJalrXUtnFEMIsecret"
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261118/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


def without_credentials() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
    }


def oomph(*arguments: str | pathlib.Path, env: dict[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = without_credentials() | {"HOME": "/nowhere"} | (env or {})
    done = subprocess.run([OOMPH, *arguments], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == code, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("stores") / "run"
    simulated.make(folder, RANKS, simulated.Base(simulated.BASE), is_clean=True)
    (folder / "rank3.pickle").write_bytes(b"")
    subprocess.run([OOMPH, "summarize", folder / "rank5.pickle"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def expected(job: pathlib.Path) -> str:
    """The answer for the folder, with the names that the files have below `BASE/`."""
    return oomph("fleet", "--json", job).stdout.replace(f"{job}/", "BASE/")


@pytest.fixture(scope="module")
def s3(job: pathlib.Path) -> Iterator[int]:
    with fleet_stores.s3() as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        names = ["", *(f"/team/run/{path.name}" for path in job.iterdir())]
        for name in names:
            body = (job / name.rpartition("/")[2]).read_bytes() if name else b""
            connection.request("PUT", f"/{BUCKET}{name}", body=body, headers={"Authorization": SIGNED})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        yield port


def through(port: int) -> dict[str, str]:
    return CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def test_a_bucket_gives_the_same_answer_as_a_folder(s3: int, expected: str) -> None:
    misbehaviour = Misbehaviour()
    with fleet_stores.proxy(s3, misbehaviour) as port:
        answer = oomph("fleet", "--json", f"s3://{BUCKET}/team/run", env=through(port)).stdout
        matching = oomph("fleet", "--json", f"s3://{BUCKET}/team/run/rank*.pickle", env=through(port)).stdout
    assert answer.replace(f"s3://{BUCKET}/team/run/", "BASE/") == expected
    assert matching == answer
    # The rank with a summary: the summary, and the end of the snapshot.
    whole = misbehaviour.requests[: len(misbehaviour.requests) // 2]
    asked = [line for line in whole if "rank5." in line]
    size = [line.rpartition("bytes=")[2] for line in asked if ".pickle" in line]
    assert len(asked) == 2 and len(size) == 1
    first, last = map(int, size[0].split("-"))
    assert last - first == (64 << 10) - 1


@pytest.mark.nightly
def test_a_server_that_fails_now_and_then_changes_nothing(s3: int, expected: str) -> None:
    misbehaviour = Misbehaviour({7: fleet_stores.refuse(503), 5: fleet_stores.refuse(500), 4: fleet_stores.cut})
    with fleet_stores.proxy(s3, misbehaviour) as port:
        answer = oomph("fleet", "--json", f"s3://{BUCKET}/team/run/", env=through(port)).stdout
    assert answer.replace(f"s3://{BUCKET}/team/run/", "BASE/") == expected
    assert misbehaviour.done > 5


def test_the_keys_of_a_profile_are_used(s3: int, expected: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = http://127.0.0.1:{s3}\n")
    (folder / "credentials").write_text(f"[lab]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {SECRET}\n")
    answer = oomph("fleet", "--json", f"s3://{BUCKET}/team/run", env={"HOME": str(tmp_path), "AWS_PROFILE": "lab"}).stdout
    assert answer.replace(f"s3://{BUCKET}/team/run/", "BASE/") == expected


def test_what_a_store_refuses_is_an_error_without_secrets(s3: int) -> None:
    refused = oomph("fleet", "s3://nobodys/run", env=through(s3), code=2).stderr
    assert "`s3://nobodys/run` cannot be read" in refused and "cause:" in refused and "hint:" in refused
    empty = oomph("fleet", f"s3://{BUCKET}/team/walk", env=through(s3), code=2).stderr
    assert f"`s3://{BUCKET}/team/walk` has no files" in empty


def test_files_over_http_are_read_in_ranges(job: pathlib.Path, expected: str) -> None:
    ranges: list[str] = []
    with fleet_stores.ranged_files(job, ranges) as port:
        base = f"http://user:{SECRET}@127.0.0.1:{port}"
        answer = oomph("fleet", "--json", *(f"{base}/run/rank{rank}.pickle" for rank in range(RANKS))).stdout
        assert answer.replace(f"http://127.0.0.1:{port}/run/", "BASE/") == expected
        assert len(ranges) > RANKS
        refused = oomph("fleet", f"{base}/run/", code=2).stderr
        assert "cannot be listed" in refused and "name the files" in refused
        report = oomph("fleet", "--rank", "2", f"{base}/run/rank2.pickle").stdout
    local = oomph("report", job / "rank2.pickle").stdout
    assert report.replace(f"http://127.0.0.1:{port}/run", str(job)).split() == local.split()


def test_summaries_of_a_bucket_are_written_to_a_folder(s3: int, tmp_path: pathlib.Path) -> None:
    refused = oomph("summarize", f"s3://{BUCKET}/team/run", env=through(s3), code=2).stderr
    assert "no summary can be written next to `s3://" in refused
    oomph("summarize", "-o", tmp_path / "summaries", f"s3://{BUCKET}/team/run/rank1.pickle", env=through(s3))
    assert [path.name for path in tmp_path.glob("summaries/*")] == ["rank1.summary.arrow"]
