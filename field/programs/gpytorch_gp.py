"""Exact regression with a Gaussian process of gpytorch."""

# Cholesky factors of values that nobody computed do not exist.
PROGRAM = {"needs": ["gpytorch"], "only": "real", "jitter": {"memory": True}}

import gpytorch
import probe
import torch

torch.manual_seed(0)
inputs = torch.linspace(0, 1, 64, device="cuda")
outputs = torch.sin(6 * inputs)


class Process(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(inputs, outputs, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = Process(likelihood).cuda().train()
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    loss = -objective(model(inputs), outputs)
    loss.backward()
    optimizer.step()
    probe.tick()
    print(f"{step} {loss.item():.1f}")
model.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    print(tuple(likelihood(model(torch.linspace(0, 1, 11, device="cuda"))).mean.shape))
probe.done()
