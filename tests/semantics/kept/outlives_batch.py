"""Images that outlive their batch in the loop's own process: it finds usual ones, wherever they are kept."""

from collections import deque

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate
from torchvision import transforms as T, tv_tensors
from torchvision.transforms import v2

from record import alive, called, files, finish, saw, trainer

SHARED, SOME = {}, []
CHAIN = T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(10, padding=1), T.ToTensor()])


def opened(i):
    return Image.open(files("png")[i]).convert("RGB")


class Data(Dataset):
    last, told, fails = None, None, False

    def __init__(self, transform=CHAIN):
        self.transform = transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.transform(opened(i))
        self.last = SHARED["x"] = x
        if self.told is not None:
            self.told(x)
        if i % 3 == 0:
            SOME.append(x)
        if self.fails and i % 5 == 3:
            raise ValueError(i)
        return x, i % 2


class Listed(Data):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return {"x": x, "y": y}


class Tensors(Data):
    def __getitem__(self, i):
        called()
        x = torch.randint(0, 256, (3, 12, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
        self.last = x = self.transform(tv_tensors.Image(x))
        return x, i % 2


class Keep:
    """Link of a chain that keeps its pictures and tensors."""

    def __init__(self):
        self.kept = []

    def __call__(self, x):
        self.kept.append(x)
        return x


class Collate:
    def __call__(self, samples):
        self.samples, self.batch = [x for x, _ in samples], default_collate(samples)
        return self.batch


class Looking(Sampler):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return 16

    def __iter__(self):
        for i in range(16):
            saw("sampler", self.data.last)
            yield i


def looks(*images):
    for x in images:
        saw(type(x).__name__, x, str(type(x) is torch.Tensor), str(x._is_view()), str(sorted(vars(x))))
        x.add_(1)


def main():
    step = trainer()
    data, views = Data(), deque(maxlen=4)
    for data.told in (None, lambda x: views.extend((x[:, 2:5], x.permute(1, 2, 0)))):
        for epoch in range(3):
            for batch in DataLoader(data, batch_size=4):
                step(batch)
                looks(data.last, SHARED["x"], *SOME, *views)
                saw(batch)
                SOME.clear()
    data = Data()
    for epoch in range(3):
        for batch in DataLoader(data, batch_size=4, sampler=Looking(data)):
            step(batch)
    data = Tensors(v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]))
    for epoch in range(3):
        for batch in DataLoader(data, batch_size=4):
            step(batch)
            looks(data.last)
    for epoch in range(3):
        for samples in DataLoader(Listed(), batch_size=4, collate_fn=list):
            step((torch.stack([sample["x"] for sample in samples]), torch.zeros(4)))
            looks(*SOME)
            saw(samples)
            SOME.clear()
    collate = Collate()
    for epoch in range(3):
        for batch in DataLoader(Data(), batch_size=4, collate_fn=collate):
            step(batch)
            looks(*collate.samples, collate.batch[0])
            saw(batch)
    keep = Keep()
    data = Data(T.Compose([T.RandomHorizontalFlip(), keep, T.RandomCrop(10), keep, T.ToTensor(), keep]))
    for epoch in range(3):
        for batch in DataLoader(data, batch_size=4):
            step(batch)
            for x in keep.kept:
                saw(type(x).__name__)
                if isinstance(x, Image.Image):
                    x.putpixel((0, 0), (1, 2, 3))
                    saw(x.size, x.mode, sorted(vars(x)), x.tobytes())
            keep.kept.clear()
    data = Data()
    data.fails = True
    for epoch in range(3):
        batches = iter(DataLoader(data, batch_size=2))
        while True:
            try:
                step(next(batches))
            except StopIteration:
                break
            except ValueError as error:
                at = error.__traceback__
                while at.tb_next is not None:
                    at = at.tb_next
                looks(at.tb_frame.f_locals["x"])
                del at
    SHARED.clear()
    SOME.clear()


if __name__ == "__main__":
    main()
    finish()
