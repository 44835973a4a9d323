"""Activations in float32. Setting: `precision="bf16-mixed"`."""

import sys

import lightning
import torch

on = sys.argv[1:] == ["on"]


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(16)]
        self.body = torch.nn.Sequential(*blocks)

    def training_step(self, batch, _):
        return self.body(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.TensorDataset(torch.randn(8192 * 6, 1024))
trainer = lightning.Trainer(
    max_steps=6,
    precision="bf16-mixed" if on else "32-true",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=8192))
