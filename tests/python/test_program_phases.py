"""Phases of recorded programs: named by the program, or recognized by what it calls."""

import json
import pathlib

import pytest

import oomph
from conftest import MODEL


def marks(recorded) -> list[dict]:
    return [json.loads(line) for line in (recorded.folder / "rank0.phases.jsonl").read_text().splitlines()]


def names(recorded) -> list[str]:
    assert recorded.done.returncode == 0, recorded.done.stderr
    return [mark["phase"] for mark in marks(recorded)]


def phases(recorded) -> dict[str, dict]:
    return {phase["name"]: phase for phase in recorded.report()["phases"]["phases"]}


def test_a_named_phase_says_what_it_needs_and_what_it_leaves(run):
    recorded = run(f"""{MODEL}
    import oomph

    kept = []
    for _ in range(3):
        with oomph.phase("rollout"):
            big = torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE)
            del big
            kept.append(torch.empty(10 << 20, dtype=torch.uint8, device=DEVICE))  # here
        train(2)
    """)
    assert names(recorded) == ["startup", *(["rollout", "other", "train"] * 3)]
    found = phases(recorded)
    assert list(found) == ["startup", "rollout", "train"]
    rollout = found["rollout"]
    assert (rollout["named"], rollout["times"]) == (True, 3)
    last = rollout["last"]
    assert rollout["peak"] == last["before"]["allocated"] + (64 << 20)
    assert (last["stayed"], last["releases"]) == (10 << 20, False)
    [line] = last["lines"]
    lines = (recorded.folder.parent / "train.py").read_text().splitlines()
    assert lines[line["site"]["line"] - 1].endswith("# here")
    assert last["after"]["process"] == last["ledger"]["process"] >= last["after"]["reserved"]
    assert sum(row["bytes"] for row in last["ledger"]["rows"]) == last["ledger"]["process"]
    changes = {(change["from"], change["to"]): change["times"] for change in recorded.report()["phases"]["changes"]}
    assert changes["train", "rollout"] == 2
    assert "10.0 MiB stayed after rollout: 10.0 MiB at train.py:" in recorded.done.stdout


def test_training_evaluation_and_generation_are_recognized(run):
    recorded = run(f"""{MODEL}
    def evaluate():
        model.eval()
        with torch.no_grad():
            model(torch.randn(512, 128, device=DEVICE))
        model.train()

    class Sampler:
        @torch.inference_mode()
        def generate(self):
            for _ in range(3):
                model(torch.randn(1, 128, device=DEVICE))

    for _ in range(2):
        train(2)
        evaluate()
        Sampler().generate()
    """)
    assert names(recorded) == ["startup", *(["train", "eval", "generate"] * 2)]
    found = phases(recorded)
    assert {name: phase["times"] for name, phase in found.items()} == {"startup": 1, "train": 2, "eval": 2, "generate": 2}
    assert not any(phase["named"] for phase in found.values())
    assert recorded.report()["allocated"]["peak"] == max(phase["peak"] for phase in found.values())


def test_an_evaluation_with_gradients_is_one_and_training_in_eval_mode_is_not(run):
    recorded = run(f"""{MODEL}
    train(1)
    model.eval()
    model(torch.randn(64, 128, device=DEVICE))
    model.train()
    train(1)
    """)
    assert names(recorded) == ["startup", "train", "eval", "train"]
    recorded = run(f"""{MODEL}
    model.eval()
    train(3)
    """)
    # The first step shows it.
    assert names(recorded) == ["startup", "eval", "train"]


def test_a_program_that_only_trains_has_no_table(run):
    recorded = run(f"""{MODEL}
    train(3)
    """)
    assert names(recorded) == ["startup", "train"]
    assert "phases" not in recorded.report()
    assert "\n phases" not in recorded.done.stdout


def test_phases_nest_and_end_in_any_order_and_with_an_exception(run):
    recorded = run(f"""{MODEL}
    import oomph

    @oomph.phase("score")
    def score():
        return torch.empty(1 << 20, device=DEVICE)

    try:
        with oomph.phase("rollout"):
            score()
            raise KeyError("x")
    except KeyError:
        pass
    first, second = oomph.phase("first"), oomph.phase("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    """)
    assert names(recorded) == ["startup", "rollout", "score", "rollout", "other", "first", "second", "second", "other"]
    found = phases(recorded)
    assert (found["rollout"]["times"], found["score"]["times"]) == (1, 1)


def test_a_phase_before_cuda_is_the_one_that_cuda_begins_in(run):
    recorded = run("""
    import oomph

    with oomph.phase("load"):
        import torch
        kept = torch.empty(1 << 20, device="cuda")
    """)
    # The recorder is there once torch is.
    assert names(recorded) in (["startup"], ["load", "other"])
    recorded = run("""
    import torch
    import oomph

    with oomph.phase("load"):
        kept = torch.empty(1 << 20, device="cuda")
    """)
    assert names(recorded) == ["load", "other"]


@pytest.mark.parametrize("name", ["''", "3", "'x' * 101"])
def test_a_phase_without_a_name_is_refused(name):
    with pytest.raises((TypeError, ValueError), match="the name of a phase"):
        oomph.phase(eval(name))


def test_without_a_recorder_nothing_happens():
    with oomph.phase("rollout"):
        pass

    @oomph.phase("rollout")
    def double(x: int) -> int:
        return 2 * x

    assert double(2) == 4 and double.__name__ == "double"
    with pytest.raises(TypeError, match="generators cannot be decorated"):
        oomph.phase("rollout")(lambda: (yield))


def test_rapid_changes_cost_a_share_of_the_time(run):
    recorded = run(f"""{MODEL}
    import oomph

    for _ in range(2000):
        with oomph.phase("a"):
            pass
    train(1)
    """)
    found = marks(recorded)
    assert len(found) == 1 + 2 * 2000 + 1
    without = sum("devices" not in mark for mark in found)
    assert 0 < without < len(found), "after a while only times are noted"
    assert phases(recorded)["a"]["times"] == 2000


@pytest.mark.nightly
def test_more_phases_than_anybody_reads_are_not_noted(run):
    recorded = run(f"""{MODEL}
    import oomph

    for _ in range(11_000):
        with oomph.phase("a"):
            pass
    """)
    found = marks(recorded)
    assert len(found) == 20_000 and "phase" not in found[-1]
    assert recorded.report()["phases"]["cut"]
    assert "later phases were not recorded" in recorded.done.stdout


ENGINE = """
    import sys, types, torch
    # The methods of vLLM's worker that oomph knows, in a module of that name: the engine itself needs a GPU.
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu_worker"):
        sys.modules[name] = types.ModuleType(name)

    class Worker:
        def load_model(self):
            self.model = torch.nn.Linear(1024, 1024, device="cuda")

        @torch.inference_mode()
        def determine_available_memory(self):
            self.model(torch.empty(4096, 1024, device="cuda"))

        def initialize_from_config(self):
            self.cache = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

        @torch.inference_mode()
        def compile_or_warm_up_model(self):
            self.execute_model()

        @torch.inference_mode()
        def execute_model(self):
            return self.model(torch.empty(8, 1024, device="cuda"))

        def sleep(self, level=1):
            del self.cache
            torch.cuda.empty_cache()

        def wake_up(self):
            self.cache = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

        def update_weights(self):
            with torch.no_grad():
                self.model.weight.add_(1)

    Worker.__module__ = "vllm.v1.worker.gpu_worker"
    sys.modules["vllm.v1.worker.gpu_worker"].Worker = Worker
    torch.empty(1, device="cuda")
    worker = Worker()
    for method in ("load_model", "determine_available_memory", "initialize_from_config", "compile_or_warm_up_model"):
        getattr(worker, method)()
    for _ in range(2):
        for _ in range(3):
            worker.execute_model()
        worker.sleep()
        worker.update_weights()
        worker.wake_up()
    worker.execute_model()
"""


def test_phases_of_a_serving_engine_are_recognized(run):
    recorded = run(ENGINE)
    cycle = ["generate", "sleep", "weight sync", "wake"]
    assert names(recorded) == ["startup", "load weights", "profile", "KV cache", "graph capture", *cycle, *cycle, "generate"]
    found = phases(recorded)
    sleep = found["sleep"]["last"]
    assert sleep["releases"] and sleep["before"]["process"] - sleep["after"]["process"] >= 256 << 20
    assert sleep["stayed"] == sleep["after"]["allocated"]
    said = " ".join(recorded.done.stdout.split())
    assert "stayed after sleep: " in said and "non-PyTorch memory" in said
    assert found["KV cache"]["last"]["stayed"] == 256 << 20


def test_a_method_that_is_noted_stays_what_it_is(run):
    recorded = run(f"""{ENGINE}
    import inspect, json, pickle, traceback

    class Fails(Worker):
        def sleep(self):
            super().sleep(3, 4)

    worker = Fails()
    worker.cache = 1
    try:
        worker.sleep()
    except TypeError as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    print("SEEN", json.dumps({{
        "frames": frames,
        "signature": str(inspect.signature(Worker.sleep)),
        "name": Worker.sleep.__qualname__,
        "function": isinstance(Worker.sleep, type(lambda: 1)),
    }}))
    """)
    seen = recorded.said("SEEN")
    assert seen == {"frames": ["<module>", "sleep"], "signature": "(self, level=1)", "name": "Worker.sleep", "function": True}


def test_broken_phases_are_named_and_left_out(run):
    recorded = run(f"""{MODEL}
    train(1)
    """)
    path: pathlib.Path = recorded.folder / "rank0.phases.jsonl"
    path.write_text("[]\n{}\n")
    assert "phases" not in recorded.report()
