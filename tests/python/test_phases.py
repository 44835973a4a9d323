"""`oomph predict` covers every phase of a program: loops over data loaders are cut short where their iterations repeat."""

import pytest

from conftest import Predict

PROGRAM = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def train(loader):
        sizes = []
        for (x,) in loader:
            model(x.cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sizes.append(len(x))
        # The last batch is smaller.
        assert sizes[-1] == 3 and sizes[0] == 16, sizes

    def test(loader):
        with torch.no_grad():
            for (x,) in loader:
                model(x.cuda()).repeat(1, 64)

    if __name__ == "__main__":
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        data = TensorDataset(torch.zeros(1603, 512))
        workers = WORKERS
        kind = dict(num_workers=workers, persistent_workers=workers > 0)
        batches = DataLoader(data, 16, shuffle=True, **kind), DataLoader(data, 800, **kind)
        assert len(batches[0]) == 101
        for epoch in range(3):
            train(batches[0])
            test(batches[1])
        after = torch.zeros(5, device="cuda")
"""


def loops(answer: dict) -> list[dict]:
    return [phase["site"] for phase in answer["phases"] if phase["part"] == "loop"]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_peak_is_that_of_the_whole_program(predict: Predict, workers: int) -> None:
    program = PROGRAM.replace("WORKERS", str(workers))
    answer, whole = (predict.answer(program, *options) for options in ((), ("--steps", "all")))
    assert [answer[key] for key in ("peak_allocated", "peak_reserved")] == [
        whole[key] for key in ("peak_allocated", "peak_reserved")
    ]
    assert answer["steps"]["ended"] == "finished"
    assert [answer["confidence"], whole["confidence"]] == ["estimate", "exact"]
    assert len(answer["reasons"]) == 1 and "cut short" in answer["reasons"][0]
    # As in the program: the last of 101 batches is run, most others are not.
    training, test = loops(answer)
    assert (training["function"], training["batches"], training["runs"]) == ("train", 101, 3)
    assert 20 < training["iterations"] < 40 and training["skipped"] > 200
    assert (test["function"], test["iterations"], test["skipped"]) == ("test", 3, 0)
    assert answer["steps"]["count"] < 100 < whole["steps"]["count"] == 303
    highest = max(answer["phases"], key=lambda phase: phase["peak_allocated"])
    assert highest["peak_allocated"] == answer["peak_allocated"] and highest["site"]["function"] == "test"


GROWING = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(512, 1000).cuda()
    data, outputs = TensorDataset(torch.zeros(60 * 64, 512)), []
    with torch.no_grad():
        for (x,) in DataLoader(data, 64):
            outputs.append(model(x.cuda()))
    together = torch.cat(outputs)
"""


def test_a_loop_that_grows_runs_to_its_end(predict: Predict) -> None:
    answer = predict.answer(GROWING)
    assert loops(answer)[0]["iterations"] == 60
    assert answer["confidence"] == "exact"
    # All outputs and their copy.
    assert answer["peak_allocated"] >= 2 * 60 * 64 * 1000 * 4
    assert answer["peak_allocated"] == predict.answer(GROWING, "--steps", "all")["peak_allocated"]


@pytest.mark.nightly
def test_a_program_that_needs_all_batches_gets_them(predict: Predict) -> None:
    program = GROWING.replace("outputs.append(model(x.cuda()))", "outputs.append(model(x.cuda()).cpu())")
    program = program.replace("together = torch.cat(outputs)", "assert len(outputs) == 60; big = torch.zeros(1 << 26).cuda()")
    answer = predict.answer(program)
    assert answer["peak_allocated"] > 1 << 28 and loops(answer)[0]["skipped"] == 0


def test_a_loop_that_does_not_use_the_gpu_is_left_alone(predict: Predict) -> None:
    program = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        layer = torch.nn.Linear(4, 4).cuda()
        seen = sum(len(x) for (x,) in DataLoader(TensorDataset(torch.zeros(500, 4)), 1))
        # Like a vocabulary counted before the model is built.
        table = torch.zeros(seen << 10, device="cuda")
    """
    answer = predict.answer(program)
    assert answer["peak_allocated"] >= 500 << 12 and loops(answer)[0]["iterations"] == 500


def test_the_time_limit_ends_a_program_that_goes_on(predict: Predict) -> None:
    program = """
        import time, torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for epoch in range(10**6):
            for (x,) in DataLoader(TensorDataset(torch.zeros(64, 512)), 16):
                model(x.cuda()).sum().backward()
                optimizer.step()
                time.sleep(0.05)
    """
    answer = predict.answer(program, "--time-limit", "1")
    assert answer["steps"]["ended"] == "time"
    assert any("--time-limit" in reason for reason in answer["reasons"])


def test_the_loops_of_a_trainer_have_the_length_that_it_expects(predict: Predict) -> None:
    program = """
        import torch, lightning
        from torch.utils.data import DataLoader, TensorDataset

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.validated = torch.nn.Linear(256, 256), 0
            def training_step(self, batch, index):
                return self.layer(batch[0]).square().mean()
            def on_validation_epoch_end(self):
                self.validated += 1
            def validation_step(self, batch, index):
                self.layer(batch[0])
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())

        data, module = TensorDataset(torch.zeros(2001, 256)), Module()
        kind = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, num_sanity_val_steps=0)
        trainer = lightning.Trainer(max_epochs=2, accelerator="gpu", devices=1, **kind)
        trainer.fit(module, DataLoader(data, 16, shuffle=True), DataLoader(data, 500))
        assert module.validated == 2
    """
    answer = predict.answer(program, "--once")
    found = {site["library"]: (site["iterations"], site["batches"], site["runs"]) for site in loops(answer)}
    assert found == {"lightning: training_epoch_loop": (24, 126, 2), "lightning: evaluation_loop": (5, 5, 2)}


def test_what_follows_a_loop_without_a_loader_is_covered(predict: Predict) -> None:
    program = """
        import torch
        layer = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.AdamW(layer.parameters())
        for step in range(10**7):
            layer(torch.randn(64, 512, device="cuda")).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for step in range(10):
                layer(torch.randn(64 << 10, 512, device="cuda"))
    """
    answer = predict.answer(program)
    assert answer["steps"] == {"count": 20, "ended": "finished"}
    assert answer["peak_allocated"] > 2 * (64 << 10) * 512 * 4
    assert any("cut short" in reason for reason in answer["reasons"])
    # Nothing follows this loop, so only its own later steps are not covered.
    answer = predict.answer(program.partition("        with")[0])
    assert answer["steps"] == {"count": 20, "ended": "periodic"}
    assert "where its steps repeat" in answer["reasons"][-1]
    assert not any("evaluation" in reason for reason in answer["reasons"])


def test_a_loop_that_grows_is_not_left(predict: Predict) -> None:
    program = """
        import torch
        layer, kept = torch.nn.Linear(512, 512).cuda(), []
        for step in range(10**7):
            kept.append(layer(torch.randn(64 << 10, 512, device="cuda")).detach())
        print("end")
    """
    answer = predict.answer(program)
    assert (answer["verdict"], answer["steps"]["ended"]) == ("fills_up", "periodic")


def test_several_steps_for_each_batch_do_not_end_the_loop(predict: Predict) -> None:
    program = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        layer = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.AdamW(layer.parameters())
        for (x,) in DataLoader(TensorDataset(torch.zeros(1603, 512)), 16):
            for _ in range(10):
                layer(x.cuda()).sum().backward()
                optimizer.step()
        after = torch.zeros(1 << 26, device="cuda")
    """
    answer = predict.answer(program)
    assert answer["steps"]["ended"] == "finished" and answer["peak_allocated"] > 1 << 28
    assert loops(answer)[0]["iterations"] > 20


@pytest.mark.parametrize(
    "loop",
    ["for step in range(200):", "for step, x in enumerate(loader):", "for x in loader:", "while step < 200:"],
    ids=["range", "enumerate", "loader", "while"],
)
def test_work_of_every_hundredth_iteration_is_covered(predict: Predict, loop: str) -> None:
    program = f"""
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        layer, x, step, every = torch.nn.Linear(512, 512).cuda(), torch.zeros(64, 512), 0, 100
        loader = DataLoader(TensorDataset(torch.zeros(12800, 512)), 64)
        loader.collate_fn = lambda rows: torch.stack([row[0] for row in rows])
        optimizer = torch.optim.AdamW(layer.parameters())
        {loop}
            layer(x.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % every == 0:
                print("evaluate", step)
                with torch.no_grad():
                    layer(torch.zeros(64 << 10, 512, device="cuda")).sum().item()
            {"" if "for step" in loop else "step += 1"}
        print("end")
    """
    answer, whole = predict.answer(program), predict.answer(program, "--steps", "all")
    assert answer["peak_allocated"] == whole["peak_allocated"] > 2 * (64 << 10) * 512 * 4
    assert answer["peak_reserved"] == whole["peak_reserved"]
    assert answer["steps"]["count"] < 40 < whole["steps"]["count"] == 200
    [reason] = [reason for reason in answer["reasons"] if "later iterations were skipped" in reason]
    assert "except 99 of the loop at " in reason, reason
    assert not any("values" in reason for reason in answer["reasons"])


def test_a_program_that_fails_in_a_later_iteration_runs_without(predict: Predict) -> None:
    program = """
        import torch
        layer, history = torch.nn.Linear(512, 512).cuda(), []
        optimizer = torch.optim.AdamW(layer.parameters())
        for step in range(1000):
            layer(torch.zeros(64, 512, device="cuda")).sum().backward()
            optimizer.step()
            history.append(step)
            if step % 100 == 99:
                print(history[step])
        after = torch.zeros(1 << 26, device="cuda")
    """
    answer = predict.answer(program)
    assert answer["steps"] == {"count": 20, "ended": "finished"}
    assert answer["peak_allocated"] > 1 << 28
    assert not any("where a condition changes" in reason for reason in answer["reasons"])
