"""Attention that stores its scores. Setting: `attn_implementation="sdpa"`."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

on = sys.argv[1:] == ["on"]
config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, vocab_size=1024)
config._attn_implementation = "sdpa" if on else "eager"
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    ids = torch.randint(0, 1000, (2, 2048), device="cuda")
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
