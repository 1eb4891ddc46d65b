"""Which deaths condemn a checkpoint, and which say nothing of it."""

import pytest

from speedtronic.errors import WorkerFailed
from speedtronic.worker.poison import Suspicion


def die(suspicion: Suspicion, step: int, times: int) -> None:
    for number in range(times):
        suspicion.loaded(step)
        suspicion.died(f"death {number}")


def test_deaths_in_a_row_after_the_load_condemn_it() -> None:
    suspicion = Suspicion(3)
    die(suspicion, 8, 2)
    assert suspicion.verdict() is None
    die(suspicion, 8, 1)
    verdict = suspicion.verdict()
    assert verdict is not None
    assert verdict["step"] == 8
    assert verdict["reason"].count("death") == 3


def test_deaths_before_the_load_has_finished_never_count() -> None:
    suspicion = Suspicion(1)
    for _ in range(9):
        suspicion.died("out of memory while loading")
    assert suspicion.verdict() is None


def test_a_fresh_start_is_no_suspect() -> None:
    suspicion = Suspicion(1)
    die(suspicion, 0, 9)
    assert suspicion.verdict() is None


def test_a_commit_acquits() -> None:
    suspicion = Suspicion(3)
    die(suspicion, 8, 2)
    suspicion.loaded(8)
    suspicion.committed()
    suspicion.died("after the commit, of what was trained since")
    die(suspicion, 8, 2)
    assert suspicion.verdict() is None


def test_each_checkpoint_has_its_own_count() -> None:
    suspicion = Suspicion(3)
    die(suspicion, 8, 2)
    die(suspicion, 12, 2)
    assert suspicion.verdict() is None
    die(suspicion, 12, 1)
    assert suspicion.verdict()["step"] == 12  # type: ignore[index]


def test_the_verdict_stands_until_another_checkpoint_was_loaded() -> None:
    suspicion = Suspicion(1)
    die(suspicion, 8, 1)
    first = suspicion.verdict()
    suspicion.died("before it could set anything aside")
    assert suspicion.verdict() == first is not None
    suspicion.loaded(4)
    assert suspicion.verdict() is None


def test_the_one_before_is_tried_once() -> None:
    suspicion = Suspicion(2)
    die(suspicion, 8, 2)
    assert suspicion.verdict() is not None
    suspicion.loaded(4)
    with pytest.raises(WorkerFailed, match=r"from step 4 died as well .* from step 8") as caught:
        suspicion.died("killed")
    assert not caught.value.retryable


def test_a_commit_of_the_one_before_ends_the_case() -> None:
    suspicion = Suspicion(2)
    die(suspicion, 8, 2)
    assert suspicion.verdict() is not None
    suspicion.loaded(4)
    suspicion.committed()
    die(suspicion, 8, 1)
    assert suspicion.verdict() is None
