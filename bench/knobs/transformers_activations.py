"""A long sequence through a language model. Setting: `gradient_checkpointing=True`."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

on = sys.argv[1:] == ["on"]
config = GPT2Config(n_layer=12, n_embd=768, n_head=12, vocab_size=1024)
rows = [{"input_ids": torch.arange(1024) % 1000, "labels": torch.arange(1024) % 1000} for _ in range(64)]
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    max_steps=6,
    report_to="none",
    save_strategy="no",
    gradient_checkpointing=on,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
