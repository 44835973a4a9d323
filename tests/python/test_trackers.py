"""`oomph.record(log_to=…)`, with the real trackers, which keep what they get on this machine."""

import http.server
import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import oomph
from conftest import FORKING_PYTHON
from oomph.trackers import step_log
from oomph.trackers.metrics import Reading

pytestmark = pytest.mark.filterwarnings("ignore")
MIB = 1 << 20


@pytest.fixture
def each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of tests take less than a second."""
    monkeypatch.setattr(step_log, "_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(step_log, "_MAX_SHARE", 1e9)


def leaking(path: Path, log_to, steps: int = 10, after_step=lambda step: None) -> list[tuple[int, dict[str, int]]]:
    """Keeps 1 MiB in each step, and returns what a function is given."""
    kept, seen = [], []
    functions = [*log_to, lambda step, metrics: seen.append((step, metrics))]
    with oomph.record(path, device="cpu", holders=False, log_to=functions) as recording:
        for step in range(1, steps + 1):
            kept.append(torch.zeros(MIB // 4))
            recording.step()
            after_step(step)
    return seen


def test_a_function_gets_the_recorders_counters(tmp_path, each_step):
    seen = leaking(tmp_path / "r", [])
    rows = [json.loads(line) for line in (tmp_path / "r/rank0.steps.jsonl").read_text().splitlines()]
    assert [step for step, _ in seen] == [row["step"] for row in rows] == list(range(1, 11))
    for (_, metrics), row in zip(seen, rows):
        device = row["devices"][0]
        assert metrics["oomph/memory_allocated_bytes"] == device["allocated"]
        assert metrics["oomph/memory_peak_allocated_bytes"] == device["peak"]
    allocated = [metrics["oomph/memory_allocated_bytes"] for _, metrics in seen]
    assert {b - a for a, b in zip(allocated, allocated[1:])} == {MIB}


def test_steps_within_a_second_are_one_row_with_the_highest_values(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(step_log.time, "monotonic", lambda: now[0])
    seen = []
    with oomph.record(tmp_path / "r", device="cpu", holders=False, log_to=lambda *row: seen.append(row)) as recording:
        before = torch.zeros(1)
        for mib in (1, 8, 2, 3, 1):
            held = torch.zeros(mib * MIB // 4)
            recording.step()
            now[0] += 0.3
        del held, before
    allocated = [metrics["oomph/memory_allocated_bytes"] for _, metrics in seen]
    # The second row is that of steps 2 to 5, the first step after a second has passed.
    assert [step for step, _ in seen] == [1, 5]
    assert allocated[1] - allocated[0] == 7 * MIB


def test_a_slow_tracker_takes_a_hundredth_of_the_run(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(step_log.time, "monotonic", lambda: now[0])
    calls = []

    def slow(step, metrics):
        calls.append(step)
        now[0] += 0.5

    log = step_log.StepLog(slow, pytest.fail)
    for step in range(1, 1101):
        log.step_ended({"step": step, "devices": []}, {})
        now[0] += 0.1
    assert len(calls) == 3, "0.5 s every 50 s"


def test_further_devices_have_their_number_in_the_name_and_memory_outside_pytorch_is_the_drivers():
    import os

    counters = {"reserved": 2, "inactive_split": 0, "peak": 3, "retries": 0, "ooms": 1}
    reading = Reading("cuda")
    driver = {"device": 1, "reserved": 40, "used": 75, "processes": [{"pid": 9, "bytes": 20}, {"pid": os.getpid(), "bytes": 45}]}
    reading.add({"step": 1, "devices": [{"device": 1, "allocated": 1, **counters}]}, {"devices": [driver]})
    rows = [{"device": 0, "allocated": 7, **counters}, {"device": 1, "allocated": 0, **counters}]
    reading.add({"step": 2, "devices": rows, "pinned": 5}, {})
    flat = reading.flat()
    assert (flat["oomph/memory_allocated_bytes"], flat["oomph/device0/memory_allocated_bytes"]) == (1, 7)
    assert (flat["oomph/process_non_pytorch_bytes"], flat["oomph/device_used_by_others_bytes"]) == (5, 20)
    assert flat["oomph/pinned_host_bytes"] == 5
    following = reading.begin()
    following.add({"step": 3, "devices": rows}, {})
    assert following.flat()["oomph/device0/memory_allocated_bytes"] == 7, "names stay"
    # Another process ID in a container: the process is the one that holds a little more than PyTorch has reserved.
    hidden = Reading("cuda")
    driver["processes"] = [{"pid": 1, "bytes": 20}, {"pid": 2, "bytes": 45}]
    hidden.add({"step": 1, "devices": [{"device": 1, "allocated": 1, **counters}]}, {"devices": [driver]})
    assert hidden.flat()["oomph/process_non_pytorch_bytes"] == 5


def test_on_a_gpu_the_numbers_are_the_allocators(predict):
    predict.write(
        """
        import oomph, torch
        from oomph.trackers import step_log
        step_log._INTERVAL_SECONDS, step_log._MAX_SHARE = 0.0, 1e9
        seen, kept = [], []
        with oomph.record("r", log_to=lambda step, metrics: seen.append(metrics)) as recording:
            for step in range(5):
                kept.append(torch.empty(3 << 20, device="cuda"))
                torch.empty(5 << 20, device="cuda")
                recording.step()
                stats = torch.cuda.memory_stats()
                assert seen[-1]["oomph/memory_allocated_bytes"] == stats["allocated_bytes.all.current"] > 0
                assert seen[-1]["oomph/memory_reserved_bytes"] == stats["reserved_bytes.all.current"]
                assert seen[-1]["oomph/memory_peak_allocated_bytes"] == stats["allocated_bytes.all.peak"]
        free, total = torch.cuda.mem_get_info()
        outside = total - free - torch.cuda.memory_reserved()
        assert seen[0]["oomph/process_non_pytorch_bytes"] == outside > 0, (seen[0], outside)
        print(len(seen))
        """
    )
    done = predict.run("run", "--emulate", "h200", "--python", FORKING_PYTHON.emulated, "-o", "r", "train.py")
    assert done.stdout.startswith("5\n"), done.stderr


# Weights & Biases


def wandb_records(folder: Path) -> list:
    """What an offline run has written, when W&B's own process has written everything."""
    [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        records = list(records_in(file.read_bytes()))
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.1)
    raise TimeoutError(file)


def records_in(data: bytes) -> Iterator:
    """Records in the format of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, whole = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def values(items) -> dict:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


@pytest.fixture
def wandb_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    import wandb

    run = wandb.init(project="test", dir=tmp_path, settings=wandb.Settings(x_disable_stats=True))
    yield run
    run.finish()


def test_wandb_rows_of_the_program_stay_and_get_our_metrics(tmp_path, each_step, wandb_run):
    def log(step: int) -> None:
        if step % 3 == 0:
            wandb_run.log({"loss": step}, step=step)

    leaking(tmp_path / "r", ["wandb"], steps=12, after_step=log)
    wandb_run.finish()
    records = wandb_records(tmp_path)
    history = [values(record.history.item) for record in records if record.WhichOneof("record_type") == "history"]
    assert [(row["_step"], row["loss"]) for row in history if "loss" in row] == [(3, 3), (6, 6), (9, 9), (12, 12)]
    # What comes after a row's `step` belongs to it, until the next.
    assert [(row["_step"], row.get("oomph/step")) for row in history] == [(0, 3), (3, 6), (6, 9), (9, 12), (12, None)]
    allocated = [row["oomph/memory_allocated_bytes"] for row in history[:-1]]
    assert {b - a for a, b in zip(allocated, allocated[1:])} == {3 * MIB}
    assert history[-1]["oomph/report/_type"] == "html-file"
    [alert] = [record.alert for record in records if record.WhichOneof("record_type") == "alert"]
    assert alert.text.startswith("memory has grown 1.00 MiB per step")
    summary = {}
    for record in records:
        summary |= values(record.summary.update)
    assert summary["oomph/leak_bytes_per_step"] == MIB
    assert summary["oomph/findings"].startswith("leak: 1.00 MiB per step, still growing")


def test_a_row_of_wandb_that_is_not_finished_keeps_the_highest_values(tmp_path, each_step, wandb_run):
    with oomph.record(tmp_path / "r", device="cpu", holders=False, log_to=wandb_run) as recording:
        for mib in (1, 9, 2):
            held = torch.zeros(mib * MIB // 4)
            recording.step()
        wandb_run.log({"loss": 1})
        recording.step()
        wandb_run.log({"loss": 2})
        del held
    wandb_run.finish()
    history = [values(record.history.item) for record in wandb_records(tmp_path) if record.WhichOneof("record_type") == "history"]
    first, second, *_ = history
    assert (first["_step"], first["loss"], second["_step"], second["loss"]) == (0, 1, 1, 2)
    assert first["oomph/memory_allocated_bytes"] - second["oomph/memory_allocated_bytes"] == 7 * MIB


# MLflow


def test_mlflow_gets_metrics_tags_and_the_report(tmp_path, each_step, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        seen = leaking(tmp_path / "r", ["mlflow"])
        mlflow.flush_async_logging()
    client = mlflow.MlflowClient()
    for name in seen[0][1]:
        logged = client.get_metric_history(run.info.run_id, name)
        assert sorted((metric.step, metric.value) for metric in logged) == [(step, metrics[name]) for step, metrics in seen]
    tags = client.get_run(run.info.run_id).data.tags
    assert tags["oomph.leak"].startswith("memory has grown 1.00 MiB per step")
    assert tags["oomph.findings"].startswith("leak: 1.00 MiB per step, still growing")
    [folder] = tmp_path.glob("mlruns/*/*/artifacts/oomph")
    assert "LEAK  1.00 MiB per step" in (folder / "report.txt").read_text()
    assert json.loads((folder / "report.json").read_text())["inputs"]


# TensorBoard


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_gets_scalars_and_texts(tmp_path, each_step):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "logs") as writer:
        seen = leaking(tmp_path / "r", ["tensorboard"])
    del writer
    read = events(tmp_path / "logs")
    assert sorted(read.Tags()["scalars"]) == sorted(seen[0][1])
    for name in seen[0][1]:
        assert [(event.step, event.value) for event in read.Scalars(name)] == [(step, metrics[name]) for step, metrics in seen]
    [report] = read.Tensors("oomph/report/text_summary")
    assert b"LEAK  1.00 MiB per step" in report.tensor_proto.string_val[0]
    assert [event.step for event in read.Tensors("oomph/leak/text_summary")] == [9]


def test_a_closed_writer_is_left_alone(tmp_path, each_step):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path / "logs")
    with oomph.record(tmp_path / "r", device="cpu", holders=False, log_to=writer) as recording:
        torch.zeros(10)
        recording.step()
        writer.close()
        recording.step()
    assert len(list((tmp_path / "logs").iterdir())) == 1


# OpenTelemetry


class Receiver(http.server.BaseHTTPRequestHandler):
    """An OTLP receiver."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver():
    handler = type("_Receiver", (Receiver,), {"got": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.got
        server.shutdown()


def test_opentelemetry_exports_metrics_with_the_names_of_the_exporter(tmp_path, each_step, receiver):
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    address, got = receiver
    exporter = OTLPMetricExporter(endpoint=f"{address}/v1/metrics")
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)])
    seen = leaking(tmp_path / "r", [provider])
    provider.shutdown()
    [(path, body)] = got
    assert path == "/v1/metrics"
    [scope] = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics
    assert scope.scope.name == "oomph"
    found = {}
    for metric in scope.metrics:
        [point] = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
        # As Prometheus names it.
        ending = "_total" if metric.HasField("sum") else "_bytes"
        found[metric.name.replace(".", "_") + ending] = point.as_int
        assert metric.unit == ("" if metric.HasField("sum") else "By")
        attributes = {each.key: each.value.string_value for each in point.attributes}
        assert attributes == ({"rank": "0"} if metric.name == "oomph.steps" else {"rank": "0", "device": "cpu"})
    step, metrics = seen[-1]
    assert found == {"oomph_steps_total": step, **{name.replace("/", "_"): value for name, value in metrics.items()}}
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    assert all(f"`{name}`" in page for name in found)


def test_opentelemetry_gets_findings_as_events(tmp_path, each_step):
    from opentelemetry import trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(tracers)
    leaking(tmp_path / "r", [MeterProvider()])
    leak, report = spans.get_finished_spans()
    assert (leak.name, leak.attributes["oomph.bytes_per_step"], leak.attributes["oomph.step"]) == ("oomph.leak", MIB, 9)
    [event] = report.events
    assert (report.name, event.name, event.attributes["oomph.kind"]) == ("oomph.report", "oomph.finding", "leak")
    assert event.attributes["oomph.site"].startswith(f"{__file__}:")


# What may go wrong


def test_errors_of_a_tracker_stay_with_us_and_are_said_once(tmp_path, each_step, capsys):
    def fails(step, metrics):
        raise ConnectionError("no server")

    seen = leaking(tmp_path / "r", [fails])
    assert len(seen) == 10, "the next one still gets them"
    said = capsys.readouterr().err
    assert said.count("the function given for `log_to`: something is not logged: ConnectionError: no server") == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard", "opentelemetry"])
def test_nothing_is_created_and_nothing_is_imported(tmp_path, name):
    program = f"""
import sys, torch, oomph
with oomph.record("r", device="cpu", holders=False, log_to={name!r}) as recording:
    for _ in range(3):
        torch.zeros(10)
        recording.step()
names = ("wandb", "mlflow", "tensorboard", "tensorboardX", "opentelemetry")
print([each for each in sys.modules if each.partition(".")[0] in names])
"""
    done = subprocess.run([FORKING_PYTHON.cpu, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr
    assert done.stderr.count(f"oomph: log_to='{name}': no") == 1 and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("wrong", ["comet", 7, ["wandb", None]])
def test_wrong_arguments_are_said_at_once(wrong):
    with pytest.raises((TypeError, ValueError), match="expected .* for `log_to`"):
        oomph.record(log_to=wrong)


def test_python_starts_without_trackers():
    program = "import sys, oomph; oomph.record; assert not [name for name in sys.modules if name.startswith('oomph.trackers')]"
    subprocess.run([sys.executable, "-c", program], check=True)
