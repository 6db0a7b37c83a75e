"""Lightning's Trainer with DDP: its launcher is LAUNCHER (torchrun's or its own, or ddp_spawn)."""

from __future__ import annotations

import os
import sys
import tempfile

import lightning as pl
import torch
from fault import at, loader


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(32, 1)

    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_batch_end(self, *arguments):
        at(self.global_rank)


def main(folder):
    torch.manual_seed(1)
    net = Net()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=os.environ.get("STRATEGY", "ddp"),
        max_steps=int(os.environ.get("STEPS", "100000")),
        max_epochs=1000,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(net, loader(int(os.environ.get("ROWS", "800"))), loader(40))
    digest = sum(float(one.double().sum()) for one in net.parameters())
    print(f"digest {digest!r}", file=sys.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
