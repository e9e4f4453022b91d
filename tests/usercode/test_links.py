"""Which objects are chains of links."""

from __future__ import annotations

from typing import Any

import pytest
import torchvision.transforms as v1
from torch import nn
from torchvision.transforms import v2

from pipediag.usercode.links import links_of

LINKS = [nn.Identity(), nn.Identity()]


class Longer(v1.Compose):
    """Has more methods than torchvision's."""

    def set_parameters(self) -> None: ...


class LongerModule(v2.Compose):
    def set_parameters(self) -> None: ...


class Backwards(v1.Compose):
    def __call__(self, img: Any) -> Any:
        for link in reversed(self.transforms):
            img = link(img)
        return img


class BackwardsModule(v2.Compose):
    def forward(self, *inputs: Any) -> Any:
        for link in reversed(self.transforms):
            inputs = link(*inputs)
        return inputs


@pytest.mark.parametrize("kind", [v1.Compose, v2.Compose, Longer, LongerModule])
def test_a_subclass_that_calls_its_links_alike_is_a_chain(kind: Any) -> None:
    assert links_of(kind([kind(LINKS[:1]), *LINKS[1:]])) == LINKS


@pytest.mark.parametrize("kind", [Backwards, BackwardsModule, nn.ModuleList])
def test_one_that_calls_them_otherwise_is_a_single_link(kind: Any) -> None:
    one = kind(LINKS)
    assert links_of(one) == [one]


@pytest.mark.parametrize("kind", [v2.Compose, lambda links: nn.Sequential(*links)])
def test_a_chain_with_a_hook_is_a_single_link(kind: Any) -> None:
    chain = kind(LINKS)
    handle = chain.register_forward_hook(lambda *args: None)
    assert links_of(chain) == [chain]
    handle.remove()
    assert links_of(chain) == LINKS
    chain.forward = lambda x: x
    assert links_of(chain) == [chain]
