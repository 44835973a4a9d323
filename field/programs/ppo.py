"""Proximal policy optimization by hand, as TRL and CleanRL write it: roll-outs, advantages, clipped updates."""

PROGRAM = {}

import probe
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).cuda()
value = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4, eps=1e-5)
for update in range(4):
    with torch.no_grad():
        states = torch.randn(64, 8, device="cuda")
        spread = Categorical(logits=policy(states), validate_args=False)
        actions = torch.arange(64, device="cuda") % 4
        old = spread.log_prob(actions)
        rewards = torch.linspace(0, 1, 64, device="cuda")
        values = value(states).squeeze(-1)
        advantages = torch.zeros_like(rewards)
        last = 0.0
        for step in reversed(range(63)):
            last = rewards[step] + 0.99 * values[step + 1] - values[step] + 0.95 * 0.99 * last
            advantages[step] = last
        returns = advantages + values
    for epoch in range(2):
        for part in torch.arange(64, device="cuda").split(16):
            spread = Categorical(logits=policy(states[part]), validate_args=False)
            ratio = (spread.log_prob(actions[part]) - old[part]).exp()
            gain = torch.min(ratio * advantages[part], ratio.clamp(0.8, 1.2) * advantages[part]).mean()
            error = (value(states[part]).squeeze(-1) - returns[part]).pow(2).mean()
            loss = -gain + 0.5 * error - 0.01 * spread.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
    probe.tick()
    print(f"update {update} loss {loss.item():.1f}")
probe.done()
