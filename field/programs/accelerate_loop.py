"""A training loop with accelerate: accumulation, clipping and a scheduler."""

PROGRAM = {"needs": ["accelerate"]}

import probe
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn


def main():
    set_seed(3)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        probe.tick()
        accelerator.print(f"{loss.item():.2f} {accelerator.sync_gradients} {schedule.get_last_lr()[0]:.5f}")
    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
    probe.done()


if __name__ == "__main__":
    main()
