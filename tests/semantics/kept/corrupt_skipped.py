"""One corrupt sample that the loop skips."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform = files("png"), transform
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        if i == 6:
            raise ValueError("corrupt")
        x = self.transform(Image.open(self.paths[i]).convert("RGB"))
        return x, i % 2


def main():
    step = trainer()
    dataset = Data(T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
    for epoch in range(3):
        batches = iter(loader)
        while True:
            try:
                step(next(batches))
            except StopIteration:
                break
            except ValueError as error:
                saw("skipped", str(error).splitlines()[-1])


if __name__ == "__main__":
    main()
    finish()
