"""What the report says about programs as people write them: kind, line, holder and fix, on an emulated GPU."""

import textwrap

import pytest


@pytest.fixture
def findings(run):
    def findings(program: str) -> list[dict]:
        return run(textwrap.dedent(program)).report()["findings"]

    return findings


def only(found: list[dict], kind: str) -> dict:
    """The one finding of a kind."""
    assert [finding["kind"] for finding in found].count(kind) == 1, found
    return next(finding for finding in found if finding["kind"] == kind)


def words(finding: dict) -> str:
    return " ".join([finding["summary"], *finding["details"], finding["fix"]])


def test_gradients_that_lead_back_to_their_parameters(findings):
    found = findings(
        """
        import torch
        from torch import nn

        def penalty(width):
            net = nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, 1)).cuda()
            x = torch.randn(64, width, device="cuda")
            net(x).sum().backward(create_graph=True)

        for step in range(16):
            penalty(256)
        """
    )
    leak = only(found, "leak")
    assert leak["site"]["line"] == 8, "the call of backward(), not the line that builds the network"
    assert "`backward(create_graph=True)` makes" in words(leak)
    assert "torch.autograd.grad" in leak["fix"]


def test_a_queue_that_another_thread_fills_faster_than_it_is_emptied(findings):
    found = findings(
        """
        import queue, threading
        import torch

        waiting, turn = queue.Queue(), threading.Semaphore(0)

        def load():
            while turn.acquire():
                for _ in range(3):
                    waiting.put(torch.randn(1 << 20, device="cuda"))

        threading.Thread(target=load, daemon=True).start()
        model = torch.nn.Linear(1 << 20, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            turn.release()
            model(waiting.get()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    leak = only(found, "leak")
    assert leak["site"]["function"] == "load"
    assert leak["holder"]["path"] == "__main__.waiting.queue"


def test_what_a_trainer_has_dropped_at_the_end_is_named_by_the_users_own_object(findings):
    found = findings(
        """
        import logging, warnings
        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        import lightning
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        class Tagger(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(256, 2048)
                self.predictions = []

            def training_step(self, batch, index):
                scores = self.net(batch[0])
                self.predictions.append(scores)
                return scores.square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        data = DataLoader(TensorDataset(torch.randn(24 * 256, 256)), batch_size=256)
        lightning.Trainer(max_epochs=1, **quiet).fit(Tagger(), data)
        """
    )
    leak = only(found, "leak")
    assert leak["site"]["function"] == "training_step"
    assert leak["bytes_per_step"] == 256 * 2048 * 4
    assert leak["bytes"] < 28 * 256 * 2048 * 4, "the workspace of cuBLAS is none of it"
    assert leak["holder"]["path"] == "Tagger.predictions"


def test_a_cache_that_has_been_filled_is_no_leak(findings):
    found = findings(
        """
        import torch

        kept = {}
        model = torch.nn.Linear(1 << 18, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(40):
            if step % 10 not in kept:
                kept[step % 10] = torch.randn(4, 1 << 18).cuda()
            model(kept[step % 10]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    growth = only(found, "retained_growth")
    assert growth["severity"] == "low" and growth["fix"].startswith("nothing, if this is a cache")
    assert not [finding for finding in found if finding["kind"] == "leak"]


def test_inputs_that_grow_are_a_rising_peak_and_no_leak(findings):
    found = findings(
        """
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            batch = torch.randn(256 + 64 * step, 256).cuda()
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    rising = only(found, "rising_peak")
    assert rising["site"]["line"] == 8
    assert not [finding for finding in found if finding["kind"] == "leak"]


def test_caches_of_finished_requests_without_gradients(findings):
    found = findings(
        """
        import torch

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.keys, self.values = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)

            def forward(self, x, past):
                keys, values = self.keys(x), self.values(x)
                if past is not None:
                    keys, values = torch.cat([past[0], keys]), torch.cat([past[1], values])
                return x + values[-len(x):].tanh(), (keys, values)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(Layer() for _ in range(4))

            def forward(self, x, past):
                states = []
                for layer, state in zip(self.layers, past or [None] * 4):
                    x, state = layer(x, state)
                    states.append(state)
                return x, states

        model, sessions = Model().cuda(), {}

        @torch.no_grad()
        def answer(user):
            x, past = model(torch.randn(128, 512, device="cuda"), None)
            for _ in range(3):
                x, past = model(x[-1:], past)
            sessions[user] = past

        for user in range(20):
            answer(user)
        """
    )
    leak = only(found, "leak")
    assert leak["site"]["line"] == 12
    assert leak["holder"]["path"] == "__main__.sessions"
    assert "grad mode is on" not in words(leak)


def test_the_state_that_an_optimizer_still_has_to_make(findings):
    found = findings(
        """
        import torch

        torch.cuda.set_per_process_memory_fraction(0.02)
        model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(4))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 8192, device="cuda")).square().mean().backward()
        optimizer.step()
        """
    )
    oom = only(found, "oom")
    assert "512 MiB has been allocated, 1.50 GiB is still to come" in words(oom)
    assert oom["fix"].startswith("the model itself is too large here")
    assert "need 4.00 GiB" in oom["fix"]


def test_the_backward_of_the_function_that_ran(run):
    """The model runs first, and with most memory, in another function."""
    program = """
import torch

def validate(model):
    with torch.no_grad():
        return model(torch.randn(4096, 512, device="cuda")).mean().item()

def fit(model, optimizer):
    loss = model(torch.randn(256, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()

model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
validate(model)
for step in range(6):
    fit(model, optimizer)
"""
    groups = run(program).report("--by", "site", "--at", "end")["live"]["groups"]
    functions = {group["site"]["function"] for group in groups if group["origin"] == "backward"}
    assert functions == {"fit"}


def test_a_list_has_as_many_references_as_entries(findings):
    found = findings(
        """
        import torch

        kept, model = [], torch.nn.Linear(256, 1024).cuda()
        for step in range(60):
            kept.append(model(torch.randn(256, 256, device="cuda")).detach())
        """
    )
    assert "a list with 60 references" in words(only(found, "leak"))


def test_logits_that_a_trainer_gathers_name_the_setting(findings):
    found = findings(
        """
        import os, warnings
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
        warnings.filterwarnings("ignore")
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        class Texts(torch.utils.data.Dataset):
            def __len__(self): return 120
            def __getitem__(self, index): return {"input_ids": torch.arange(64), "labels": torch.arange(64)}

        model = GPT2LMHeadModel(GPT2Config(vocab_size=8000, n_positions=64, n_embd=32, n_layer=1, n_head=2))
        settings = TrainingArguments(
            "out", per_device_eval_batch_size=4, max_steps=2, eval_strategy="steps", eval_steps=2, report_to=[],
            logging_strategy="no", save_strategy="no", disable_tqdm=True,
        )
        Trainer(model, settings, train_dataset=Texts(), eval_dataset=Texts(), compute_metrics=lambda p: {}).train()
        """
    )
    named = [finding for finding in found if "eval_accumulation_steps" in finding["fix"]]
    assert named, found
    assert "`Trainer.evaluate` of transformers" in words(named[0])
