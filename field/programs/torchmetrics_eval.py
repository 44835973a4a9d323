"""Metrics of torchmetrics, which are modules with states on the GPU."""

PROGRAM = {"needs": ["torchmetrics"]}

import pickle

import probe
import torch
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

torch.manual_seed(0)
model = torch.nn.Linear(16, 5).cuda()
metrics = MetricCollection([MulticlassAccuracy(5, validate_args=False), MulticlassF1Score(5, validate_args=False)]).cuda()
confusion = MulticlassConfusionMatrix(5, validate_args=False).cuda()
mean = MeanMetric().cuda()
for step in range(6):
    labels = torch.arange(32, device="cuda") % 5
    with torch.no_grad():
        outputs = model(torch.randn(32, 16, device="cuda"))
    guesses = (labels + (torch.arange(32, device="cuda") % 3 == 0)) % 5
    values = metrics(guesses, labels)
    confusion.update(guesses, labels)
    mean.update(outputs.abs().mean())
    probe.tick()
    print(step, {name: round(value.item(), 3) for name, value in values.items()})
print(confusion.compute().sum().item())
print(len(pickle.loads(pickle.dumps(metrics))), type(mean.compute().item()).__name__)
probe.done()
