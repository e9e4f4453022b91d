"""A certificate passes what is equal, and nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.remedy import certificate, offload
from pipediag.replay.certify.certifying import Certificate, Verdict, certify
from pipediag.replay.certify.differences import FLOAT_TOLERANCE, Difference
from pipediag.replay.certify.samples import History, Real, Recorded, Stacked, images, real, recorded, tensor_of
from pipediag.replay.ops.table import OPERATIONS
from pipediag.replay.plan import Plan
from pipediag.replay.record.images import Unreadable
from pipediag.replay.record.scouting import find
from pipediag.session import Elsewhere
from pipediag.usercode import randomness

from ...remedy.sameness import Images, Sometimes, check_same, floats, loader, moved, pixels, seen, stayed

CPU = torch.device("cpu")


def chain() -> Any:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianBlur(3), v2.RandomVerticalFlip()])


# ---- what the certificate catches


def certified(dataset: Any, samples: int = 9) -> Certificate:
    return certificate(loader(dataset), CPU, samples=samples)


def wrong(name: str, change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one kernel give wrong results."""
    right = OPERATIONS[name]
    changed = replace(right, kernel=lambda *args: change(right.kernel(*args)))
    monkeypatch.setitem(OPERATIONS, name, changed)


def test_what_is_right_passes() -> None:
    proof = certified(Images(chain(), floats))
    assert proof.passed
    assert proof.failed == frozenset()
    assert (proof.samples, proof.unrecorded, proof.why) == (9, 0, "")
    assert {verdict.name for verdict in proof.ops} == {"horizontal_flip", "gaussian_blur", "vertical_flip"}
    assert all(verdict.difference.within for verdict in (*proof.ops, *proof.whole))
    assert all(verdict.difference.equal for verdict in proof.ops if verdict.name != "gaussian_blur")


def test_a_wrong_kernel_is_named_and_left_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made + 1e-3, monkeypatch)
    proof = certified(Images(chain(), floats))
    assert proof.failed == {"gaussian_blur"}
    assert not proof.passed
    assert proof.faithful
    assert proof.draws_equal
    offloaded = offload(loader(Images(chain(), floats)), CPU)
    assert moved(offloaded) == ["RandomVerticalFlip"]
    assert stayed(offloaded) == ["RandomHorizontalFlip GaussianBlur"]
    assert "GaussianBlur: gaussian_blur gives other pixels on the device, as its certificate shows" in (
        offloaded.plan.reasons
    )
    assert offloaded.certificate is not None
    assert offloaded.certificate.passed
    check_same(seen(offloaded), seen(loader(Images(chain(), floats))), CPU)


def test_a_difference_within_the_tolerance_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made + 2e-6, monkeypatch)
    proof = certified(Images(chain(), floats))
    assert proof.passed
    (blur,) = (verdict for verdict in proof.ops if verdict.name == "gaussian_blur")
    assert 1e-6 < blur.difference.largest < FLOAT_TOLERANCE


def test_one_wrong_byte_in_a_thousand_passes_and_more_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(pixels_of_a_row: int) -> Callable[[Tensor], Tensor]:
        def change(made: Tensor) -> Tensor:
            made = made.clone()
            made[..., 0, 0, :pixels_of_a_row] ^= 1
            return made

        return change

    wrong("gaussian_blur", off(2), monkeypatch)  # of 3 * 40 * 56
    assert certified(Images(chain())).passed
    wrong("gaussian_blur", off(20), monkeypatch)
    assert certified(Images(chain())).failed == {"gaussian_blur"}


def test_a_wrong_dtype_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made.double(), monkeypatch)
    proof = certified(Images(chain(), floats))
    assert "gaussian_blur" in proof.failed
    (blur,) = (verdict for verdict in proof.ops if verdict.name == "gaussian_blur")
    assert blur.difference.largest == math.inf


def test_a_wrong_shape_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made[..., :-1], monkeypatch)
    offloaded = offload(loader(Images(chain(), floats)), CPU)
    assert offloaded.plan.pieces == ()
    assert "shape" in offloaded.plan.reasons[-1]
    check_same(seen(offloaded), seen(loader(Images(chain(), floats))), CPU)


def test_an_error_of_a_kernel_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(made: Tensor) -> Tensor:
        raise RuntimeError("not on this device")

    wrong("gaussian_blur", missing, monkeypatch)
    offloaded = offload(loader(Images(chain(), floats)), CPU)
    assert offloaded.plan.pieces == ()
    assert offloaded.plan.reasons[-1] == "RuntimeError: not on this device"


class DoesMore:
    """Inverts real images only."""

    def __call__(self, sample: Tensor) -> Tensor:
        return F.vertical_flip(sample) if isinstance(sample, Unreadable) else F.invert(sample)


class DrawsMore:
    """Draws once more for real images."""

    def __call__(self, sample: Tensor) -> Tensor:
        if not isinstance(sample, Unreadable):
            random.random()
        return F.vertical_flip(sample)


def test_a_call_that_was_not_recorded() -> None:
    proof = certified(Images(DoesMore(), floats))
    assert not proof.faithful
    assert proof.draws_equal
    assert proof.failed == frozenset()
    assert not proof.passed
    assert "FAIL the samples were changed by something that was not recorded" in str(proof).splitlines()
    offloaded = offload(loader(Images(DoesMore(), floats)), CPU)
    assert offloaded.plan.pieces == ()
    assert offloaded.plan.reasons[-1] == "its batches differ from those of the workers"
    assert offloaded.certificate is not None


def test_a_draw_too_many() -> None:
    class WithoutDraws(Images):
        def __getitem__(self, index: int) -> Any:
            return self.transform(floats(index))

    proof = certified(WithoutDraws(DrawsMore()))
    assert not proof.draws_equal
    assert proof.faithful
    assert not proof.passed
    assert "FAIL the draws differ (9 samples, cpu)" in str(proof).splitlines()
    assert offload(loader(WithoutDraws(DrawsMore())), CPU).plan.pieces == ()


@pytest.mark.parametrize("change", [lambda real: real.double(), lambda real: real[:, :-1], lambda real: real + 1e-3])
def test_real_samples_that_differ_from_the_recording(change: Callable[[Tensor], Tensor]) -> None:
    """Dtype, shape or pixels of the real samples differ from the recording: no function is the cause."""
    dataset = Images(v2.Compose([v2.RandomHorizontalFlip(1.0)]), floats)
    plan = find(dataset, _only_images, range(4), Plan())
    one, other = _both(dataset, plan)
    proof = certify([(_changed(one, change), other)], plan, CPU)
    assert not proof.faithful
    assert not proof.passed
    assert proof.failed == frozenset()
    assert certify([(one, other)], plan, CPU).passed


def _only_images(samples: Any) -> Tensor:
    return torch.stack([sample[0] for sample in samples])


def _both(dataset: Any, plan: Plan) -> tuple[Real, Recorded]:
    begun = randomness.state()
    one = real(dataset, _only_images, range(4))
    randomness.restore(begun)
    return one, recorded(dataset, _only_images, range(4), plan)


def _changed(one: Real, change: Callable[[Tensor], Tensor]) -> Real:
    samples = [(change(sample[0]), *sample[1:]) for sample in one.samples]
    return one._replace(samples=samples, batch=_only_images(samples))


def test_samples_that_could_not_be_recorded_are_counted() -> None:
    proof = certified(Sometimes(chain(), length=20), samples=20)
    assert (proof.samples, proof.unrecorded) == (20, 8)
    assert proof.why.startswith("NotRecordable: ")
    assert proof.passed
    assert str(proof).splitlines()[-1] == f"8 of the samples could not be recorded: {proof.why}"


def test_a_certificate_of_nothing_does_not_pass() -> None:
    proof = certify([], Plan(), CPU)
    assert not proof.passed
    assert (proof.samples, proof.ops, proof.whole) == (0, (), ())
    never = Recorded(4, None, None, randomness.state(), "for a reason")
    proof = certify([(Real([], [], never.random_state), never)], Plan(), CPU)
    assert not proof.passed
    assert (proof.samples, proof.unrecorded, proof.why) == (4, 4, "for a reason")


# ---- verdicts


def infinite(index: int) -> Tensor:
    made = floats(index)
    made[0, 0, 0] = math.inf
    return made


def test_equal_infinities_pass() -> None:
    assert certified(Images(v2.RandomHorizontalFlip(), infinite)).passed


def test_an_infinity_hides_no_other_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("horizontal_flip", lambda made: made + 0.5, monkeypatch)
    assert not certified(Images(v2.RandomHorizontalFlip(1.0), infinite)).passed


@pytest.mark.parametrize(
    ("ours", "theirs", "passed"),
    [
        ((1e-3, 0.5), (1e-3, 0.5), True),
        ((1e-3, 0.5), (0.99e-3, 0.5), False),
        ((1e-3, 0.50009), (1e-3, 0.5), True),
        ((1e-3, 0.50011), (1e-3, 0.5), False),
        ((1e-3, 0.1), (2e-3, 0.5), True),
        ((1e-3, 0.1), (0.0, 0.0), False),
        ((math.inf, 1.0), (1.0, 1.0), False),
    ],
)
@pytest.mark.parametrize("floating", [True, False])
def test_as_far_off_as_torchvision_itself(ours: Any, theirs: Any, passed: bool, floating: bool) -> None:
    scale = 1 if floating else 3000  # in levels, beyond what passes by itself
    made = Difference(ours[0] * scale, ours[1], floating)
    own = Difference(theirs[0] * scale, theirs[1], floating)
    assert Verdict("op", 1, made, own).passed is passed


@pytest.mark.parametrize(
    ("largest", "off", "passed"),
    [(4 / 255, 1e-3, True), (4 / 255, 1.01e-3, False), (4.01 / 255, 1e-3, False)],
)
def test_a_level_that_was_rounded_on_the_way(largest: float, off: float, passed: bool) -> None:
    difference = Difference(largest, off)
    assert Verdict("whole batches, float32", 1, difference, rounded=True).passed is passed
    assert not Verdict("whole batches, float32", 1, difference).passed


def test_the_batches_inherit_that_an_op_was_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(made: Tensor) -> Tensor:
        made = made.clone()
        made[..., 0, 0, :2] ^= 1
        return made

    wrong("gaussian_blur", off, monkeypatch)
    ends = [v2.GaussianBlur(3), v2.ToDtype(torch.float32, scale=True)]
    proof = certified(Images(v2.Compose(ends)))
    (whole,) = (verdict for verdict in proof.whole if verdict.name == "whole batches, float32")
    assert whole.rounded
    assert not whole.difference.within
    assert whole.passed
    assert proof.passed
    assert not replace(whole, rounded=False).passed


def test_results_in_half_precision_may_be_off_by_their_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("to_dtype", lambda made: made * (1 + 2**-10), monkeypatch)
    proof = certified(Images(v2.ToDtype(torch.float16, scale=True)))
    (op,) = proof.ops
    assert op.difference.tolerance == 2 * torch.finfo(torch.float16).eps
    assert op.passed
    assert not op.difference.equal


# ---- what is told


def told_by(*ops: Verdict, **settings: Any) -> Certificate:
    given = {"faithful": True, "draws_equal": True, "samples": 9, "unrecorded": 0, "why": "", "device": "cpu"}
    return Certificate(ops, (), **{**given, **settings})


def test_the_lines_of_a_certificate() -> None:
    proof = told_by(
        Verdict("crop", 9, Difference()),
        Verdict("resize", 8, Difference(1e-3, 0.25)),
        Verdict("rotate", 7, Difference(2e-3, 0.5), Difference(0.0021, 0.5)),
        Verdict("posterize", 6, Difference(1, 5e-4, floating=False)),
    )
    assert str(proof).splitlines() == [
        "ok   crop (9 samples): equal",
        "FAIL resize (8 samples): largest 0.001 of the range, 25 % off",
        "ok   rotate (7 samples): largest 0.002 of the range, 50 % off; torchvision itself: 0.0021",
        "ok   posterize (6 samples): largest 1 levels, 0.05 % off",
        "     the pixels are too far off on 9 samples",
        "ok   the random generators end where they would have (9 samples, cpu)",
    ]
    assert proof.failed == {"resize"}


@pytest.mark.parametrize(
    ("ops", "elsewhere", "pixels"),
    [
        ([Difference()], [], "equal"),
        ([Difference(1e-6)], [], "within the tolerances on 9 samples"),
        (
            [Difference()],
            [("Blur", "by one level"), ("Gamma", "in the last digits"), ("Warp", "by one level")],
            "equal on 9 samples; Blur and Warp may differ by one level, Gamma may differ in the last digits elsewhere",
        ),
    ],
)
def test_equal_is_said_only_of_what_is_exact(
    ops: list[Difference], elsewhere: list[tuple[str, str]], pixels: str
) -> None:
    proof = told_by(*(Verdict("op", 9, one) for one in ops), elsewhere=tuple(Elsewhere(*one) for one in elsewhere))
    assert proof.pixels == pixels
    assert f"     the pixels are {pixels}" in str(proof).splitlines()


def test_nothing_compared_is_not_equal() -> None:
    assert told_by(unrecorded=9).pixels == "equal on 0 samples"


def halved(sample: Tensor) -> Tensor:
    return sample * 0.5


@pytest.mark.parametrize(
    ("links", "elsewhere"),
    [
        ([v2.RandomCrop(24), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.ToDtype(torch.float32, scale=True)], []),
        ([v2.RandomHorizontalFlip(), v2.GaussianBlur(3)], [Elsewhere("GaussianBlur", "by one level")]),
        (
            [v2.ToDtype(torch.float32, scale=True), v2.RandomApply([v2.GaussianBlur(3)], p=0.9)],
            [Elsewhere("RandomApply (gaussian_blur)", "in the last digits")],
        ),
        ([v2.RandomRotation(20)], [Elsewhere("RandomRotation (rotate)", "by a neighbouring pixel")]),
        (
            [v2.RandomHorizontalFlip(1e-9), v2.RandomVerticalFlip(), v2.RandomCrop(24)],
            [Elsewhere("RandomHorizontalFlip", "without a known bound")],
        ),
        ([halved, v2.RandomCrop(24)], []),
    ],
)
def test_transforms_that_are_not_exact_are_named(links: list[Any], elsewhere: list[Elsewhere]) -> None:
    assert certified(Images(v2.Compose(links))).elsewhere == tuple(elsewhere)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"faithful": False}, "FAIL the samples were changed by something that was not recorded"),
        ({"draws_equal": False}, "FAIL the draws differ (9 samples, cpu)"),
        ({"unrecorded": 9, "why": "it is so"}, "9 of the samples could not be recorded: it is so"),
    ],
)
def test_each_reason_not_to_pass_is_told(settings: dict[str, Any], line: str) -> None:
    assert told_by().passed
    proof = told_by(**settings)
    assert not proof.passed
    assert line in str(proof).splitlines()


@pytest.mark.parametrize(
    ("difference", "equal", "within"),
    [
        (Difference(), True, True),
        (Difference(largest=FLOAT_TOLERANCE), False, True),
        (Difference(largest=1.01 * FLOAT_TOLERANCE), False, False),
        (Difference(largest=1.01 * FLOAT_TOLERANCE, off=1e-9), False, False),
        (Difference(largest=1e-3, tolerance=2e-3), False, True),
        (Difference(largest=math.inf), False, False),
        (Difference(largest=math.nan), False, False),
        (Difference(floating=False), True, True),
        (Difference(largest=1, off=1e-3, floating=False), False, True),
        (Difference(largest=1, off=1.01e-3, floating=False), False, False),
        (Difference(largest=2, off=1e-9, floating=False), False, False),
    ],
)
def test_tolerances(difference: Difference, equal: bool, within: bool) -> None:
    assert difference.equal is equal
    assert difference.within is within


def test_recording_goes_on_as_for_real_where_it_cannot_be_recorded() -> None:
    dataset = Sometimes(v2.RandomHorizontalFlip(1.0), length=20)
    plan = find(dataset, default_collate, range(4), Plan())
    begun = randomness.state()
    one = real(dataset, default_collate, range(8, 12))
    randomness.restore(begun)
    other = recorded(dataset, default_collate, range(8, 12), plan)
    assert other.packed is None
    assert other.why.startswith("NotRecordable: ")
    assert randomness.moved(one.random_state, other.random_state) is None


def test_images_of_nested_samples_are_found_in_order() -> None:
    a, b, c, d, e = (History(k, ()) for k in range(5))
    kept = {"views": [a, b], "label": None, "pair": (c, None), "rest": {"x": d, "y": [e]}}
    made = {"views": ["a", "b"], "label": 7, "pair": ("c", 8), "rest": {"x": "d", "y": ["e"]}}
    assert [(one.source, image) for one, image in images(kept, made)] == list(zip(range(5), "abcde", strict=True))


def test_images_of_stacks_belong_to_their_rows() -> None:
    stack = torch.arange(6).reshape(2, 3)
    pairs = list(images(Stacked([History(0, ()), History(1, ())]), stack))
    assert [one.source for one, _ in pairs] == [0, 1]
    assert [row.tolist() for _, row in pairs] == [[0, 1, 2], [3, 4, 5]]


def test_samples_of_another_structure_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(images([History(0, ())], ["a", "b"]))


def test_pixels_of_any_image() -> None:
    assert type(tensor_of(tv_tensors.Image(pixels(0)))) is Tensor
    assert torch.equal(tensor_of(F.to_pil_image(pixels(0))), pixels(0))
