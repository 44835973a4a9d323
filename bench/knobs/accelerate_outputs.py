"""accelerate converts the outputs of a mixed-precision forward to float32. Setting: return only the loss."""

import sys

import torch
from accelerate import Accelerator

on = sys.argv[1:] == ["on"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(512, 512), torch.nn.Linear(512, 32_000)

    def forward(self, x, labels):
        logits = self.head(self.body(x))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss} if on else {"loss": loss, "logits": logits}


accelerator = Accelerator(mixed_precision="bf16")
model = Model()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(6):
    labels = torch.randint(0, 32_000, (8, 1024), device="cuda")
    out = model(torch.randn(8, 1024, 512, device="cuda"), labels)
    accelerator.backward(out["loss"])
    optimizer.step()
    optimizer.zero_grad()
