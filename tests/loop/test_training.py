"""Which loader trains and on which device, from the optimizer's steps."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.amp import GradScaler
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from pipediag.loop.training import Training


def optimizer(device: str = "cpu") -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=device))], lr=0.1)


def test_steps_are_counted_only_within_the_context() -> None:
    """Of optimizers that were made before and in it."""
    training, sgd = Training(), optimizer()
    sgd.step()
    with training.watching():
        for _ in range(3):
            sgd.step()
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]).step()
    sgd.step()
    assert training.steps == 4


@pytest.mark.parametrize(
    ("draws", "credits"),
    [
        # gradient accumulation; two loaders zipped; a second optimizer's step, as for a GAN; validation
        ([[1], [1, 1], [2, 1], [], [3]], {1: 3, 2: 1}),
        ([[2, 2, 2, 2, 2, 1], [1], [1], [1], []], {1: 4, 2: 1}),  # validation before a step
    ],
)
def test_loaders_drawn_from_since_the_previous_step_are_credited(
    draws: list[list[int]], credits: dict[int, int]
) -> None:
    training, sgd = Training(), optimizer()
    *steps, after = draws
    with training.watching():
        for drawn in steps:
            for loader in drawn:
                training.drew(loader)
            sgd.step()
        for loader in after:
            training.drew(loader)
    assert training.credits == credits


def test_which_loaders_were_drawn_from_since_one_was() -> None:
    training = Training()
    for loader in (1, 2, 3, 1):
        training.drew(loader)
    assert [training.drawn_since(loader) for loader in (1, 2, 3, 4)] == [[], [1, 3], [1], [1, 2, 3]]


def test_which_loader_a_thread_draws_from_ahead_of_the_loop() -> None:
    training, sgd = Training(), optimizer()
    with training.watching():
        training.drew(1)
        thread = threading.Thread(target=training.drew, args=(2,))
        thread.start()
        thread.join()
        assert not training.drawn_ahead(1) and not training.drawn_ahead(2), "nothing is known before the first step"
        sgd.step()
    assert not training.drawn_ahead(1) and training.drawn_ahead(2)


def test_an_optimizer_that_steps_in_another_thread_makes_no_thread_of_the_loop() -> None:
    """As hooks of parameters do on a GPU."""
    training, sgd = Training(), optimizer()
    with training.watching():
        training.drew(1)
        thread = threading.Thread(target=sgd.step)
        thread.start()
        thread.join()
    assert training.steps == 1 and not training.drawn_ahead(1)


@pytest.mark.parametrize("known", [None, torch.device("cuda")])
def test_the_device_of_the_first_optimizers_parameters(known: torch.device | None) -> None:
    training = Training()
    training.device = known
    with training.watching():
        optimizer("meta").step()
        optimizer("cpu").step()
    assert training.device == (known or torch.device("meta"))


def test_the_device_of_a_model_that_is_only_called() -> None:
    training = Training()
    with training.watching_models():
        torch.nn.ReLU()(torch.zeros(1))
        assert training.device is None
        torch.nn.Linear(1, 1, device="meta")(torch.zeros(1, 1, device="meta"))
    assert training.device == torch.device("meta")
    assert training.steps == 0


def test_backward_passes_count_while_models_are_watched() -> None:
    """A loop that updates its parameters by itself trains, although no optimizer steps."""
    training, weight = Training(), torch.ones(1, requires_grad=True)
    with training.watching_models():
        (2 * weight).backward()
        torch.autograd.backward([3 * weight])
    (2 * weight).backward()
    assert (training.backwards, training.steps) == (2, 0)
    assert weight.grad == torch.full((1,), 7.0)


def test_a_failing_step_does_not_count() -> None:
    training, sgd = Training(), optimizer()

    def closure() -> float:
        raise ValueError("loss is gone")

    with training.watching():
        with pytest.raises(ValueError):
            sgd.step(closure)
        assert training.steps == 0


def scaled_step(scaler: GradScaler, sgd: torch.optim.Optimizer, gradient: float) -> float:
    """Take a step of mixed-precision training with this gradient; return the change of the parameter."""
    (parameter,) = sgd.param_groups[0]["params"]
    before = parameter.item()
    sgd.zero_grad()
    scaler.scale((parameter * gradient).sum()).backward()
    scaler.step(sgd)
    scaler.update()
    return parameter.item() - before


@pytest.mark.parametrize("gradient, skipped", [(1.0, False), (float("inf"), True)])
def test_a_step_of_a_scaler_counts_once(gradient: float, skipped: bool) -> None:
    """Steps that the scaler skips, usually the first ones, count too: the loop trains nevertheless."""
    training, sgd, scaler = Training(), optimizer(), GradScaler("cpu", init_scale=8.0)
    with training.watching():
        for number in range(1, 4):
            training.drew(5)
            assert (scaled_step(scaler, sgd, gradient) == 0.0) is skipped
            assert training.steps == number
    assert training.credits == {5: 3}
    assert training.device == torch.device("cpu")


def test_a_scaler_that_does_not_scale() -> None:
    training, sgd = Training(), optimizer()
    with training.watching():
        assert scaled_step(GradScaler("cpu", enabled=False), sgd, 1.0) != 0.0
    assert training.steps == 1


def test_results_and_errors_of_a_scaler_are_passed_on() -> None:
    training, sgd, scaler = Training(), optimizer(), GradScaler("cpu")
    with training.watching():
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.scale(torch.zeros(1))
            scaler.step(sgd)  # without gradients
        assert training.steps == 0
        (parameter,) = sgd.param_groups[0]["params"]
        scaler.scale(parameter.sum()).backward()
        with pytest.raises(RuntimeError, match="Closure"):
            scaler.step(sgd, closure=lambda: 1.0)
    assert training.steps == 0


def test_scalers_are_restored() -> None:
    training, sgd, scaler, theirs = Training(), optimizer(), GradScaler("cpu", init_scale=8.0), GradScaler.step
    with training.watching():
        assert GradScaler.step is not theirs and GradScaler.step.__doc__ == theirs.__doc__
    assert GradScaler.step is theirs
    assert scaled_step(scaler, sgd, float("inf")) == 0.0
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
