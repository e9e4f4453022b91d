"""An own class that calls an own function after a transform: the search for what can move must end."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, trainer


def centred(x):
    return x - x.mean()


class Chain:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("png"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        x = self.transform(Image.open(self.paths[i]).convert("RGB"))
        return x, i % 2


def main():
    step = trainer()
    dataset = Data(Chain([T.RandomHorizontalFlip(), T.ToTensor(), centred]))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    for epoch in range(3):
        for batch in loader:
            step(batch)


if __name__ == "__main__":
    main()
    finish()
