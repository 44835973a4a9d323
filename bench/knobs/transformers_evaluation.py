"""Evaluation with `compute_metrics`: the logits of every batch are kept. Setting: `eval_accumulation_steps=1`."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

on = sys.argv[1:] == ["on"]
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=16_000))
rows = [{"input_ids": torch.arange(256) % 16_000, "labels": torch.arange(256) % 16_000} for _ in range(256)]
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    max_steps=4,
    eval_strategy="steps",
    eval_steps=4,
    report_to="none",
    **({"eval_accumulation_steps": 1} if on else {}),
)
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=lambda _: {})
trainer.train()
