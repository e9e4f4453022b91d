"""Batches and samples that are objects of the script's own, with a to() of their own."""

from PIL import Image
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer


class Sample:
    def __init__(self, image, label):
        self.image, self.label = image, label


class Part:
    made = 0

    def __init__(self, images):
        Part.made += 1
        self.images = self.again = images


class Batch:
    def __init__(self, samples):
        called()
        self.part = self.same = Part(torch.stack([sample.image for sample in samples]))
        self.labels = torch.tensor([sample.label for sample in samples])
        self.moves = 0

    def to(self, device):
        called()
        self.part.images = self.part.again = self.part.images.to(device)
        self.moves += 1
        return self


class Data(Dataset):
    def __init__(self):
        self.paths = files("png")
        self.transform = T.Compose([T.RandomCrop(8), T.RandomHorizontalFlip(), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        return Sample(self.transform(Image.open(self.paths[i]).convert("RGB")), i % 3)


def main():
    step = trainer()
    for workers in (2, 0):
        loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=workers, collate_fn=Batch)
        for epoch in range(3):
            for batch in loader:
                batch = batch.to("cpu")
                saw(batch.part is batch.same, batch.part.images is batch.part.again, batch.moves, ",".join(vars(batch)))
                step((batch.part.images, batch.labels))
    saw(Part.made)


if __name__ == "__main__":
    main()
    finish()
