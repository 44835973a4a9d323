"""DPO with a second, frozen copy of the model. Setting: `precompute_ref_log_probs=True`."""

import sys
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

on = sys.argv[1:] == ["on"]
words = ["<pad>", "<eos>", *[f"w{number}" for number in range(500)]]
base = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w0"))
base.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, pad_token="<pad>", eos_token="<eos>")
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, vocab_size=512)
text = " ".join(f"w{number}" for number in range(64))
rows = Dataset.from_list([{"prompt": text, "chosen": " " + text, "rejected": " w1 " + text}] * 16)
arguments = DPOConfig(
    tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    max_steps=4,
    report_to="none",
    save_strategy="no",
    bf16=False,
    gradient_checkpointing=False,
    precompute_ref_log_probs=on,
)
DPOTrainer(
    LlamaForCausalLM(config),
    ref_model=None if on else LlamaForCausalLM(config),
    args=arguments,
    train_dataset=rows,
    processing_class=tokenizer,
).train()
