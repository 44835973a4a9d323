"""LoRA trains few parameters, but keeps the activations of all layers. Setting: `model.gradient_checkpointing_enable()`."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

on = sys.argv[1:] == ["on"]
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, vocab_size=1024)
model = get_peft_model(LlamaForCausalLM(config), LoraConfig(target_modules="all-linear")).cuda()
if on:
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
for _ in range(6):
    ids = torch.randint(0, 1000, (4, 1024), device="cuda")
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
