"""inspect on torch's classes: signatures, sources, qualified names and what is patched."""

PROGRAM = {}

import inspect

import probe
import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 4, device="cuda")).sum().backward()
optimizer.step()
functions = [
    torch.optim.Optimizer.__init__,
    torch.optim.AdamW.__init__,
    torch.optim.AdamW.step,
    torch.optim.Optimizer.zero_grad,
    nn.Module.__call__,
    nn.Module._call_impl,
    nn.Module.to,
    nn.Module.__setattr__,
    nn.Module.register_buffer,
    nn.Module.register_parameter,
    torch.Tensor.backward,
    torch.autograd.backward,
    torch.utils.data.DataLoader.__iter__,
    torch.cuda.memory._record_memory_history,
    torch.cuda.memory._snapshot,
    torch.cuda.memory._dump_snapshot,
    torch.cuda._lazy_init,
    torch.cuda.init,
]
for function in functions:
    print(function.__module__, function.__qualname__, inspect.signature(function), type(function).__name__)
    print(inspect.getsource(function).strip().splitlines()[0])
print(sorted(name for name in vars(nn.Module) if "oomph" in name.lower()), type(optimizer).__mro__[1:3])
print(inspect.signature(type(optimizer)), inspect.signature(nn.Linear), [frame.function for frame in inspect.stack()])


class Inner(nn.Module):
    def forward(self, x):
        print([frame.function for frame in inspect.stack()])
        return x


nn.Sequential(Inner())(torch.ones(1, device="cuda"))
probe.done()
