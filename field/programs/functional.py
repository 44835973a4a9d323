"""torch.func: vmap, grad, jacrev and functional_call, per-sample gradients and an ensemble."""

PROGRAM = {}

import probe
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).cuda()
parameters = {name: value.detach() for name, value in model.named_parameters()}


def loss(parameters, x, y):
    return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])


inputs, labels = torch.randn(5, 8, device="cuda"), torch.arange(5, device="cuda") % 3
for step in range(3):
    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, labels)
    probe.tick()
print({name: tuple(value.shape) for name, value in each.items()})
print(tuple(vmap(jacrev(model))(inputs).shape))
print([tuple(value.shape) for value in jvp(model, (inputs,), (torch.ones_like(inputs),))])
models = [nn.Linear(8, 3).cuda() for _ in range(4)]
stacked, buffers = stack_module_state(models)
ensemble = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)), in_dims=(0, 0, None))
print(tuple(ensemble(stacked, buffers, inputs).shape))
probe.done()
