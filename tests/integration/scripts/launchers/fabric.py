"""Trains with Lightning's Fabric: ``fabric run`` starts the ranks, or the script itself with ``--way``."""

import job
import lightning
import torch
from torch import nn


def train(fabric, args):
    lightning.seed_everything(0)
    model = job.model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(job.loader(args, shuffle=True))
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            job.tell(fabric.global_rank, loss)


if __name__ == "__main__":
    args = job.arguments()
    chosen = {"accelerator": "cpu", "devices": 2, "strategy": args.way} if args.way else {}
    fabric = lightning.Fabric(**chosen)
    if args.way:
        fabric.launch(train, args)
    else:
        train(fabric, args)
