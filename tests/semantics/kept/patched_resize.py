"""A later patch of torchvision's resize by the script, which must stay."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.transforms import functional as TF

from record import alive, called, files, finish, saw, trainer


def patched(image, *given, **named):
    called()
    return image.resize((6, 6))


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
    dataset = Data(T.Compose([T.Resize((8, 8)), T.RandomHorizontalFlip(), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=4)
    for epoch in range(3):
        if epoch == 1:
            TF.resize = patched
        for batch in loader:
            step(batch)
    saw(TF.resize.__name__)


if __name__ == "__main__":
    main()
    finish()
