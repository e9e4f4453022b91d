"""What is told of a prefix tried beside a loop: the costs in its step, the lines to write, the time it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from pipediag.remedy.prefix import Costs, predict
from pipediag.remedy.prefix.again import Again
from pipediag.remedy.prefix.calls import Input, Link, Seen
from pipediag.remedy.prefix.trying import how, in_the_loop, seconds_needed, why_untried

CPU = torch.device("cpu")
COSTS = Costs(
    step=20.0, rest=14.0, prefix_host=2.0, rest_host=5.0, prefix_device=6.0, handover=0.1, streams=True
)  # fmt: skip


class TestCosts:
    def test_the_rest_of_the_loops_step_stays(self) -> None:
        """An optimizer of eight milliseconds: neither part of the forward becomes shorter by it."""
        assert in_the_loop(COSTS, 28.0) == replace(COSTS, step=28.0, rest=22.0, rest_host=13.0)

    def test_a_step_that_is_measured_shorter_than_its_parts(self) -> None:
        assert in_the_loop(COSTS, 19.0) == COSTS

    def test_less_is_gained_of_a_longer_step(self) -> None:
        assert predict(in_the_loop(COSTS, 40.0)).captured[1] < predict(COSTS).captured[1]


def seen(module: nn.Module, name: str, *args: object, where: str = "", **more: object) -> Seen:
    made = Seen(module, name, where, grad=True, autocast=None, form=(args, {}))
    made.opaque = bool(more.get("opaque"))
    return made


class TestHow:
    def test_a_module_of_its_own(self) -> None:
        calls = [seen(nn.ReLU(), "encoder", where="train.py:8"), seen(nn.ReLU(), "decoder", where="train.py:9")]
        told = how(["encoder"], calls)
        assert "up to encoder (train.py:8)" in told and "what encoder gives" in told
        assert 'in pipediag.StagePipeline(loader, [ahead], "cuda")' in told
        assert "find_prefix" not in told

    def test_several(self) -> None:
        calls = [seen(nn.ReLU(), name) for name in ("vae", "text", "unet")]
        assert "up to vae, text, under" in how(["vae", "text"], calls)

    def test_a_part_of_a_module(self) -> None:
        told = how(["self.net.stem", "self.net.layer1"], [seen(nn.ReLU(), "self.net", where="train.py:8")])
        assert "def forward(batch): return self.net(...)  # as the loop calls it at train.py:8" in told
        assert "find_prefix(forward, batch)" in told and "[split.stage]" in told
        assert "split.rest(batch, features)  # in place of self.net(...)" in told


class TestTime:
    def test_a_long_step_takes_long(self) -> None:
        assert seconds_needed(1000.0, False) == pytest.approx(40.0)
        assert seconds_needed(1000.0, True) == pytest.approx(65.0)

    def test_windows_have_a_length(self) -> None:
        assert seconds_needed(0.01, True) > seconds_needed(0.01, False) > 0.5


class TestAgain:
    def made(self) -> tuple[nn.Linear, nn.Linear, Again]:
        first, second = nn.Linear(2, 3), nn.Linear(3, 1)
        calls = [seen(first, "first", Input(0)), seen(second, "second", Link(0, 0)), seen(second, "second", Input(1))]
        return first, second, Again(calls, CPU)

    def test_results_are_handed_on(self) -> None:
        first, second, again = self.made()
        x, y = torch.rand(4, 2), torch.rand(4, 3)
        one, other = again.forward([x, y])
        assert torch.equal(one, second(first(x))) and torch.equal(other, second(y))

    def test_names(self) -> None:
        first, second, again = self.made()
        assert again.modules == {"first": first, "second": second}
        twins = Again([seen(first, "net", Input(0)), seen(nn.Linear(2, 1), "net", Input(0))], CPU)
        assert list(twins.modules) == ["net", "net#2"]

    def test_a_step_leaves_nothing(self) -> None:
        first, second, again = self.made()
        before = [weight.detach().clone() for weight in (*first.parameters(), *second.parameters())]
        again.step([torch.rand(4, 2), torch.rand(4, 3)], again.forward)
        for weight, kept in zip([*first.parameters(), *second.parameters()], before, strict=True):
            assert torch.equal(weight, kept) and weight.grad is None

    def test_what_the_modules_change_is_undone(self) -> None:
        norm = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
        again = Again([seen(norm, "norm", Input(0))], CPU)
        before, stood = {name: value.clone() for name, value in norm.state_dict().items()}, torch.get_rng_state()
        with again.undone():
            again.step([torch.rand(4, 2)], again.forward)
            assert not torch.equal(norm[0].running_mean, before["0.running_mean"])
        assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
        assert torch.equal(torch.get_rng_state(), stood)

    def test_arguments_that_cannot_be_told_apart_end_it(self) -> None:
        first, second = nn.Linear(2, 3), nn.Linear(3, 1)
        again = Again([seen(first, "first", Input(0)), seen(second, "second", Input(1), opaque=True)], CPU)
        assert list(again.modules) == ["first"] and len(again.calls) == 1

    def test_under_autocast(self) -> None:
        first = nn.Linear(2, 3)
        call = replace(seen(first, "first", Input(0)), autocast=torch.bfloat16)
        (result,) = Again([call], CPU).forward([torch.rand(4, 2)])
        assert result.dtype is torch.bfloat16

    def test_without_gradients(self) -> None:
        first = nn.Linear(2, 3)
        (result,) = Again([replace(seen(first, "first", Input(0)), grad=False)], CPU).forward([torch.rand(4, 2)])
        assert not result.requires_grad


class TestHooks:
    def test_torchs_own_may_run_again(self) -> None:
        assert why_untried([torch.nn.utils.spectral_norm(nn.Linear(2, 2))]) == ""

    @pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
    def test_the_scripts_may_not(self, kind: str) -> None:
        net = nn.Sequential(nn.Linear(2, 2))
        getattr(net[0], kind)(lambda *args: None)
        assert "Linear has a hook of the script's" in why_untried([net])
