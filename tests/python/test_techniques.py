"""What `oomph predict --try` switches on from outside: the effect on real programs, or the reason why there is none."""

import json
import pathlib

import pytest

from conftest import Predict

TRANSFORMER = """
    import torch
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        x = torch.randn(16, 256, 512, device="cuda")
        loss = torch.nn.functional.mse_loss(model(x), torch.zeros_like(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

LOADER = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(8192, 1024), torch.zeros(8192, dtype=torch.long)), batch_size=1024)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
"""

INFERENCE = """
    import torch
    model = torch.nn.Linear(1024, 1024).cuda().eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(64, 1024, device="cuda"))
"""


def attempt(predict, source, technique, **options):
    """The prediction without and with a technique, and what was done."""
    result = predict.result(source, "--try", technique, **options)
    (tried,) = result.answer["try"]
    assert tried["error"] is None, tried["error"]
    return result.answer["peak_allocated"], tried["peak_allocated"], tried["techniques"]


class Tried:
    """A program without a technique, and with each of several."""

    def __init__(self, folder: pathlib.Path, source: str, *techniques: str) -> None:
        self.answer = Predict(folder).result(source, "--try", ",".join(techniques)).answer
        self._tried = dict(zip(techniques, self.answer["try"], strict=True))

    def __getitem__(self, technique: str) -> dict:
        tried = self._tried[technique]
        assert tried["error"] is None, tried["error"]
        return tried

    def attempt(self, technique: str) -> tuple[int, int, dict[str, str]]:
        """As the function `attempt` gives it."""
        return self.answer["peak_allocated"], self[technique]["peak_allocated"], self[technique]["techniques"]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    techniques = ("amp", "checkpoint", "offload", "bf16", "amp+checkpoint", "fused", "foreach-off", "batch/2", "accumulate")
    return Tried(tmp_path_factory.mktemp("transformer"), TRANSFORMER, *techniques)


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return Tried(tmp_path_factory.mktemp("loader"), LOADER, "batch/2", "accumulate", "set-to-none")


@pytest.mark.parametrize(
    "technique, share, said",
    [
        ("amp", 0.8, "autocast(bfloat16) around TransformerEncoder"),
        ("checkpoint", 0.6, "6 blocks of TransformerEncoderLayer"),
        ("offload", 0.6, "what TransformerEncoder saves"),
        ("bf16", 0.6, "parameters and inputs of TransformerEncoder in bfloat16"),
    ],
)
def test_peak_falls(transformer, technique, share, said):
    before, after, techniques = transformer.attempt(technique)
    assert after < share * before
    assert techniques[technique].startswith(said)


def test_several_at_once(transformer):
    _, amp, _ = transformer.attempt("amp")
    _, both, techniques = transformer.attempt("amp+checkpoint")
    assert both < amp
    assert set(techniques) == {"amp", "checkpoint"}
    assert not any(text.startswith("not applied") for text in techniques.values())


def test_own_technique_makes_the_same_requests(transformer, predict):
    """Autocast from outside is autocast around the forward pass and the loss."""
    autocast = 'with torch.autocast("cuda", torch.bfloat16): loss ='
    own = predict.result(TRANSFORMER.replace("loss =", autocast))
    for figure in ("peak_allocated", "peak_reserved", "requests"):
        assert transformer["amp"][figure] == own.answer[figure], figure


def test_already_autocast(predict):
    program = TRANSFORMER.replace("model(x)", 'torch.autocast("cuda", torch.bfloat16)(model)(x)')
    before, after, techniques = attempt(predict, program, "amp")
    assert before == after
    assert techniques == {"amp": "not applied: the program already uses autocast"}


def test_switched_off_autocast_does_not_count(predict):
    program = TRANSFORMER.replace("model(x)", 'torch.autocast("cuda", enabled=False)(model)(x)')
    before, after, _ = attempt(predict, program, "amp")
    assert after < before


def test_inference(predict):
    _, _, techniques = attempt(predict, INFERENCE, "amp+checkpoint+offload+fused+set-to-none")
    assert techniques["amp"].startswith("autocast(bfloat16) around Linear")
    assert techniques["checkpoint"] == "not applied: no module was called in training"
    assert techniques["offload"] == "not applied: no module was called in training"
    assert techniques["fused"] == "not applied: no optimizer was created"
    assert techniques["set-to-none"] == "not applied: the program never calls zero_grad"


def test_no_module(predict):
    program = """
        import torch
        for _ in range(3):
            x = torch.zeros(1024, device="cuda")
    """
    _, _, techniques = attempt(predict, program, "amp+bf16", steps="all")
    assert set(techniques.values()) == {"not applied: no module was called"}


BLOCKS = {
    "resnet": ("torchvision.models.resnet18()", "8 blocks of BasicBlock"),
    "vit": ("torchvision.models.vit_b_16(image_size=64)", "12 blocks of EncoderBlock"),
    "swin": ("torchvision.models.swin_t()", "3 blocks of PatchMerging and 12 blocks of SwinTransformerBlock"),
    "sequences": (
        "torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.ReLU()) for _ in range(4)])",
        "4 blocks of Sequential",
    ),
    "layers": (
        "torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.ReLU(), torch.nn.Conv2d(3, 3, 3), torch.nn.Flatten())",
        "not applied: no repeated blocks were found in Sequential",
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(predict, name):
    model, said = BLOCKS[name]
    program = f"""
        import copy, torch
        {"import torchvision" if "torchvision" in model else ""}
        model = {model}.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(2, 3, 64, 64, device="cuda")).sum().backward()
            average = copy.deepcopy(model)
            optimizer.step()
        assert all(a is not b for a, b in zip(average.parameters(), model.parameters()))
    """
    _, _, techniques = attempt(predict, program, "checkpoint")
    assert techniques["checkpoint"] == said


def test_blocks_as_attributes(predict):
    program = """
        import torch
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.wide, self.narrow = torch.nn.Linear(256, 2048), torch.nn.Linear(2048, 256)
            def forward(self, x, *, scale):
                return self.narrow(self.wide(x).relu()) * scale
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second, self.third = Block(), Block(), Block()
            def forward(self, x):
                return self.third(self.second(self.first(x, scale=1), scale=2), scale=3)
        model = Model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4096, 256, device="cuda")).sum().backward()
            optimizer.step()
    """
    before, after, techniques = attempt(predict, program, "checkpoint")
    assert techniques["checkpoint"] == "3 blocks of Block"
    assert after < before


def test_smaller_batches(loader):
    before, after, techniques = loader.attempt("batch/2")
    assert techniques == {"batch/2": "batches of 512 instead of 1024"}
    assert after < 0.9 * before


def test_accumulate(loader):
    before, after, techniques = loader.attempt("accumulate")
    assert techniques == {"accumulate": "batches of 512 instead of 1024, two for each step of the optimizer"}
    assert after < before
    _, half, _ = loader.attempt("batch/2")
    assert after >= half


def test_accumulate_steps_and_clears_every_second_time(predict, tmp_path):
    program = """
        import json, sys, torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        taken = []
        optimizer.register_step_post_hook(lambda *_: taken.append(1))
        seen = []
        for (x,) in DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8):
            optimizer.zero_grad()
            cleared = model.weight.grad is None
            model(x.cuda()).sum().backward()
            optimizer.step()
            scheduler.step()
            seen.append([len(x), cleared, len(taken)])
        open(sys.argv[1], "w").write(json.dumps(seen))
    """
    seen = tmp_path / "seen"
    attempt(predict, program, "accumulate", steps="all", arguments=(seen,))
    assert json.loads(seen.read_text()) == [[4, n % 2 == 0, (n + 1) // 2] for n in range(6)]


def test_batch_samplers(predict):
    program = """
        import torch
        from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
        data = TensorDataset(torch.randn(64, 4))
        sampler = BatchSampler(SequentialSampler(data), 16, drop_last=False)
        model = torch.nn.Linear(4, 4).cuda()
        for loader in (DataLoader(data, batch_sampler=sampler), DataLoader(data, batch_sampler=sampler)):
            for (x,) in loader:
                model(x.cuda())
    """
    _, _, techniques = attempt(predict, program, "batch/2", steps="all")
    assert techniques == {"batch/2": "batches of 8 instead of 16"}


@pytest.mark.parametrize("technique", ["batch/2", "accumulate"])
def test_own_batches(transformer, technique):
    before, after, techniques = transformer.attempt(technique)
    assert before == after
    assert techniques[technique] == (
        "not applied: the program makes its batches itself; `oomph predict --vary` tries other values of its arguments"
    )


def test_batches_of_one(predict):
    _, _, techniques = attempt(predict, LOADER.replace("batch_size=1024", "batch_size=1"), "batch/2")
    assert techniques["batch/2"] == "not applied: the DataLoader's batches have one sample"


def test_set_to_none(loader, predict):
    _, _, techniques = loader.attempt("set-to-none")
    assert techniques["set-to-none"].startswith("not applied: set_to_none=True is already the default")
    program = TRANSFORMER.replace("zero_grad()", "zero_grad(set_to_none=False)")
    before, after, techniques = attempt(predict, program, "set-to-none")
    assert techniques["set-to-none"] == "zero_grad(set_to_none=True) where the program says False"
    assert after < before


OPTIMIZERS = [
    ("AdamW", "", "fused", "fused=True for AdamW", {"fused": True, "foreach": None}),
    ("AdamW", "foreach=True", "fused", "fused=True for AdamW", {"fused": True, "foreach": None}),
    ("SGD", "", "fused", "fused=True for SGD", {"fused": True, "foreach": None}),
    ("Adam", "fused=True", "fused", "not applied: Adam is fused already", {"fused": True}),
    ("RMSprop", "", "fused", "not applied: RMSprop has only one implementation", {}),
    ("Adagrad", "", "fused", "not applied: Adagrad has only one implementation", {}),
    ("AdamW", "", "foreach-off", "foreach=False for AdamW", {"foreach": False}),
    ("RMSprop", "", "foreach-off", "foreach=False for RMSprop", {"foreach": False}),
    ("Adam", "fused=True", "foreach-off", "not applied: Adam is fused, which has no intermediate results", {}),
]


@pytest.mark.parametrize("kind, argument, technique, said, options", OPTIMIZERS)
def test_optimizers(predict, tmp_path, kind, argument, technique, said, options):
    program = f"""
        import json, sys, torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.{kind}(model.parameters(), lr=0.1, {argument})
        for _ in range(3):
            model(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()
        open(sys.argv[1], "w").write(json.dumps(optimizer.defaults))
    """
    seen = tmp_path / "seen"
    _, _, techniques = attempt(predict, program, technique, steps="all", arguments=(seen,))
    assert techniques == {technique: said}
    found = json.loads(seen.read_text())
    assert {name: found[name] for name in options} == options


def test_fused_makes_fewer_requests(transformer):
    assert transformer["fused"]["requests"] < transformer.answer["requests"] < transformer["foreach-off"]["requests"]


def test_bf16_reaches_states_and_keywords(predict, tmp_path):
    program = """
        import json, sys, torch
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(256, 256, device="cuda"))
            def forward(self, *, x):
                return x @ self.weight
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            y = model(x=torch.randn(8, 256, device="cuda"))
            y.sum().backward()
            optimizer.step()
            state = optimizer.state[model.weight]["exp_avg"]
            seen = [y, model.weight, model.weight.grad, state]
        open(sys.argv[1], "w").write(json.dumps([str(tensor.dtype) for tensor in seen]))
    """
    seen = tmp_path / "seen"
    _, _, techniques = attempt(predict, program, "bf16", steps="all", arguments=(seen,))
    assert techniques == {"bf16": "parameters and inputs of Model in bfloat16"}
    assert json.loads(seen.read_text()) == ["torch.bfloat16"] * 4


def test_already_bf16(predict):
    program = TRANSFORMER.replace(".cuda()", ".to('cuda', torch.bfloat16)")
    program = program.replace("256, 512,", "256, 512, dtype=torch.bfloat16,")
    before, after, techniques = attempt(predict, program, "bf16")
    assert before == after
    assert techniques["bf16"] == "not applied: the parameters of TransformerEncoder are bfloat16 already"


@pytest.mark.nightly
def test_transformers(predict):
    program = """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        config = GPT2Config(n_layer=4, n_embd=256, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        model = GPT2LMHeadModel(config).cuda().train()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            ids = torch.randint(0, 50257, (8, 256), device="cuda")
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    _, _, techniques = attempt(predict, program, "checkpoint")
    assert techniques == {"checkpoint": "4 blocks of GPT2Block"}
