"""Hooks for all modules and optimizers, with handles that are removed."""

PROGRAM = {}

import probe
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

print([len(getattr(modules, f"_global_{name}_hooks")) for name in ("forward_pre", "forward", "backward")])
seen = []
handles = [
    modules.register_module_forward_pre_hook(lambda module, args: seen.append(("pre", type(module).__name__))),
    modules.register_module_forward_hook(lambda module, args, result: seen.append(("post", type(module).__name__))),
    modules.register_module_full_backward_hook(lambda module, *_: seen.append(("back", type(module).__name__))),
    register_optimizer_step_pre_hook(lambda optimizer, *_: seen.append(("step", type(optimizer).__name__))),
    register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(("stepped", type(optimizer).__name__))),
]
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).cuda()
own = model[0].register_forward_hook(lambda module, args, result: result * 2)
optimizer = torch.optim.Adam(model.parameters())
print(len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks))
for step in range(2):
    model(torch.ones(4, 8, device="cuda", requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, seen)
    seen.clear()
for handle in (*handles, own):
    handle.remove()
model(torch.ones(4, 8, device="cuda")).sum().backward()
print(seen, len(model[0]._forward_hooks))
probe.done()
