"""A vision transformer of timm with its optimizer, schedule, mixup and EMA."""

PROGRAM = {"needs": ["timm"], "jitter": {"memory": True, "stdout": [r"\d+\.\d+"]}}

import probe
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV2

torch.manual_seed(0)
model = timm.create_model(
    "vit_tiny_patch16_224", pretrained=False, img_size=64, depth=3, num_classes=10, drop_path_rate=0.1
).cuda()
average = ModelEmaV2(model, decay=0.99)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=6)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
criterion = SoftTargetCrossEntropy()
for step in range(6):
    images = torch.randn(8, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 10, (8,), device="cuda")
    images, targets = mixup(images, labels)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(images), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update(model)
    schedule.step(step + 1)
    probe.tick()
    print(f"{step} {loss.item():.1f} {optimizer.param_groups[0]['lr']:.6f}")
probe.done()
