"""HF Trainer: a tiny Llama with random weights, random tokens, an evaluation and a checkpoint."""

from __future__ import annotations

import os
import sys
import tempfile

import torch
from fault import at, in_worker
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        in_worker()
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Own(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        at(int(os.environ["RANK"]))


def main(folder):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    args = TrainingArguments(
        folder,
        max_steps=int(os.environ.get("STEPS", "100000")),
        per_device_train_batch_size=4,
        dataloader_num_workers=1,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=int(os.environ.get("EVAL_STEPS", "100")),
        save_steps=int(os.environ.get("SAVE_STEPS", "200")),
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(LlamaForCausalLM(config), args, train_dataset=Tokens(), eval_dataset=Tokens())
    trainer.add_callback(Own())
    trainer.train()
    digest = sum(float(one.double().sum()) for one in trainer.model.parameters())
    print(f"digest {digest!r}", file=sys.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
