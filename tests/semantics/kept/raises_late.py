"""A dataset that fetches many at once, counts its calls, and raises after its transforms; the loop skips the batch."""

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer


class Data(Dataset):
    def __init__(self, transform):
        self.paths, self.transform, self.fetched = files("png"), transform, 0
        alive.add(self)

    def __len__(self):
        return 16

    def __getitems__(self, indices):
        called()
        self.fetched += 1
        samples = []
        for i in indices:
            samples.append((self.transform(Image.open(self.paths[i]).convert("RGB")), self.fetched))
            if i == 6:
                raise OSError(f"row 6 in call {self.fetched}")
        return samples


def main():
    step = trainer()
    dataset = Data(T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    for epoch in range(6):
        batches = iter(loader)
        while True:
            try:
                step(next(batches))
            except StopIteration:
                break
            except OSError as error:
                saw("skipped", str(error))


if __name__ == "__main__":
    main()
    finish()
