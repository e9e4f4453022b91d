"""Fixtures of the ladder's tests: torch is needed here, a device is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from pipediag import marker

settings.register_profile("pipediag", derandomize=True, deadline=None)
settings.load_profile("pipediag")


def installed() -> tuple[Any, ...]:
    """What pipediag installs in this process beside :mod:`pipediag.patches`, and torch's own record of hooks."""
    return marker.recorder, dict(optimizers._global_optimizer_post_hooks), dict(modules._global_forward_pre_hooks)


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    """Every hook has its undoing: a test that leaves one behind fails."""
    torch.manual_seed(0)
    before = installed()
    yield
    assert installed() == before
