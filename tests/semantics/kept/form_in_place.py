"""Only samples after the trial change the form of an image in place, or its gradient, and ask for both."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F, v2

from record import alive, called, finish, given, trainer

N, LATE = 96, 80


def of(x):
    return str((x.shape, len(x), x.ndim, x.dim(), x.numel(), x.stride(), x.dtype, x.is_floating_point()))


def grad_of(x):
    return str((x.requires_grad, x.is_leaf, x.detach().requires_grad))


class Data(Dataset):
    def __init__(self, how):
        self.pixels = torch.rand(N, 3, 12, 14, generator=torch.Generator().manual_seed(1))
        self.transform, self.how = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(8)]), how
        alive.add(self)

    def __len__(self):
        return N

    def __getitem__(self, i):
        called()
        x = F.hflip(self.pixels[i])[:, :8, :8] if self.how == "a view" else self.transform(self.pixels[i])
        asked = ""
        if i >= LATE:
            x.transpose_(1, 2).unsqueeze_(0)
            asked = of(x)
            x.squeeze_(0)
            asked += of(x) + of(x.contiguous())
            x.data = x.data.double()
            asked += of(x)
            (x.requires_grad_() * 2).sum().backward()
            asked += grad_of(x) + str(x.grad.sum().item())
            x = x.detach().float()
            x.resize_(3, 4, 4)
            asked += of(x)
            x = x.repeat(1, 2, 2)
        return x, i, asked


def main():
    step = trainer()
    for how in ("an image", "a view"):
        for workers in (0, 1):
            loader = DataLoader(Data(how), batch_size=4, num_workers=workers)
            loader = given(loader)
            for epoch in range(2):
                for batch in loader:
                    step(batch)


if __name__ == "__main__":
    main()
    finish()
