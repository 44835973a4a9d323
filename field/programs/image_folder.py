"""Image classification as in torchvision's references: ImageFolder, AMP, EMA, metrics, cudnn.benchmark."""

PROGRAM = {
    "needs": ["torchvision", "PIL"],
    "timeout": 400,
    # cuDNN chooses kernels by time: their workspaces and roundings differ.
    "jitter": {"memory": True, "stdout": [r"\d+\.\d+ s"]},
}

import collections
import datetime
import os
import time

import numpy
import probe
import torch
import torchvision
from PIL import Image
from torch import nn
from torchvision import transforms
from torchvision.transforms.functional import InterpolationMode


class SmoothedValue:
    def __init__(self, window=5):
        self.values = collections.deque(maxlen=window)
        self.count = 0

    def update(self, value):
        self.values.append(value)
        self.count += 1

    @property
    def median(self):
        return torch.tensor(list(self.values)).median().item()


class MetricLogger:
    def __init__(self):
        self.meters = collections.defaultdict(SmoothedValue)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value.item() if isinstance(value, torch.Tensor) else value)

    def log_every(self, loader, every, header):
        began = time.time()
        for number, batch in enumerate(loader):
            yield batch
            if number % every == 0:
                counts = " ".join(f"{name}: {meter.count}" for name, meter in sorted(self.meters.items()))
                print(f"{header} [{number}/{len(loader)}] {counts}")
        total = datetime.timedelta(seconds=time.time() - began).total_seconds()
        print(f"{header} total {total:.4f} s")


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay):
        def average(averaged, value, _count):
            return decay * averaged + (1 - decay) * value

        super().__init__(model, "cuda", average, use_buffers=True)


def make_images(folder):
    random = numpy.random.default_rng(0)
    for label in ("ant", "bee"):
        os.makedirs(f"{folder}/{label}")
        for number in range(8):
            Image.fromarray(random.integers(0, 256, (48, 48, 3), dtype=numpy.uint8)).save(f"{folder}/{label}/{number:02}.png")


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    make_images("images")
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(32, interpolation=InterpolationMode.BILINEAR),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            transforms.RandomErasing(p=0.5),
        ]
    )
    dataset = torchvision.datasets.ImageFolder("images", transform)
    print(dataset.class_to_idx)
    block = torchvision.models.resnet.BasicBlock
    model = torchvision.models.ResNet(block, [1, 1, 1, 1], num_classes=2).cuda()
    averaged = ExponentialMovingAverage(model, 0.9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scaler = torch.amp.GradScaler("cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    loader = torch.utils.data.DataLoader(
        dataset, 8, sampler=torch.utils.data.RandomSampler(dataset), num_workers=2, pin_memory=True
    )
    for epoch in range(2):
        model.train()
        metrics = MetricLogger()
        for image, target in metrics.log_every(loader, 1, f"Epoch {epoch}"):
            image, target = image.cuda(), target.cuda()
            with torch.amp.autocast("cuda"):
                loss = criterion(model(image), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            averaged.update_parameters(model)
            metrics.update(loss=loss, lr=optimizer.param_groups[0]["lr"])
            probe.tick()
        schedule.step()
        model.eval()
        with torch.inference_mode():
            print(f"Test {sum(len(averaged(image.cuda())) for image, _ in loader)}")
    probe.done()


if __name__ == "__main__":
    main()
