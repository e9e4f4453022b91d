"""What a sample costs a worker, call by call, on a clock that the transforms move."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset
from torchvision import tv_tensors
from torchvision.transforms import v2

import pipediag
from pipediag.ladder.probes import inspection as instruments
from pipediag.ladder.probes import sample_costs as probe
from pipediag.ladder.probes.inspection import TIMED, Inspection, made_twice, threads
from pipediag.session import NOT_YET, Cost, Files, Inside, Link
from pipediag.usercode.chain import Chain, chain_of, take_apart
from pipediag.usercode.places import place_of
from pipediag.usercode.transform_slots import find_slots

from ...things import Items, Transformed

#: Every sample takes the next number.
COUNT = itertools.count()


class Clock:
    """A clock that moves only when somebody works."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self.waited = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def work(self, ms: float, cpu: float | None = None) -> None:
        self.wall += ms / 1000
        self.cpu += (ms if cpu is None else cpu) / 1000

    def wait_for_a_core(self, ms: float) -> None:
        self.wall += ms / 1000
        self.waited += ms / 1000

    def cpu_seconds(self) -> float:
        return self.cpu

    def queued(self) -> float:
        return self.waited


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    for module in (probe, instruments):
        monkeypatch.setattr(module, "time", fake)
    return fake


def probing(dataset: Any, clock: Clock, samples: int = TIMED) -> Inspection:
    return Inspection(find_slots(dataset), clock.cpu_seconds, True, timed=samples, queued=clock.queued)


class Step:
    """A transform that takes some milliseconds, ``cpu`` of them on a CPU."""

    def __init__(self, clock: Clock, ms: float, cpu: float | None = None) -> None:
        self.clock, self.ms, self.cpu = clock, ms, cpu

    def __call__(self, x: Any) -> Any:
        self.clock.work(self.ms, self.cpu)
        return x + 1


class Crop(Step):
    pass


class Blur(Step):
    pass


class Scale(Step):
    pass


class Compose:
    def __init__(self, clock: Clock, *parts: Any, own: float = 0.0) -> None:
        self.clock, self.parts, self.own = clock, list(parts), own

    def __call__(self, x: Any) -> Any:
        self.clock.work(self.own)
        for part in self.parts:
            x = part(x)
        return x


class Scales(Compose):
    """A compose with another name, since calls are grouped by name."""


class Dataset(Items):
    """Loads for some milliseconds, then makes ``views`` transformed views."""

    def __init__(self, clock: Clock, transform: Any, load: float = 0.0, views: int = 1, size: int = 64) -> None:
        super().__init__(size)
        self.clock, self.transform, self.cost, self.views = clock, transform, load, views

    def __getitem__(self, index: int) -> Any:
        self.clock.work(self.cost)
        raw = self.raw(index)
        return *(self.transform(raw) for _ in range(self.views)), index


def chain_in(dataset: Any, indices: range = range(3)) -> Chain:
    slots = find_slots(dataset)
    return chain_of([take_apart(lambda i=i: dataset[i], slots) for i in indices])


def probed(dataset: Any, clock: Clock, chain: Chain | None = None, samples: int = 4) -> Inside:
    timing = probing(dataset, clock, samples)
    for index in range(samples):
        assert timing.times
        timing.make(lambda i=index: dataset[i])  # type: ignore[misc]
    assert not timing.times
    return timing.figures(chain or Chain())


def costs(inside: Inside) -> dict[str, tuple[float, float]]:
    return {link.name: (link.cost.wall_ms, link.cost.cpu_ms) for link in inside.links}


class TestByLink:
    def test_each_link_separately(self, clock: Clock) -> None:
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Blur(clock, 12, cpu=24), Scale(clock, 1, cpu=0)), 5)
        inside = probed(dataset, clock, chain_in(dataset))
        assert costs(inside) == {"Crop": (2, 2), "Blur": (12, 24), "Scale": (1, 0)}
        assert inside.whole == Cost(20, 31)
        assert inside.load == Cost(5, 5)
        assert inside.between == Cost(0, 0)
        assert inside.samples == 4

    @pytest.mark.parametrize(
        ("crop_cpu", "waits", "load", "expected"),
        [
            (2.0, 30.0, 5.0, {"Crop": (2, 2), "Interrupted": (3, 3)}),
            # being blocked is: half of the time without a CPU was waiting for a core, so half of each piece's was
            (1.0, 10.0, 0.0, {"Crop": (6, 1), "Interrupted": (8, 3)}),
        ],
    )
    def test_waiting_for_a_core_is_no_cost(
        self, clock: Clock, crop_cpu: float, waits: float, load: float, expected: dict[str, tuple[float, float]]
    ) -> None:
        """Another process's load hits the pieces by chance, not in proportion to their work."""

        class Interrupted(Blur):
            def __call__(self, x: Any) -> Any:
                self.clock.wait_for_a_core(waits)
                return super().__call__(x)

        crop = Crop(clock, 2 if load else 11, crop_cpu)
        dataset = Dataset(clock, Compose(clock, crop, Interrupted(clock, 3)), load)
        inside = probed(dataset, clock, chain_in(dataset))
        assert costs(inside) == expected and inside.load == Cost(load, load)
        assert inside.whole.wall_ms == load + sum(wall for wall, _ in expected.values())

    def test_nor_is_waiting_for_a_core_while_the_probe_itself_works(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Looking at a size, or at a clock, is when another process gets the core."""
        weigh = probe.tree.nbytes

        def interrupted(data: Any) -> int:
            clock.wait_for_a_core(20)
            return weigh(data)

        dataset = Dataset(clock, Compose(clock, Crop(clock, 11, cpu=1), Blur(clock, 3)), 5)
        chain = chain_in(dataset)
        monkeypatch.setattr(probe.tree, "nbytes", interrupted)
        inside = probed(dataset, clock, chain)
        assert costs(inside) == {"Crop": (11, 1), "Blur": (3, 3)}
        assert (inside.whole, inside.load) == (Cost(19, 9), Cost(5, 5))

    def test_the_code_between_the_links(self, clock: Clock) -> None:
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Blur(clock, 3), own=4), 5)
        inside = probed(dataset, clock, chain_in(dataset))
        assert inside.between == Cost(4, 4)
        assert inside.load == Cost(5, 5)
        assert inside.whole.wall_ms == 14

    @pytest.mark.parametrize(
        ("make", "proven", "expected"),
        [
            # The cost of a sample includes both views.
            (lambda c: Dataset(c, Compose(c, Crop(c, 2), Blur(c, 3)), views=2), True, {"Crop": (4, 4), "Blur": (6, 6)}),
            (
                lambda c: Dataset(c, Compose(c, Compose(c, Crop(c, 2), Blur(c, 3)), Scale(c, 4))),
                True,
                {"Crop": (2, 2), "Blur": (3, 3), "Scale": (4, 4)},
            ),
            # Different chains are averaged over all samples.
            (
                lambda c: ConcatDataset([Dataset(c, Crop(c, 2), size=2), Dataset(c, Blur(c, 6), size=2)]),
                False,
                {"Crop": (1, 1), "Blur": (3, 3)},
            ),
        ],
        ids=["views", "nested", "different chains"],
    )
    def test_several_chains(self, clock: Clock, make: Any, proven: bool, expected: Any) -> None:
        dataset = make(clock)
        assert costs(probed(dataset, clock, chain_in(dataset) if proven else None)) == expected

    def test_the_same_transform_at_two_places(self, clock: Clock) -> None:
        """Each place has the cost of its own call."""

        class Growing(Crop):
            def __call__(self, x: Any) -> Any:
                self.ms = 11 - self.ms
                return super().__call__(x)

        growing = Growing(clock, 10)
        dataset = Dataset(clock, Compose(clock, growing, Blur(clock, 3), growing))
        inside = probed(dataset, clock, chain_in(dataset))
        assert [(link.name, link.cost.wall_ms) for link in inside.links] == [
            ("Growing", 1),
            ("Blur", 3),
            ("Growing", 10),
        ]

    def test_an_unopened_link_includes_its_parts(self, clock: Clock) -> None:
        class Glue(Compose):
            def __call__(self, x: Any) -> Any:
                return super().__call__(x) + 1

        dataset = Dataset(clock, Compose(clock, Glue(clock, Crop(clock, 2), Blur(clock, 3), own=1), Scale(clock, 4)))
        inside = probed(dataset, clock, chain_in(dataset))
        assert costs(inside) == {"Glue": (6, 6), "Scale": (4, 4)}
        assert inside.links[0].whole == "its own code changes what its parts return"

    def test_equal_chains_of_several_datasets(self, clock: Clock) -> None:
        parts = [Dataset(clock, Compose(clock, Crop(clock, 2), Blur(clock, 3)), size=2) for _ in range(2)]
        dataset = ConcatDataset(parts)
        slots = find_slots(dataset)
        chain = chain_of([take_apart(lambda i=i: dataset[i], slots) for i in range(4)])
        assert costs(probed(dataset, clock, chain)) == {"Crop": (2, 2), "Blur": (3, 3)}

    def test_marked_calls(self, clock: Clock) -> None:
        class Marked(Dataset):
            def __getitem__(self, index: int) -> Any:
                self.clock.work(self.cost)
                return pipediag.stage("blur")(Blur(self.clock, 7))(self.raw(index)), index

        inside = probed(Marked(clock, None, 2), clock)
        assert costs(inside) == {"Blur": (7, 7)}
        assert inside.load.wall_ms == 2


class TestUnproven:
    """Without a chain that can be cut, calls are told apart by their code."""

    def test_by_code(self, clock: Clock) -> None:
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Blur(clock, 3), Crop(clock, 5)))
        inside = probed(dataset, clock, Chain(unsplit="because"))
        assert costs(inside) == {"Crop": (7, 7), "Blur": (3, 3)}
        assert inside.unsplit == "because"

    def test_two_classes_of_one_name_are_two(self, clock: Clock) -> None:
        """As a video's transforms may have a ``Compose`` for its frames and another for their numbers."""
        other = type("Crop", (Step,), {})
        inside = probed(Dataset(clock, Compose(clock, Crop(clock, 2), other(clock, 5))), clock)
        assert [(link.name, link.cost.wall_ms) for link in inside.links] == [("Crop", 2), ("Crop", 5)]

    def test_without_any_chain(self, clock: Clock) -> None:
        dataset = Dataset(clock, Crop(clock, 2), 3)
        inside = probed(dataset, clock)
        assert costs(inside) == {"Crop": (2, 2)}
        assert (inside.load.wall_ms, inside.unsplit) == (3, NOT_YET)

    @pytest.mark.parametrize("own, shown", [(1.0, ["Crop", "Blur"]), (5.0, ["Compose"])])
    def test_parts_are_shown_if_they_take_most_of_the_time(self, clock: Clock, own: float, shown: list[str]) -> None:
        dataset = Dataset(clock, Compose(clock, Crop(clock, 4), Blur(clock, 5), own=own))
        assert list(costs(probed(dataset, clock))) == shown

    def test_a_transform_that_decides_at_random_is_shown_as_one(self, clock: Clock) -> None:
        class Choice(Compose):
            def __call__(self, x: Any) -> Any:
                return self.parts[torch.randint(1, ())](x)

        assert list(costs(probed(Dataset(clock, Choice(clock, Crop(clock, 4))), clock))) == ["Choice"]

    def test_without_transforms_everything_is_loading(self, clock: Clock) -> None:
        class Plain(Dataset):
            def __getitem__(self, index: int) -> Any:
                self.clock.work(self.cost)
                return self.raw(index), index

        inside = probed(Plain(clock, None, 9), clock)
        assert (inside.links, inside.load, inside.whole) == ([], Cost(9, 9), Cost(9, 9))

    def test_a_transform_that_reads_a_file_is_loading(self, clock: Clock, tmp_path: Any) -> None:
        file = tmp_path / "x"
        file.touch()

        class Files(Dataset):
            def __getitem__(self, index: int) -> Any:
                self.clock.work(self.cost)
                return self.transform(str(file)), index

        def read(path: str) -> Any:
            clock.work(6)
            return torch.ones(2)

        inside = probed(Files(clock, read, 2), clock)
        assert (inside.links, inside.load.wall_ms) == ([], 8)


class Perhaps(Compose):
    """Runs one of its parts, in turn, and has the look of one that decides at random."""

    def __init__(self, *parts: Any, own: float = 0.0) -> None:
        super().__init__(*parts, own=own)
        self.turn = 0

    def __call__(self, x: Any) -> Any:
        self.clock.work(self.own)
        self.turn += torch.randint(1, 2, ()).item()
        return self.parts[self.turn % len(self.parts)](x)


class TestPartsOfAWrapper:
    """A wrapper that decides at random stays one link, with the transforms that it ran."""

    def parts(self, inside: Inside, number: int = 0) -> list[tuple[str, float]]:
        return [(part.name, part.cost.wall_ms) for part in inside.links[number].parts]

    @pytest.mark.parametrize("proven", [True, False])
    def test_they_have_the_average_cost_over_all_samples(self, clock: Clock, proven: bool) -> None:
        wrapper = Perhaps(clock, Blur(clock, 6), Scale(clock, 2))
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), wrapper))
        inside = probed(dataset, clock, chain_in(dataset) if proven else None)
        assert costs(inside) == {"Crop": (2, 2), "Perhaps": (4, 4)}
        assert (self.parts(inside, 0), sorted(self.parts(inside, 1))) == ([], [("Blur", 3), ("Scale", 1)])

    def test_wrappers_in_wrappers_are_opened_too(self, clock: Clock) -> None:
        inner = Compose(clock, Crop(clock, 4), Perhaps(clock, Blur(clock, 6)))
        assert self.parts(probed(Dataset(clock, Perhaps(clock, inner)), clock)) == [("Crop", 4), ("Blur", 6)]

    @pytest.mark.parametrize("own, ran", [(1.0, [("Crop", 5)]), (2.0, [])])
    def test_code_of_its_own_that_takes_long_keeps_its_name(
        self, clock: Clock, own: float, ran: list[tuple[str, float]]
    ) -> None:
        assert self.parts(probed(Dataset(clock, Perhaps(clock, Crop(clock, 5), own=own)), clock)) == ran

    def test_a_wrapper_inside_that_ran_nothing_is_no_part(self, clock: Clock) -> None:
        """It ran its part in every second sample."""

        class Half(Perhaps):
            def __call__(self, x: Any) -> Any:
                return super().__call__(x) if self.turn % 2 == 0 else self.skip(x)

            def skip(self, x: Any) -> Any:
                self.turn += 1
                self.clock.work(0.2)
                return x

        wrapper = Perhaps(clock, Half(clock, Crop(clock, 8)))
        assert self.parts(probed(Dataset(clock, wrapper), clock)) == [("Crop", 4)]

    @pytest.mark.parametrize("listed, ran", [(True, ["Crop"]), (False, []), (None, [])])
    def test_a_librarys_means_are_not_its_parts(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, listed: bool | None, ran: list[str]
    ) -> None:
        """MONAI's ``ScaleIntensityd`` holds a ``ScaleIntensity``, albumentations' transforms list their methods."""

        class Scaled(Perhaps):
            def __init__(self, part: Any) -> None:
                super().__init__(clock, *([part.__call__] if listed is None else [part] * listed))
                self.part = part

            def __call__(self, x: Any) -> Any:
                torch.randint(1, 2, ())
                return (self.parts[0] if self.parts else self.part)(x)

        monkeypatch.setattr(probe, "link_of", lambda fn: Link(type(fn).__name__, library=True))
        dataset = Dataset(clock, Scaled(Crop(clock, 5)))
        assert [name for name, _ in self.parts(probed(dataset, clock))] == ran

    def test_a_library_that_runs_a_function_of_the_users(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """As torchvision's ``Lambda``."""

        class Lambda:
            def __init__(self, function: Any) -> None:
                self.function = function

            def __call__(self, x: Any) -> Any:
                torch.randint(1, 2, ())
                return self.function(x)

        monkeypatch.setattr(probe, "link_of", lambda fn: Link(type(fn).__name__, library=isinstance(fn, Lambda)))
        assert self.parts(probed(Dataset(clock, Lambda(Crop(clock, 5))), clock)) == [("Crop", 5)]

    def test_torchs_modules_are_how_it_works(self, clock: Clock) -> None:
        class Slow(torch.nn.Identity):
            __module__ = "torch.nn.modules.conv"

            def forward(self, x: Any) -> Any:
                clock.work(5)
                return x + 1

        assert self.parts(probed(Dataset(clock, Perhaps(clock, Slow())), clock)) == []

    def test_they_are_at_their_definitions(self, clock: Clock) -> None:
        part = probed(Dataset(clock, Perhaps(clock, Blur(clock, 6))), clock).links[0].parts[0]
        place = place_of(Blur(clock, 6))
        assert (part.where, part.library, part.origin) == (place.where, False, __name__)

    def test_torchvisions(self) -> None:
        class Pictures(Transformed):
            def raw(self, index: int) -> Any:
                return torch.zeros(3, 256, 256)

        blur = v2.GaussianBlur(31)
        dataset = Pictures(v2.Compose([v2.RandomApply([blur], p=1.0), v2.RandomOrder([blur, blur])]))
        timing = Inspection(find_slots(dataset), time.process_time, True)
        for index in range(4):
            timing.time(lambda i=index: dataset[i])  # type: ignore[misc]
        links = timing.figures(chain_in(dataset)).links
        parts = {link.name: [(part.name, part.library) for part in link.parts] for link in links}
        assert parts == {"RandomApply": [("GaussianBlur", True)], "RandomOrder": [("GaussianBlur", True)]}


class TestData:
    """The data that goes into the links and comes out of them."""

    def test_bytes(self, clock: Clock) -> None:
        class Smaller(Step):
            def __call__(self, x: Any) -> Any:
                return super().__call__(x)[:1].half()

        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Smaller(clock, 3)))
        first, second = probed(dataset, clock, chain_in(dataset)).links
        assert (first.given, first.bytes_in, first.bytes_out) == ("tensor", 24, 24)  # 2 x 3 floats
        assert (second.given, second.bytes_in, second.bytes_out) == ("tensor", 24, 6)

    def test_by_name_too(self, clock: Clock) -> None:
        (link,) = probed(Dataset(clock, Crop(clock, 2)), clock).links
        assert (link.bytes_in, link.bytes_out, link.origin) == (24, 24, __name__)

    @pytest.mark.parametrize(
        "raw, given",
        [
            (Image.new("RGB", (4, 4)), "picture"),
            (np.zeros((4, 4)), "array"),
            (torch.zeros(4), "tensor"),
            (tv_tensors.Image(torch.zeros(3, 4, 4)), "tensor"),
            ({"image": 1}, "dict"),
        ],
    )
    def test_the_kind_of_input(self, clock: Clock, raw: Any, given: str) -> None:
        class Identity(Step):
            def __call__(self, x: Any) -> Any:
                return x

        class Given(Dataset):
            def raw(self, index: int) -> Any:
                return raw

        (link,) = probed(Given(clock, Identity(clock, 1)), clock).links
        assert link.given == given

    def test_where_they_are_defined(self) -> None:
        dataset = Transformed(v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Identity()]))
        links = chain_of([take_apart(lambda: dataset[1], find_slots(dataset))]).links
        assert [link.origin for link in links] == [
            "torchvision.transforms.v2._geometry",
            "torchvision.transforms.v2._misc",
        ]

    def test_measuring_sizes_counts_for_no_call(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        native = probe.tree.nbytes

        def slow(data: Any) -> int:
            clock.work(100)
            return native(data)

        monkeypatch.setattr(probe.tree, "nbytes", slow)
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Scales(clock, Blur(clock, 3), own=1)), 5)
        inside = probed(dataset, clock)
        assert inside.whole == Cost(11, 11)
        assert costs(inside) == {"Crop": (2, 2), "Scales": (4, 4)}

    def test_files(self, clock: Clock, tmp_path: Any) -> None:
        (tmp_path / "x.jpg").write_bytes(bytes(50))

        class Reading(Dataset):
            def __getitem__(self, index: int) -> Any:
                (tmp_path / "x.jpg").read_bytes()
                return super().__getitem__(index)

        assert probed(Reading(clock, Crop(clock, 2)), clock).files == Files(1.0, 50.0, {".jpg": 4})


class TestSamples:
    def test_sizes_pair_bytes_with_milliseconds(self, clock: Clock) -> None:
        class Varied(Items):
            def __getitem__(self, index: int) -> Any:
                clock.work(index + 1)
                return torch.zeros(100 * (index + 1), dtype=torch.uint8)

        assert probed(Varied(), clock).sizes == [[100, 1], [200, 2], [300, 3], [400, 4]]

    def test_no_samples_yet(self, clock: Clock) -> None:
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Blur(clock, 3)))
        chain = chain_in(dataset)
        inside = probing(dataset, clock).figures(chain)
        assert (inside.samples, inside.whole, inside.links) == (0, Cost(), chain.links)
        assert Inspection([], clock.cpu_seconds, True).figures(Chain()) == Inside(threads=threads(), unsplit=NOT_YET)

    def test_slow_samples_are_few(self, clock: Clock) -> None:
        """The inspection must not take long: it ends after a few seconds of samples."""
        timing = Inspection([], clock.cpu_seconds, True)
        for _ in range(3):
            assert timing.times
            timing.time(lambda: clock.work(1000))
        assert not timing.times

    @pytest.mark.xfail(strict=True, reason="timing replaces the parts, with nothing to fall back to")
    def test_a_class_that_refuses_replaced_parts(self, clock: Clock) -> None:
        class Strict(Compose):
            def __call__(self, x: Any) -> Any:
                if type(self.parts[0]) is not Crop:
                    raise TypeError(type(self.parts[0]).__name__)
                return super().__call__(x)

        assert costs(probed(Dataset(clock, Strict(clock, Crop(clock, 2))), clock)) == {"Strict": (2, 2)}


class TestOwnTime:
    """What timing takes is told apart from what it times."""

    def test_everything_but_the_sample(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sizes are measured of each call's input and result, and of the sample."""
        native = probe.tree.nbytes

        def slow(data: Any) -> int:
            clock.work(3)
            return native(data)

        monkeypatch.setattr(probe.tree, "nbytes", slow)
        dataset = Dataset(clock, Compose(clock, Crop(clock, 2), Blur(clock, 12)), 5)
        timing = probing(dataset, clock)
        timing.time(lambda: dataset[0])
        assert timing.own == pytest.approx(7 * 0.003)
        inside = timing.figures(Chain())
        assert inside.whole == Cost(19, 19)
        assert costs(inside) == {"Crop": (2, 2), "Blur": (12, 12)}

    def test_nested_transforms_are_looked_for_once(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        searches = []
        native = instruments.with_nested
        monkeypatch.setattr(instruments, "with_nested", lambda slots: searches.append(1) or native(slots))
        compose = Compose(clock, Crop(clock, 2), Blur(clock, 3))
        dataset = Dataset(clock, compose)
        timing = probing(dataset, clock)
        for _ in range(3):
            timing.time(lambda: dataset[0])
        assert len(searches) == 1
        compose.parts[1] = Scale(clock, 1)
        timing.time(lambda: dataset[0])
        compose.parts.pop()
        timing.time(lambda: dataset[0])
        assert len(searches) == 3, "the dataset has changed its transforms"
        assert [len(sample.calls[0].inner) for sample in timing._samples] == [2, 2, 2, 2, 1]


class TestInspection:
    """Timers in every worker; nothing if all is known."""

    def inspect(self, clock: Clock, needed: bool = True) -> tuple[int, Inspection]:
        inspection = Inspection([], clock.cpu_seconds, needed, timed=3)
        made = 0
        while inspection.times:
            inspection.make(lambda: None)
            made += 1
        return made, inspection

    def test_how_many_samples_it_takes(self, clock: Clock) -> None:
        made, inspection = self.inspect(clock)
        assert made == 3 and inspection.looks(0.0)
        assert inspection.make(lambda: "sample") == "sample", "later ones are not inspected"
        assert (inspection.figures(Chain()).samples, inspection.figures(Chain()).lines) == (3, [])

    def test_a_worker_that_does_not_look(self, clock: Clock) -> None:
        made, inspection = self.inspect(clock, needed=False)
        assert made == 0 and not inspection.times and not inspection.looks(0.0)
        assert inspection.time(lambda: "sample") == "sample" and not inspection.news
        assert inspection.figures(Chain(unsplit="why")) == Inside(threads=threads(), unsplit="why")

    def test_samples_that_training_gets(self, clock: Clock) -> None:
        """They only run under the timers; there is news until it was reported."""
        inspection = Inspection([], clock.cpu_seconds, True, timed=3)
        assert not inspection.news
        for timed in (1, 2, 3):
            assert inspection.times and inspection.time(lambda: "sample") == "sample"
            assert inspection.news
            found = inspection.figures(Chain())
            assert (found.samples, found.unsplit, found.lines) == (timed, NOT_YET, [])
            assert not inspection.news
        assert not inspection.times
        assert inspection.time(lambda: "sample") == "sample" and not inspection.news

    def test_samples_made_together(self, clock: Clock) -> None:
        inspection = Inspection([], clock.cpu_seconds, True, timed=3)
        inspection.time(lambda: clock.work(8), samples=4)
        found = inspection.figures(Chain())
        assert (found.samples, found.whole) == (4, Cost(2, 2)) and not inspection.times

    def test_samples_that_fail_under_the_timers_are_made_without(self, clock: Clock) -> None:
        inspection = Inspection([], clock.cpu_seconds, True)
        outcomes = iter([TypeError("spied upon"), "sample"])

        def make() -> Any:
            outcome = next(outcomes)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        assert inspection.time(make) == "sample"
        assert not inspection.times, "the timers are not tried again"

    def test_the_users_own_error_is_passed_on(self, clock: Clock) -> None:
        def fails() -> Any:
            raise OSError("disk on fire")

        with pytest.raises(OSError, match="disk on fire"):
            Inspection([], clock.cpu_seconds, True).time(fails)

    def test_a_stream_that_ended_is_not_read_again(self, clock: Clock) -> None:
        asked: list[int] = []

        def ends() -> Any:
            asked.append(1)
            raise StopIteration

        with pytest.raises(StopIteration):
            Inspection([], clock.cpu_seconds, True).time(ends)
        assert asked == [1]


class TestMadeTwice:
    """Whether a sample is the same whenever it is made."""

    def test_without_draws(self) -> None:
        assert made_twice(lambda index: (torch.full((3,), index), {"label": index}), range(8)) is True

    @pytest.mark.parametrize(
        "make",
        [
            lambda _: torch.rand(3),
            lambda _: random.random() < 2,  # a draw that happens to change nothing
            lambda _: next(COUNT),
        ],
    )
    def test_what_changes(self, make: Any) -> None:
        assert made_twice(make, range(8)) is False

    def test_few_samples_tell_nothing(self) -> None:
        assert made_twice(lambda index: index, range(3)) is None

    def test_what_cannot_be_compared_or_fails(self) -> None:
        assert made_twice(lambda _: object(), range(8)) is None
        assert made_twice(lambda _: 1 // 0, range(8)) is None
