"""Supervised fine-tuning with TRL on a tiny GPT-2."""

PROGRAM = {"needs": ["trl", "datasets", "transformers", "accelerate"], "jitter": {"stderr": True, "stdout": True, "files": ["out/*"]}}

import probe
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
words = ["<pad>", "<eos>", *"a the cat dog sat ran on under mat tree".split()]
plain = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_positions=64, n_embd=32, n_layer=1, n_head=2))
options = {"output_dir": "out", "max_steps": 4, "per_device_train_batch_size": 2, "report_to": [], "save_strategy": "no", "bf16": False}
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(max_length=32, disable_tqdm=True, **options),
    train_dataset=Dataset.from_dict({"text": ["the cat sat on the mat", "a dog ran under a tree"] * 8}),
    processing_class=tokenizer,
)
trainer.train()
print(trainer.state.global_step)
probe.done()
