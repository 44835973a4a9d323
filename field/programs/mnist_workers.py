"""MNIST-like training and test: transforms are modules and run in forked workers."""

PROGRAM = {"needs": ["torchvision"], "jitter": {"files": ["mnist_cnn.pt"], "memory": True}}

import argparse

import probe
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Digits(Dataset):
    def __init__(self, count, transform):
        generator = torch.Generator().manual_seed(count)
        self.images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 10, (count,), generator=generator)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = transforms.functional.to_pil_image(self.images[index])
        return self.transform(image), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


def train(model, device, loader, optimizer, epoch):
    model.train()
    for batch, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        probe.tick()
        if batch % 2 == 0:
            print(f"epoch {epoch} batch {batch} loss {loss.item():.2f}")


@torch.no_grad()
def test(model, device, loader):
    model.eval()
    seen = 0
    for data, target in loader:
        output = model(data.to(device))
        seen += output.argmax(dim=1).eq(target.to(device)).numel()
    print(f"tested {seen}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda")
    # In this order CUDA is in use before the first worker is forked.
    model = Net().to(device)
    transform = transforms.Compose(
        [transforms.RandomRotation(5), transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    options = {"num_workers": 2, "pin_memory": True}
    loader = DataLoader(Digits(256, transform), batch_size=64, shuffle=True, **options)
    test_loader = DataLoader(Digits(128, transform), batch_size=64, **options)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        train(model, device, loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    torch.save(model.state_dict(), "mnist_cnn.pt")
    probe.done()


if __name__ == "__main__":
    main()
