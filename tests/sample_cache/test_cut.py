"""Where a cut is found in the transforms of a dataset, and what is kept at it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info
from torchvision import transforms as T
from torchvision.transforms import v2

import pipediag
from pipediag.sample_cache.cut import Cut, Cutter, Kept, NotKept
from pipediag.sample_cache.finding import NoCut, find_cut
from pipediag.sample_cache.opened import opened_files
from pipediag.sample_cache.suitable import fetches_together
from pipediag.usercode.links import links_of

from .datasets import Together, lines, photos, table
from .test_cached_loader import compare


class Made(Dataset[Any]):
    """Images made from their index, which pass through the transforms that a test gives."""

    def __init__(self, **transforms: Any) -> None:
        self.__dict__.update(transforms)

    def __len__(self) -> int:
        return 12

    def image(self, index: int) -> torch.Tensor:
        return torch.arange(3 * 64, dtype=torch.float32).reshape(3, 8, 8).roll(index)


class OneAfterTheOther(Made):
    def __getitem__(self, index: int) -> Any:
        return self.last(self.first(self.image(index))), index


class Prepared(Made):
    """The result of the first transform is changed before the second gets it."""

    def __getitem__(self, index: int) -> Any:
        return self.last(self.first(self.image(index)) + 1), index


class Joint(Made):
    """Image and label in one call, with a keyword."""

    def __getitem__(self, index: int) -> Any:
        return self.last(self.image(index), label=index)


class Cleared(Made):
    """The result is changed after the transform."""

    def __getitem__(self, index: int) -> Any:
        return self.last(self.image(index)) / 2, index


class Labelled(Made):
    def __getitem__(self, index: int) -> Any:
        return self.last(self.image(index)), self.label(index)


def doubled(image: torch.Tensor) -> torch.Tensor:
    return image * 2


def noisy(image: torch.Tensor) -> torch.Tensor:
    return image + torch.rand(())


def both(image: torch.Tensor, label: int) -> Any:
    return noisy(image), torch.tensor(label)


def random_label(label: int) -> int:
    return int(torch.randint(0, 99, ())) + label


def heads(dataset: Any) -> Any:
    """Numbers of the first links that are kept, and that batches are the same."""
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    try:
        cut = find_cut(loader, 8)
    except NoCut as reason:
        compare(loader, 2)
        return str(reason)
    cached = compare(loader, 2)
    assert cached.store is not None
    assert cached.store.entries == 12
    return dict(cut.heads)


def test_the_first_random_link() -> None:
    assert heads(OneAfterTheOther(first=doubled, last=noisy)) == {1: 0}
    assert heads(OneAfterTheOther(first=noisy, last=doubled)) == {0: 0, 1: 0}
    assert heads(OneAfterTheOther(first=doubled, last=doubled)) == {}
    chain = nn.Sequential(T.Normalize([1.0], [2.0]), nn.Sequential(nn.Dropout(0.5)), nn.ReLU())
    assert heads(OneAfterTheOther(first=doubled, last=chain)) == {1: 1}
    assert heads(OneAfterTheOther(first=chain, last=v2.Compose([doubled, v2.Lambda(doubled)]))) == {0: 1, 1: 0}


def test_several_values_and_keywords() -> None:
    assert heads(Joint(last=both)) == {0: 0}


def test_code_between_and_after_transforms() -> None:
    assert heads(Prepared(first=doubled, last=noisy)) == {1: 0}
    assert "what doubled gets differs" in heads(Prepared(first=noisy, last=doubled))
    assert "is changed after the call" in heads(Cleared(last=noisy))
    assert heads(Cleared(last=doubled)) == {}


def test_a_random_number_is_never_kept() -> None:
    assert "samples are different" in heads(Labelled(last=noisy, label=random_label))
    assert heads(Labelled(last=noisy, label=abs)) == {0: 0}


class Remembering:
    """A transform that keeps state from call to call: it may, since it runs each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return image + torch.rand(()) + self.calls


def test_a_random_transform_may_keep_state() -> None:
    plain, cached = Remembering(), Remembering()
    for transform in (plain, cached):
        loader = DataLoader(OneAfterTheOther(first=doubled, last=transform), batch_size=4)
        served = pipediag.cache(loader) if transform is cached else loader
        torch.manual_seed(0)
        batches = [batch for _ in range(2) for batch, _ in served]
        if transform is plain:
            expected = batches
    assert plain.calls == cached.calls
    assert torch.equal(torch.stack(batches), torch.stack(expected))


def test_iterable_datasets_and_loaders_with_an_iterator_of_their_own(tmp_path: Path) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    class Twice(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([*super().__iter__(), *super().__iter__()])

    cached = pipediag.cache(DataLoader(Stream()))
    assert "have no index" in cached.plan
    assert len(list(cached)) == 4
    cached = pipediag.cache(Twice(Made(), batch_size=4, sampler=[]))
    assert "Twice has an iterator of its own" in cached.plan
    assert list(cached) == []


def test_links() -> None:
    crop, flip = T.RandomCrop(3), T.RandomHorizontalFlip()
    assert links_of(crop) == [crop]
    assert links_of(T.Compose([crop, v2.Compose([flip, nn.Sequential(crop)])])) == [crop, flip, crop]
    inner = T.Compose([crop])
    assert links_of(nn.Sequential(v2.Compose([flip]), nn.Sequential(crop)))[1:] == [crop]
    assert links_of(T.RandomApply([inner]))[0].transforms == [inner]


def test_what_is_kept_is_what_was_given(tmp_path: Path) -> None:
    """Neither a transform that writes into its input nor one that replaces it changes what is kept."""

    def blanked(image: Any) -> Any:
        image.paste(0, (0, 0, 4, 4))
        return image

    class Pasted(Made):
        def __getitem__(self, index: int) -> Any:
            return np.asarray(self.last(Image.new("RGB", (9, 9), (index, 2, 3)))), index

        def image_of(self, index: int) -> Any:
            return self.last(Image.new("RGB", (9, 9), (index, 2, 3)))

    dataset = Pasted(last=blanked)
    cut = Cut({0: 0}, ("last",))
    cutter = Cutter(dataset, cut, cut.tails(dataset))
    sample, kept = cutter.make(lambda: dataset.image_of(5))
    assert isinstance(kept, Kept)
    assert sample.getpixel((0, 0)) == (0, 0, 0)
    decoded = Kept.decoded(kept.encoded().copied())
    assert decoded.inputs[0][0][0].getpixel((0, 0)) == (5, 2, 3)
    _, kept = cutter.make(lambda: dataset[5])  # the array is not what the transform returned
    assert isinstance(kept, NotKept)


def test_datasets_that_fetch_together(tmp_path: Path) -> None:
    assert fetches_together(Together(table(tmp_path)))
    assert fetches_together(Subset(Together(table(tmp_path)), [1]))
    assert not fetches_together(Subset(Made(), [1]))


def test_opened_files(tmp_path: Path) -> None:
    file = lines(tmp_path)
    with opened_files() as files:
        file.read_text()
        Image.open(photos(tmp_path) / "03.png").load()
        with pytest.raises(FileNotFoundError):
            (tmp_path / "none").read_text()
    names = [Path(facts.path).name for facts in files]
    assert names[0] == "lines.txt"
    assert "03.png" in names
    assert "none" not in names
    with opened_files() as others:
        pass
    file.read_text()
    assert others == []


class Lazy(Made):
    """Its transform is set in the workers only."""

    def __getitem__(self, index: int) -> Any:
        return self.last(self.image(index))


def set_up(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.last = noisy


def replace_first(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.first = torch.neg


def test_transforms_that_are_set_in_the_workers() -> None:
    cached = compare(DataLoader(Lazy(), batch_size=4, num_workers=1, worker_init_fn=set_up), 2)
    assert "in the workers it has other transforms" in cached.plan
    dataset = OneAfterTheOther(first=doubled, last=noisy)
    cached = compare(DataLoader(dataset, batch_size=4, num_workers=1, worker_init_fn=replace_first), 2)
    assert cached.store is not None
    assert cached.store.entries == 0


def test_calls_of_another_thread_do_not_belong_to_the_sample() -> None:
    class Threaded(Made):
        def __getitem__(self, index: int) -> Any:
            other = threading.Thread(target=self.last, args=(torch.zeros(3),))
            other.start()
            other.join()
            return self.last(self.image(index)), index

    dataset, cut = Threaded(last=doubled), Cut({0: 0}, ("last",))
    _, kept = Cutter(dataset, cut, cut.tails(dataset)).make(lambda: dataset[3])
    assert isinstance(kept, Kept)
    assert torch.equal(kept.inputs[0][0][0], dataset.image(3))
    assert kept.tails == (0,)
