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


@pytest.mark.nightly
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

        # How far the thread has come when a step takes a batch is up to the machine, so each step waits for it.
        waiting, turn, done = queue.Queue(), threading.Semaphore(0), threading.Semaphore(0)

        def load():
            while turn.acquire():
                for _ in range(3):
                    waiting.put(torch.randn(1 << 20, device="cuda"))
                done.release()

        threading.Thread(target=load, daemon=True).start()
        model = torch.nn.Linear(1 << 20, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            turn.release()
            done.acquire()
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


def test_a_cache_that_is_emptied_in_every_step(findings):
    found = findings(
        """
        import torch
        from torch import nn

        def tidy():
            torch.cuda.empty_cache()

        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(30):
            model(torch.randn(256, 1024, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tidy()
        """
    )
    churn = only(found, "churn")
    assert churn["site"]["line"] == 6, "also in steps that are recorded without stacks"
    assert "remove `empty_cache()`" in churn["fix"]


def test_an_evaluation_that_runs_out_of_memory_because_it_keeps_graphs(findings):
    found = findings(
        """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            model(torch.randn(1024, 1024, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        def evaluate(batches):
            scores = []
            for _ in range(batches):
                scores.append(model(torch.randn(2048, 1024, device="cuda")))
            return torch.cat(scores)

        evaluate(500)
        """
    )
    oom = only(found, "oom")
    assert "local scores`, a list with" in words(oom) and "with the graphs that made them" in words(oom)
    assert "`.detach()`" in oom["fix"] and "batch size" not in oom["fix"]
    assert "caught the exception" not in words(oom) and oom["severity"] == "high"


def test_what_held_the_memory_when_an_allocation_failed_is_known_after_the_program_went_on(findings):
    found = findings(
        """
        import torch

        torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)

        def collect():
            pages = []
            while True:
                pages.append(torch.zeros(64, 1 << 20, dtype=torch.uint8, device="cuda"))

        try:
            collect()
        except torch.OutOfMemoryError:
            print("enough")
        torch.zeros(10, device="cuda")
        """
    )
    oom = only(found, "oom")
    assert "local pages`, a list with" in words(oom) and "caught the exception and went on" in words(oom)


def test_a_failed_allocation_that_the_program_catches(findings):
    found = findings(
        """
        import torch

        torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)
        kept = torch.zeros(512, 1 << 20, dtype=torch.uint8, device="cuda")
        for gib in (4, 2):
            try:
                torch.zeros(gib, 1 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                torch.zeros(10, device="cuda")
        """
    )
    oom = only(found, "oom")
    assert "caught the exception and went on; 2 allocations failed in all" in words(oom) and oom["severity"] == "medium"


def test_a_last_evaluation_that_collects_its_outputs_is_no_leak(findings):
    found = findings(
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            model(torch.randn(256, 512, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        @torch.no_grad()
        def predict(batches):
            outputs = []
            for _ in range(batches):
                outputs.append(model(torch.randn(1024, 512, device="cuda")))
            return torch.cat(outputs).cpu()

        predict(60)
        """
    )
    assert "leak" not in [finding["kind"] for finding in found], found


def test_a_buffer_that_grows_is_told_from_inputs_that_grow(findings):
    found = findings(
        """
        import torch
        from torch import nn

        class Bank(nn.Module):
            def __init__(self):
                super().__init__()
                self.encode = nn.Linear(256, 256)
                self.register_buffer("keys", torch.zeros(1024, 256))

            def forward(self, x):
                query = self.encode(x)
                scores = query @ self.keys.t()
                self.keys = torch.cat([self.keys, query.detach()])
                return scores.logsumexp(1).mean()

        bank = Bank().cuda()
        optimizer = torch.optim.SGD(bank.parameters(), lr=0.1)
        for step in range(40):
            bank(torch.randn(1024, 256, device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    leak = only(found, "leak")
    assert leak["site"]["line"] == 14 and abs(leak["bytes_per_step"] - (1 << 20)) < (1 << 18)
    assert "keys" in words(leak) and "a buffer of fixed size" in leak["fix"]
    assert "nothing is kept" not in " ".join(map(words, found))


def test_a_deque_with_a_limit_is_no_leak(findings):
    found = findings(
        """
        import torch
        from collections import deque
        from torch import nn

        recent = deque(maxlen=500)
        model = nn.Linear(256, 256).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(40):
            x = torch.randn(1024, 256, device="cuda")
            recent.append(x)
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    growth = only(found, "retained_growth")
    assert "its `maxlen` of 500" in words(growth) and growth["severity"] == "low"


def test_a_state_of_two_tensors_that_carries_its_graph(findings):
    found = findings(
        """
        import torch
        from torch import nn

        cell, state = nn.LSTMCell(64, 512).cuda(), None
        for step in range(30):
            state = cell(torch.randn(256, 64, device="cuda"), state)
        """
    )
    leak = only(found, "leak")
    assert "`.detach()` every part of `state`" in leak["fix"]


def test_what_is_kept_every_few_steps_is_given_each_time(findings):
    found = findings(
        """
        import torch
        from torch import nn

        class Failure(Exception):
            pass

        class Service:
            def __init__(self):
                self.net, self.failures = nn.Linear(1024, 1024).cuda(), []

            def answer(self, kind):
                x = torch.randn(1024, 1024, device="cuda")
                y = self.net(x)
                if kind == 2:
                    raise Failure(kind)

        def main():
            service = Service()
            for request in range(60):
                try:
                    with torch.inference_mode():
                        service.answer(request % 3)
                except Failure as error:
                    service.failures.append(error)

        main()
        """
    )
    leak = only(found, "leak")
    assert "8.00 MiB every 3 steps (2.67 MiB per step)" in leak["summary"]
    assert "store `str(e)`" in leak["fix"] and "gc.collect" not in leak["fix"]


def test_a_metric_that_is_never_reset_holds_what_it_was_given_wherever_that_was_made(findings):
    found = findings(
        """
        import torch, torchmetrics

        net = torch.nn.Linear(64, 1).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        roc = torchmetrics.ROC(task="binary").cuda()
        for step in range(24):
            batch = torch.randn(4096, 64, device="cuda"); labels = torch.randint(0, 2, (4096,), device="cuda")
            scores = net(batch).squeeze(1)
            torch.nn.functional.binary_cross_entropy_with_logits(scores, labels.float()).backward()
            optimizer.step()
            optimizer.zero_grad()
            roc.update(scores.detach().sigmoid(), labels)
        """
    )
    leak = only(found, "leak")
    assert leak["bytes_per_step"] == 4096 * (8 + 4), "labels, which the line of the batch makes, and scores"
    assert leak["holder"]["path"] == "__main__.roc"
    assert "in its `preds` and `target`" in words(leak)
    assert leak["fix"].startswith("call `.reset()` after each epoch")


def test_outputs_of_a_program_that_never_trains_are_to_be_made_without_graphs(findings):
    found = findings(
        """
        import torch

        encoder = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
        vectors = []
        for batch in [torch.randn(1024, 512) for _ in range(16)]:
            vectors.append(encoder(batch.cuda()))
        """
    )
    leak = only(found, "leak")
    assert leak["fix"].startswith("run train.py:7 under `torch.inference_mode()`"), leak["fix"]
    assert "a list with 16 references" in words(leak), "also the one that a variable refers to"


def test_containers_of_one_object_are_named(findings):
    found = findings(
        """
        import torch

        class Rollouts:
            def __init__(self):
                self.scores, self.rewards = [], []

        policy = torch.nn.Linear(128, 64).cuda()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        rollouts = Rollouts()
        for episode in range(16):
            scores = policy(torch.randn(1024, 128, device="cuda"))
            rollouts.scores.append(scores.detach().softmax(-1))
            rollouts.rewards.append(torch.rand(1024, 64, device="cuda"))
            (scores * rollouts.rewards[-1]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    leak = only(found, "leak")
    assert leak["fix"].startswith("empty `rewards` and `scores` of `__main__.rollouts`"), leak["fix"]
    assert leak["holder"]["stored_at"]["line"] in (13, 14)


def test_the_holder_of_a_tensor_that_is_replaced_by_a_larger_one_is_seen_at_the_end(findings):
    found = findings(
        """
        import torch

        net = torch.nn.Linear(128, 1000).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        seen = torch.empty(0, 1000, device="cuda")
        for step in range(20):
            out = net(torch.randn(512, 128, device="cuda"))
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen = torch.cat([seen, out.detach()])
        """
    )
    leak = only(found, "leak")
    assert leak["holder"]["path"] == "__main__.seen"
    assert leak["holder"]["retained"] >= 20 * 512 * 1000 * 4
    assert "early look" not in words(leak)


def test_memory_that_cuda_graphs_keep_is_named_where_a_request_fails(predict):
    answer = predict.answer(
        """
        import torch

        net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).cuda()
        x = torch.randn(16384, 4096, device="cuda")
        with torch.no_grad():
            net(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                parts = [layer(x) for layer in net]
            del parts
            table = torch.empty(960 << 20, dtype=torch.uint8, device="cuda")
        """,
        "--gpu-memory",
        "3GiB",
    )
    found = [finding for of in answer["failing"]["inputs"] for device in of["devices"] for finding in device["findings"]]
    oom = only(found, "oom")
    assert "private pools keep" in oom["summary"]
    assert oom["fix"].startswith("release the "), oom["fix"]


def test_a_record_of_outputs_without_graphs_is_not_taken_for_a_loss(findings):
    found = findings(
        """
        import torch

        body, head = torch.nn.Linear(256, 1024).cuda(), torch.nn.Linear(1024, 2).cuda()
        results = []
        for step in range(16):
            with torch.no_grad():
                hidden = body(torch.randn(64, 256, device="cuda"))
                results.append({"hidden": hidden, "logits": head(hidden)})
        """
    )
    leak = only(found, "leak")
    assert "a list with 16 references" in words(leak)
    assert "loss" not in words(leak) and "graph" not in words(leak), words(leak)


def test_losses_of_a_validation_with_grad_mode_on(findings):
    found = findings(
        """
        import torch

        net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        history = []
        for step in range(12):
            net(torch.randn(256, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(net(torch.randn(1024, 512, device="cuda")).square().mean())
        """
    )
    leak = only(found, "leak")
    assert leak["site"]["line"] == 11
    assert leak["fix"].endswith("if nothing is trained there, run train.py:11 under `torch.no_grad()`"), leak["fix"]


LAYERS = """
    import torch
    from torch import nn

    embed, encoder, head = nn.Embedding(1000, 512).cuda(), nn.Linear(512, 2048).cuda(), nn.Linear(2048, 512).cuda()
    recent = {}

    @torch.inference_mode()
    def handle(request):
        hidden = embed(torch.randint(0, 1000, (256,), device="cuda"))
        hidden = torch.relu(encoder(hidden))
        if KEEP:
            recent[request] = hidden
        return head(hidden).mean().item()

    def serve():
        for request in range(24):
            handle(request)

    serve()
"""

DIFFUSION = """
    import torch
    from torch import nn

    class Pipeline:
        def __init__(self):
            self.text, self.unet = nn.Linear(256, 64).cuda(), nn.Conv2d(4, 4, 3, padding=1).cuda()
            self.vae, self.history = nn.ConvTranspose2d(4, 3, 4, stride=4).cuda(), []

        @torch.no_grad()
        def __call__(self, prompt):
            condition = self.text(prompt)
            latents = torch.randn(1, 4, 64, 64, device="cuda")
            for _ in range(12):
                latents = latents - self.unet(latents) * condition.mean()
            image = self.vae(latents)
            if KEEP:
                self.history.append(image)
            return image.cpu()

    pipeline = Pipeline()
    for request in range(16):
        pipeline(torch.randn(1, 256, device="cuda"))
"""

ASYNCIO = """
    import asyncio
    import torch
    from torch import nn

    torch.set_grad_enabled(False)
    encoder, ranker = nn.Linear(512, 512).cuda(), nn.Linear(512, 64).cuda()
    sessions = {}

    async def handle(user):
        batch = torch.randn(512, 512, device="cuda")
        vectors = encoder(batch)
        await asyncio.sleep(0)
        scores = ranker(vectors)
        if KEEP:
            sessions[user] = vectors
        return scores.argmax().item()

    async def worker(users):
        for user in users:
            await handle(user)

    async def main():
        await asyncio.gather(*(worker(range(first, 24, 3)) for first in range(3)))

    asyncio.run(main())
"""

THREADS = """
    from concurrent.futures import ThreadPoolExecutor
    import torch
    from torch import nn

    stem, body, head = nn.Conv2d(3, 32, 3).cuda(), nn.Conv2d(32, 32, 3, padding=1).cuda(), nn.Linear(32, 10).cuda()
    features = []

    def handle(request):
        with torch.inference_mode():
            hidden = stem(torch.randn(1, 3, 130, 130, device="cuda"))
            for _ in range(4):
                hidden = torch.relu(body(hidden))
            if KEEP:
                features.append(hidden)
            return head(hidden.mean((2, 3))).argmax().item()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(handle, range(24)))
"""


@pytest.mark.parametrize(
    "server, requests, kept, holder",
    [
        (LAYERS, 24, 256 * 2048 * 4, "__main__.recent"),
        (DIFFUSION, 16, 3 * 256 * 256 * 4, "__main__.pipeline.history"),
        (ASYNCIO, 24, 512 * 512 * 4, "__main__.sessions"),
    ],
    ids=["layers", "diffusion", "asyncio"],
)
def test_what_a_server_keeps_is_given_per_request(run, server, requests, kept, holder):
    of = {keep: run(textwrap.dedent(server).replace("KEEP", str(keep))).report() for keep in (False, True)}
    assert all(report["steps"]["count"] == requests for report in of.values())
    assert "a step is one pass through" in " ".join(of[True]["caveats"])
    leak = only(of[True]["findings"], "leak")
    assert (leak["bytes_per_step"], leak["holder"]["path"]) == (kept, holder)
    assert {finding["kind"] for finding in of[False]["findings"]} <= {"workspace"}, of[False]["findings"]


def test_what_a_server_with_threads_keeps_is_found(run):
    # Its requests overlap, so what is counted as one depends on which thread is first.
    of = {keep: run(textwrap.dedent(THREADS).replace("KEEP", str(keep))).report() for keep in (False, True)}
    assert only(of[True]["findings"], "leak")["holder"]["path"] == "__main__.features"
    assert {finding["kind"] for finding in of[False]["findings"]} <= {"workspace"}, of[False]["findings"]


VALIDATION = """
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def validate(model, loader):
        model.eval()
        losses = []
        for batch in loader:
            loss = model(batch.cuda()).square().mean()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    for epoch in range(2):
        model.train()
        for _ in range(8):
            model(torch.randn(512, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        validate(model, torch.empty(6, 8192, 1024))
"""


def test_a_validation_without_no_grad_is_told_to_use_inference_mode_first(findings):
    spike = only(findings(VALIDATION), "spike")
    assert spike["fix"].startswith("run train.py:12 in `with torch.inference_mode():`"), spike["fix"]
    decorated = VALIDATION.replace("    def validate", "    @torch.no_grad()\n    def validate")
    assert "inference_mode():`: no `backward()`" not in " ".join(map(words, findings(decorated)))
    # Results that are kept have no graph.
    kept = decorated.replace("loss = model(batch.cuda()).square().mean()", "loss = model(batch.cuda())")
    kept = kept.replace("losses.append(loss.item())", "losses.append(loss)").replace(
        "sum(losses) / len(losses)", "torch.cat(losses).mean()"
    )
    spike = only(findings(kept), "spike")
    assert "inference_mode():`: no `backward()`" not in words(spike), spike["fix"]


def test_a_validation_loop_that_runs_out_of_memory_is_told_to_use_inference_mode_first(findings):
    found = findings(
        """
        import torch
        from torch import nn

        torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(8):
            model(torch.randn(512, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        total = 0
        for batch in torch.empty(10, 8192, 1024):
            total += model(batch.cuda()).square().mean()
        """
    )
    oom = only(found, "oom")
    assert oom["fix"].startswith("run train.py:15 in `with torch.inference_mode():`"), oom["fix"]


@pytest.mark.parametrize("steps", [0, 3])
def test_a_float32_copy_of_the_parameters_is_optimizer_state(run, steps):
    program = """
import torch

model = torch.nn.Linear(4096, 4096, bias=False).cuda().bfloat16()
flat = torch.nn.Parameter(torch.cat([of.detach().float().flatten() for of in model.parameters()]))
optimizer = torch.optim.SGD([flat], lr=0.1)
kept = model(torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)).mean()
for step in range(STEPS):
    flat.grad = torch.zeros_like(flat)
    optimizer.step()
    flat.grad = None
"""
    groups = run(program.replace("STEPS", str(steps))).report("--by", "category", "--at", "end")["live"]["groups"]
    by = {group["category"]: group["bytes"] for group in groups}
    assert by["optimizer"] == 4 * 4096 * 4096 and by["parameter"] == 2 * 4096 * 4096, by


@pytest.mark.nightly
def test_caches_that_the_program_keeps_are_its_own_to_empty(findings):
    found = findings(
        """
        import os
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        shape = GPT2Config(vocab_size=1000, n_positions=256, n_embd=256, n_layer=2, n_head=4)
        model, caches = GPT2LMHeadModel(shape).cuda().eval(), {}

        @torch.inference_mode()
        def reply(user, prompt):
            out = model(prompt, use_cache=True)
            for _ in range(4):
                out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
            caches[user] = out.past_key_values

        for user in range(12):
            reply(user, torch.randint(0, 1000, (1, 128), device="cuda"))
        """
    )
    leak = only(found, "leak")
    assert leak["holder"]["path"] == "__main__.caches"
    assert leak["bytes_per_step"] == 2 * 2 * 132 * 256 * 4, "keys and values of two layers, for each request"
    assert leak["fix"].startswith("`__main__.caches`: remove old entries"), leak["fix"]


def test_a_source_file_that_was_edited_after_the_recording_is_said_to_be(run):
    recorded = run("import torch\nkept = torch.empty(1 << 20, device='cuda')\n")
    script = recorded.folder.parent / "train.py"
    assert not [caveat for caveat in recorded.report()["caveats"] if str(script) in caveat]
    script.write_text("# one line more\n" + script.read_text())
    (caveat,) = [caveat for caveat in recorded.report()["caveats"] if str(script) in caveat]
    assert "has changed since the recording" in caveat
