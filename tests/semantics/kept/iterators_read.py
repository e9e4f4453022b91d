"""A loop that reads torch's own attributes of its iterators, ends their workers itself, and has new ones begin."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter as Base
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Several
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as Single
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer

OF_ALL = ("_num_yielded", "_pin_memory", "_timeout", "_drop_last", "_num_workers", "_auto_collation", "_base_seed",
          "_persistent_workers", "_profile_name", "_prefetch_factor", "_tasks_outstanding", "_rcvd_idx", "_send_idx",
          "_worker_init_fn", "_workers_status", "_shutdown", "nothing")  # fmt: skip


class Data(Dataset):
    epoch = 0

    def __init__(self):
        self.paths = files("png")
        self.transform = T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(10, padding=1), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(Image.open(self.paths[i]).convert("RGB")) * (1 + self.epoch), i % 2


def looks(batches):
    kind = type(batches)
    saw(kind.__name__, kind.__qualname__, kind.__module__, repr(batches).split(" at ")[0])
    saw(*[isinstance(batches, of) for of in (Base, Several, Single)])
    saw(hasattr(batches, "_shutdown_workers"))
    saw(*[str(getattr(batches, name, None)) for name in OF_ALL])
    saw(*[type(getattr(batches, name)).__name__ for name in ("_dataset", "_collate_fn", "_index_sampler")])
    if hasattr(batches, "_workers"):
        saw(len(batches._index_queues), *[worker.is_alive() for worker in batches._workers])
    try:
        saw(batches.nothing)
    except AttributeError as error:
        saw(str(error))


def main():
    step = trainer()
    data = Data()
    for workers, persistent in ((0, False), (2, False), (2, True)):
        loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, persistent_workers=persistent)
        for data.epoch in range(6):
            batches = iter(loader)
            saw(str(loader._iterator is batches))
            for batch in batches:
                step(batch)
            looks(batches)
            if workers and data.epoch % 2:
                batches._shutdown_workers()
                looks(batches)
            if data.epoch in (1, 2, 3, 5):
                loader._iterator = None
            del batches


if __name__ == "__main__":
    main()
    finish()
