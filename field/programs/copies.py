"""Pickles, deep copies and state dicts of models and optimizers; files written with torch.save."""

PROGRAM = {"jitter": {"files": ["model.pickle"]}}

import copy
import io
import pickle

import probe
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
for _ in range(3):
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
twin, other = copy.deepcopy(model), copy.deepcopy(optimizer)
print(sorted(vars(twin)), sorted(vars(other)))
print(sorted(vars(pickle.loads(pickle.dumps(model)))), len(pickle.dumps(optimizer.state_dict()["param_groups"])))
again = pickle.loads(pickle.dumps(optimizer))
print(sorted(vars(again)), len(again.state), sorted(again.defaults))
stored = io.BytesIO()
torch.save({"model": model, "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, stored)
print(stored.tell())
stored.seek(0)
loaded = torch.load(stored, weights_only=False)
print(sorted(loaded), sorted(loaded["schedule"]), list(loaded["model"].state_dict()))
with open("model.pickle", "wb") as file:
    pickle.dump(model.cpu(), file)
torch.save(torch.arange(10), "numbers.pt")
probe.done()
