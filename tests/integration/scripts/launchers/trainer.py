"""Trains with Lightning's Trainer, which starts the ranks in the way that ``--way`` names."""

import job
import lightning
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = job.model()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        job.tell(self.global_rank, loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    args = job.arguments()
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=args.way or "ddp",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), job.loader(args, shuffle=True))
