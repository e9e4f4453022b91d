"""Jobs on two hosts, which are network namespaces of this machine; only root may make them."""

from __future__ import annotations

import pytest

from benchmarks.ranks import hosts


@pytest.mark.slow
@pytest.mark.parametrize("case", hosts.CASES)
def test_two_hosts(case: str) -> None:
    if not hosts.possible():
        pytest.skip("this system lets this user make no network namespaces")
    assert hosts.run(case) == []
