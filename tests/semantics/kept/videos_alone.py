"""Videos and masks of their own types, which a loader without batching hands on as they are."""

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from record import alive, called, finish, trainer


class Data(Dataset):
    def __init__(self):
        self.pixels = torch.randint(0, 256, (17, 3, 12, 14), dtype=torch.uint8)
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        frames = [F.convert_image_dtype(self.pixels[k], torch.float32) for k in (i, i + 1)]
        video = F.crop(tv_tensors.Video(torch.stack(frames)), i % 2, 0, 11, 13)
        return video, [i % 3] * 2, F.horizontal_flip(tv_tensors.Mask(self.pixels[i, 0]))


def main():
    torch.manual_seed(5)
    step = trainer()
    loader = DataLoader(Data(), batch_size=None, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
