"""``Diagnosis.apply`` applies the remedy, unless a measurement says that it does not pay."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

from pipediag.diagnosing import Diagnosis
from pipediag.errors import UsageError
from pipediag.remedy import OffloadedLoader
from pipediag.remedy.saved_plan import MOVES_ON_CPU
from pipediag.session import HANDED_OVER, REMEDIED, Remedy, Rung, Session, Window


class Images(TensorDataset):  # type: ignore[misc]
    def __init__(self, *links: Any) -> None:
        super().__init__(torch.zeros(12, 3, 4, 4))
        self.transform = v2.Compose(links)

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index)[0])


def diagnosis(ratio: float | None, **remedy: Any) -> Diagnosis:
    """A loop on the CPU that a remedy made ``ratio`` times as fast; None if none was tried."""
    session = Session(device={"type": "cpu"}, rungs={"baseline": Rung("baseline")})
    if ratio is not None:
        session.remedy = Remedy(device="cpu", **remedy)
        for round_ in range(4):
            session.windows.append(Window("baseline", round_, 10, 1.0))
            session.windows.append(Window(REMEDIED, round_, 10, 1.0 / ratio))
    return Diagnosis.of(session)


def make(*links: Any) -> DataLoader[Any]:
    return DataLoader(Images(*links), batch_size=4)


@pytest.mark.parametrize("ratio", [None, 2.0], ids=["not-measured", "pays"])
def test_offloaded(ratio: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if ratio is None:
        monkeypatch.setenv(MOVES_ON_CPU, "1")
    loader = make(v2.RandomHorizontalFlip())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = diagnosis(ratio).apply(loader)
    assert isinstance(applied, OffloadedLoader) and applied.loader is loader
    assert applied.device == torch.device("cpu") and len(list(applied)) == 3


def test_on_a_cpu_nothing_moves_unmeasured() -> None:
    loader = make(v2.RandomHorizontalFlip())
    with pytest.warns(UserWarning, match="on a CPU nothing moves unless it was measured"):
        assert diagnosis(None).apply(loader) is loader


@pytest.mark.parametrize(
    ("ratio", "remedy", "why"),
    [(0.5, {}, "slower under it"), (2.0, {"why_not": "Warp: needs pixels"}, "Warp: needs pixels")],
)
def test_a_remedy_that_does_not_pay_is_not_applied(ratio: float, remedy: dict[str, Any], why: str) -> None:
    loader = make(v2.RandomHorizontalFlip())
    with pytest.warns(UserWarning, match=why) as told:
        assert diagnosis(ratio, **remedy).apply(loader) is loader
    assert told[0].filename == __file__


def test_the_hand_off_alone_if_only_that_pays() -> None:
    made = diagnosis(0.5)
    made.session.handoff = Remedy(device="cpu")
    for round_ in range(10, 14):
        made.session.windows += [Window("baseline", round_, 10, 1.0), Window(HANDED_OVER, round_, 10, 0.5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = made.apply(make(v2.RandomHorizontalFlip()))
    assert isinstance(applied, OffloadedLoader) and not applied.plan.pieces and len(list(applied)) == 3


def test_a_loader_without_movable_transforms_is_returned() -> None:
    loader = make(lambda image: torch.from_numpy(image.numpy().copy()))
    with pytest.warns(UserWarning, match="left as it is"):
        assert diagnosis(2.0).apply(loader) is loader


def test_only_loaders_are_taken() -> None:
    with pytest.raises(UsageError, match="DataLoader"):
        diagnosis(None).apply([1, 2])
