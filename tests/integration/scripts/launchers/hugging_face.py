"""Trains with the Trainer of transformers; torchrun starts the ranks."""

import job
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = job.model()

    def forward(self, images, labels):
        loss = nn.functional.cross_entropy(self.model(images), labels)
        job.tell(torch.distributed.get_rank(), loss)
        return {"loss": loss}


def collate(samples):
    images, labels = zip(*samples, strict=True)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


if __name__ == "__main__":
    args = job.arguments()
    settings = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=job.BATCH,
        num_train_epochs=args.epochs,
        dataloader_num_workers=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    Trainer(Classifier(), settings, collate, job.images(args)).train()
