"""A patch of Image.open by the script, inside an epoch."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer

original = Image.open


def patched(*given, **named):
    called()
    return original(*given, **named)


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
    dataset = Data(T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=4)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            step(batch)
            if number == 1:
                Image.open = original if Image.open is patched else patched
    saw(Image.open.__name__)


if __name__ == "__main__":
    main()
    finish()
