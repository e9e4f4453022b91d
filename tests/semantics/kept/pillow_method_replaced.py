"""A method of Pillow's pictures is replaced in the middle of an epoch."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from record import alive, called, files, finish, trainer

plain = Image.Image.resize


def nearest(picture, size, *args, **kwargs):
    called()
    return plain(picture, size, Image.Resampling.NEAREST)


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("png"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i % 2


def main():
    step = trainer()
    transform = v2.Compose([v2.Resize((10, 9)), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    loader = DataLoader(Data(transform), batch_size=4, shuffle=True)
    for epoch in range(3):
        for k, batch in enumerate(loader):
            step(batch)
            if k % 3 == 1:
                Image.Image.resize = nearest if Image.Image.resize is plain else plain


if __name__ == "__main__":
    main()
    finish()
