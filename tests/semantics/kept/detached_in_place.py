"""An adversarial step in place, on one of two views that the loop also saves by itself."""

import io

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from record import alive, called, files, finish, saw, trainer


class Data(Dataset):
    def __init__(self, turns):
        self.paths, self.turns = files("png"), turns
        self.transform = T.Compose([T.RandomCrop(8), T.ToTensor()])
        alive.add(self)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        called()
        image = Image.open(self.paths[i]).convert("RGB")
        first, second = self.transform(image), self.transform(image)
        return (first.permute(1, 2, 0) if self.turns else first), second, i


def saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    return len(file.getvalue())


def main():
    step = trainer()
    shift = torch.nn.Parameter(torch.zeros(()))
    for turns, workers, collate in ((False, 0, None), (False, 1, None), (False, 1, list), (True, 1, list)):
        loader = DataLoader(Data(turns), batch_size=4, num_workers=workers, collate_fn=collate)
        for epoch in range(3):
            for batch in loader:
                for x, other, _ in [batch] if collate is None else batch:
                    saw("saved", saved(x), saved(other), x.untyped_storage().nbytes())
                    x.requires_grad_()
                    (x**2).sum().backward()
                    gradient, x.grad = x.grad, None
                    x.detach_().add_(gradient.sign(), alpha=0.1)
                    (x * shift).sum().backward()
                    shift.grad = None
                    x += shift
                    saw("attacked", x.detach(), other)
                step((torch.stack([other for _, other, _ in batch]) if collate else batch[1], torch.zeros(4)))


if __name__ == "__main__":
    main()
    finish()
