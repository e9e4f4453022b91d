"""Only samples after the trial register a hook on the transforms, or on one of them, and remove it again."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from record import alive, called, finish, given, trainer

N, LATE = 96, 80


class Data(Dataset):
    def __init__(self, site):
        self.pixels = torch.randint(0, 256, (N, 3, 12, 14), generator=torch.Generator().manual_seed(1)).byte()
        to_float = v2.ToDtype(torch.float32, scale=True)
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(8), to_float])
        self.site = site
        alive.add(self)

    def __len__(self):
        return N

    def __getitem__(self, i):
        called()
        if i < LATE:
            return self.transform(self.pixels[i]), i, 0.0
        module = self.transform if self.site is None else self.transform.transforms[self.site]
        seen = []
        before = module.register_forward_pre_hook(lambda module, given: seen.append(given[0].float().mean().item()))
        after = module.register_forward_hook(lambda module, given, made: made * 0 if i % 2 else None)
        x = self.transform(self.pixels[i])
        before.remove()
        after.remove()
        return x, i, seen[0]


def main():
    step = trainer()
    for site in (None, 1):
        loader = DataLoader(Data(site), batch_size=4, num_workers=0 if site is None else 1)
        loader = given(loader)
        for epoch in range(2):
            for batch in loader:
                step(batch)


if __name__ == "__main__":
    main()
    finish()
