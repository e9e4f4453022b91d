"""Trains with Accelerate: ``accelerate launch`` starts the ranks, or the script itself with ``--way notebook``."""

import job
import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn


def train(args):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = job.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, job.loader(args, shuffle=True))
    for _ in range(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            job.tell(accelerator.process_index, loss)
    accelerator.end_training()


if __name__ == "__main__":
    if job.arguments().way == "notebook":
        notebook_launcher(train, (job.arguments(),), num_processes=2)
    else:
        train(job.arguments())
