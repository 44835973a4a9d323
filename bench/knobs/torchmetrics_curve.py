"""A curve over every score of the epoch. Setting: `thresholds=100`."""

import sys

import torch
from torchmetrics.classification import MulticlassAUROC

on = sys.argv[1:] == ["on"]
model = torch.nn.Linear(256, 1000).cuda()
metric = MulticlassAUROC(num_classes=1000, thresholds=100 if on else None, validate_args=False).cuda()
for _ in range(20):
    with torch.no_grad():
        scores = model(torch.randn(4096, 256, device="cuda"))
    metric.update(scores.softmax(-1), torch.zeros(4096, dtype=torch.long, device="cuda"))
