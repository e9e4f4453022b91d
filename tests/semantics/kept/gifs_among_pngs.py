"""GIFs among PNGs, whose picture has another mode."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("gifs"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.transform(Image.open(self.paths[i]).convert("RGB"))
        return x, i % 2


def main():
    step = trainer()
    transform = T.Compose([T.RandomHorizontalFlip(), T.ToTensor()])
    loader = DataLoader(Data(transform), batch_size=4, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
