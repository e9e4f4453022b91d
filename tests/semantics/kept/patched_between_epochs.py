"""A function that another function of the library calls is replaced between the epochs: how often it is called."""

import random

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, WeightedRandomSampler
from torchvision import transforms as T
from torchvision.transforms import functional as F, functional as TF

from record import alive, called, finish, saw

N, EPOCHS = 16, 3


def pixels(n):
    return np.random.default_rng(1).integers(0, 256, (n, 12, 14, 3), dtype=np.uint8)


class Counting(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            called()
            yield batch


def tensor_of(x):
    return TF.pil_to_tensor(x) if isinstance(x, Image.Image) else x


def collate_pictures(samples):
    images = [TF.resize(tensor_of(x), [9, 9], antialias=True) for x, _ in samples]
    if random.random() < 0.5:
        images = [TF.hflip(image) for image in images]
    return torch.stack([image.float() / 255 for image in images]), torch.tensor([y for _, y in samples])


class Data(Dataset):
    def __init__(self, n, transform, args=None):
        self.n, self.args = n, args
        self.labels = [i % 3 for i in range(n)]
        alive.add(self)
        self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        called()
        x = self.pixels[i]
        y = self.labels[i]
        random.seed(i)
        torch.manual_seed(i)
        x = F.convert_image_dtype(x, torch.float32)
        x = x * 3
        box = T.RandomResizedCrop.get_params(x, (0.3, 1.0), (0.7, 1.4))
        x = F.resized_crop(x, *box, [10, 11], antialias=True)
        return x, y

    def __getitems__(self, indices):
        return [self[i] for i in reversed(indices)][::-1]


def counted(original):
    def patched(*given, **named):
        called()
        return original(*given, **named)

    return patched


def main():
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    torch.set_num_threads(1)
    data = Data(N, None)
    dataset = data
    loader = Counting(
        dataset, 4, sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N), collate_fn=collate_pictures
    )
    other = Counting(dataset, 4, sampler=SubsetRandomSampler(list(range(1, 12, 2))), collate_fn=collate_pictures)
    model = torch.nn.Linear(48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = []

    def loss_of(batch):
        x, y = batch[0], batch[1]
        x, y = x.reshape(-1, *x.shape[-3:]), torch.as_tensor(y, dtype=torch.float32).reshape(-1)
        y = y.repeat_interleave(max(1, len(x) // len(y)))
        x = x.float() / (1 if x.is_floating_point() else 255)
        x = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        return ((model(x).squeeze(1) - y) ** 2).mean()

    def step_on(batch):
        loss = loss_of(batch)
        loss.backward()
        saw("loss", loss.item())
        steps.append(0)
        optimizer.step()
        optimizer.zero_grad()

    for epoch in range(EPOCHS):
        if epoch == 1:
            torchvision.transforms.functional.resize = counted(torchvision.transforms.functional.resize)
        for step, batch in enumerate(loader):
            saw("batch", str(epoch), str(step), batch)
            step_on(batch)
        for batch in other:
            saw("other", batch)
            step_on(batch)
    saw("patched", torchvision.transforms.functional.resize.__name__)
    saw("weights", model.weight)


if __name__ == "__main__":
    main()
    finish(calls=True)
