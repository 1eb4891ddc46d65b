"""Which deaths condemn a checkpoint, and which say nothing of it."""

import pytest

from speedtronic.errors import WorkerFailed
from speedtronic.worker.poison import PoisonCounter


def die(counter: PoisonCounter, step: int, times: int) -> None:
    for number in range(times):
        counter.loaded(step)
        counter.died(f"death {number}")


def test_deaths_in_a_row_after_the_load_condemn_it() -> None:
    counter = PoisonCounter(3)
    die(counter, 8, 2)
    assert counter.rejection() is None
    die(counter, 8, 1)
    rejection = counter.rejection()
    assert rejection is not None
    assert rejection.step == 8
    assert rejection.reason.count("death") == 3


def test_deaths_before_the_load_has_finished_never_count() -> None:
    counter = PoisonCounter(1)
    for _ in range(9):
        counter.died("out of memory while loading")
    assert counter.rejection() is None


def test_a_fresh_start_is_no_suspect() -> None:
    counter = PoisonCounter(1)
    die(counter, 0, 9)
    assert counter.rejection() is None


def test_a_commit_acquits() -> None:
    counter = PoisonCounter(3)
    die(counter, 8, 2)
    counter.loaded(8)
    counter.committed()
    counter.died("after the commit, of what was trained since")
    die(counter, 8, 2)
    assert counter.rejection() is None


def test_each_checkpoint_has_its_own_count() -> None:
    counter = PoisonCounter(3)
    die(counter, 8, 2)
    die(counter, 12, 2)
    assert counter.rejection() is None
    die(counter, 12, 1)
    assert counter.rejection().step == 12  # type: ignore[union-attr]


def test_the_rejection_stands_until_another_checkpoint_was_loaded() -> None:
    counter = PoisonCounter(1)
    die(counter, 8, 1)
    first = counter.rejection()
    counter.died("before it could set anything aside")
    assert counter.rejection() == first is not None
    counter.loaded(4)
    assert counter.rejection() is None


def test_the_one_before_is_tried_once() -> None:
    counter = PoisonCounter(2)
    die(counter, 8, 2)
    assert counter.rejection() is not None
    counter.loaded(4)
    with pytest.raises(WorkerFailed, match=r"from step 4 died as well .* from step 8") as caught:
        counter.died("killed")
    assert not caught.value.retryable


def test_a_commit_of_the_one_before_ends_the_case() -> None:
    counter = PoisonCounter(2)
    die(counter, 8, 2)
    assert counter.rejection() is not None
    counter.loaded(4)
    counter.committed()
    die(counter, 8, 1)
    assert counter.rejection() is None
