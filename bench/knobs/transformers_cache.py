"""Keys and values of a long generation. Setting: `cache_implementation="offloaded"`."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

on = sys.argv[1:] == ["on"]
config = LlamaConfig(hidden_size=512, intermediate_size=512, num_hidden_layers=16, num_attention_heads=8, vocab_size=512)
model = LlamaForCausalLM(config).cuda().eval()
prompt = torch.randint(0, 500, (32, 1024), device="cuda")
model.generate(
    prompt,
    attention_mask=torch.ones_like(prompt),
    max_new_tokens=24,
    do_sample=False,
    eos_token_id=None,
    pad_token_id=0,
    **({"cache_implementation": "offloaded"} if on else {}),
)
