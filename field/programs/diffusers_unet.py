"""A UNet, a noise schedule and EMA of diffusers."""

PROGRAM = {"needs": ["diffusers"], "jitter": {"memory": True, "stderr": True}}

import probe
import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=32,
    block_out_channels=(32, 64),
    layers_per_block=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).cuda()
schedule = DDPMScheduler(num_train_timesteps=100)
average = EMAModel(model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(6):
    images = torch.randn(2, 3, 32, 32, device="cuda")
    noise = torch.randn_like(images)
    times = torch.randint(0, 100, (2,), device="cuda")
    loss = torch.nn.functional.mse_loss(model(schedule.add_noise(images, noise, times), times).sample, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.step(model.parameters())
    probe.tick()
    print(f"{step} {loss.item():.1f}")
probe.done()
