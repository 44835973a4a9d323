"""What the mistakes that `oomph lint` names truly cost, on a CUDA device: allocated bytes per step, bad against good.

    python3 bench/lint_costs.py

Each case runs 12 steps; what stays is the slope of `memory_allocated()` over the last 8, with the collector off unless said.
"""

import copy
import functools
import gc

import torch
from torch import nn

D, B, STEPS = 1024, 2048, 12
GRAPH = 6 * B * D * 4  # what six linear layers and their activations save, roughly


def net():
    layers = [layer for _ in range(6) for layer in (nn.Linear(D, D), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(D, 16)).cuda()


def batch():
    return torch.randn(B, D, device="cuda")


def slope(step):
    """Bytes that each of the last steps leaves behind."""
    gc.collect()
    torch.cuda.empty_cache()
    gc.disable()
    seen = []
    for at in range(STEPS):
        step(at)
        seen.append(torch.cuda.memory_allocated())
    gc.enable()
    return round((seen[-1] - seen[3]) / (STEPS - 4))


def peak(step):
    for at in range(3):
        step(at)
    torch.cuda.reset_peak_memory_stats()
    for at in range(4):
        step(at)
    return torch.cuda.max_memory_allocated()


def training(keep):
    model, kept = net(), []
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(at):
        out = model(batch())
        loss = out.square().mean()
        keep(kept, loss, out, at)
        opt.step()
        opt.zero_grad()

    return slope(step)


def evaluating(keep, grad=True):
    model, kept = net().eval(), []

    def step(at):
        with torch.set_grad_enabled(grad):
            out = model(batch())
            keep(kept, out.square().mean(), out)

    return slope(step)


def main():
    rows = []

    def row(rule, case, value, unit="per step"):
        rows.append((rule, case, value, unit))
        print(f"| {rule} | {case} | {value:,} | {unit} |", flush=True)

    def after(kept, loss, out, at, what):
        loss.backward()
        kept.append(what(loss, out))

    def before(kept, loss, out, at):
        kept.append(loss)
        loss.backward()

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a step saves about {GRAPH:,} bytes\n")
    print("| rule | case | bytes | |\n|---|---|---|---|")
    row("OOM101", "loss kept after backward", training(lambda *a: after(*a, lambda loss, out: loss)))
    row("OOM101", "loss kept before backward", training(before))
    row("OOM101", "loss.detach() kept", training(lambda *a: after(*a, lambda loss, out: loss.detach())))
    row("OOM101", "loss kept, evaluation with gradients", evaluating(lambda kept, loss, out: kept.append(loss)))
    row("OOM101", "loss kept, evaluation without", evaluating(lambda kept, loss, out: kept.append(loss), grad=False))
    row("OOM102", "output kept after backward", training(lambda *a: after(*a, lambda loss, out: out)))
    row("OOM102", "output kept, evaluation with gradients", evaluating(lambda kept, loss, out: kept.append(out)))
    total = {"sum": 0}

    def summed(kept, loss, out, at):
        loss.backward()
        total["sum"] = total["sum"] + loss

    row("OOM103", "total += loss after backward", training(summed))

    def retained(kept, loss, out, at):
        loss.backward(retain_graph=True)
        kept.append(loss)

    row("OOM101", "loss kept, retain_graph=True", training(retained))
    row("OOM104", "metric beside the loss kept", training(lambda *a: after(*a, lambda loss, out: (out * 3 + 1).abs().mean())))
    row("OOM106", "slice of a batch kept", evaluating(lambda kept, loss, out: kept.append(batch()[:, 0]), grad=False))
    row("OOM106", "its clone kept", evaluating(lambda kept, loss, out: kept.append(batch()[:, 0].clone()), grad=False))

    for case, what in (("hook appends the output", lambda out: out), ("hook appends output.detach()", lambda out: out.detach())):
        model, acts = net(), []
        model[5].register_forward_hook(lambda m, i, o: acts.append(what(o)))

        def hooked(at):
            model(batch()).square().mean().backward()
            model.zero_grad()

        row("OOM107", case, slope(hooked))

    cell, state = nn.GRUCell(D, D).cuda(), {"h": torch.zeros(B, D, device="cuda")}

    def recurrent(at):
        state["h"] = cell(batch(), state["h"])
        state["h"].mean().backward(retain_graph=True)

    row("OOM108", "hidden state carried, retain_graph=True", slope(recurrent))

    @functools.cache
    def mask(n):
        return torch.ones(n, D, device="cuda")

    row("OOM110", "functools.cache by length", slope(lambda at: mask(1000 + at)))
    errors = []

    def fails(at):
        def inner():
            hidden = net_for_errors(batch())
            raise ValueError(hidden.shape)

        try:
            inner()
        except ValueError as error:
            errors.append(error)

    net_for_errors = net()
    row("OOM112", "exception kept", slope(fails))
    model, states = net(), []
    row("OOM114", "deepcopy(state_dict) kept", slope(lambda at: states.append(copy.deepcopy(model.state_dict()))))
    row("OOM114", "state_dict() kept", slope(lambda at: states.append(model.state_dict())))
    model, grads = net(), []

    def keeps_gradients(at):
        model(batch()).mean().backward()
        grads.append([p.grad for p in model.parameters()])
        model.zero_grad()

    row("OOM115", "gradients kept", slope(keeps_gradients))

    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(D, D).cuda()
            self.act = self.relu

        def relu(self, x):
            return x.relu()

    row("OOM118", "a module that holds itself, made and dropped", slope(lambda at: Holds()))

    class OnCtx(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.y = y
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.y

    x = batch().requires_grad_()
    row("OOM203", "output on ctx", slope(lambda at: OnCtx.apply(x).mean().backward()))
    critic = net()
    values = torch.zeros(STEPS + 1, B, 16, device="cuda")

    def writes(at):
        values[at] = critic(batch())

    row("OOM205", "outputs written into a tensor", slope(writes))
    model = net().eval()
    held = {}

    def evaluates(at):
        held["out"] = model(batch())

    on = peak(evaluates)
    with torch.no_grad():
        off = peak(evaluates)
    row("OOM301", "evaluation with gradients, against without", on - off, "of peak")
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)

    def zeroes(to_none):
        def step(at):
            model(batch()).mean().backward()
            opt.step()
            opt.zero_grad(set_to_none=to_none)

        return step

    row("OOM403", "set_to_none=False, against True", peak(zeroes(False)) - peak(zeroes(True)), "of peak")

    def graphed(at):
        fresh = nn.Linear(D, D).cuda()
        fresh(batch()).square().mean().backward(create_graph=True)
        del fresh
        gc.collect()

    row("OOM202", "create_graph=True in backward, model deleted and collected", slope(graphed))
    model = net()
    row("OOM701", "no zero_grad", slope(lambda at: model(batch()).mean().backward()))


if __name__ == "__main__":
    main()
