"""Which loader trains, and where: known by the optimizer's steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from pipediag.ladder.training import Training


def optimizer(device: str = "cpu") -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=device))], lr=0.1)


def test_steps_are_counted_inside_only() -> None:
    training, sgd = Training(), optimizer()
    sgd.step()
    with training.watching():
        for _ in range(3):
            sgd.step()
    sgd.step()
    assert training.steps == 3


def test_optimizers_of_any_age_are_seen() -> None:
    training, old = Training(), optimizer()
    with training.watching():
        old.step()
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]).step()
    assert training.steps == 2


def test_credit_goes_to_what_was_drawn_since_the_step_before() -> None:
    training, sgd = Training(), optimizer()
    with training.watching():
        training.drew(1)
        sgd.step()
        training.drew(1)
        training.drew(1)  # gradient accumulation
        sgd.step()
        training.drew(2)  # two loaders zipped
        training.drew(1)
        sgd.step()
        sgd.step()  # a second optimizer, as for a GAN
        training.drew(3)  # validation
    assert training.credits == {1: 3, 2: 1}


def test_validation_before_a_step_is_credited_once() -> None:
    training, sgd = Training(), optimizer()
    with training.watching():
        for _ in range(5):
            training.drew(2)
        for _ in range(4):
            training.drew(1)
            sgd.step()
    assert training.credits == {1: 4, 2: 1}


def test_device_is_that_of_the_first_optimizers_parameters() -> None:
    training = Training()
    with training.watching():
        optimizer("meta").step()
        optimizer("cpu").step()
    assert training.device == torch.device("meta")


def test_a_device_that_was_given_stays() -> None:
    training = Training()
    training.device = torch.device("cpu")
    with training.watching():
        optimizer("meta").step()
    assert training.device == torch.device("cpu")


def test_device_of_a_model_that_is_only_called() -> None:
    training = Training()
    with training.watching_models():
        torch.nn.ReLU()(torch.zeros(1))
        assert training.device is None
        torch.nn.Linear(1, 1, device="meta")(torch.zeros(1, 1, device="meta"))
    assert training.device == torch.device("meta")
    assert training.steps == 0


def test_a_failing_step_is_no_step() -> None:
    training, sgd = Training(), optimizer()

    def closure() -> float:
        raise ValueError("loss is gone")

    with training.watching():
        with pytest.raises(ValueError):
            sgd.step(closure)
        assert training.steps == 0


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_are_removed(fails: bool) -> None:
    before = dict(optimizers._global_optimizer_post_hooks), dict(modules._global_forward_pre_hooks)
    training = Training()
    try:
        with training.watching(), training.watching_models():
            assert len(optimizers._global_optimizer_post_hooks) == len(before[0]) + 1
            assert len(modules._global_forward_pre_hooks) == len(before[1]) + 1
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert (dict(optimizers._global_optimizer_post_hooks), dict(modules._global_forward_pre_hooks)) == before
