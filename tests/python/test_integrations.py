"""The callbacks, with the real trainers on tiny models."""

import csv
import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from conftest import OOMPH

pytestmark = pytest.mark.filterwarnings("ignore")


def steps(folder: pathlib.Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "rank0.steps.jsonl").read_text().splitlines()]


def how(folder: pathlib.Path) -> dict:
    return json.loads((folder / "rank0.json").read_text())


def parameters(folder: pathlib.Path) -> set[str]:
    tensors = json.loads((folder / "rank0.labels").read_text())["tensors"]
    return {name for category, name, _ in tensors if category == "parameter"}


def report(folder: pathlib.Path) -> dict:
    done = subprocess.run([OOMPH, "report", "--json", str(folder)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["inputs"][0]["devices"][0]


def lightning_module(base: type, fails_at: int | None = None) -> torch.nn.Module:
    class Tiny(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, index):
            if index == fails_at:
                raise ValueError("a bad batch")
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, index):
            self.layer(batch[0])

        def test_step(self, batch, index):
            self.layer(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    return Tiny()


def loader(batches: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(batches * 4, 8)), batch_size=4)


def trainer(package, callback, folder: pathlib.Path, logger=False):
    quiet = {"logger": logger, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return package.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=folder, callbacks=[callback], **quiet)


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def package(request):
    return importlib.import_module(request.param)


@pytest.fixture
def callback(package, tmp_path: pathlib.Path):
    from oomph.integrations.lightning import OomphCallback

    return OomphCallback(tmp_path / "recording", device="cpu")


def test_training_batches_are_the_steps_of_fit(package, callback, tmp_path):
    run = trainer(package, callback, tmp_path)
    run.fit(lightning_module(package.LightningModule), loader(3), loader(2))
    folder = tmp_path / "recording"
    assert callback.path == str(folder)
    assert steps(folder) == [1, 2, 3, 4, 5, 6]
    assert (how(folder)["ended"], how(folder)["device"]) == ("finished", "cpu")
    run.test(lightning_module(package.LightningModule), loader(5), verbose=False)
    assert steps(folder) == [1, 2, 3, 4, 5]


def test_an_exception_in_fit_is_in_the_recording(package, callback, tmp_path):
    with pytest.raises(ValueError, match="a bad batch"):
        trainer(package, callback, tmp_path).fit(lightning_module(package.LightningModule, fails_at=2), loader(4))
    folder = tmp_path / "recording"
    assert steps(folder) == [1, 2]
    assert (how(folder)["ended"], how(folder)["exception"]) == ("failed", "ValueError: a bad batch")
    assert torch._C._len_torch_dispatch_stack() == 0


def test_fit_ends_with_the_exception_that_was_asked_for(tmp_path):
    import lightning.pytorch as package

    import oomph
    from oomph.integrations.lightning import OomphCallback

    kept, heard = [], []
    module = lightning_module(package.LightningModule)
    module.on_train_batch_start = lambda *_: kept.append(torch.zeros(1 << 18))
    folder = tmp_path / "recording"
    callback = OomphCallback(folder, device="cpu", on_leak=heard.append, raise_on_leak=True)
    with pytest.raises(oomph.MemoryGrows):
        trainer(package, callback, tmp_path).fit(module, loader(20))
    assert ([leak.step for leak in heard], len(steps(folder))) == ([9], 9)
    assert (how(folder)["ended"], how(folder)["dumped"]) == ("failed", "alarm")


def test_the_recording_of_fit_can_be_read(tmp_path):
    import lightning.pytorch as package

    from oomph.integrations.lightning import OomphCallback

    run = trainer(package, OomphCallback(tmp_path / "recording", device="cpu"), tmp_path)
    run.fit(lightning_module(package.LightningModule), loader(3))
    device = report(tmp_path / "recording")
    assert (device["steps"]["count"], device["steps"]["source"]) == (6, "recorded")
    assert parameters(tmp_path / "recording") >= {"layer.weight", "layer.bias"}
    assert device["allocated"]["peak"] > device["allocated"]["end"] > 0


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.fails = False

    def forward(self, batch: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if self.fails:
            raise ValueError("a bad batch")
        return {"loss": self.layer(batch).square().mean(), "logits": batch}


def transformers_trainer(callback, folder: pathlib.Path, batches: int = 6, **options):
    import transformers

    rows = [{"batch": torch.randn(8), "labels": torch.zeros(1)} for _ in range(4 * batches)]
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    options = {"per_device_train_batch_size": 4, "num_train_epochs": 1, **quiet, **options}
    arguments = transformers.TrainingArguments(str(folder / "out"), **options)
    return transformers.Trainer(Regression(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])


@pytest.mark.parametrize(("accumulate", "count"), [pytest.param(1, 6, marks=pytest.mark.nightly), (3, 2)])
def test_optimizer_steps_are_the_steps_of_train(tmp_path, accumulate, count):
    from oomph.integrations.transformers import OomphCallback

    folder = tmp_path / "recording"
    options = {"gradient_accumulation_steps": accumulate, "eval_strategy": "steps", "eval_steps": 2}
    transformers_trainer(OomphCallback(folder, device="cpu"), tmp_path, **options).train()
    assert steps(folder) == list(range(1, count + 1))
    assert how(folder)["ended"] == "finished"
    if accumulate == 1:
        device = report(folder)
        assert (device["steps"]["count"], device["steps"]["source"]) == (count, "recorded")
        assert parameters(folder) == {"layer.weight", "layer.bias"}


@pytest.mark.nightly
def test_a_train_that_failed_is_written_by_stop_and_train_can_run_again(tmp_path):
    from oomph.integrations.transformers import OomphCallback

    folder = tmp_path / "recording"
    callback = OomphCallback(folder, device="cpu")
    run = transformers_trainer(callback, tmp_path)
    run.model.fails = True
    with pytest.raises(ValueError) as failure:
        run.train()
    callback.stop(failure.value)
    assert (how(folder)["ended"], how(folder)["exception"]) == ("failed", "ValueError: a bad batch")
    run.model.fails = False
    run.train()
    assert (how(folder)["ended"], how(folder)["exception"], len(steps(folder))) == ("finished", None, 6)


@pytest.mark.nightly
def test_train_calls_whom_the_callback_names(tmp_path):
    from oomph.integrations.transformers import OomphCallback

    heard = []
    run = transformers_trainer(OomphCallback(tmp_path / "r", device="cpu", on_leak=heard.append), tmp_path, batches=12)
    kept = []
    run.model.register_forward_hook(lambda *_: kept.append(torch.zeros(1 << 18)))
    run.train()
    assert [(leak.step, leak.bytes_per_step) for leak in heard] == [(9, 1 << 20)]


def scalars(folder: pathlib.Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [file] = folder.rglob("events.out.tfevents.*")
    return [(event.step, event.value) for event in EventAccumulator(str(file)).Reload().Scalars(name)]


def allocated(folder: pathlib.Path) -> list[tuple[int, float]]:
    rows = map(json.loads, (folder / "rank0.steps.jsonl").read_text().splitlines())
    return [(row["step"], row["devices"][0]["allocated"]) for row in rows]


@pytest.fixture
def each_step(monkeypatch):
    monkeypatch.setattr("oomph.trackers.step_log._INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("oomph.trackers.step_log._MAX_SHARE", 1e9)


@pytest.mark.nightly
def test_fit_logs_to_the_loggers_of_the_trainer(tmp_path, monkeypatch, each_step):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import lightning.pytorch as package
    import mlflow
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger

    from oomph.integrations.lightning import OomphCallback

    flow = MLFlowLogger("test", tracking_uri=(tmp_path / "mlruns").as_uri())
    loggers = [TensorBoardLogger(tmp_path / "tb"), CSVLogger(tmp_path / "csv", flush_logs_every_n_steps=1), flow]
    run = trainer(package, OomphCallback(tmp_path / "r", device="cpu", log_to="trainer"), tmp_path, logger=loggers)
    run.fit(lightning_module(package.LightningModule), loader(3))
    mlflow.flush_async_logging()
    name, expected = "oomph/memory_allocated_bytes", allocated(tmp_path / "r")
    assert len(expected) == 6
    assert scalars(tmp_path / "tb", name) == expected
    assert sorted((each.step, each.value) for each in flow.experiment.get_metric_history(flow.run_id, name)) == expected
    [table] = tmp_path.glob("csv/**/metrics.csv")
    with table.open() as file:
        assert [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row[name]] == expected
    assert flow.experiment.get_run(flow.run_id).data.tags["oomph.findings"]


def test_train_logs_where_the_trainer_reports_to(tmp_path, capsys, each_step):
    from oomph.integrations.transformers import OomphCallback

    folder = tmp_path / "r"
    callback = OomphCallback(folder, device="cpu", log_to="trainer")
    options = {"report_to": ["tensorboard"], "logging_strategy": "steps", "logging_steps": 2}
    run = transformers_trainer(callback, tmp_path, **options)
    run.args.report_to.append("comet_ml")
    run.train()
    assert scalars(tmp_path / "out", "oomph/memory_allocated_bytes") == allocated(folder)
    assert [step for step, _ in scalars(tmp_path / "out", "train/loss")] == [2, 4, 6]
    assert "log_to='trainer': nothing is logged to comet_ml; expected one of wandb, mlflow" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_importing_oomph_imports_no_framework(name):
    program = f"import sys, oomph.integrations.session; assert {name!r} not in sys.modules"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


@pytest.mark.parametrize("option", [{"device": "tpu"}, {"max_events": 0}, {"log_to": "lightning"}])
def test_wrong_arguments_are_said_at_once(tmp_path, option):
    from oomph.integrations.transformers import OomphCallback

    with pytest.raises(ValueError, match="expected"):
        OomphCallback(tmp_path, **option)
