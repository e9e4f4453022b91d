"""Trains with Ignite: ``idist.Parallel`` starts the ranks, or torchrun does without ``--way``."""

import ignite.distributed as idist
import job
import torch
from ignite.engine import Engine
from torch import nn


def training(local_rank, args):
    model = idist.auto_model(job.model())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.01))
    loader = idist.auto_dataloader(job.images(args), batch_size=2 * job.BATCH, num_workers=2, shuffle=True)

    def step(engine, batch):
        images, labels = batch
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.tell(idist.get_rank(), loss)

    Engine(step).run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    args = job.arguments()
    torch.manual_seed(0)
    started = {"nproc_per_node": 2, "start_method": args.way} if args.way else {}
    with idist.Parallel("gloo", **started) as parallel:
        parallel.run(training, args)
