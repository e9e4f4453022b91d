"""How far the training loop is in its epoch, and where it usually leaves."""

from __future__ import annotations

from pipediag.ladder.steering import Epochs


def test_whole_epochs() -> None:
    epochs = Epochs(length=3)
    for serial in (0, 1):
        assert (epochs.serial, epochs.handed, epochs.complete) == (serial, 0, False)
        epochs.handed = 3
        assert epochs.complete
        assert epochs.last_chance
        epochs.begin(3)
    assert epochs.horizon is None


def test_epochs_left_early() -> None:
    """The end of the last step before a ``break`` is not seen, so the last chance is one batch earlier."""
    epochs = Epochs(length=100)
    epochs.handed = 10
    assert epochs.seen_horizon == 10
    epochs.begin(100)
    assert epochs.horizon == 10
    assert not epochs.complete
    epochs.handed = 8
    assert not epochs.last_chance
    epochs.handed = 9
    assert epochs.last_chance


def test_the_farthest_break_counts() -> None:
    epochs = Epochs(length=100)
    for handed in (10, 30, 20):
        epochs.handed = handed
        epochs.begin(100)
    assert epochs.horizon == 30


def test_an_epoch_without_batches_does_not_count() -> None:
    epochs = Epochs(length=100)
    epochs.begin(100)
    assert epochs.horizon is None


def test_unknown_length() -> None:
    epochs = Epochs(length=None)
    epochs.handed = 5
    assert not epochs.complete
    assert not epochs.last_chance
    epochs.begin(None)
    assert epochs.horizon == 5


def test_a_horizon_of_one_leaves_a_chance() -> None:
    epochs = Epochs(length=100, horizon=1)
    assert not epochs.last_chance
    epochs.handed = 1
    assert epochs.last_chance


def test_a_new_iterator_for_every_batch() -> None:
    for joined, serial in ((True, 0), (False, 3)):
        epochs = Epochs(length=100, joined=joined)
        for _ in range(3):
            epochs.hand()
            epochs.begin(100)
            assert epochs.horizon == 1 and not epochs.last_chance
        assert epochs.serial == serial
    epochs = Epochs(length=1, joined=True)
    epochs.hand()
    epochs.begin(1)
    assert epochs.serial == 1, "its only batch is the whole epoch"


def test_length_may_change_between_epochs() -> None:
    epochs = Epochs(length=3)
    epochs.handed = 3
    epochs.begin(5)
    epochs.handed = 3
    assert not epochs.complete
