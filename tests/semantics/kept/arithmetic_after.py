"""Arithmetic after the transforms, which only a trial shows to move: loaders made again, and persistent workers."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("png"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(Image.open(self.paths[i]).convert("RGB")) * 0.5 + 0.1, i


def main():
    step = trainer()
    transform = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])
    for epoch in range(4):
        for batch in DataLoader(Data(transform), batch_size=2, shuffle=True, num_workers=2):
            step(batch)
    loader = DataLoader(Data(transform), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(4):
        transform.transforms[1].p = 0.2 * epoch
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
