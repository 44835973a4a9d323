"""LoRA with PEFT on a tiny Llama, merged at the end."""

PROGRAM = {"needs": ["peft", "transformers", "accelerate"]}

import probe
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config)
model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")).cuda()
model.print_trainable_parameters()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(8):
    tokens = torch.randint(0, 128, (4, 32), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe.tick()
    print(f"{step} {loss.item():.2f}")
merged = model.merge_and_unload()
print(type(merged).__name__, sum(p.numel() for p in merged.parameters()))
probe.done()
