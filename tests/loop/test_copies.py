"""Copies of the user's loader: the same data, and nothing shared that iterating changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pipediag.loop.copies import detached_twin, plain_twin, wrap_sampler
from pipediag.loop.wrappers import EndlessSampler

DATA = TensorDataset(torch.arange(10))


def indices(loader: Any) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


class Forever(DataLoader):  # type: ignore[misc,type-arg]
    """Iterates its own endless iterator, as in the YOLO family."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[Any]:
        yield next(self.iterator)


def test_a_twin_has_torchs_own_iterator() -> None:
    loader = Forever(DATA, batch_size=4)
    twin = plain_twin(loader)
    assert type(twin) is DataLoader and twin.dataset is DATA and twin.sampler is loader.sampler
    assert indices(twin) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert indices(loader) == [[0, 1, 2, 3]], "its own iterator did not move"


def test_persistent_workers_are_not_shared() -> None:
    loader = DataLoader(DATA, batch_size=4, num_workers=1, persistent_workers=True)
    assert len(indices(loader)) == 3
    twin = plain_twin(loader)
    assert twin._iterator is None and loader._iterator is not None
    assert twin.multiprocessing_context is loader.multiprocessing_context


def test_a_detached_twin_draws_from_its_own_generator() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(DATA, batch_size=4, shuffle=True, generator=generator)
    twin = detached_twin(loader)
    assert twin.generator is twin.sampler.generator is twin.batch_sampler.sampler.generator is not generator
    before = generator.get_state()
    theirs = indices(twin)
    assert torch.equal(generator.get_state(), before)
    assert indices(loader) == theirs, "it began with the state of the loader's generator"


def test_samplers_are_copied_down_to_the_innermost() -> None:
    sampler = DistributedSampler(DATA, num_replicas=1, rank=0, seed=2)
    loader = DataLoader(DATA, batch_sampler=BatchSampler(sampler, 4, False))
    twin = detached_twin(loader)
    sampler.set_epoch(7)
    assert twin.batch_sampler.sampler.epoch == 0 and twin.batch_sampler.sampler.dataset is DATA


def test_a_list_as_sampler_is_shared() -> None:
    own = [[1, 2], [3]]
    assert detached_twin(DataLoader(DATA, batch_sampler=own)).batch_sampler is own


def test_the_sampler_that_gives_the_indices_is_wrapped() -> None:
    loader = DataLoader(DATA, batch_size=4, sampler=RandomSampler(DATA))
    wrapped = wrap_sampler(twin := plain_twin(loader), EndlessSampler)
    assert twin.batch_sampler is wrapped and wrapped.sampler is loader.batch_sampler
    single = DataLoader(DATA, batch_size=None)
    wrapped = wrap_sampler(twin := plain_twin(single), EndlessSampler)
    assert twin.sampler is wrapped and twin.batch_sampler is None and single.sampler is wrapped.sampler
