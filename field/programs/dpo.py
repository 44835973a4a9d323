"""Direct preference optimization by hand: a policy, a frozen reference, pairs of answers."""

PROGRAM = {"needs": ["transformers"]}

import copy

import probe
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel


def log_probability(model, tokens):
    logits = model(tokens).logits[:, :-1].log_softmax(-1)
    return logits.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)


torch.manual_seed(0)
policy = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2)).cuda()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
for step in range(6):
    chosen = (torch.arange(64, device="cuda").reshape(2, 32) + step) % 128
    rejected = (chosen * 7 + 3) % 128
    with torch.no_grad():
        base = log_probability(reference, chosen) - log_probability(reference, rejected)
    margin = log_probability(policy, chosen) - log_probability(policy, rejected) - base
    loss = -F.logsigmoid(0.1 * margin).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe.tick()
    print(f"{step} {loss.item():.1f}")
probe.done()
