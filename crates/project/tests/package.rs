//! Files of a package: what a function of one keeps and returns is known in the others.

use project::{LintOptions, check};
use std::path::PathBuf;
use tempfile::TempDir;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("written");
    }
    folder
}

/// Findings in the files of a package: file, line, severity, rule.
fn findings(folder: &TempDir, named: &[&str]) -> Vec<String> {
    let paths: Vec<PathBuf> = match named {
        [] => vec![folder.path().to_owned()],
        named => named.iter().map(|name| folder.path().join(name)).collect(),
    };
    let results = check(&LintOptions { paths, ..Default::default() }).expect("settings");
    let mut found: Vec<String> = results
        .findings()
        .map(|(file, found)| {
            let name = PathBuf::from(&file.name);
            let name = name.strip_prefix(folder.path()).expect("inside").to_string_lossy().replace('\\', "/");
            let line = file.source.place(found.range.start).line;
            format!("{name}:{line} {} {}", found.severity.name(), found.rule.name)
        })
        .collect();
    found.sort();
    found
}

const STEP: &str = "\
import torch.nn.functional as F

def step(model, x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss

def quiet_step(model, x, y):
    return step(model, x, y).item()
";

const TRAIN: &str = "\
import torch
from pkg.steps import step

def main(model, loader):
    history = []
    for x, y in loader:
        history.append(step(model, x, y))
    return history
";

#[test]
fn a_loss_is_followed_out_of_the_function_that_returns_it() {
    let folder = folder(&[("pkg/steps.py", STEP), ("train.py", TRAIN)]);
    assert_eq!(findings(&folder, &[]), ["train.py:7 low loss-kept-in-list"]);
    assert_eq!(findings(&folder, &["train.py"]), ["train.py:7 low loss-kept-in-list"], "without the package");
    let quiet = TRAIN.replace("step(model", "quiet_step(model").replace("import step", "import quiet_step");
    std::fs::write(folder.path().join("train.py"), quiet).expect("written");
    assert_eq!(findings(&folder, &[]), [""; 0]);
}

#[test]
fn a_class_of_another_file_may_keep_what_it_is_given() {
    let keeps = "class Tracker:\n    def __init__(self):\n        self.values = []\n    def update(self, value):\n        \
                 self.values.append(value)\n# torch\n";
    let train = "\
import torch
import torch.nn.functional as F
from pkg import Tracker

def evaluate(model, val_loader):
    tracker = Tracker()
    for x, y in val_loader:
        tracker.update(F.mse_loss(model(x), y))
    return tracker
";
    let files = |tracker: &str| {
        folder(&[
            ("pkg/__init__.py", "from .track import Tracker\nimport torch\n"),
            ("pkg/track.py", tracker),
            ("pkg/eval.py", &train.replace("from pkg", "from .track")),
            ("train.py", train),
        ])
    };
    let expected = ["medium evaluation-with-gradients", "high loss-kept-in-list"];
    let both: Vec<String> = ["pkg/eval.py", "train.py"]
        .iter()
        .flat_map(|file| [format!("{file}:8 {}", expected[1]), format!("{file}:8 {}", expected[0])])
        .collect();
    assert_eq!(findings(&files(keeps), &[]), both);
    let numbers = keeps.replace("append(value)", "append(value.item())");
    let only: Vec<String> = both.into_iter().filter(|line| line.contains("medium")).collect();
    assert_eq!(findings(&files(&numbers), &[]), only);
}

#[test]
fn a_meter_is_judged_by_its_own_code() {
    let meter = "class AverageMeter:\n    def __init__(self):\n        self.sum = 0\n    def update(self, val, n=1):\n        \
                 self.sum += val * n\n# torch\n";
    let train = "\
import torch
import torch.nn.functional as F
from meters import AverageMeter

def train(model, loader, opt):
    meter = AverageMeter()
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        meter.update(val=loss)
";
    let both = folder(&[("meters.py", meter), ("train.py", train)]);
    assert_eq!(findings(&both, &[]), ["train.py:12 low loss-accumulated-with-graph"]);
    let numbers = meter.replace("val * n", "float(val) * n");
    let both = folder(&[("meters.py", &numbers), ("train.py", &train.replace("val=loss", "loss"))]);
    assert_eq!(findings(&both, &[]), [""; 0]);
}

#[test]
fn a_decorator_of_another_file_may_turn_gradients_off() {
    let wrapper = "\
import functools, torch

def frozen(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with torch.no_grad():
            return function(*args, **kwargs)
    return wrapper
";
    let evaluate = "\
import torch
from .wrap import frozen

@frozen
def evaluate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct
";
    let folder = folder(&[("pkg/wrap.py", wrapper), ("pkg/eval.py", evaluate)]);
    assert_eq!(findings(&folder, &[]), [""; 0]);
    let other = wrapper.replace("torch.no_grad()", "torch.cuda.amp.autocast()");
    std::fs::write(folder.path().join("pkg/wrap.py"), other).expect("written");
    assert_eq!(findings(&folder, &[]), ["pkg/eval.py:8 medium evaluation-with-gradients"]);
}

#[test]
fn a_model_of_another_file_may_differentiate() {
    let model = "\
import torch
from torch import nn

class Energy(nn.Module):
    def forward(self, x):
        energy = self.net(x).sum()
        return torch.autograd.grad(energy, x)[0]
";
    let evaluate = "\
import torch
from models.energy import Energy

def evaluate(loader):
    model = Energy().cuda().eval()
    for x, y in loader:
        total = (model(x) - y).abs().mean().item()
";
    let folder = folder(&[("models/energy.py", model), ("run.py", evaluate)]);
    assert_eq!(findings(&folder, &[]), [""; 0]);
    std::fs::write(folder.path().join("models/energy.py"), model.replace("torch.autograd.grad", "torch.add"))
        .expect("written");
    assert_eq!(findings(&folder, &[]), ["run.py:7 medium eval-mistaken-for-no-grad"]);
}

#[test]
fn a_caller_in_another_file_may_turn_gradients_off() {
    let model = "\
import torch

class Learner:
    def evaluate_one_step(self, x, y):
        self.net.eval()
        self.correct = int((self.net(x).argmax(1) == y).sum())
";
    let run = "\
import torch

def evaluate(learner, loader):
    with torch.no_grad():
        step = learner.evaluate_one_step
        for x, y in loader:
            step(x, y)
";
    let folder = folder(&[("model.py", model), ("run.py", run)]);
    assert_eq!(findings(&folder, &[]), [""; 0]);
    std::fs::write(folder.path().join("run.py"), run.replace("no_grad", "autocast")).expect("written");
    assert_eq!(findings(&folder, &[]), ["model.py:6 medium eval-mistaken-for-no-grad"]);
}

#[test]
fn files_that_import_each_other_are_checked() {
    let one = "import torch\nfrom two import b\n\ndef a(model, x):\n    return b(model, x)\n";
    let two = "import torch\nfrom one import a\n\ndef b(model, x):\n    return a(model, x)\n";
    assert_eq!(findings(&folder(&[("one.py", one), ("two.py", two)]), &[]), [""; 0]);
}

#[test]
fn a_state_that_forward_detaches_in_another_file_does_not_grow() {
    let model = |state: &str| {
        format!(
            "\
import torch.nn as nn

class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 8)
        self.decoder = nn.Linear(8, 8)
    def forward(self, x, state):
        out, state = self.rnn(x, state)
        return self.decoder(out), ({state})
"
        )
    };
    let write = "\
import torch
from model import Writer

def write():
    rnn = Writer().cuda()
    state = None
    while True:
        out, state = rnn(x, state)
        print(out.argmax().item())
";
    let detached = model("state[0].detach(), state[1].detach()");
    let found = findings(&folder(&[("model.py", &detached), ("write.py", write)]), &[]);
    assert_eq!(found, ["write.py:8 medium evaluation-with-gradients"]);
    let kept = model("state[0], state[1]");
    let found = findings(&folder(&[("model.py", &kept), ("write.py", write)]), &[]);
    assert_eq!(
        found,
        ["write.py:8 high hidden-state-not-detached", "write.py:8 medium evaluation-with-gradients"]
    );
}

#[test]
fn a_caller_that_imports_everything_turns_gradients_off() {
    let helper = "\
import torch

def show_samples(net, loader):
    net.eval()
    for x in loader:
        print(net(x).argmax(1))
";
    let main = |under: &str| {
        format!("import torch\nfrom helper import *\n\nwith {under}:\n    show_samples(net, loader)\n")
    };
    let found = findings(&folder(&[("helper.py", helper), ("main.py", &main("torch.no_grad()"))]), &[]);
    assert_eq!(found, [""; 0]);
    let found = findings(&folder(&[("helper.py", helper), ("main.py", &main("timer()"))]), &[]);
    assert_eq!(found, ["helper.py:6 medium eval-mistaken-for-no-grad"]);
}

#[test]
fn a_device_of_another_file_is_a_gpu_if_that_mentions_cuda() {
    let main = "\
import torch
from config import device
from model import Net

def main():
    model = Net().to(device)
    saved = torch.load('x.pt')
    model.load_state_dict(saved['model'])
    train(model)
";
    let config = |device: &str| format!("import torch\ndevice = torch.device('{device}')\n");
    let found = findings(&folder(&[("config.py", &config("cuda")), ("main.py", main)]), &[]);
    assert_eq!(found, ["main.py:7 medium load-without-map-location"]);
    let found = findings(&folder(&[("config.py", &config("cpu")), ("main.py", main)]), &[]);
    assert_eq!(found, [""; 0]);
}
