"""Data loaders of every kind; the collation and the start of each worker call modules."""

PROGRAM = {
    "variants": {
        "fork": {"arguments": ["fork"]},
        "spawn": {"arguments": ["spawn"]},
        "forkserver": {"arguments": ["forkserver"]},
        "persistent": {"arguments": ["fork", "--persistent"]},
        "before-cuda": {"arguments": ["fork", "--before-cuda"]},
    },
}

import argparse

import probe
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
augment = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).requires_grad_(False)


class Points(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((16,), float(index)), index % 4


def start_worker(number):
    torch.manual_seed(number)
    nn.init.constant_(augment[0].weight, 0.01)
    augment(torch.zeros(1, 16))


def collate(samples):
    points, labels = zip(*samples)
    return augment(torch.stack(points)), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("context")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--before-cuda", action="store_true")
    args = parser.parse_args()
    loader = DataLoader(
        Points(),
        batch_size=16,
        num_workers=2,
        multiprocessing_context=args.context,
        persistent_workers=args.persistent,
        pin_memory=True,
        worker_init_fn=start_worker,
        collate_fn=collate,
    )
    early = iter(loader) if args.before_cuda else None
    model = nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for points, labels in early if early is not None else loader:
            loss = nn.functional.cross_entropy(model(points.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.tick()
            print(f"{epoch} {points.is_pinned()} {points.sum():.3f} {loss.item():.2f}")
        early = None
    probe.done()


if __name__ == "__main__":
    main()
