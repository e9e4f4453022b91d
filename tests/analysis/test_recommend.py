"""Every rule on sessions where it must fire and where it must not; texts and order of the recommendations."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.diagnosis import Recommendation
from pipediag.analysis.numbers.loop_and_workers import OF_THE_WORKERS
from pipediag.analysis.recommend import LOSS, cheaper
from pipediag.analysis.recommend.fallback import ways_to_leave_a_core
from pipediag.analysis.recommend.lines import what_helps
from pipediag.analysis.recommend.view import ALL
from pipediag.analysis.summary import summarise
from pipediag.analysis.thresholds import GATE, WORTH
from pipediag.session import (
    RUNGS,
    Account,
    Alternative,
    BatchFacts,
    Files,
    HotLine,
    Inside,
    Leaf,
    Link,
    OtherStart,
    Padding,
    Place,
    Prefix,
    Remedy,
    Session,
    Startup,
    Tail,
)

from ..made import FLAT, blocks, but, climbing, inside, job, leaf, make, then_tried, torchvisions, waits, without

#: 50 ms of compute; the workers give a batch every 120 ms and take 400 ms to make one.
STARVED = {**climbing(host=0.5, worker=0.5, sample=0.5), "raw": 120.0, "warm": 120.0, "baseline": 120.0}
BUSY = {"worker_ms": 400.0, "worker_cpu": 1.0, "process_cpu": 1.0}
#: A loop that is limited by copying, 20 of 71 ms.
COPYING = {**climbing(host=20.0), "supply": 30.0}


def starved(within: Inside | None = None, seen: Mapping[str, float] = BUSY, **more: Any) -> Session:
    """A loop that waits for its workers; their chain is ``within``."""
    found = inside(4.0, 4.0, load=2.0) if within is None else within
    return make(STARVED, noise=0.0, evidence={"baseline": dict(seen)}, inside=found, **more)


def chain(*names: str, each: float = 0.0, load: float = 2.0, **more: Any) -> Session:
    """A starved loop with torchvision's transforms, which take 8 ms a sample together unless ``each`` is given."""
    return starved(torchvisions(inside(*[each or 8.0 / len(names)] * len(names), load=load), *names, **more))


def advice(session: Session) -> dict[str, Recommendation]:
    """Return the recommendations by id; check the texts of every rule on the way."""
    diagnosis = diagnose_session(session)
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    for one in diagnosis.recommendations:
        assert one.evidence and all(any(c.isdigit() for c in text) for text in one.evidence[:1]), one
        assert one.title and one.how and one.risk
        assert one.gain is None or one.gain.high >= WORTH
    return {one.id: one for one in diagnosis.recommendations}


class TestOffload:
    def test_torchvisions_own(self) -> None:
        one = advice(chain("RandomResizedCrop", "ColorJitter"))["offload"]
        assert (one.title, one.stage) == ("Move RandomResizedCrop and ColorJitter to the device", "transform")
        assert one.evidence[0] == "RandomResizedCrop and ColorJitter take a worker 10 ms a sample, 80 % of its time"
        assert one.how.startswith('loader = pipediag.offload(loader, "cuda")  # before train.py:10')
        assert 1.7 < one.predicted.low < one.predicted.value < one.predicted.high <= 2.4
        assert one.measured is None

    def test_the_end_of_the_chain(self) -> None:
        """The user's own transform stays, with everything before it."""
        found = torchvisions(inside(4.0, 2.0, 2.0, load=2.0), "RandomCrop", "Mine", "Normalize")
        one = advice(but(starved(found), links__1__origin="aug"))["offload"]
        assert one.title == "Move Normalize to the device"
        assert one.evidence[1].startswith(
            "Mine (aug.py:20) and everything before it stay in the workers: it is not torchvi"
        )
        assert one.predicted.value < 1.5

    @pytest.mark.parametrize("name", ["RandomApply", "Lambda", "RandomChoice"])
    def test_what_holds_others_may_stay(self, name: str) -> None:
        """The interval covers both cases."""
        sure = advice(chain("RandomAffine", "Normalize"))["offload"].predicted
        one = advice(chain(name, "Normalize"))["offload"]
        assert name in one.title
        assert one.predicted.value == pytest.approx(sure.value)
        assert one.predicted.low < sure.low - 0.2

    @pytest.mark.parametrize("name", ["RandomAffine", "RandAugment"])
    def test_pictures(self, name: str) -> None:
        found = torchvisions(inside(4.0, 2.0, 2.0, load=2.0), name, "ToTensor", given="picture", new=False)
        torchvisions(found, "Normalize", new=False, first=2)
        assert advice(starved(found))["offload"].title == f"Move {name}, ToTensor and Normalize to the device"

    @pytest.mark.parametrize(
        "sizes, told",
        [
            ({"RandomCrop": (150, 75), "ToDtype": (75, 600)}, "75 kB"),
            ({"RandomCrop": (150, 0), "ToDtype": (0, 600)}, "150 kB"),  # what the crop keeps is not known
            ({"ToDtype": (200, 1200), "RandomCrop": (1200, 600)}, "100 kB"),
            ({"RandomHorizontalFlip": (200, 1200), "RandomCrop": (1200, 600)}, "200 kB"),  # from elsewhere in the image
            ({"GaussianBlur": (200, 1200), "CenterCrop": (1200, 600)}, "200 kB"),  # it looks beyond what is kept
            ({"ToDtype": (200, 600), "Normalize": (600, 600)}, "200 kB"),
        ],
    )
    def test_what_a_first_cut_leaves_is_what_is_sent(self, sizes: dict[str, tuple[int, int]], told: str) -> None:
        session = chain(*sizes)
        for link, kilobytes in zip(session.links, sizes.values(), strict=True):
            link.bytes_in, link.bytes_out = (1000.0 * size for size in kilobytes)
        assert f"{told} per sample then cross the bus instead of 600 kB" in advice(session)["offload"].evidence

    def test_what_chooses_its_functions_takes_long_to_be_recorded(self) -> None:
        quick, slow = (advice(chain(name, "Normalize"))["offload"] for name in ("RandomAffine", "RandAugment"))
        assert slow.predicted.low < quick.predicted.low - 0.1

    def test_collating_has_less_to_do_then(self) -> None:
        found = torchvisions(inside(1.0, 1.0, load=6.0), "RandomCrop", "ToDtype")
        session = make(STARVED, noise=0.0, evidence={"baseline": BUSY, "sample": {"worker_ms": 160.0}}, inside=found)
        before = advice(session)["offload"].predicted.value
        but(session, links__0__bytes_in=150_000.0, links__1__bytes_out=600_000.0)
        assert advice(session)["offload"].predicted.value > 1.1 * before

    def test_work_on_the_device_is_counted(self) -> None:
        session = but(chain("RandomCrop", "ToDtype"), batch=BatchFacts())
        quick = advice(session)["offload"].predicted
        slow = advice(but(session, batch__device_copy_ms=10.0))["offload"].predicted
        assert slow.value < quick.value - 0.3

    @staticmethod
    def tried(ratio: float, rounds: int = 6, **more: Any) -> Session:
        session = chain("RandomCrop", "ColorJitter", "Normalize")
        moved = [Place(link.name, link.where) for link in session.links[1:]]
        return then_tried(but(session, remedy=Remedy(device="cuda:0", moved=moved, **more)), "remedied", ratio, rounds)

    def test_measured(self) -> None:
        one = advice(self.tried(2.0))["offload"]
        assert one.title == "Move ColorJitter and Normalize to the device"
        assert one.measured.value == pytest.approx(2.0)


def reordered(*names: str, kept: float = 0.1) -> Session:
    session, last = chain(*names), len(names) - 1
    return but(session, **{f"links__{last}__bytes_in": 1e6, f"links__{last}__bytes_out": 1e6 * kept})


class TestReorder:
    def test_a_cut_behind_what_works_on_all_of_it(self) -> None:
        one = advice(reordered("GaussianBlur", "RandomCrop"))["reorder"]
        assert one.title == "Put RandomCrop before GaussianBlur"
        assert one.evidence == [
            "RandomCrop keeps 10 % of its input",
            "GaussianBlur takes 5 ms a sample on all of it, and would take 0.5 ms a sample on what is kept",
        ]
        assert one.how == "in the list of transforms, RandomCrop (aug.py:20) before GaussianBlur (aug.py:10)"
        assert one.predicted.value == pytest.approx(400 / (400 - 0.9 * 160))

    def test_before_all_that_can_follow(self) -> None:
        title = advice(reordered("ToImage", "ColorJitter", "CenterCrop"))["reorder"].title
        assert title == "Put CenterCrop before ToImage and ColorJitter"


def stored(*names: str) -> Session:
    session = but(chain(*names, given="picture"), links__0__bytes_in=1e6)
    return but(session, **{f"links__{n}__bytes_out": 2e5 for n in range(len(names))})


def test_leading_and_deterministic_transforms_are_precomputed() -> None:
    one = advice(stored("Resize", "CenterCrop", "RandomHorizontalFlip", "ColorJitter"))["precompute"]
    assert one.title == "Apply Resize and CenterCrop once, when the dataset is prepared"
    told = "give the same result for a sample in every epoch, and take 5 ms a sample, 40 % of a worker's time"
    assert told in one.evidence[0] and one.evidence[1] == "1 MB a sample become 200 kB"
    assert one.how.startswith("store the samples with Resize (aug.py:10) to CenterCrop (aug.py:20) applied")
    assert one.predicted.value == pytest.approx(400 / 240)
    assert one.predicted.high > one.predicted.value * 1.2  # reading gets cheaper with it


def with_cost(*costs: float, origin: str = "aug", lines: Sequence[HotLine] = (), **more: Any) -> Session:
    """Transforms on pictures, each at a line of its own."""
    session = starved(inside(*costs, load=2.0, lines=list(lines)), **more)
    for link in session.links:
        but(link, origin=origin, given="picture")
    return session


def stock(*names: str) -> Session:
    session = with_cost(*[7.0 / len(names)] * len(names), origin="torchvision.transforms.transforms")
    return but(session, **{f"links__{n}__name": name for n, name in enumerate(names)})


class TestCheaper:
    """Each transform that costs the loop a worthwhile gain has advice of its own."""

    def test_the_users_own(self) -> None:
        lines = [HotLine("aug.py:24", "for y in range(h):", 0.6), HotLine("x.py:1", "", 0.1)]
        one = advice(with_cost(0.1, 7.0, lines=lines))["rewrite"]
        assert one.title == "Make B cheaper" and one.at_most
        assert one.evidence == [
            f"B (aug.py:20) takes 9.62 ms a sample, 77 % of a worker's time: {ALL}",
            "60 % of a sample's time: aug.py:24 for y in range(h):",
        ]
        assert one.how.startswith("aug.py:20: ") and one.savings is None
        assert one.predicted.value == pytest.approx(120 / 51)  # without B the loop limits

    @pytest.mark.parametrize(
        "function, how",
        {
            "shapely.ops.unary_union": "call it less often, or on less data",  # no loop in Python
            "scipy.ndimage._interpolation.rotate": "OpenCV's function of the same kind",
            "": "whole arrays in place of Python loops",
            "queue.Queue.get": "more threads or processes that make them",
            "multiprocessing.queues.Queue.get": "more threads or processes that make them",
            "multiprocessing.synchronize.SemLock.__enter__": "hold it only around what must not run twice at once",
            "time.sleep": "it waits and hardly uses the CPU",
            "urllib.request.urlopen": "a local copy of the data",
            "urllib.parse.urlparse": "call it less often",
            "_strptime._strptime": "parse once",
        }.items(),
    )
    def test_what_helps_with_what_a_line_calls(self, function: str, how: str) -> None:
        text, name = ("x = f(y)", "f") if function else ("for y in x:", "for y in x:")
        line = HotLine("aug.py:24", text, 0.6, name, "B", "transform", calls={function: 0.6} if function else {})
        assert how in advice(with_cost(0.1, 7.0, lines=[line]))["rewrite"].how

    def test_code_that_a_transform_calls(self) -> None:
        """The line to change is there, not where the transform is defined."""
        line = HotLine("ops.py:7", "y = np.sort(x)", 0.6, "np.sort", "smooth", "transform")
        assert advice(with_cost(0.1, 7.0, lines=[line]))["rewrite"].how.startswith("ops.py:7: call it less often")

    @pytest.mark.parametrize(
        "names, told", [(("RandAugment", "RandomCrop"), True), (("RandomCrop", "RandAugment"), False)]
    )
    def test_behind_a_crop_only_if_one_follows(self, names: tuple[str, str], told: bool) -> None:
        links = torchvisions(inside(1.0, 1.0), *names).links
        policy = next(link for link in links if link.name == "RandAugment")
        assert ("after the crop" in [one.what for one in cheaper.alternatives(policy, links)]) == told

    def test_rows_of_tensors(self) -> None:
        line = HotLine("torch/utils/data/dataset.py:206", "", 0.6, function="TensorDataset.__getitem__", library=True)
        assert "batch_size=None, sampler=BatchSampler" in what_helps(line, on_cpu=True)[1]

    def test_a_librarys(self) -> None:
        one = advice(stock("ColorJitter"))["cheaper"]
        assert one.title == "Make ColorJitter cheaper" and one.at_most
        assert one.how.startswith("aug.py:10: without hue: ColorJitter(brightness, contrast, saturation)")
        assert "on tensors of uint8: v2.PILToTensor() before it" in one.how

    def test_one_that_the_table_does_not_know(self) -> None:
        assert advice(stock("FiveCrop"))["cheaper"].how.startswith("aug.py:10: leave it out")

    def test_calls_at_one_place_are_one(self) -> None:
        """Two views of a sample: each call gains too little, both together do not."""
        session = but(stock("ColorJitter", "ColorJitter"), links__1__where="aug.py:10")
        found = [one for one in diagnose_session(session).recommendations if one.id == "cheaper"]
        assert [one.evidence[0][:48] for one in found] == ["ColorJitter (aug.py:10) takes 9.72 ms a sample, "]

    def test_several(self) -> None:
        found = [one.title for one in diagnose_session(stock("ColorJitter", "Resize")).recommendations]
        assert {"Make ColorJitter cheaper", "Make Resize cheaper"} <= set(found)

    def tried(self, *tried: Alternative) -> dict[str, Recommendation]:
        return advice(but(stock("ColorJitter"), alternatives=list(tried)))

    def test_tried_in_a_worker(self) -> None:
        """9.72 of 12.5 ms a sample become 60 % of that: the loop's 120 ms a batch become 120 * (1 - 0.4 * 7 / 9)."""
        found = self.tried(
            Alternative("ColorJitter", "aug.py:10", "hue", 8, 5.0, 3.0, 2.6),
            Alternative("ColorJitter", "aug.py:10", "tensor", 8, 5.0, 4.0, 0.4),
            Alternative("ColorJitter", "aug.py:99", "tensor", 8, 5.0, 0.1, 0.4),  # another one's
        )
        one = found["instead"]
        assert one.title == "ColorJitter without hue, other pixels" and not one.at_most
        assert one.evidence[1] == (
            "tried in a worker on 8 inputs of its own: 5 ms each become 3 ms; other pixels, 2.6 of 255 levels apart on "
            "average"
        )
        assert one.savings is not None and one.predicted.value == pytest.approx(1 / (1 - 0.4 * 7 / 9))
        assert "cheaper" not in found

    def test_tried_and_no_gain(self) -> None:
        found = self.tried(Alternative("ColorJitter", "aug.py:10", "hue", 8, 5.0, 4.9, 2.6))
        assert "instead" not in found
        assert found["cheaper"].evidence[1] == "tried in a worker, and hardly cheaper: without hue"
        assert "hue" not in found["cheaper"].how

    def test_tried_by_another_version(self) -> None:
        assert "instead" not in self.tried(Alternative("ColorJitter", "aug.py:10", "new", 8, 5.0, 1.0))

    def test_the_table(self) -> None:
        keys = [one.key for one in cheaper.ALTERNATIVES if one.key]
        assert len(keys) == len(set(keys)) and all(cheaper.by_key(key) is not None for key in keys)
        for one in (*cheaper.ALTERNATIVES, cheaper.DRAFT):
            assert one.what and one.how and one.what[0].islower()
        assert cheaper.by_key("") is None
        assert cheaper.to_try(Link("ColorJitter", origin="torchvision.transforms.v2._color", given="tensor")) == ["hue"]
        assert cheaper.to_try(Link("ColorJitter", origin="mine", given="tensor")) == []
        of_torchaudio = cheaper.alternatives(Link("Spec", origin="torchaudio.transforms", given="tensor"))
        assert of_torchaudio[0].what == "on the device"


def cacheable(*names: str, memory: int = 64) -> Session:
    session = chain(*names, each=4.0, load=6.0, given="picture")
    sizes = {f"links__{n}__{key}": 1e5 for n in range(len(names)) for key in ("bytes_in", "bytes_out")}
    return but(session, environment={"cores": 16, "memory_gib": memory}, **sizes)


def cached(ratio: float) -> Session:
    return then_tried(but(cacheable("RandomCrop"), loaded_once=Remedy(device="cuda:0")), "loaded-once", ratio)


class TestCache:
    def test_what_is_loaded(self) -> None:
        one = advice(cacheable("Resize", "RandomCrop"))["cache"]
        assert one.title == "Keep what library calls load in memory after the first epoch"
        assert one.evidence == [
            "loading takes 5.36 ms a sample, 43 % of a worker's time",
            "loaded samples have 100 kB, 3.2 GB for an epoch",
        ]
        assert one.how.startswith("loader = pipediag.cache(loader)  # before train.py:10")
        assert "@pipediag.pure" in one.how and one.at_most
        assert 1 < one.predicted.value < 2

    def test_in_files_where_memory_is_short(self) -> None:
        one = advice(cacheable("RandomCrop", memory=4))["cache"]
        assert "in files" in one.title and 'pipediag.cache(loader, folder="...")' in one.how

    def test_measured(self) -> None:
        assert advice(cached(1.5))["cache"].measured.value == pytest.approx(1.5)


def collating(ms: float, **facts: Any) -> Session:
    seen = {"baseline": dict(BUSY), "sample": {"worker_ms": ms}}
    return but(make(STARVED, noise=0.0, evidence=seen, inside=inside(4.0, 4.0), leaves=[leaf()]), **facts)


def test_a_collate_function_of_the_users_own() -> None:
    one = advice(collating(200.0))["collate"]
    assert (one.title, one.stage) == ("Make pad cheaper", "collate")
    assert one.evidence[0].startswith("pad (data.py:60) takes a worker 200 ms a batch, 50 % of its time")
    assert one.evidence[1] == "the largest tensor that it makes is batch[0] (float32, 64x4096, 1.05 MB)"
    assert one.at_most and one.predicted.value == pytest.approx(400 / 200)


def copying(*leaves: Leaf, host: float = 20.0, **facts: Any) -> Session:
    ladder = {**climbing(host=host), "supply": 30.0}
    return but(make(ladder, noise=0.0, leaves=leaves or [leaf()]), **facts)


def handed_over(ratio: float) -> Session:
    session = copying(remedy=Remedy(why_not="nothing moves"), handoff=Remedy(device="cuda:0"))
    return then_tried(session, "hand-off", ratio)


def pinned(non_blocking: bool) -> Session:
    return copying(leaf(pinned=True, non_blocking=non_blocking), loader__pin_memory=True)


class TestCopies:
    def test_they_can_overlap_the_step(self) -> None:
        one = advice(copying(batch__copy_ms=19.0))["overlap-copies"]
        assert one.stage == "transfer"
        assert one.evidence == [
            "batches from host memory instead of the device cost 20 ms of a 71 ms step",
            "copying one batch takes 19 ms by itself",
        ]
        assert one.predicted.value == pytest.approx(70.2 / 50.2)
        assert one.predicted.low == pytest.approx(70.2 / 60.2)

    def test_measured_as_the_hand_off_alone(self) -> None:
        one = advice(handed_over(1.5))["overlap-copies"]
        assert one.measured.value == pytest.approx(1.5)
        assert "transforms=False)" in one.how

    def test_from_pageable_memory(self) -> None:
        session = copying(leaf(non_blocking=False), batch__copy_ms=20.0, batch__pinned_copy_ms=5.0)
        one = advice(session)["pin-memory"]
        assert one.title == "Copy from pinned memory, without waiting"
        assert one.evidence[0].endswith("71 ms step; pin_memory=False")
        assert one.evidence[1:3] == [
            "copying one batch takes 20 ms as the loader gives it, and 5 ms from pinned memory",
            "the loop waits for the copies of batch[0]",
        ]
        assert one.how == (
            "pin_memory=True in the DataLoader that is iterated at train.py:10 and "
            '.to("cuda", non_blocking=True) in the loop'
        )
        assert one.predicted.value == pytest.approx(70.2 / 55.2)
        assert one.predicted.high == pytest.approx(70.2 / 50.2)

    def test_how_fast_it_would_be_was_not_measured(self) -> None:
        one = advice(copying())["pin-memory"]
        assert one.evidence[1] == ALL and one.at_most
        assert one.predicted.value == pytest.approx(70.2 / 50.2)

    def test_pinned_in_vain(self) -> None:
        one = advice(pinned(False))["pin-memory"]
        assert (one.title, one.how) == ("Copy without waiting", '.to("cuda", non_blocking=True) in the loop')


def test_a_tensor_that_nothing_reads_is_left_on_the_host() -> None:
    one = advice(copying(leaf(), leaf("['extra']", nbytes=3 << 20, read=False)))["unread"]
    assert one.title == "Leave batch['extra'] on the host"
    assert "batch['extra'] (float32, 64x12288, 3.15 MB) is copied to the device and freed" in one.evidence[0]
    assert one.evidence[1] == "3.15 MB of a batch's 4.19 MB need not be copied"
    assert one.predicted.value == pytest.approx(70.2 / 55.2)


@pytest.mark.parametrize(
    "held, told",
    [
        ({"whole_numbers": True, "low": 0.0, "high": 255.0}, "holds whole numbers from 0 to 255"),
        ({"bytes_over_255": True, "low": 0.0, "high": 1.0}, "holds bytes divided by 255"),
        ({"low": -2.1, "high": 2.6}, "holds 256 different values (normalised bytes)"),
    ],
)
def test_floats_that_hold_bytes(held: dict[str, Any], told: str) -> None:
    one = advice(copying(leaf(levels=256, **held)))["uint8"]
    assert one.title == "Send batch[0] as uint8, and convert to float on the device"
    assert one.evidence[0].endswith(told)
    assert one.evidence[1] == "786 kB of a batch's 1.05 MB need not be copied"
    assert one.predicted.value == pytest.approx(70.2 / 55.2)


def test_floats_that_are_turned_into_half_the_bytes() -> None:
    one = advice(copying(leaf(turned_into="bfloat16"), batch__autocast="bfloat16"))["low-precision"]
    assert one.title == "Cast batch[0] to bfloat16 in the workers"
    assert one.evidence[0].endswith("by the operations that read it on the device, under autocast to bfloat16")
    assert one.predicted.value == pytest.approx(70.2 / 60.2)


INTEGERS: dict[str, Any] = {"dtype": "int64", "itemsize": 8, "low": 0.0, "whole_numbers": True}


@pytest.mark.parametrize(
    "held, told, how, saved",
    [
        ({"high": 18.0}, "whole numbers from 0 to 18", "uint8, and .long() on the device", 7 / 8),
        ({"high": 1.0}, "zeros and ones", "bits, eight in a byte", 63 / 64),
        (
            {"high": 1.0, "one_hot": 20},
            "one-hot vectors of 20 classes",
            "the classes' numbers, and one_hot()",
            159 / 160,
        ),
        ({"high": 1.0, "dtype": "bool", "itemsize": 1}, "zeros and ones", "bits, eight in a byte", 7 / 8),
    ],
    ids=["labels", "mask", "one-hot", "bools"],
)
def test_integers_in_fewer_bytes(held: dict[str, Any], told: str, how: str, saved: float) -> None:
    one = advice(copying(leaf("[1]", **{**INTEGERS, **held})))["pack"]
    assert one.title == "Send batch[1] in fewer bytes"
    assert one.evidence[0].endswith(f"holds {told}")
    assert one.how.startswith(f"batch[1] as {how}")
    assert one.predicted.value == pytest.approx(70.2 / (70.2 - 20 * saved))


def test_a_mask_of_floats_is_not_sent_as_bytes() -> None:
    found = advice(copying(leaf(low=0.0, high=1.0, whole_numbers=True, levels=2)))
    assert "pack" in found and "uint8" not in found


def test_batches_that_are_filled_up() -> None:
    one = advice(copying(leaf(padding=Padding(0.0, 0.5, 0.25))))["padding"]
    assert one.title == "Pad to the longest sample of the batch only"
    assert "50 % of batch[0]" in one.evidence[0] and "25 % beyond the longest sample" in one.evidence[0]
    assert "(data.py:60)" in one.how
    assert one.predicted.value == pytest.approx(70.2 / 60.2)
    assert one.predicted.high > 1.8  # the model may work on it as well
    varying = advice(copying(leaf(padding=Padding(0.0, 0.5))))["padding"]
    assert varying.title.startswith("Batch samples of similar")


def test_a_hand_off_that_costs() -> None:
    session = make({**climbing(worker=20.0), "supply": 30.0}, noise=0.0, leaves=[leaf(), leaf("[1]")])
    one = advice(session)["hand-off"]
    assert one.stage == "ipc"
    assert one.evidence == [
        f"handing over a batch that a worker has ready costs 20 ms of a 71 ms step: {ALL}",
        "a batch holds 2 tensors, 2.1 MB in all",
    ]


def cold(storage_ms: float = 40.0, files: Files | None = None, blocked: float = 0.4) -> Session:
    seen = {"baseline": {**BUSY, "disk_read_mb": 12.5, "worker_blocked": blocked}}
    return make(climbing(baseline=storage_ms), noise=0.0, evidence=seen, inside=inside(1.0, 1.0, load=8.0, files=files))


class TestStorage:
    def test_as_measured_with_warm_files(self) -> None:
        one = advice(cold())["storage"]
        assert one.title == "Read from storage that keeps up"
        assert one.predicted.value == pytest.approx(91 / 51)
        assert one.evidence[1:] == ["12.50 MB a step come from storage", "a worker is blocked 40 % of its time"]

    def test_small_and_large_files(self) -> None:
        one = advice(cold(files=Files(1.0, 110_000.0, {".jpg": 32})))["storage"]
        assert one.title == "Put many samples into one file, on storage that keeps up" and "shards" in one.how
        assert one.evidence[-1] == "1 file of 110 kB is opened for a sample (.jpg)"
        one = advice(cold(files=Files(2.0, 5e7, {".npy": 64})))["storage"]
        assert one.title == "Read from storage that keeps up"
        assert one.evidence[-1] == "2 files of 50 MB are opened for a sample (.npy)"

    def test_at_most_what_is_possible(self) -> None:
        """On a busy host, a rung with workers may be faster than the loop without them."""
        ladder = {**climbing(baseline=40.0), "device": 70.0, "host": 70.0, "worker": 70.0}
        one = advice(make(ladder, noise=0.0))["storage"]
        assert one.predicted.value == pytest.approx(ladder["baseline"] / 70)


DECODING = HotLine(
    "data.py:7",
    "image = Image.open(path).convert('RGB')",
    0.6,
    calls={"PIL.Image.Image.convert": 0.6, "PIL.ImageFile.ImageFile.load": 0.6},
)


def decoding(*lines: HotLine, **facts: Any) -> Session:
    found = inside(1.0, 1.0, load=8.0, lines=list(lines), files=Files(1.0, 90_000.0, {".jpg": 32}))
    return but(starved(found), links__0__bytes_in=1e6, links__0__bytes_out=1.5e5, **facts)


def reading(function: str, share: float = 0.4) -> Session:
    """What a line says is not what it does: that is what was seen to run below it."""
    text = "x = self.decode_jpeg(Image.open(path).convert('RGB'))"
    return decoding(HotLine("data.py:7", text, 0.9, calls={function: share} if function else {}))


class TestDecode:
    def test_told_by_the_lines(self) -> None:
        one = advice(decoding(DECODING))["decode"]
        assert one.evidence == [
            f"decoding takes 7.5 ms a sample, 60 % of a worker's time ({DECODING.where} {DECODING.text})",
            "1 file of 90 kB is opened for a sample (.jpg)",
            "A keeps 15 % of what was decoded",
            ALL,
        ]
        assert one.at_most and one.predicted.value == pytest.approx(120 / 51)  # then the loop limits

    def test_by_the_files(self) -> None:
        """Pillow's decoder is no line of anybody's: pictures from files with such endings are decoded."""
        one = advice(decoding(links__0__given="picture"))["decode"]
        assert one.evidence[0].startswith("loading takes 10 ms a sample, 80 % of a worker's time, and most of it may")

    def test_a_draft_was_tried(self) -> None:
        session = decoding(DECODING, alternatives=[Alternative("load", "", "draft", 8, 4.0, 2.0, 1.5)])
        found = advice(session)
        assert "decode" not in found and not found["draft"].at_most
        assert found["draft"].evidence[-1] == (
            "tried in a worker on 8 files: 4 ms become 2 ms; other pixels, 1.5 of 255 levels apart on average"
        )
        assert found["draft"].predicted.value == pytest.approx(1 / (1 - 2 * 32 / 400))
        assert "draft" not in advice(but(session, alternatives__0__ms_instead=4.5))

    @pytest.mark.parametrize(
        "function", ["PIL.ImageFile.load", "cv2.imread", "torchvision.io.image.read_image", "imageio.v3.imread"]
    )
    def test_other_decoders(self, function: str) -> None:
        assert "decode" in advice(reading(function))

    def test_only_the_decoders_part_of_a_line(self) -> None:
        """All of a sample is made in one line, of which decoding takes a quarter."""
        line = replace(DECODING, share=1.0, calls={"PIL.ImageFile.ImageFile.load": 0.24})
        one = advice(decoding(line))["decode"]
        assert one.evidence[0].startswith("decoding takes 3 ms a sample, 24 % of a worker's time")


def by_lines(*lines: HotLine, collate_ms: float = 1.0) -> Session:
    return starved(inside(load=8.0, lines=list(lines)), {**BUSY, "collate_ms": collate_ms})


class TestLines:
    """Lines of loading and of the collate function."""

    def of(self, *lines: HotLine, **more: Any) -> list[Recommendation]:
        return [one for one in diagnose_session(by_lines(*lines, **more)).recommendations if one.id == "line"]

    def test_each_with_what_helps_where_it_calls_a_library(self) -> None:
        found = self.of(
            HotLine("data.py:7", "r = json.load(f)", 0.6, "json.load", "D.get", "load", calls={"json.load": 0.58}),
            HotLine("data.py:9", "for p in r:", 0.4, "for p in r:", "D.get", "load"),
        )
        assert [one.title for one in found] == ["Make json.load cheaper", "Make D.get cheaper"]
        assert found[0].how.startswith("data.py:7: parse once and store arrays") and found[0].at_most
        assert found[0].evidence[1:] == ["its hottest line: r = json.load(f)", "most of it in json.load"]
        assert found[1].how.startswith("data.py:9: whole arrays in place of Python loops")

    def test_a_loop_in_python_is_one_piece_of_work(self) -> None:
        lines = [HotLine(f"data.py:{n}", "v = max(v)", 0.3, "max", "D.features", "load") for n in (7, 8, 9)]
        one, other = self.of(*lines, HotLine("data.py:12", "", 0.1, "x[i]", "D.other", "load"))
        assert (one.title, other.title) == ("Make D.features cheaper", "Make D.other cheaper")
        assert one.how.startswith("data.py:7: whole arrays in place of Python loops")
        assert one.evidence[0].startswith("D.features takes 11.2 ms a sample, 90 % of a worker's time")

    def test_a_call_of_which_nothing_is_known(self) -> None:
        """A method of an object that is no Python code, or a file of an older version."""
        (one,) = self.of(HotLine("data.py:7", "x = self.reader.read()", 1.0, "self.reader.read", "D.get", "load"))
        assert one.title == "Make self.reader.read cheaper" and "call it less often" in one.how

    def test_of_the_collate_function(self) -> None:
        line = HotLine("data.py:61", "ids = split(text)", 0.9, "split", "pad", "collate", calls={"re.split": 0.8})
        (one,) = self.of(line, collate_ms=300.0)
        assert (one.title, one.stage) == ("Make split cheaper", "collate"), one.title
        assert "make token ids once" in one.how
        assert "collate" not in advice(by_lines(line, collate_ms=300.0)), "that is the same advice, less exact"


def alike(same: bool | None, memory: float = 16.0) -> Session:
    found = inside(1.0, load=8.0, sizes=[[1e5, 9.0]] * 4, same_twice=same)
    return starved(found, environment={"cores": 16, "memory_gib": memory})


class TestOnce:
    def test_samples_that_are_always_the_same(self) -> None:
        one = advice(alike(True))["once"]
        assert one.title == "Make the samples once, before training" and not one.at_most
        assert one.how.startswith("data.py:5: a list of all samples, made in __init__")
        assert one.evidence[-1] == "about 32000 samples of 100 kB: 3.2 GB in all"

    def test_more_than_memory_holds(self) -> None:
        one = advice(alike(True, memory=4.0))["once"]
        assert one.title.endswith(", and store them") and "memory-mapped" in one.how

    def test_an_evaluation_makes_them_once_anyway(self) -> None:
        session = alike(True)
        assert {"once", "cache"} <= {*advice(session)}
        for window in session.windows:
            window.optimizer_steps = 0
        assert not {"once", "cache"} & {*advice(session)}


class TestMoreWorkers:
    def test_as_many_as_the_loop_needs(self) -> None:
        one = advice(starved())["num-workers"]
        assert (one.title, one.stage) == ("num_workers=10 instead of 4", "transform")
        assert one.evidence == [
            "4 workers give a batch every 120 ms, each made in 400 ms; the loop could take one every 51 ms",
            "a worker uses 100 % of a core, and 15 of 16 cores are free for workers",
            "predicted, not tried",
        ]
        assert one.how == "num_workers=10 in the DataLoader that is iterated at train.py:10"
        assert one.predicted.value == pytest.approx(120 / 51)

    def test_as_many_as_there_are_cores_for(self) -> None:
        one = advice(starved(environment={"cores": 8}))["num-workers"]
        assert one.title == "num_workers=7 instead of 4"
        assert one.predicted.value == pytest.approx(7 / 4)

    def test_none_so_far(self) -> None:
        seen, found = {"baseline": {**BUSY, "worker_ms": 69.0}}, inside(4.0, 4.0)
        session = make(without(STARVED, "worker"), noise=0.0, workers=0, absent=["worker"], evidence=seen, inside=found)
        one = advice(session)["num-workers"]
        assert one.title == "num_workers=2 instead of 0"
        assert one.evidence[0].startswith("the training process makes each batch itself, in 69 ms")


def irregular(supply: float = 30.0, workers: int = 4, **seen: float) -> Session:
    """Loop and loader are fast enough alone, but slower together."""
    ladder = {**climbing(), "baseline": 70.0, "supply": supply}
    return make(ladder, noise=0.0, workers=workers, evidence={"baseline": {**BUSY, "worker_ms": 120.0, **seen}})


class TestPrefetch:
    def test_fast_enough_on_average(self) -> None:
        one = advice(but(irregular(stalled_ms=15.0, cores_busy=14.0), tail=Tail(400, 3.0, 60.0)))["prefetch-factor"]
        assert one.title == "prefetch_factor=4 instead of 2"
        assert one.evidence[0].startswith("the loop alone takes 50.4 ms a step and the loader alone 30 ms a batch")
        assert "the loop waits 15 ms of each step for one batch while later ones are ready" in one.evidence
        assert "a sample takes 3 ms (median) to 60 ms (99th percentile)" in one.evidence
        assert one.predicted.value == pytest.approx(70 / 55) and one.at_most

    def test_without_a_slow_batch(self) -> None:
        assert advice(irregular())["prefetch-factor"].predicted.value == pytest.approx(70 / 50.4)

    def test_not_where_it_is_not_certain(self) -> None:
        session = irregular(supply=65.0)
        session.windows = [w for w in session.windows if w.rung != "supply" or w.round == 0]
        assert "prefetch-factor" not in advice(session)


STARTED = [Startup(5.0, ready=4.0)] * 2


def test_workers_that_start_in_every_epoch_are_kept() -> None:
    session = make(FLAT, noise=0.0, length=100, startups=[Startup(5.0, ready=4.0, shutdown=1.0)] * 3)
    one = advice(session)["persistent-workers"]
    assert one.stage == "startup"
    assert one.evidence == [
        "every epoch of 100 batches begins with 5 s until the first batch: 60 ms per step, in addition to 100 ms "
        "for the step itself",
        "the workers take 4 s of that to get ready",
        "ending the previous epoch's workers takes another 1 s",
        "timed in 2 starts after the first of the process",
        "computed from these times, not tried: no steady window includes the time between epochs",
    ]
    assert one.predicted.value == pytest.approx(160 / 110)
    assert 1.3 < one.predicted.low < one.predicted.value and one.predicted.high > 1.6


def other_loader(kept: float = 1.6, workers: int = 2, persistent: bool = False, every: int = 20) -> Session:
    """A loader that is started every 20 steps of 100 ms and takes 2 s: 100 ms a step."""
    starts = [OtherStart("eval.py:7", every * n, 2.0, kept, workers, persistent) for n in range(5)]
    return but(make(FLAT, noise=0.0), other_starts=starts)


class TestOtherLoaders:
    def test_its_workers_are_kept(self) -> None:
        one = advice(other_loader())["other-loaders"]
        assert (one.stage, one.title) == ("startup", "Keep the workers of the other loader")
        assert one.how == "persistent_workers=True in the DataLoader that is iterated at eval.py:7"
        assert one.evidence[:2] == [
            "every 20 steps the loop waits 2 s for the loader at eval.py:7: 100 ms per step, in addition to 100 ms for "
            "the step itself",
            "launching its workers and ending them takes 1.6 s of that",
        ]
        assert one.predicted.value == pytest.approx(200 / 120)
        assert 1 < one.predicted.low < one.predicted.value < one.predicted.high

    @pytest.mark.parametrize("how", [{"persistent": True}, {"workers": 0, "kept": 0.0}], ids=["kept", "no workers"])
    def test_it_is_used_less_often(self, how: dict[str, Any]) -> None:
        one = advice(other_loader(**how))["other-loaders"]
        assert one.title == "Use the other loader half as often"
        assert one.predicted.value == pytest.approx(200 / 150)

    def test_the_loop_would_wait_for_its_own_workers_meanwhile(self) -> None:
        """Without it a step would take 140 ms, a worker's time for a batch divided by their number."""
        session = other_loader()
        for window in session.windows:
            window.evidence = {"worker_ms": 560.0}
        assert advice(session)["other-loaders"].predicted.value == pytest.approx(200 / 140)


class TestContention:
    """Workers take CPU time from the training process: fewer of them or fewer threads, else less work for them."""

    def session(self, workers: int, own: int) -> Session:
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 90.0}
        more: dict[str, Any] = {"environment": {"cores": 2, "threads": {"torch": own}}, "workers": workers}
        found = torchvisions(inside(5.0, 1.0, load=4.0), "RandomResizedCrop", "Normalize")
        return make(ladder, noise=0.0, inside=found, evidence=waits(0.5, 0.4, worker_ms=50.0 * workers), **more)

    @pytest.mark.parametrize("workers, own", [(2, 1), (1, 2)])
    def test_a_core_can_be_left(self, workers: int, own: int) -> None:
        found = advice(self.session(workers, own))
        assert found["stage"].title == "Leave the training process a core of its own"
        assert ("num_workers=1" in found["stage"].how) == (workers > 1)
        assert ("set_num_threads" in found["stage"].how) == (own > 1)

    def test_there_is_one_worker_with_one_thread(self) -> None:
        found = diagnose_session(self.session(1, 1))
        assert found.verdict.bottleneck == "contention"
        titles = [one.title for one in found.recommendations]
        assert "Leave the training process a core of its own" not in titles
        assert "Make RandomResizedCrop cheaper" in titles, titles


LOST = "waiting not included, a step takes 24.8 ms longer while workers run than with cached batches"


def crowded(
    queued: float = 0.4, own: int = 1, cores: int = 8, used: float = 1.2, process: float = 1.0, **threads: int
) -> Session:
    seen = {**BUSY, "worker_queued": queued, "worker_cpu": used, "process_cpu": process}
    lines = [HotLine("data.py:7", "image = imread(path)", 0.2, calls={"cv2.imread": 0.2})]
    found = inside(4.0, 4.0, threads=threads or {"torch": 1, "opencv": 8}, lines=lines)
    return starved(found, seen, environment={"cores": cores, "threads": {"torch": own}})


class TestThreads:
    def test_workers_wait_for_a_core(self) -> None:
        one = advice(crowded())["threads"]
        assert one.stage == "contention"
        assert one.evidence[:3] == [
            "4 workers with 8 opencv threads each and the training process with 1 thread share 8 cores",
            "a worker uses 2.0 cores when it runs",
            "a worker waits for a core 40 % of its time",
        ]
        assert one.how == "cv2.setNumThreads(1) in the worker_init_fn"
        assert one.at_most and one.predicted.value == pytest.approx(1 / 0.6)

    def test_of_opencv_only_where_samples_call_it(self) -> None:
        """Other libraries import it, too, and a line may name it without calling it."""
        session = but(crowded(), inside__lines=[HotLine("cv2_data.py:7", "x = self.cv2.imread", 0.9)])
        assert "threads" not in advice(session)
        assert "threads" in advice(but(session, links__0__origin="albumentations.augmentations.blur.transforms"))

    def test_of_the_training_process(self) -> None:
        one = advice(crowded(own=8, process=6.0, torch=1))["threads"]
        assert one.how.startswith("torch.set_num_threads(4) or OMP_NUM_THREADS=4")
        assert one.evidence[1] == "the training process uses 6.0 cores when it runs"

    def test_the_loop_is_slowed(self) -> None:
        more: dict[str, Any] = {"inside": inside(4.0, threads={"torch": 8}), "environment": {"cores": 8}}
        seen = waits(5.8, worker_cpu=2.5)
        session = make({**climbing(raw=30.0), "supply": 55.0}, evidence=seen, noise=0.0, **more)
        assert LOST in advice(session)["threads"].evidence


def in_the_way(supply: float) -> Session:
    seen = {"baseline": {**BUSY, "worker_ms": 100.0, "wait_ms": 5.8}}
    return make({**climbing(raw=30.0), "supply": supply}, noise=0.0, workers=8, evidence=seen)


def test_fewer_workers_where_they_are_in_the_way() -> None:
    one = advice(in_the_way(supply=12.5))["fewer-workers"]
    assert one.title == "num_workers=2 instead of 8"
    assert one.evidence[0] == LOST
    assert one.evidence[1].endswith("the loop takes one every 50.4 ms at best: 2 are enough")
    assert one.at_most and one.predicted.value == pytest.approx(75.2 / (50.4 + 24.8 * 2 / 8))


def test_more_cores_than_there_are() -> None:
    one = advice(starved(environment={"cores": 5}))["more-cores"]
    assert one.title == "About 9 CPU cores instead of 5"
    assert one.evidence == [
        "a batch takes the workers 400 ms of CPU time and the loop can take one every 51 ms: 7.84 cores, in "
        "addition to 1 for the training process and others"
    ]
    assert "num_workers=8" in one.how
    assert one.predicted.value == pytest.approx(2.0)


PREFIX = Prefix(["encoder"], 30.0, 20.0, where="train.py:8")


def frozen(**changes: Any) -> Session:
    return but(make({**FLAT, "supply": 40.0}, noise=0.0), prefix=replace(PREFIX, **changes))


class TestFrozenPrefix:
    def advised(self, **changes: Any) -> Recommendation:
        return advice(frozen(**changes))["frozen-prefix"]

    @pytest.mark.parametrize("ms, rest_ms", [(30.0, 20.0), (20.0, 30.0)])
    def test_at_most_the_longer_part_is_left(self, ms: float, rest_ms: float) -> None:
        one = self.advised(ms=ms, rest_ms=rest_ms)
        assert one.title == "Run encoder a batch ahead, on a second stream"
        assert one.evidence[0].startswith(f"the frozen part (encoder) takes {ms:.0f} ms of a 50 ms step: overlapped")
        assert one.evidence[0].endswith("at most 1.67 times as fast (predicted, not measured)")
        assert one.measured is None and one.predicted is not None
        assert one.predicted.value == pytest.approx(1 / (1 - 0.4)) and one.at_most

    def test_the_lines_to_paste(self) -> None:
        assert self.advised().how.splitlines() == [
            "in place of the call at train.py:8:",
            "def ahead(batch):",
            "    with torch.no_grad():",
            "        return batch, encoder(...)  # on the batch, as the loop calls it",
            "",
            'for batch, features in pipediag.StagePipeline(loader, [ahead], "cuda"):',
            "    ...  # the loop as it is, with features in place of what it called",
        ]

    def test_several_modules(self) -> None:
        one = self.advised(modules=["vae", "text"])
        assert "        return batch, (vae(...), text(...))  # on the batch, as the loop calls it" in one.how
        assert "vae and text need nothing but the batch" in one.risk

    def test_the_first_layers_of_a_model(self) -> None:
        how = self.advised(modules=["model.stem", "model.body"], around="model", where="").how.splitlines()
        assert how[0] == "in place of the call:"
        assert how[3] == "        return batch, ...  # what model does up to model.body"
        assert how[6] == "    ...  # what model does after model.body, on features"

    def test_under_autocast(self) -> None:
        session = frozen()
        session.batch = BatchFacts(autocast="bfloat16")
        how = advice(session)["frozen-prefix"].how
        assert '    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):' in how

    @pytest.mark.parametrize("changes", [{}, {"modules": ["a", "b"]}, {"around": "net"}])
    def test_the_lines_are_python(self, changes: dict[str, Any]) -> None:
        compile(self.advised(**changes).how.partition("\n")[2], "lines", "exec")


class TestModel:
    def session(self, **seen: float) -> Session:
        return make({**FLAT, "supply": 20.0}, noise=0.0, evidence={"device": seen})

    def test_an_idle_device(self) -> None:
        one = advice(self.session(gpu_utilization=0.5))["model"]
        assert one.title == "Keep the device busy: it waits for the training process"
        assert one.evidence[1] == "a kernel runs 50 % of that time"
        assert one.predicted.value == pytest.approx(2.0) and one.at_most

    @pytest.mark.parametrize("seen", [{"gpu_utilization": 0.99}, {}])
    def test_what_cannot_be_predicted_is_said_to_be(self, seen: dict[str, float]) -> None:
        one = advice(self.session(**seen))["model"]
        assert one.title == "Look at the model's own step next"
        assert one.predicted is None
        assert one.evidence[-1].startswith("no prediction: ")

    def test_without_autocast(self) -> None:
        session = but(self.session(), batch=BatchFacts(autocast=""))
        assert "no operation was seen to run under autocast" in advice(session)["model"].evidence


def pack_of(**held: Any) -> Session:
    return copying(leaf(), leaf("[1]", **{**INTEGERS, **held}))


#: Sessions in which a rule must not fire, and why.
NOT: dict[str, dict[str, Session]] = {
    "offload": {
        "own": starved(inside(4.0, 4.0, load=2.0)),
        "stay": starved(torchvisions(inside(4.0, 4.0), "AugMix", "JPEG")),
        "old policies": starved(torchvisions(inside(4.0, 4.0), "RandAugment", "AutoAugment", new=False)),
        "cheap": starved(torchvisions(inside(0.01, 0.01, load=9.0), "RandomCrop", "Normalize")),
        "on a CPU": starved(torchvisions(inside(4.0, 4.0), "RandomCrop", "Normalize"), device="cpu"),
        "order unknown": but(
            starved(torchvisions(inside(4.0, 4.0, unsplit="they vary"), "Mine", "Normalize", new=False)),
            links__0__origin="aug",
        ),
        "the chain ends in the user's own": but(chain("RandomCrop", "Mine"), links__1__origin="aug"),
        "a stream": but(chain("RandomCrop", "Normalize"), loader__iterable=True),
        "tried and of no use": TestOffload.tried(1.0),
        "tried and nothing moved": TestOffload.tried(2.0, rounds=0, why_not="its batches differ from the workers'"),
    },
    "reorder": {
        "keeps nearly all": reordered("GaussianBlur", "RandomCrop", kept=0.95),
        "other geometry": reordered("RandomAffine", "RandomCrop"),
        "resizing changes the blur": reordered("GaussianBlur", "Resize"),
        "in order": reordered("RandomCrop", "GaussianBlur"),
        "sizes unknown": starved(torchvisions(inside(4.0, 4.0), "GaussianBlur", "RandomCrop")),
        "the user's own": but(reordered("GaussianBlur", "RandomCrop"), links__0__origin="aug"),
    },
    "precompute": {
        "behind what is drawn": stored("RandomResizedCrop", "Normalize"),
        "behind a drawn crop": stored("RandomCrop", "Resize"),
        "the user's own": but(stored("Resize", "CenterCrop"), links__0__origin="aug"),
    },
    "rewrite": {"cheap": with_cost(0.02, 0.05)},
    "cache": {
        "nothing can be kept": but(cacheable("Resize", "RandomCrop"), loader__uncached="it saves its place"),
        "a trial kept nothing": but(cacheable("RandomCrop"), loaded_once=Remedy(why_not="no known call was made")),
        "a trial gained nothing": cached(1.0),
        "reading back takes as long": but(
            cacheable("RandomCrop"), inside__load__wall_ms=0.05, inside__whole__wall_ms=4.05
        ),
    },
    "collate": {
        "cheap": collating(10.0),
        "torch's": collating(200.0, loader__collate=Place("torch's default_collate")),
    },
    "overlap-copies": {
        "of no use": handed_over(1.0),
        "they cost nothing": copying(host=0.0),
        "the workers limit": make({**climbing(host=20.0), "raw": 150.0, "warm": 150.0, "baseline": 150.0}, noise=0.0),
    },
    "pin-memory": {
        "all is done": pinned(True),
        "a collate function has pinned it": copying(leaf(pinned=True)),
        "they cost nothing": copying(host=0.0),
    },
    "unread": {
        "read": copying(leaf(), leaf("[1]", read=True)),
        "unknown": copying(leaf(), leaf("[1]", read=None)),
        "not copied": copying(leaf(), leaf("[1]", copied=False, read=None)),
        "small": copying(leaf(), leaf("[1]", nbytes=256, read=False)),
    },
    "uint8": {
        "many values": copying(leaf(low=0.0, high=1.0)),
        "bytes already": copying(
            leaf(levels=200, dtype="uint8", itemsize=1, low=0.0, high=255.0, whole_numbers=True)
        ),
        "not copied": copying(leaf(levels=9, low=0.0, high=8.0, whole_numbers=True, copied=False, read=None)),
    },
    "low-precision": {
        "read as it is": copying(leaf(turned_into=None)),
        "larger": copying(leaf(turned_into="float64")),
        "arrives so already": copying(leaf(turned_into="bfloat16", arrives="bfloat16")),
        "holds bytes": copying(leaf(turned_into="bfloat16", levels=256)),
        "of that size": copying(leaf(turned_into="bfloat16", dtype="float16", itemsize=2, arrives="float16")),
    },
    "pack": {
        "many classes": pack_of(high=1000.0),
        "negative": pack_of(low=-100.0, high=18.0),
        "unknown": pack_of(low=None, high=None),
        "small": pack_of(high=18.0, nbytes=512),
    },
    "padding": {"none": copying(leaf()), "little": copying(leaf(padding=Padding(0.0, 0.01)))},
    "hand-off": {"cheap": copying()},
    "storage": {
        "workers are never blocked": cold(blocked=0.001),
        "all is in the page cache": cold(0.0),
        "the loader alone is fast": make({**climbing(baseline=40.0), "supply": 2.0}, noise=0.0),
    },
    "decode": {
        "files of no pictures": decoding(),
        "only its text": reading(""),
        "a header is read": reading("PIL.Image.open", 0.9),
        "it may have been decoded before": reading("PIL.Image.Image.convert", 0.9),
        "no picture": reading("json.load", 0.9),
    },
    "line": {
        "costs little": by_lines(HotLine("data.py:7", "x", 0.04, "x", "D.get", "load")),
        "decoding has its own": by_lines(replace(DECODING, stage="load")),
    },
    "once": {"they differ": alike(False), "unknown": alike(None)},
    "num-workers": {
        "no cores left": starved(environment={"cores": 5}),
        "cores unknown": starved(environment={"python": "3"}),
        "not starved": make({**FLAT, "supply": 40.0}, evidence={"baseline": BUSY}),
        "work unknown": make(STARVED, noise=0.0),
    },
    "prefetch-factor": {
        "too slow": irregular(supply=69.0),
        "they take each other's cores": irregular(stalled_ms=15.0, cores_busy=15.0),
        "no workers": irregular(supply=20.0, workers=0),
    },
    "persistent-workers": {
        "kept already": make(FLAT, length=100, startups=STARTED, persistent=True),
        "long epochs": make(FLAT, length=100_000, startups=STARTED),
        "unknown length": make(FLAT, length=None, startups=STARTED),
        "unknown": make(FLAT, length=100, startups=[]),
        "no workers": make(FLAT, length=100, startups=STARTED, workers=0),
        "seen once": make(FLAT, length=100, startups=STARTED[:1]),
        "parts unknown": make(FLAT, length=100, startups=[5.0, 5.0]),
    },
    "other-loaders": {"seldom": other_loader(every=2000)},
    "threads": {
        "nobody waits": crowded(queued=0.01),
        "none too many": crowded(torch=1),
        "room for all": crowded(cores=64),
        "one thread runs": crowded(used=0.6),
        "few of its own run": crowded(own=8, process=2.0, torch=1),
    },
    "fewer-workers": {"all are needed": in_the_way(supply=50.0), "they are late": starved()},
    "more-cores": {
        "enough": starved(environment={"cores": 16}),
        "unknown": starved(environment={"python": "3"}),
        "it is not the CPU": starved(seen={**BUSY, "worker_blocked": 0.5}, environment={"cores": 5}),
        "not starved": make(FLAT, evidence={"baseline": BUSY}, environment={"cores": 2}),
        "trained on the CPU": starved(environment={"cores": 5}, device="cpu"),
    },
    "frozen-prefix": {
        "none": but(frozen(), prefix=None),
        "short": frozen(ms=0.1),
        "nothing": frozen(ms=0.0),
        "all": frozen(rest_ms=0.0),
        "no modules": frozen(modules=[]),
        "weights change": frozen(why_not="weights change"),
        "the workers limit": but(starved(), prefix=PREFIX),
    },
    "model": {"the loop starves": starved()},
}  # fmt: skip


@pytest.mark.parametrize(
    "id, session", [pytest.param(id, one, id=f"{id}: {why}") for id, some in NOT.items() for why, one in some.items()]
)
def test_not_advised(id: str, session: Session) -> None:
    assert id not in advice(session)


class TestOrder:
    """The largest gain comes first; changes that are not worthwhile are left out."""

    def gains(self, diagnosis: Diagnosis) -> list[float]:
        """The gains; of a bound, that of half of what it takes off a step."""
        told = [(one.gain, one.at_most) for one in diagnosis.recommendations]
        return [(2 / (1 + 1 / gain.value) if most else gain.value) if gain else -math.inf for gain, most in told]

    def test_by_predicted_gain(self) -> None:
        found = torchvisions(inside(4.0, 1.0, 1.0, load=4.0), "Resize", "RandomCrop", "Normalize")
        gains = self.gains(diagnose_session(starved(found, environment={"cores": 8})))
        assert len(gains) >= 3
        assert gains == sorted(gains, reverse=True)

    def test_what_the_ceiling_limits_alike_keeps_the_order_of_the_rules(self) -> None:
        found = torchvisions(inside(4.0, 4.0, load=0.1), "RandomCrop", "Normalize")
        session = make({**climbing(host=0.0, worker=0.0), "raw": 60.0, "warm": 60.0, "baseline": 60.0}, noise=0.0)
        session.inside = found
        for window in session.windows_of("baseline"):
            window.evidence = dict(BUSY, worker_ms=220.0)
        ids = list(advice(session))
        assert ids[:2] == ["num-workers", "offload"]

    def test_below_the_gate_is_left_out(self) -> None:
        """The whole input pipeline costs less than a worthwhile change would gain."""
        within = torchvisions(inside(4.0, 4.0), "RandomCrop", "Normalize")
        session = make(climbing(raw=1.0), noise=0.0, evidence={"baseline": BUSY}, inside=within)
        assert set(advice(session)) == {"model"}

    @given(
        st.dictionaries(st.sampled_from((*RUNGS, "supply")), st.floats(0.5, 300), min_size=3),
        st.integers(1, 4),
        st.integers(0, 8),
        st.integers(0, 20),
    )
    def test_of_anything(self, ladder: dict[str, float], rounds: int, workers: int, seed: int) -> None:
        """For any measurement: recommendations in order, or the reason why there are none."""
        within = torchvisions(inside(4.0, 1.0, 2.0), "Resize", "RandomApply", "Normalize")
        leaves = [leaf(levels=256, low=0.0, high=1.0), leaf("[1]", read=False, padding=Padding(0.0, 0.5))]
        more: dict[str, Any] = {"evidence": {"baseline": BUSY}, "inside": within, "leaves": leaves, "startups": [3.0]}
        session = make(ladder, rounds=rounds, noise=0.05, seed=seed, workers=workers, **more)
        diagnosis = diagnose_session(session)
        gains = self.gains(diagnosis)
        assert all(round(a, 2) >= round(b, 2) for a, b in itertools.pairwise(gains))
        assert set(advice(session)) == {one.id for one in diagnosis.recommendations}
        treats_input = any(one.stage != "compute" for one in diagnosis.recommendations)
        assert bool(diagnosis.nothing_to_gain) is not treats_input


class TestSomethingToDo:
    """A certain cost never stays without advice, and nothing is advised whose gain may be none."""

    @given(
        costs=st.dictionaries(st.sampled_from(RUNGS[1:]), st.floats(0.0, 120.0), max_size=5),
        links=st.lists(st.floats(0.01, 9.0), max_size=4),
        stock_=st.booleans(),
        workers=st.integers(0, 8),
        cores=st.sampled_from((1, 2, 16)),
        device=st.sampled_from(("cpu", "cuda")),
        waited=st.none() | st.floats(0.0, 1.0),
        worker=st.floats(0.1, 900.0),
        seed=st.integers(0, 9),
    )
    def test_about_the_costliest_stage(
        self,
        costs: dict[str, float],
        links: list[float],
        stock_: bool,
        workers: int,
        cores: int,
        device: str,
        waited: float | None,
        worker: float,
        seed: int,
    ) -> None:
        ladder = climbing(**costs)
        found = inside(*links, load=1.0)
        if stock_:
            torchvisions(found, *("ColorJitter", "RandomApply", "ToTensor", "Normalize"), given="picture", new=False)
        seen = {"worker_ms": worker, "worker_cpu": 0.8, "worker_queued": 0.1, "process_cpu": 0.9, "collate_ms": 0.05}
        seen |= {"wait_ms": waited * ladder["baseline"]} if waited is not None else {}
        ladder = without(ladder, *["host"] * (device == "cpu"), *["worker"] * (not workers))
        more: dict[str, Any] = {"workers": workers, "device": device, "inside": found, "environment": {"cores": cores}}
        session = make(ladder, noise=0.003, seed=seed, evidence={"baseline": seen}, **more)
        diagnosis = diagnose_session(session)
        for one in diagnosis.recommendations:
            assert one.gain is None or one.gain.low > 1, one
            assert one.how and one.evidence
        starved, named = diagnosis.verdict.starved, diagnosis.verdict.bottleneck
        if starved is not None and starved.low >= LOSS and named not in ("inconclusive", "none", "startup"):
            answers = {named}
            if named == "contention" and not ways_to_leave_a_core(session):  # less work for the workers is left
                answers.update(OF_THE_WORKERS)
            assert answers & {one.stage for one in diagnosis.recommendations}

    def test_observed_only(self) -> None:
        session = make({}, observed=blocks(9, 100.0, 50.0, noise=0.02))
        diagnosis = diagnose_session(session)
        assert [one.stage for one in diagnosis.recommendations] == [diagnosis.verdict.bottleneck]

    def test_what_the_table_says_would_pay(self) -> None:
        """Wherever the loop would be much faster without a transform, there is advice that names it."""
        found = torchvisions(inside(2.0, 5.0, 1.0, load=3.0), "Resize", "ColorJitter", "Normalize", new=False)
        session = make(STARVED, noise=0.0, inside=found, evidence=waits(69.0, worker_ms=400.0, collate_ms=10.0))
        diagnosis = diagnose_session(session)
        told = " ".join(one.title for one in diagnosis.recommendations)
        paying = [
            piece.links[0]
            for piece in diagnosis.waterfall
            if piece.links and piece.without is not None and piece.without.steps_per_s > 1.1 * 1000 / 120
        ]
        assert paying == ["ColorJitter", "Resize"]
        assert all(name in told for name in paying)

    def test_a_gain_that_may_be_none(self) -> None:
        """A GPU that is busy with the moved transforms."""
        found = torchvisions(inside(1.0, 1.0, load=8.0), "RandomCrop", "Normalize")
        session = starved(found)
        session.batch = BatchFacts(device_copy_ms=60.0)
        assert "offload" not in advice(session)
        session.batch = BatchFacts(device_copy_ms=0.1)
        assert "offload" in advice(session)


class TestNothingToGain:
    def told(self, session: Session) -> str:
        return diagnose_session(session).nothing_to_gain

    def test_not_starved(self) -> None:
        assert self.told(make(climbing(raw=1.0), noise=0.0)) == (
            "Nothing to gain here, because data costs 4 % of a step (3 to 5 %): 52 ms a step with the "
            "loader, 50 ms with cached batches, and the largest part is transforms with 1 ms."
        )

    def test_transforms_are_one_cost(self) -> None:
        """Each transform costs less than loading, all together cost more."""
        seen = waits(1.6, worker_ms=240.0, collate_ms=0.0)
        session = make(climbing(raw=1.0), noise=0.0, evidence=seen, inside=inside(1.0, 1.0, 1.0, load=1.5))
        assert self.told(session).endswith("and the largest part is transforms with 1.07 ms.")

    def test_cached_batches_seem_slower(self) -> None:
        """No cost is named then, and the step without data is no longer than the one with them."""
        session = make({"device": 130.0, "worker": 130.0, "baseline": 100.0}, noise=0.0)
        assert self.told(session) == (
            "Nothing to gain here, because data costs 0 % of a step: 100 ms a step with the "
            "loader, 100 ms with cached batches."
        )

    def test_hand_off_by_its_name(self) -> None:
        session = make({"device": 50.0, "worker": 51.0, "baseline": 51.0}, noise=0.0)
        assert self.told(session).endswith("and the largest part is hand-off with 1 ms.")

    def test_the_time_was_over(self) -> None:
        session = make({}, observed=blocks(9, 100.0, 8.0, noise=0.02))
        session.ended = "budget"
        assert self.told(session) == "No gain can be predicted: the time was over before it could be fed from a cache."
        assert "Give a longer budget, and" in diagnose_session(session).verdict.sentence

    def test_only_observed(self) -> None:
        starves, well = (make({}, observed=blocks(9, 100.0, wait, noise=0.02)) for wait in (50.0, 1.0))
        (one,) = diagnose_session(starves).recommendations
        assert one.predicted is None and one.evidence[0].endswith("since the loop was not fed from a cache")
        assert self.told(well) == "Nothing to gain here, because data costs 1 % of a step."

    def test_too_little_was_measured(self) -> None:
        assert self.told(Session()).startswith("Nothing can be recommended yet. Too little is known")

    def test_undecided(self) -> None:
        assert self.told(make(climbing(raw=1.6), rounds=3, noise=0.03)).startswith(
            "Nothing can be recommended yet. It is not yet certain whether the loop starves"
        )

    def test_starved_for_reasons_unknown(self) -> None:
        """Little, so that nothing need be said of the costliest stage."""
        session = make(climbing(raw=4.5), noise=0.0)
        assert self.told(session).startswith("The measurements do not show what would help")

    def test_there_is_something(self) -> None:
        assert self.told(starved()) == ""


def test_worth_is_the_gate() -> None:
    assert pytest.approx(GATE) == 1 - 1 / WORTH


class TestKnown:
    """The names follow what docs/transforms.md says of each transform."""

    def table(self, heading: str) -> dict[str, tuple[str, str]]:
        text = (Path(__file__).parents[2] / "docs" / "transforms.md").read_text(encoding="utf-8")
        section = text.partition(f"### {heading}\n")[2].partition("\n### ")[0]
        rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
        return {name.strip().strip("`"): (tensors.strip(), pictures.strip()) for name, tensors, pictures in rows}

    @pytest.mark.parametrize(
        "heading, origin",
        [
            ("torchvision.transforms.v2", "torchvision.transforms.v2._geometry"),
            ("torchvision.transforms", "torchvision.transforms.transforms"),
        ],
    )
    def test_as_documented(self, heading: str, origin: str) -> None:
        table = self.table(heading)
        assert len(table) > 30
        for name, answers in table.items():
            for kind, answer in zip(("tensor", "picture"), answers, strict=True):
                link = Link(name, origin=origin, given=kind)
                if name in cheaper.HOLDERS:
                    assert cheaper.moves(link) is None
                elif answer == "stays":
                    assert cheaper.moves(link) is False, (name, kind)

    def test_what_moves_is_documented_to_move(self) -> None:
        table = self.table("torchvision.transforms.v2")
        moving = [
            name for name in table if cheaper.moves(Link(name, origin="torchvision.transforms.v2.x", given="tensor"))
        ]
        assert len(moving) > 30
        assert all(table[name][0] == "moves" for name in moving)

    @pytest.mark.parametrize(
        "name, origin, given, moves",
        [
            ("RandAugment", "timm.data.auto_augment", "picture", True),
            ("AutoAugment", "timm.data.auto_augment", "picture", True),
            ("RandomResizedCropAndInterpolation", "timm.data.auto_augment", "picture", True),
            ("RandomErasing", "timm.data.auto_augment", "picture", True),
            ("AugMixAugment", "timm.data.auto_augment", "picture", False),
            ("Normalize", "albumentations.transforms", "tensor", False),
            ("Normalize", "torchvision.transforms.v2._misc", "dict", None),
        ],
    )
    def test_others(self, name: str, origin: str, given: str, moves: bool | None) -> None:
        assert cheaper.moves(Link(name, origin=origin, given=given)) is moves


def changed(late: dict[str, Any], others: dict[str, Any] | None = None, **more: Any) -> Session:
    """A job of four ranks with these facts of the late rank 2 and of the others."""
    session = job(4, **more)
    for rank in session.ranks:
        but(rank, **(late if rank.rank == 2 else others or {}))
    return session


def test_its_data_if_nothing_else_differs() -> None:
    """The stage is named in which its workers spend the most time beyond that of the others."""
    one = advice(job(4))["late-rank"]
    assert (one.title, one.stage) == ("Find out why batches take longer on rank 2: its data", "load")
    assert one.evidence == [
        "load takes 368 ms of a batch on rank 2, elsewhere 143",
        "the gain if rank 2 supplied batches as soon as the others: measured with it fed from a cache",
    ]
    assert "DistributedSampler" in one.how
    straggler = diagnose_session(job(4)).straggler
    assert straggler is not None and one.predicted == straggler.gain and one.measured is None
    observed = advice(but(job(4), rank_trials=[]))["late-rank"]
    assert observed.evidence[-1].endswith(": as its workers supply batches, not tried")


def test_its_host_if_that_differs() -> None:
    one = advice(changed({"host": "far"}))["late-rank"]
    assert one.title.endswith("on rank 2: its data or its host")
    assert one.how.endswith("; see what else runs on far")


@pytest.mark.parametrize(
    "late, others, title, evidence",
    [
        (
            {"cores": 4.0, "host": "far", "affinity": "0-3"}, {},
            "Give rank 2 as many cores as the others", "rank 2 has 4 cores, the others 32",
        ),
        (
            {"storage": "nfs"}, {"storage": "ext4"},
            "Let rank 2 read its data where the others do", "rank 2 has data on nfs, the others on ext4",
        ),
        (
            {"workers": 2, "worker_ms": 214.4}, {},
            "num_workers=4 on rank 2, as on the others", "rank 2 has 2 workers, the others 4",
        ),
    ],
)  # fmt: skip
def test_what_differs_on_it(late: dict[str, Any], others: dict[str, Any], title: str, evidence: str) -> None:
    one = advice(changed(late, others))["late-rank"]
    assert (one.title, one.evidence[0]) == (title, evidence)


def test_no_more_workers_than_there_are_cores_for() -> None:
    """32 cores carry 7 workers a rank, 12 carry 2: then the job's cores are no reason to ask for 4."""
    one = advice(changed({"workers": 2, "worker_ms": 214.4}, cores=12))["late-rank"]
    assert one.title.startswith("Find out why")


@pytest.mark.parametrize("cores, title", [(32, "num_workers=7 instead of 4"), (12, None)])
def test_more_workers_for_every_rank(cores: int, title: str | None) -> None:
    """Their workers sleep, so they would need hardly any cores: a single process is told to start many more."""
    found = advice(job(4, None, cores=cores))
    assert (found["num-workers"].title if "num-workers" in found else None) == title
    assert "late-rank" not in found


#: What costs the time: the rung that adds it, or what else does.
SIDES = ("host", "worker", "sample", "raw", "warm", "baseline", "contention", "startup", "mixed")
KINDS = ("stock", "own", "unknown", "nothing seen")


def session_of(
    side: str, kind: str, loss: float, workers: int, full: bool, device: str, rounds: int, told: bool
) -> Session:
    """A loop whose data costs ``loss`` of each step.

    In its workers a library's transforms were seen, the user's own, or samples that cannot be divided.
    """
    cost = 50.0 * loss / (1 - loss)
    mixed = {"contention": {"baseline": cost}, "mixed": dict.fromkeys(RUNGS[1:], cost / 6)}
    absent = [] if workers else ["host", "worker"]
    ladder = without(climbing(**mixed.get(side, {side: cost})) if side != "startup" else FLAT, *absent)
    base, busy, accounts = ladder["baseline"], 8.0 if full else 3.0, {}
    seen = {"worker_ms": 3.8 * base, "worker_cpu": 0.9, "process_cpu": 0.9, "cores_used": busy, "cores_busy": busy}
    if side == "contention" and workers:
        seen |= {"wait_ms": 0.1, "worker_ms": 2.0 * base}
        accounts = dict.fromkeys(RUNGS, Account(cpu_ms=50.0)) | {"baseline": Account(cpu_ms=50.0, queue_ms=cost)}
    found = None if kind == "nothing seen" else inside(4.0, 3.0, load=3.0)
    if kind == "unknown":
        found = inside(load=10.0, unsplit="the dataset has no transforms that could be found")
    elif kind == "stock":
        found = torchvisions(inside(4.0, 3.0, load=3.0), "ColorJitter", "RandomResizedCrop", given="picture", new=False)
    more: dict[str, Any] = {"environment": {"cores": 8}, "workers": workers, "absent": absent, "device": device}
    if side == "startup":
        more |= {"startups": [Startup(1.0 * cost, launch=0.1 * cost, ready=0.8 * cost)] * 3, "length": 500}
    evidence = {"baseline": seen} if told else {}
    session = make(ladder, noise=0.0, rounds=rounds, evidence=evidence, accounts=accounts, inside=found, **more)
    if kind == "nothing seen":
        but(session, loader__transform=None, loader__dataset_code=Place("Photos.__getitem__", ""))
    return but(session, loader__pin_memory=True)


@given(
    st.sampled_from(SIDES),
    st.sampled_from(KINDS),
    st.floats(0.1, 0.95),
    st.sampled_from([0, 1, 4]),
    st.booleans(),
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_there_is_something_to_do(
    side: str, kind: str, loss: float, workers: int, full: bool, device: str, rounds: int, told: bool
) -> None:
    diagnosis = diagnose_session(session_of(side, kind, loss, workers, full, device, rounds, told))
    for one in diagnosis.recommendations:
        assert one.gain is None or one.gain.low > 1, one
    verdict = diagnosis.verdict
    if verdict.bottleneck in ("none", "inconclusive") or verdict.starved is None or verdict.starved.value < LOSS:
        return
    assert [one for one in diagnosis.recommendations if one.stage != "compute"] and not diagnosis.nothing_to_gain
    assert summarise(diagnosis).actions, "on the screen too"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("workers", [0, 4])
def test_these_loops_starve(side: str, workers: int) -> None:
    """The sessions above are what they are meant to be."""
    if not workers and side in ("host", "worker", "contention", "startup"):
        return
    found = diagnose_session(session_of(side, "own", 0.5, workers, False, "cuda", 3, True)).verdict
    expected = {"raw": "transform", "contention": "contention", "startup": "startup"}
    assert found.bottleneck == expected.get(side, found.bottleneck) and found.bottleneck not in ("none", "inconclusive")


@pytest.mark.parametrize("workers", [0, 4])
def test_what_was_only_observed(workers: int) -> None:
    found = diagnose_session(make({}, workers=workers, observed=blocks(9, 100.0, 15.0, 60.0)))
    assert found.verdict.level == "observed" and summarise(found).actions
