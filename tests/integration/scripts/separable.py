"""Every form in which public data sets keep their transforms; loading a sample sleeps 2 ms, transforming it 5 ms.

Both are ``--slower`` so many times.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate, random_split

LOAD, TRANSFORM = 0.002, 0.005


def load(index):
    time.sleep(LOAD)
    return torch.full((8,), float(index % 9))


def augment(x):
    time.sleep(TRANSFORM)
    return x + 1.0


class Compose:
    """Home-made, and no relative of torchvision's."""

    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Plain(Dataset):
    def __init__(self, transform=augment):
        self.transform = transform

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return self.transform(load(index)), torch.tensor([1.0])


class ManyAtOnce(Plain):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Joint(Plain):
    def __init__(self):
        self.transforms = self._both

    def _both(self, image, target):
        return augment(image), target + 0.0

    def __getitem__(self, index):
        image, target = self.transforms(load(index), torch.tensor([1.0]))
        return image, target


class Keywords(Plain):
    """In the manner of albumentations."""

    def __init__(self):
        self.aug = self._augment

    def _augment(self, *, image, mask):
        return {"image": augment(image), "mask": mask + 0.0}

    def __getitem__(self, index):
        done = self.aug(image=load(index), mask=torch.tensor([1.0]))
        return done["image"], done["mask"]


class TwoViews(Plain):
    """In the manner of SimCLR: one image, two augmentations of half the cost."""

    def __init__(self):
        self.view = self._view

    def _view(self, x):
        time.sleep(TRANSFORM / 2)
        return x + 1.0

    def __getitem__(self, index):
        image = load(index)
        return [self.view(image), self.view(image)], torch.tensor([1.0])


class Wrapper:
    """No Dataset at all, only something like one."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


class Bare(Plain):
    def __init__(self):
        pass

    def __getitem__(self, index):
        return load(index), torch.tensor([1.0])


class ByMarker(Plain):
    def __init__(self):
        pass

    def __getitem__(self, index):
        import pipediag

        return pipediag.stage("augment")(augment)(load(index)), torch.tensor([1.0])


class Inline(Plain):
    """The work stands in ``__getitem__`` itself."""

    def __init__(self):
        pass

    def __getitem__(self, index):
        x = load(index)
        time.sleep(TRANSFORM)
        return x + 1.0, torch.tensor([1.0])


class ChangedAfterwards(Plain):
    """What the transform returns is not what goes into the sample."""

    def __getitem__(self, index):
        return self.transform(load(index)) / 255.0, torch.tensor([1.0])


class WholeBatches(Plain):
    """For ``batch_size=None``: an item is a batch, and transformed at once."""

    def _of_four(self, x):
        time.sleep(4 * TRANSFORM)
        return x + 1.0

    def __init__(self):
        self.transform = self._of_four

    def __getitem__(self, index):
        return self.transform(torch.stack([load(4 * index + i) for i in range(4)])), torch.ones(4, 1)


def collate_closure(transform):
    def collate(samples):
        x, y = default_collate([(transform(x), y) for x, y in samples])
        return x, y

    return collate


FORMS = {
    "wrapped": lambda: random_split(ConcatDataset([Subset(Wrapper(Plain()), range(9, 3009)), Plain()]), [6000, 1000])[
        0
    ],
    "compose": lambda: Plain(Compose(torch.clone, augment)),
    "getitems": lambda: ManyAtOnce(),
    "joint": lambda: Joint(),
    "keywords": lambda: Keywords(),
    "two-views": lambda: TwoViews(),
    "collate-function": lambda: Bare(),
    "collate-object": lambda: Bare(),
    "marker": lambda: ByMarker(),
    "whole-batches": lambda: WholeBatches(),
    "inline": lambda: Inline(),
    "changed": lambda: ChangedAfterwards(),
}

parser = argparse.ArgumentParser()
parser.add_argument("form", choices=FORMS)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--slower", type=int, default=1)
args = parser.parse_args()
LOAD, TRANSFORM = args.slower * LOAD, args.slower * TRANSFORM

dataset = FORMS[args.form]()
collate = {"collate-function": collate_closure(augment), "collate-object": collate_closure(Compose(augment))}
loader = DataLoader(
    dataset,
    batch_size=None if args.form == "whole-batches" else 4,
    shuffle=True,
    num_workers=args.workers,
    collate_fn=collate.get(args.form),
)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _epoch in range(1000):
    for x, y in loader:
        views = x if isinstance(x, list) else [x]
        assert all(view.shape == (4, 8) for view in views) and y.shape == (4, 1)
        assert args.form == "changed" or all(view.min() >= 1 and view.max() <= 9 for view in views), "wrong values"
        loss = sum((model(view) - y).pow(2).mean() for view in views)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
