"""The Trainer of transformers on a tiny GPT-2, with checkpoints, evaluation and loader workers."""

PROGRAM = {
    "needs": ["transformers", "accelerate"],
    "jitter": {
        "stderr": True,  # progress bars with times
        # Times, and losses with more digits than atomic additions give alike.
        "stdout": [r"'(grad_norm|\w*loss)': '?[\d.e+-]+'?", r"'(train|eval)_(runtime|samples_per_second|steps_per_second)': '?[\d.e+-]+'?", r"\d+\.\d+s"],
        "files": ["out/*"],
    },
}

import probe
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 32) % 128
        return {"input_ids": tokens, "labels": tokens}


class Ticks(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        probe.tick()
        print("step", state.global_step)


def main():
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=6,
        per_device_train_batch_size=4,
        dataloader_num_workers=1,
        save_steps=4,
        save_total_limit=1,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=3,
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks=[Ticks()])
    trainer.train()
    print(sorted(trainer.evaluate()))
    probe.done()


if __name__ == "__main__":
    main()
